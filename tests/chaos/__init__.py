"""Chaos: the whole product under seeded faults, then its record and its engine's are judged."""
