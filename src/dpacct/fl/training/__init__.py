"""Local training: one client after the other, or many at once."""
