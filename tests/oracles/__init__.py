"""Slow, independent truth: 50-digit arithmetic, sharing no code with the package.

Only mpmath, numpy and the standard library. Notation: shift 1, noise standard deviation s,
sampling rate q, u(x) = (2x - 1) / (2 s^2), r(x) = 1 - q + q e^u, phi the density of N(0, s^2).
"""
