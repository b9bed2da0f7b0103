"""Which fault is seen by which check."""
