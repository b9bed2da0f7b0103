"""Dominating pairs of one round, and the integrals over them."""
