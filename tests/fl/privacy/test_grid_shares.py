"""Shares of noise in whole numbers, and a server to which they come in a sum."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import ndtr

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.noise import (
    LEAST_SIGMA,
    MAX_SHARES,
    SecureGaussianNoise,
    grid_exponent,
    share_sigma,
    with_share,
)
from dpacct.fl.privacy.randomness import Randomness, Seeded
from tests.fl.problems import flat, linear

LIMITS = [(0, 21, 0.5)]
GRID = 2.0 ** grid_exponent(LIMITS)


@pytest.mark.parametrize("sigma", [0.5, 0.8, 1.2])
def test_two_rounded_shares_are_nearly_a_post_processing_of_the_ideal_sum(sigma):
    """The factor 1 +- tau of docs/derivations/federated.md, where it is large enough to be seen.

    The sum of two shares has the law of round(sigma X1) + round(sigma X2). If the fractional part
    of a share were uniform whatever the ideal sum z, it would be k with probability 1 - |z - k|.
    """
    tau = 2 * sum(math.exp(-((math.pi * sigma * m) ** 2)) for m in (1, 2, 3))
    reach = np.arange(-40, 41)
    law = ndtr((reach + 0.5) / sigma) - ndtr((reach - 0.5) / sigma)
    summed = np.convolve(law, law)[40:-40]
    wide = math.sqrt(2) * sigma

    def processed(k):
        def density(z):
            return max(0.0, 1 - abs(z - k)) * math.exp(-((z / wide) ** 2) / 2)

        parts = (
            quad(density, k - 1, k, epsabs=0, epsrel=1e-12),
            quad(density, k, k + 1, epsabs=0, epsrel=1e-12),
        )
        return sum(part[0] for part in parts) / (wide * math.sqrt(2 * math.pi))

    ratios = [summed[40 + k] / processed(k) for k in range(6)]
    worst = max(abs(ratio - 1) for ratio in ratios)
    assert worst <= tau
    # The bound is no idle one.
    assert worst > tau / 100


def test_the_bound_of_the_proof_is_below_anything_that_is_computed():
    # sqrt(n) 1.0865^n exp(-(2 pi^2 sigma^2 - pi) / 2), as a logarithm, at the worst that is taken.
    logarithm = math.log(MAX_SHARES) / 2 + MAX_SHARES * math.log(1.0865)
    logarithm -= (2 * math.pi**2 * LEAST_SIGMA**2 - math.pi) / 2
    assert logarithm < -9e6


def test_shares_make_up_what_is_charged_and_no_less():
    std = 0.35 * (1 + 2.0**-40)
    for minimum in (1, 2, 3, 7, 1000):
        whole = minimum * share_sigma(LIMITS, std, minimum) ** 2
        assert whole >= (Fraction(0.35) / Fraction(GRID)) ** 2
        assert whole <= (Fraction(0.35) / Fraction(GRID)) ** 2 * Fraction(1 + 1e-9)


def test_a_row_is_what_secure_noise_sums_plus_a_share_of_the_right_spread():
    generator = torch.Generator().manual_seed(1)
    rows = 0.05 * torch.randn(300, 21, generator=generator)
    whole = SecureGaussianNoise().encode(rows, LIMITS, 0.4)
    found = with_share(rows, LIMITS, 0.4, 4, Randomness())
    scaled = (found - whole).double() * GRID / 0.2
    # A chi-square variate of 6300 degrees: outside by more than 5.5 deviations below 1e-7.
    assert abs(float(scaled.square().sum()) - 6300) < 5.5 * math.sqrt(2 * 6300)
    assert len(torch.unique(found - whole)) > 6000


@pytest.mark.parametrize(
    ("std", "minimum", "error"),
    [(1e-9, 4, Unsupported), (1e9, 4, Unsupported), (0.4, MAX_SHARES + 1, InvalidParameter)],
)
def test_what_is_not_proven_is_refused(std, minimum, error):
    with pytest.raises(error):
        with_share(torch.zeros(1, 21), LIMITS, std, minimum, Seeded(0))


def server(**options) -> fl.Server:
    settings = {
        "clip_norm": 0.5, "noise_multiplier": 0.7, "sampling": fl.Full(), "rounds": 2,
        "adjacency": "replace-one", "noise": fl.NoiseShares(4),
    }  # fmt: skip
    return fl.Server(linear(), 6, **(settings | options))


def test_a_sum_of_shares_moves_the_model_as_it_is_and_too_few_release_nothing():
    with server() as run:
        for total, came in ((torch.arange(21) * 2**20, 4), (torch.full((21,), 2**22), 3)):
            before = flat(run.model)
            opened = next(iter(run))
            opened.commit()
            opened.add_sum(range(came), total)
            report = opened.release()
            assert report.diagnostics.cohort_size == came
            assert report.released is (came == 4)
            expected = total.double() * GRID / 6 * report.released
            moved = flat(run.model) - before
            assert torch.allclose(moved.double(), expected, rtol=1e-5, atol=1e-7)


def test_a_sum_is_taken_once_committed_of_members_once_and_where_clients_add_the_noise():
    total, everybody = torch.zeros(21, dtype=torch.int64), range(6)

    def refused(error, words, call):
        with pytest.raises(error, match=words):
            call()

    with server() as run:
        opened = next(iter(run))
        refused(Unsupported, "commit", lambda: opened.add_sum(everybody, total))
        opened.commit()
        opened.commit()
        for who, what, words in (
            (everybody, total.double(), "whole numbers"),
            (everybody, total[:20], r"its shape is \[21\]"),
            ([0, 6], total, "not in"),
        ):
            refused(InvalidParameter, words, lambda: opened.add_sum(who, what))  # noqa: B023
        row = opened.bound(torch.zeros(1, 21))
        refused(Unsupported, "only their sum", lambda: opened.add([0], row))
        opened.add_sum(everybody, total)
        refused(InvalidParameter, "contributed", lambda: opened.add_sum([0], total))
        opened.release()
    with server(noise=fl.GaussianNoise()) as run:
        opened = next(iter(run))
        opened.commit()
        refused(Unsupported, "adds gaussian noise", lambda: opened.add_sum(everybody, total))
