"""Evidence: norms and landscapes."""
