"""The law of the noise, of both constructions, and of noise shares."""

from __future__ import annotations

import math
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.privacy.findings import repeated, wrong_mean, wrong_shape, wrong_std
from dpacct.fl.privacy.noise import GaussianNoise, SecureGaussianNoise, grid_exponent
from dpacct.fl.privacy.randomness import Randomness, Seeded, draw_below, draw_cohort, normals
from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from tests.fl.problems import federation, flat, linear, make_clients

LIMITS = [(0, 5000, 0.3)]
NOISES = [GaussianNoise(), SecureGaussianNoise()]


def draws_of(noise, std: float, rounds: int = 12, size: int = 5000):
    rows = []
    for _ in range(rounds):
        total = noise.zeros(size, torch.device("cpu"))
        rows.append(noise.add(total, LIMITS, std, Randomness()).numpy())
    return np.stack(rows)


@pytest.mark.parametrize(("noise", "std"), [(NOISES[0], 47.0), (NOISES[1], 1e-3)])
def test_noise_is_gaussian_of_the_given_deviation_and_never_repeats(noise, std):
    # So many that a standard deviation of 1 % less is seen.
    draws = draws_of(noise, std, rounds=4, size=100_000)
    assert not wrong_std(draws, std)
    assert wrong_std(0.99 * draws, std)
    assert not wrong_mean(draws, std)
    assert not wrong_shape(draws, std)
    assert not repeated(draws)


def test_the_statistical_tests_have_power():
    generator = np.random.default_rng(0)
    good = generator.standard_normal((12, 5000))
    assert wrong_std(0.97 * good, 1.0)
    assert wrong_mean(good + 0.03, 1.0)
    assert wrong_shape(generator.laplace(scale=0.5**0.5, size=(12, 5000)), 1.0)
    assert wrong_shape(generator.uniform(-(3**0.5), 3**0.5, size=(12, 5000)), 1.0)
    assert repeated(np.stack([good[0], good[1], good[0]]))
    assert repeated(good.cumsum(axis=1) / 50)
    assert repeated(np.repeat(good[:, :2500], 2, axis=1))
    assert not repeated(good)


def test_the_tail_of_both_is_as_heavy_as_it_should_be():
    for noise in NOISES:
        draws = draws_of(noise, 1.0, rounds=60).ravel()
        beyond = int((np.abs(draws) > 4).sum())
        expected = draws.size * math.erfc(4 / 2**0.5)
        assert abs(beyond - expected) < 6 * expected**0.5 + 3


# Whole-number sums.


@given(st.integers(0, 2**31), st.floats(1e-3, 1e3), st.integers(-3, 3))
def test_encoded_rows_are_whole_and_exactly_within_the_limit(seed, limit, exponent):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 300, generator=generator) * 10.0**exponent
    inside = rows * (limit / rows.double().norm(dim=1, keepdim=True)).float() * 0.9999
    limits = [(0, 300, limit)]
    encoded = SecureGaussianNoise().encode(inside, limits, 1.0)
    grid = Fraction(2) ** grid_exponent(limits)
    for row, origin in zip(encoded, inside, strict=True):
        assert sum(int(v) ** 2 for v in row) * grid**2 <= Fraction(limit) ** 2
        back = row.double() * float(grid)
        assert float((back - origin.double()).abs().max()) <= float(grid)
        assert bool((back.abs() <= origin.double().abs()).all())


def test_noise_too_large_for_the_grid_is_refused():
    noise = SecureGaussianNoise()
    with pytest.raises(Unsupported, match="grid"):
        noise.add(noise.zeros(3, torch.device("cpu")), LIMITS, 1e5, Randomness())


# Shares, and runs with them and with secure noise.


@pytest.mark.usefixtures("uncounted")
def test_a_seeded_run_with_secure_noise_trains_and_repeats():
    finals, clients = [], make_clients([20] * 20)
    for vectorize in (False, True):
        run = federation(
            linear(), clients, secure_noise=True, vectorize=vectorize, seed=3,
            noise_multiplier=0.15, local=fl.SGD(lr=1.0, epochs=2, batch_size=5),
        )  # fmt: skip
        assert run.run().noise_std == pytest.approx(0.15)
        finals.append(flat(run.model))
    assert torch.allclose(*finals, atol=1e-3)
    together = fl.ClientData(
        torch.cat([c.inputs for c in clients]), torch.cat([c.targets for c in clients])
    )
    assert fl.evaluate(run.model, torch.nn.functional.cross_entropy, together).accuracy > 0.7


