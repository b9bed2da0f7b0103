"""The certified grid engine."""
