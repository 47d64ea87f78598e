"""Where customers' containers run: one interface, a real engine behind it, and a fake."""
