"""Exact composition, with proven bounds."""
