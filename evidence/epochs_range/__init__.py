"""Evidence: the range of random allocation."""
