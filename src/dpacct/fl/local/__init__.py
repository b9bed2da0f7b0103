"""Local training: steps, batches, losses."""
