"""Evidence of missing noise: its value, its level under every rule, and what it shows."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import norm

from dpacct.empirical import confidence as noise
from dpacct.empirical.confidence import NoiseEvidence

# What an audit has for one of its three tests.
ERROR = 1e-6 / 3
SIZES = (800, 40, 160, 4)


def evidence(rows, sizes=None, rounding=0.0, carried=None) -> tuple[float, str]:
    found = NoiseEvidence(sizes or [rows.shape[1]])
    for place, row in enumerate(rows):
        there = np.ones(len(row), dtype=bool) if carried is None else carried[place]
        found.see(row, rounding, there)
    return found.conclude()


def seen(rows, sizes=SIZES, error=ERROR, **options) -> bool:
    return evidence(rows, sizes, **options)[0] >= -math.log(error)


def drawn(seed, rounds=20, sizes=SIZES):
    return np.random.default_rng(seed).normal(size=(rounds, sum(sizes)))


@given(st.integers(0, 99), st.sampled_from([(3, 2), (1, 0, 40), (70,)]), st.integers(1, 4))
def test_it_is_the_mean_of_products_of_density_ratios(seed, sizes, rounds):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(rounds, sum(sizes))) * random.choice([1e-5, 0.3, 1.0])
    carried = random.random(rows.shape) < 0.8
    # The logarithm of each density over that of the charged noise.
    ratios = [norm.logpdf(rows, 0, f) - norm.logpdf(rows) for f in noise.FRACTIONS]
    silent = norm.logpdf(rows, 0, noise.SILENT) - norm.logpdf(rows) + math.log(noise.SHARE)
    ratios.append(np.logaddexp(silent, math.log(1 - noise.SHARE)))
    ratios = np.where(carried, ratios, 0.0)
    ends = [0, *np.cumsum(sizes)]
    tensors = [slice(*pair) for pair in itertools.pairwise(ends)]
    blocks = [slice(start, start + 32) for start in range(0, ends[-1], 32)]

    def mean(parts, times):
        values = [ratios[:, times, part].sum(axis=(1, 2)) for part in parts]
        return logsumexp(values) - math.log(np.size(values))

    every, alone = slice(0, rounds), [slice(j, j + 1) for j in range(ends[-1])]
    terms = [mean(tensors, every), mean(alone, every)]
    for t in range(rounds):
        weight = math.log((t + 1) * (t + 2))
        terms += [mean(parts, slice(t, t + 1)) - weight for parts in (tensors, blocks)]
    exact = logsumexp(terms) - math.log(4)
    found, _ = evidence(rows, sizes, carried=carried)
    # Rounded down, by a share of the largest exponents.
    assert exact - 1e-4 * max(1.0, abs(exact)) <= found <= exact + 1e-9 * max(1.0, abs(exact))


def rounds_as_planned(random):
    """Sound noise on a few coordinates, and terms that do not depend on it."""
    shift = random.choice([0.0, 2.0], size=6)
    return [(random.normal(size=6) + shift, np.full(6, True)) for _ in range(3)]


def follows_quiet_coordinates(random):
    """A mask that keeps what was quiet in the last round, and a stop once all of it was."""
    rows, carried = [], np.full(6, True)
    for _ in range(12):
        rows.append((random.normal(size=6), carried))
        quiet = np.abs(rows[-1][0]) < 0.4
        if quiet[carried].all():
            break
        carried = quiet if quiet.any() else np.full(6, True)
    return rows


def louder_noise(random):
    return [(1.5 * random.normal(size=6), np.full(6, True)) for _ in range(3)]


def rounded_noise(random):
    """Half of the values are rounded to zero."""
    drawn = random.normal(size=(2, 6))
    return [(np.where(np.abs(row) < 0.67, 0.0, row), np.full(6, True)) for row in drawn]


@pytest.mark.parametrize(
    ("run", "rounding"),
    [
        (rounds_as_planned, 0.0),
        (follows_quiet_coordinates, 0.0),
        (louder_noise, 0.0),
        (rounded_noise, 0.67),
    ],
)
def test_a_sound_run_is_seldom_called_a_fault(run, rounding):
    random, wrong, trials, error = np.random.default_rng(4), 0, 400, 0.05
    for _ in range(trials):
        rows, carried = zip(*run(random), strict=True)
        wrong += seen(np.array(rows), [2, 4], error, rounding=rounding, carried=carried)
    # At most 20 on average. 38 and more have a probability below 1e-4 then.
    assert wrong < 38


def test_without_its_rounding_a_grid_looks_like_missing_noise():
    random = np.random.default_rng(4)
    rows = [rounded_noise(random) for _ in range(100)]
    wrong = sum(seen(np.array([row for row, _ in run]), [2, 4], 0.05) for run in rows)
    assert wrong > 20


def silent(rounds, coordinates, factor=0.0):
    """Noise that is this part of the charged one in some rounds and coordinates."""

    def spoiled(rows):
        changed = rows.copy()
        changed[np.ix_(rounds, coordinates)] *= factor
        return changed

    return spoiled


EVERY, ALL = range(20), range(sum(SIZES))


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        (silent([11], ALL), "round 12, tensor 1"),
        (silent([3, 17], ALL), "tensor 1"),
        (silent(EVERY, [500]), "coordinate 501"),
        (silent(EVERY, range(0, 1004, 100)), "tensor 1"),
        (silent(EVERY, range(840, 1000)), "tensor 3"),
        (silent([7], range(640, 672)), "round 8, block 21"),
        (silent([7], range(840, 1000), 0.5), "round 8, tensor 3"),
        (silent(EVERY, ALL, 0.95), "tensor 1"),
        # Some rounds of a coordinate, and a part of a block. Three values are not enough.
        (silent([3, 8, 9, 17], [500]), "coordinate 501"),
        (silent([3, 8, 9], [500]), None),
        (silent([19], range(5)), "round 20, block 1"),
        (silent([19], range(3)), None),
    ],
)
def test_noise_that_is_missing_somewhere_is_seen(fault, place):
    # Rounding of a release leaves a little where no noise is.
    found, where = evidence(fault(drawn(5)) + 1e-7, SIZES, rounding=1e-7)
    assert (found >= -math.log(ERROR)) == (place is not None)
    assert place in (None, where)


@pytest.mark.parametrize("rounds", [1, 20, 400])
def test_the_fewest_silent_values_are_those_of_the_proof(rounds):
    """k of n values are silent in one block of the last round: (w / f)^k (1 - w)^(n - k) pays."""
    parts = -(-sum(SIZES) // noise.BLOCK)
    price = 4 * (len(noise.FRACTIONS) + 1) * parts * rounds * (rounds + 1) / ERROR
    gain, loss = math.log(noise.SHARE / noise.SILENT), math.log(1 - noise.SHARE)
    least = math.ceil((math.log(price) - 32 * loss) / (gain - loss))
    rows = drawn(6, rounds)
    rows[-1, 96:128] = 5.0
    for count, expected in ((least, True), (least - 1, False)):
        quiet = rows.copy()
        quiet[-1, 100 : 100 + count] = 0.0
        assert seen(quiet) == expected
