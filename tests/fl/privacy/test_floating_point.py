"""The floating-point attack: the last bits of naive noise tell who was there.

A client either contributes x = 2^-7 in each of 2^14 coordinates (norm 1) or stays away. The release
is the sum plus Gaussian noise of standard deviation 8. Where the noise nearly cancels x, the sum of
doubles is exact, and a multiple of the noise's own spacing there: 2^-60. A double of that size from
noise alone has a spacing of 2^-62 or less, and is rarely such a multiple. So one small coordinate
that is none proves that the client stayed away, whatever the budget says.

Source: Mironov 2012 (10.1145/2382196.2382264), Casacuberta et al. 2022 (10.1145/3548606.3560708).
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from dpacct import risk
from dpacct.empirical.confidence import clopper_pearson
from dpacct.fl.privacy.noise import GaussianNoise, Noise, SecureGaussianNoise
from dpacct.fl.privacy.randomness import Seeded
from dpacct.rounds import Full, Round

SIZE, STD, TRIALS = 2**14, 8.0, 100
# Drawn exactly, noise takes longer.
FEWER = 30
SHARE = 2.0**-7
SMALL, SPACING = SHARE / 4, 2.0**-60
LIMITS = [(0, SIZE, 1.0)]
CPU = torch.device("cpu")


def release(noise: Noise, source: Seeded, *, present: bool) -> Tensor:
    """The noisy sum of one client's contribution, or of nobody's."""
    rows = torch.full((int(present), SIZE), SHARE, dtype=torch.float64)
    total = noise.zeros(SIZE, CPU)
    total += noise.encode(rows, LIMITS, STD).sum(dim=0)
    return noise.add(total, LIMITS, STD, source)


def accuses_of_presence(released: Tensor) -> bool:
    """Whether every small coordinate could have come from the client's contribution."""
    small = released[released.abs() < SMALL]
    return bool((small.remainder(SPACING) == 0).all())


def accused(noise: Noise, trials: int, *, present: bool) -> int:
    """How many of the trials end in an accusation."""
    source = Seeded(9)
    return sum(accuses_of_presence(release(noise, source, present=present)) for _ in range(trials))


ALLOWED = risk.advantage(Round(STD, Full())).upper


def test_what_is_charged_allows_next_to_nothing():
    assert ALLOWED < 0.05


def test_naive_noise_gives_the_client_away():
    # At 99.99 % each, so that both hold but once in five thousand such tests.
    present = clopper_pearson(accused(GaussianNoise(), TRIALS, present=True), TRIALS, 0.9999)
    absent = clopper_pearson(accused(GaussianNoise(), TRIALS, present=False), TRIALS, 0.9999)
    assert present.value == 1.0
    assert present.lower - absent.upper > 10 * ALLOWED
    assert present.value - absent.value > 0.8


def test_secure_noise_gives_nothing_away():
    present = clopper_pearson(accused(SecureGaussianNoise(), FEWER, present=True), FEWER, 0.9999)
    absent = clopper_pearson(accused(SecureGaussianNoise(), FEWER, present=False), FEWER, 0.9999)
    assert present.lower - absent.upper <= ALLOWED
    assert present.value == absent.value


@pytest.mark.parametrize("present", [False, True])
def test_all_that_secure_noise_releases_lies_on_one_grid(present):
    released = release(SecureGaussianNoise(), Seeded(1), present=present)
    assert bool((released.remainder(2.0**-24) == 0).all())
