"""Rounds of many kinds, bounded by means of a few."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import e1, mp, mpf

from dpacct.errors import NotConverged
from dpacct.rounds import Full, Phase, Round, Schedule, Uniform
from dpacct.tight.game import blends as blending
from dpacct.tight.game import kinds as rounding
from dpacct.tight.game import stages
from dpacct.tight.game.answers import upper_epsilon
from dpacct.tight.game.blends import Blend, Part, blends, share_of_less_noise
from dpacct.tight.game.game import game_delta
from dpacct.tight.game.gap import narrow_epsilon
from dpacct.tight.game.kinds import fewer_kinds
from dpacct.tight.game.plan import plan_at_delta
from dpacct.tight.game.strategies import add_pair, remove_pair
from dpacct.tight.game.triangles import Triangle, profile
from tests.oracles.fixed_size_game import fixed_size_last, two_rounds
from tests.tight.game.covers import small_cover

LOSSES = np.array([0.0, 1e-3, 0.02, 0.1, 0.4, 1.1, 3.0, 8.0])


def falling(kinds: int) -> Schedule:
    """Noise that falls and rates that grow, at paces of their own."""
    return Schedule(
        Phase(Round(4.0 * 0.5 ** (k / kinds), Uniform(40 + 7 * k % 53, 1000)), 1)
        for k in range(kinds)
    )


@pytest.mark.parametrize("ends", [(0.3, 0.5), (0.7, 1.4), (1.0, 1.05), (2.4, 7.0), (5.0, 900.0)])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.4, 0.9999, 1.0])
def test_shares_of_noise(ends: tuple[float, float], share: float) -> None:
    """s(z) is -E_1(1 / (2 z^2)) / 2 but for a constant; never less of the smaller noise."""
    less, more = ends
    noise = less**share * more ** (1 - share)
    with mp.workdps(40):
        exact = [e1(1 / (2 * mpf(z) ** 2)) for z in (less, noise, more)]
        wanted = float((exact[2] - exact[1]) / (exact[2] - exact[0]))
    found = share_of_less_noise(less, noise, more)
    assert wanted <= found <= wanted + 2e-3


def test_every_triangle_is_convex_in_noise_and_rate() -> None:
    """What theorem 9 says, at random triangles, noises and rates."""
    generator = np.random.default_rng(3)
    for _ in range(150):
        missing = generator.dirichlet([0.6, 0.6, 0.6])
        triangle = Triangle(float(min(missing[0], 0.97)), float(missing[1]))
        less, more = np.sort(np.exp(generator.uniform(math.log(0.4), math.log(12.0), 2)))
        rare, often = np.sort(np.exp(generator.uniform(math.log(3e-3), math.log(0.7), 2)))
        noise, rate = generator.uniform(less, more), generator.uniform(rare, often)
        here = share_of_less_noise(less, noise, more)
        most = min(1.0, (rate - rare) / (often - rare) + 1e-12)
        mean = sum(
            first * second * profile(q, z, triangle, LOSSES).upper
            for z, first in ((less, here), (more, 1 - here))
            for q, second in ((often, most), (rare, 1 - most))
        )
        assert (profile(rate, noise, triangle, LOSSES).lower <= mean).all()


@pytest.mark.parametrize("pair", [remove_pair, add_pair])
def test_both_strategies_are_convex_too(pair: object) -> None:
    for less, noise, more in ((0.5, 0.6, 1.5), (1.0, 1.2, 1.3), (2.0, 5.0, 9.0)):
        share = share_of_less_noise(less, noise, more)
        ends = [pair(0.1, z, LOSSES)[0].upper for z in (less, more)]  # type: ignore[operator]
        middle = pair(0.1, noise, LOSSES)[0].lower  # type: ignore[operator]
        assert (middle <= share * ends[0] + (1 - share) * ends[1]).all()


def test_few_kinds_stay_what_they_are() -> None:
    schedule = falling(20) + 3 * Round(9.0, Full(), "replace-one")
    assert all(blend == ((round_, 1.0),) for round_, blend in blends(schedule).items())


def scattered(kinds: int) -> Schedule:
    """Noise in [2, 6] and rates in [0.02, 0.1], each on its own."""
    generator = np.random.default_rng(7)
    noises = generator.uniform(2.0, 6.0, kinds).tolist()
    cohorts = generator.integers(2000, 10_001, kinds).tolist()
    return Schedule(
        Phase(Round(noise, Uniform(cohort, 100_000)), 1)
        for noise, cohort in zip(noises, cohorts, strict=True)
    )


def laws_of(schedule: Schedule) -> int:
    return len({part.round for blend in blends(schedule).values() for part in blend})


def test_laws_are_made_for_few_kinds_where_these_stand_close() -> None:
    """They take some tenths of a second each."""
    line = Schedule(Phase(Round(4 * 0.5 ** (k / 200), Uniform(1, 20)), 1) for k in range(200))
    for schedule in (falling(blending.FEW_KINDS), line):
        assert 20 <= laws_of(schedule + 3 * Round(9.0, Full(), "replace-one")) - 1 <= 64


def test_laws_are_made_for_more_kinds_where_these_stand_apart() -> None:
    """A few cells of each cost less than the distances; at most 256, fewer over many rounds."""
    schedule = scattered(200)
    assert all(blend == ((round_, 1.0),) for round_, blend in blends(schedule).items())
    for kinds, most in ((600, 256), (2000, 128)):
        assert blending.most_kinds(kinds) == most
        assert most / 2 < laws_of(scattered(kinds)) <= most
    assert blending.most_kinds(100_000) == blending.FEW_KINDS


def test_many_kinds_lie_between_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blending, "MOST_KINDS", 12)
    schedule = falling(60) + 3 * Round(9.0, Full(), "replace-one")
    found = blends.__wrapped__(schedule)
    assert found.keys() == schedule.distinct().keys()
    assert len({part.round for blend in found.values() for part in blend}) <= 13
    for round_, blend in found.items():
        assert math.fsum(part.share for part in blend) == pytest.approx(1.0, abs=1e-14)
        _check_means(round_, blend)


def _check_means(round_: Round, blend: Blend) -> None:
    rate = math.fsum(part.share * part.round.sampling_rate for part in blend)
    # Shares are of roundoff too much or too little, for which the pass makes room.
    assert round_.sampling_rate * (1 - 1e-15) <= rate <= round_.sampling_rate * (1 + 1e-9)
    noises = [part.round.noise_multiplier for part in blend]
    assert min(noises) <= round_.noise_multiplier <= max(noises)


def test_what_lies_between_costs_little_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not less than each kind on its own, and of second order more; rounding was of first."""
    schedule = Schedule(Phase(Round(4 * 0.5 ** (k / 19), Uniform(1, 20)), 1) for k in range(20))
    delta = 1e-4
    plan = plan_at_delta(schedule, delta, 4e-3, both=False)
    exact = upper_epsilon(schedule, plan, small_cover(), delta)
    monkeypatch.setattr(blending, "MOST_KINDS", 8)
    blends.cache_clear()
    between = upper_epsilon(schedule, plan, small_cover(), delta)
    blends.cache_clear()
    monkeypatch.setattr(rounding, "MOST_KINDS", 8)
    rounded = upper_epsilon(fewer_kinds.__wrapped__(schedule), plan, small_cover(), delta)
    assert exact <= between <= exact + 0.4 * (rounded - exact)


