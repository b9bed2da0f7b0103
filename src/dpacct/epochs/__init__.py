"""Epochs as people train: random allocation, shuffled batches, and users with many rows."""
