"""Statistical tests of noise: is it Gaussian, as wide as charged, and fresh?

Every test keeps the probability of a false alarm below 1e-6, so that an alarm means something.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # pyright: ignore[reportMissingTypeStubs]

FALSE_ALARM = 1e-6
# Standard normal quantile for a two-sided test at FALSE_ALARM.
_SIGMAS = float(-ndtri(FALSE_ALARM / 2))
_BINS = 32

Draws = NDArray[np.float64]


def wrong_std(draws: Draws, std: float) -> str:
    """What is wrong with the spread of noise, or nothing.

    Args:
        draws: residuals, float64 [rounds, k]. std: that was charged.
    """
    count = draws.size
    found = math.sqrt(float(np.square(draws).mean()))
    # The square of the sample std has relative standard deviation sqrt(2 / n).
    if abs((found / std) ** 2 - 1) <= _SIGMAS * math.sqrt(2 / count) + 1e-6:
        return ""
    return f"its standard deviation is {found:.4g}, and {std:.4g} is charged"


def wrong_mean(draws: Draws, std: float) -> str:
    """What is wrong with the mean, or nothing."""
    mean = float(draws.mean())
    if abs(mean) <= _SIGMAS * std / math.sqrt(draws.size) * (1 + 1e-6) + 1e-9 * std:
        return ""
    return f"its mean is {mean:.3g}, not zero"


def wrong_scale(draws: Draws, exact: NDArray[np.float64], std: float) -> str:
    """Whether the noise holds a part of the sum itself, which then counts more or less than once.

    Args:
        draws: release minus exact sum, float64 [rounds, k]. exact: the sum [k]. std: of the noise.
    """
    length = float(np.linalg.norm(exact))
    if length == 0.0:
        return ""
    part = float((draws @ exact).mean()) / length**2
    if abs(part) <= _SIGMAS * std / (length * math.sqrt(len(draws))) * (1 + 1e-6) + 1e-6:
        return ""
    return f"a contribution counts {1 + part:.3g} times"


def wrong_shape(draws: Draws, std: float) -> str:
    """What is wrong with the distribution, or nothing: a chi-square test on equal bins."""
    scaled = draws.ravel() / std
    counts = np.bincount(
        np.minimum((ndtr(scaled) * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS
    )
    expected = scaled.size / _BINS
    statistic = float(np.square(counts - expected).sum() / expected)
    # Wilson and Hilferty: the cube root of a chi-square variate is nearly normal.
    free = _BINS - 1
    score = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    if score <= _SIGMAS:
        return ""
    return f"it is not Gaussian (chi-square {statistic:.0f} with {free} degrees of freedom)"


def repeated(draws: Draws) -> str:
    """Whether noise of one round shows up in another, or along a round, or nothing."""
    rounds, size = draws.shape
    centered = draws / np.maximum(np.sqrt(np.square(draws).mean(axis=1, keepdims=True)), 1e-300)
    limit = (_SIGMAS + 2) / math.sqrt(size)
    between = centered @ centered.T / size
    worst = float(np.abs(between - np.diag(np.diag(between))).max()) if rounds > 1 else 0.0
    if worst > limit:
        return f"two rounds have the same noise (correlation {worst:.2f})"
    for lag in (1, 2, 3, 7):
        if size > lag:
            along = float((centered[:, :-lag] * centered[:, lag:]).mean())
            if abs(along) > _SIGMAS / math.sqrt(rounds * (size - lag)):
                return f"its coordinates are correlated at lag {lag} ({along:.3f})"
    return ""
