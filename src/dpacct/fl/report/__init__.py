"""Reports of a run, and their receivers."""
