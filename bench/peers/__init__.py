"""Other systems doing the same work, each set up as its own documentation recommends."""
