"""Reports of a run, and who receives them."""