def test_two_rounds_between_others_by_brute_force(monkeypatch: pytest.MonkeyPatch) -> None:
    """All triangles in the plane, against means of four and of two other kinds."""
    first, last, budget = Round(1.4, Uniform(12, 100)), Round(2.0, Uniform(20, 100)), 0.2
    share, rare = share_of_less_noise(1.3, 1.4, 1.5), 0.6
    parts = {
        first: tuple(
            Part(Round(z, Uniform(cohort, 100)), by_noise * by_rate)
            for z, by_noise in ((1.3, share), (1.5, 1 - share))
            for cohort, by_rate in ((10, rare), (15, 1 - rare))
        ),
        last: (Part(Round(2.0, Uniform(18, 100)), 0.5), Part(Round(2.0, Uniform(22, 100)), 0.5)),
    }
    brute = two_rounds(0.12, 1.4, budget, 6, 241, fixed_size_last(0.2, 2.0))
    monkeypatch.setattr(stages, "blends", lambda _: parts)
    found = game_delta(1 * first + 1 * last, budget)
    assert brute * (1 - 1e-4) <= found.upper <= brute * 1.05


def test_laws_that_take_too_much_memory_are_refused_in_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "_MOST_KEPT", 1e3)
    words = "of 3 rounds would need more memory than is taken at a time$"
    with pytest.raises(NotConverged, match=words):
        game_delta(3 * Round(1.5, Uniform(50, 1000)), 1.0)
    with pytest.raises(NotConverged, match="need more memory than is taken at a time"):
        narrow_epsilon(3 * Round(1.5, Uniform(50, 1000)), 1e-5, 1e-3)
