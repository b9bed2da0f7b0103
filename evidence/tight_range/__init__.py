"""Evidence: the range of the tight accountant."""
