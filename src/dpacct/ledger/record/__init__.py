"""The record: what entries say, what they come to, and the rules they keep."""
