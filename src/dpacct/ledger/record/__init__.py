"""The record: the content of entries, their totals, and their rules."""
