"""Evidence: NormEC over beta."""