def test_shares_add_up_to_what_is_charged_and_more_is_reported():
    shares = fl.NoiseShares(minimum=4)
    assert [shares.actual_std(1.0, arrived) for arrived in (3, 4, 9)] == [None, 1.0, 1.5]
    with federation(
        linear(), make_clients([4] * 8), noise=fl.NoiseShares(2), adjacency="replace-one",
        noise_multiplier=4.0, seed=1,
    ) as run:  # fmt: skip
        for report in run:
            assert report.released
            arrived = report.diagnostics.cohort_size
            assert report.noise_std == pytest.approx(4 * (arrived / 2) ** 0.5)
    with pytest.raises(InvalidParameter, match="whole cohort"):
        fl.NoiseShares(5).check(Uniform(4, 9), Adjacency.REPLACE_ONE, 9)


# Randomness.


@pytest.mark.parametrize("source", [Randomness(), Seeded(3)])
def test_cohorts_have_the_law_of_their_scheme(source):
    counts = np.zeros(50)
    for _ in range(400):
        cohort = draw_cohort(Uniform(5, 50), 50, source)
        assert len(set(cohort)) == 5
        assert cohort == sorted(cohort)
        counts[cohort] += 1
    expected = 400 * 0.1
    chi_square = float(((counts - expected) ** 2 / (expected * 0.9)).sum())
    assert abs(chi_square - 50) < 6 * 10
    sizes = [len(draw_cohort(Poisson(0.3), 100, source)) for _ in range(400)]
    assert abs(np.mean(sizes) - 30) < 6 * (21 / 400) ** 0.5
    assert abs(np.var(sizes) - 21) < 6 * 21 * (2 / 400) ** 0.5
    assert draw_cohort(Full(), 4, source) == [0, 1, 2, 3]
    assert draw_cohort(Poisson(1.0), 4, source) == [0, 1, 2, 3]


def test_large_populations_are_drawn_in_blocks():
    cohort = draw_below(2_500_000, 1e-4, Seeded(0))
    assert abs(len(cohort) - 250) < 6 * 250**0.5
    assert cohort == sorted(cohort)
    assert cohort[-1] > 2_200_000


class Bits:
    """A source of these words of 64 bits."""

    private = False

    def __init__(self, *words):
        self.words = words

    def take(self, count):
        return np.array(self.words, dtype="<u8").tobytes()[:count].ljust(count, b"\0")


def test_a_client_joins_if_its_coin_is_below_a_threshold_that_is_never_above_the_rate():
    for rate in (0.3, 2.0**-20, 0.5, 3 * 2.0**-16 + 2.0**-50, 1 - 2.0**-53):
        threshold = math.floor(rate * 2**64)
        for joins in (0, 1, threshold - 2**40, threshold - 1):
            assert draw_below(1, rate, Bits(joins)) == [0]
        for stays in (threshold, threshold + 1, 2**64 - 1):
            assert draw_below(1, rate, Bits(stays)) == []
    # Of a small rate the product has a fraction, which is cut off.
    assert draw_below(1, 1e-10, Bits(math.floor(1e-10 * 2**64))) == []
    assert draw_below(1, 0.0, Bits(0)) == []
    assert draw_below(5, 2.0**-16, Bits(2**48 - 1, 0, 2**48, 2**63, 5)) == [0, 1, 4]


def test_noise_on_the_cpu_has_a_key_of_all_its_bits():
    """PyTorch's own generator keeps 32 bits of a seed: two that agree there give equal noise."""
    one = torch.Generator().manual_seed(5)
    two = torch.Generator().manual_seed(5 + 2**32)
    assert torch.equal(torch.randn(4, generator=one), torch.randn(4, generator=two))

    def drawn(last):
        source = SimpleNamespace(take=lambda count: bytes(count - 1) + bytes([last]), private=False)
        return normals(source, 4, torch.device("cpu"))

    assert not torch.equal(drawn(0), drawn(1))


def test_a_saved_source_goes_on_where_it_was():
    source = Seeded(8)
    source.take(100)
    state = source.save()
    expected = source.take(33)
    other = Seeded(1)
    other.restore(state)
    assert other.take(33) == expected
    assert Randomness().save() is None
    with pytest.raises(InvalidParameter, match="with a seed"):
        Randomness().restore(state)
    with pytest.raises(InvalidParameter, match="without a seed"):
        Seeded(0).restore(None)
