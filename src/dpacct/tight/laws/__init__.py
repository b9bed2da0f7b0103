"""Laws of the privacy loss of one round, tilted."""
