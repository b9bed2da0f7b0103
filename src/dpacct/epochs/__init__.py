"""Epochs as people train: random allocation, and shuffled batches of fixed size."""

from __future__ import annotations

from dpacct.epochs.epoch import Epoch, ShuffledEpoch

__all__ = ["Epoch", "ShuffledEpoch"]
