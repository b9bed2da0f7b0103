"""Renyi divergences: curves, conversion, the accountants built on them, the odometer."""
