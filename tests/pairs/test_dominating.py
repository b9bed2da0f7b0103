"""The pairs against explicit data sets: every cohort is listed, so the mechanism is known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dpacct.numerics.rounding import Array, Bounds
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
    achieved_pair,
    proven_pair,
)
from dpacct.pairs.moments import log_moment, replacement_log_moment, symmetrized_log_moment
from dpacct.pairs.one_round import one_round_delta
from dpacct.renyi.curve import rdp
from dpacct.rounds import Adjacency, Full, Poisson, Round, Sampling, Uniform
from tests.strategies import (
    FEWER,
    log_uniform,
    noise_multipliers,
    orders,
    samplings,
    uniform_schemes,
)

ORDERS = (1.2, 2.0, 4.5, 12.0)
EPSILONS = (0.0, 0.1, 0.5, 1.5)
# One client's contribution, clipped to one. The extremes are where the worst cases are.
contributions = st.one_of(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(-1.0, 1.0))
# Wide enough for the tilted densities: 12 shifts of 2, and 12 standard deviations beyond.
GRID = np.linspace(-66.0, 66.0, 3301)
STEP = GRID[1] - GRID[0]
# The trapezoid rule loses digits where the positive part begins.
KINK = 4e-4


def log_density(clients: Sequence[float], sampling: Sampling, noise: float) -> Array:
    """log density of one release on `GRID`: a mixture over all cohorts, shape (3301,)."""
    n = len(clients)
    match sampling:
        case Full():
            cohorts = [(tuple(range(n)), 1.0)]
        case Poisson(q):
            subsets = [c for k in range(n + 1) for c in itertools.combinations(range(n), k)]
            cohorts = [(c, q ** len(c) * (1 - q) ** (n - len(c))) for c in subsets]
        case Uniform(cohort_size, _):
            subsets = list(itertools.combinations(range(n), cohort_size))
            cohorts = [(c, 1 / len(subsets)) for c in subsets]
    means = np.array([sum(clients[i] for i in cohort) for cohort, _ in cohorts])
    weights = np.array([weight for _, weight in cohorts])
    kept = weights > 0
    exponents = np.log(weights[kept]) - (GRID[:, None] - means[kept]) ** 2 / (2 * noise**2)
    return np.logaddexp.reduce(exponents, axis=1) - np.log(noise * np.sqrt(2 * np.pi))


def renyi(log_p: Array, log_q: Array, order: float) -> float:
    """Renyi divergence by the trapezoid rule, which is exact to all digits here."""
    exponents = order * log_p + (1 - order) * log_q
    return float(np.logaddexp.reduce(exponents) + np.log(STEP)) / (order - 1)


def hockey_stick(log_p: Array, log_q: Array, epsilon: float) -> float:
    """delta(eps) on the grid, to within `KINK`."""
    return float(np.sum(np.maximum(np.exp(log_p) - np.exp(epsilon + log_q), 0.0)) * STEP)


@st.composite
def neighbors(draw: st.DrawFn) -> tuple[Round, list[float], list[float]]:
    """A round and two neighboring data sets of at most five clients."""
    others = draw(st.lists(contributions, min_size=1, max_size=4))
    target, replacement = draw(contributions), draw(contributions)
    adjacency = draw(st.sampled_from(Adjacency))
    noise = draw(log_uniform(0.8, 3.0))
    kind = draw(st.sampled_from(["poisson", "uniform", "full"]))
    first = [*others, target]
    second = {
        Adjacency.ADD_REMOVE: others,
        Adjacency.REPLACE_ONE: [*others, replacement],
        Adjacency.ZERO_OUT: [*others, 0.0],
    }[adjacency]
    if kind == "uniform":
        # Under add-remove either of the two may be the data set that the round speaks about.
        clients = draw(st.sampled_from([len(first), len(second)]))
        sampling = Uniform(draw(st.integers(1, min(len(first), len(second)))), clients)
    else:
        sampling = Poisson(draw(log_uniform(0.01, 1.0))) if kind == "poisson" else Full()
    return Round(noise, sampling, adjacency), first, second


@given(case=neighbors())
def test_no_data_sets_exceed_the_proven_curve_and_pair(case):
    """delta(eps) for eps >= 0; where a round has two pairs, one for each direction."""
    round_, first, second = case
    p = log_density(first, round_.sampling, round_.noise_multiplier)
    q = log_density(second, round_.sampling, round_.noise_multiplier)
    for value in rdp(round_, orders=ORDERS):
        worst = max(renyi(p, q, value.order), renyi(q, p, value.order))
        assert worst <= value.upper * (1 + 1e-9) + 1e-12
    pairs = {direction: proven_pair(round_, direction) for direction in Direction}
    for epsilon in EPSILONS:
        allowed = {
            # For eps >= 0 the pair of C_q has the delta of the remove pair.
            direction: one_round_delta(
                epsilon,
                SampledGaussianPair(pair.sampling_rate, pair.noise_std, Direction.REMOVE)
                if isinstance(pair, SymmetrizedPair)
                else pair,
            ).upper
            for direction, pair in pairs.items()
        }
        assert hockey_stick(p, q, epsilon) <= allowed[Direction.REMOVE] + KINK
        assert hockey_stick(q, p, epsilon) <= allowed[Direction.ADD] + KINK


CROWD = 3


def pair_log_moment(pair: DominatingPair, direction: Direction, order: float) -> Bounds:
    """log E_Q[(P/Q)^order]."""
    match pair:
        case SymmetrizedPair(q, s):
            return symmetrized_log_moment(order, q, s)
        case ReplacementPair(q, s):
            return replacement_log_moment(order, q, s)
        case SampledGaussianPair(q, s, _):
            return log_moment(order if direction is Direction.REMOVE else 1 - order, q, s)


def worst_known(round_: Round) -> tuple[list[float], list[float]]:
    """The data sets that the achieved pair claims, as (more, less) private data."""
    crowd = [-1.0] * CROWD
    match round_.sampling, round_.adjacency:
        case Uniform(), Adjacency.ADD_REMOVE:
            # The client that joins displaces one of the crowd.
            return [*crowd, 1.0], crowd
        case ((Uniform() | Full()), Adjacency.REPLACE_ONE):
            return [*crowd, 1.0], [*crowd, -1.0]
        case Poisson(), Adjacency.REPLACE_ONE:
            return [*([0.0] * CROWD), 1.0], [*([0.0] * CROWD), -1.0]
        case _, Adjacency.ADD_REMOVE:
            return [*([0.0] * CROWD), 1.0], [0.0] * CROWD
        case _:
            return [*([0.0] * CROWD), 1.0], [0.0] * (CROWD + 1)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("sampling", [Poisson(0.3), Uniform(2, CROWD + 1), Full()])
@FEWER
@given(noise=log_uniform(0.8, 3.0))
def test_the_achieved_pair_is_reached_by_data_sets(sampling, adjacency, noise):
    round_ = Round(noise, sampling, adjacency)
    first, second = worst_known(round_)
    assert len(first) == CROWD + 1
    p, q = (log_density(d, sampling, noise) for d in (first, second))
    for direction, (a, b) in ((Direction.REMOVE, (p, q)), (Direction.ADD, (q, p))):
        pair = achieved_pair(round_, direction)
        for epsilon in EPSILONS:
            assert one_round_delta(epsilon, pair).lower <= hockey_stick(a, b, epsilon) + KINK
        for order in ORDERS:
            claimed = pair_log_moment(pair, direction, order)
            assert claimed.lower / (order - 1) <= renyi(a, b, order) * (1 + 1e-9) + 1e-12


@FEWER
@given(
    sampling=samplings(),
    adjacency=st.sampled_from(Adjacency),
    noise=noise_multipliers(0.2, 100.0),
    order=orders(1e-3, 200.0),
)
def test_proven_is_never_below_achieved(sampling, adjacency, noise, order):
    round_ = Round(noise, sampling, adjacency)
    for direction in Direction:
        proven, achieved = proven_pair(round_, direction), achieved_pair(round_, direction)
        upper = pair_log_moment(proven, direction, order).upper
        assert pair_log_moment(achieved, direction, order).lower <= upper


# Which pair stands for which round.


@pytest.mark.parametrize("direction", list(Direction))
@given(q=log_uniform(1e-9, 1.0), noise=noise_multipliers())
def test_poisson_zero_out_is_add_remove(direction, q, noise):
    rounds = [Round(noise, Poisson(q), a) for a in (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE)]
    for pair_of in (proven_pair, achieved_pair):
        first, second = (pair_of(round_, direction) for round_ in rounds)
        assert first == second == SampledGaussianPair(q, noise, direction)


@pytest.mark.parametrize("direction", list(Direction))
@given(scheme=uniform_schemes(), noise=noise_multipliers())
def test_a_fixed_cohort_moves_by_two_clips(direction, scheme, noise):
    """An added client displaces another; m / N is rounded to the safe side of each bound."""
    assume(scheme.cohort_size < scheme.num_clients)
    rate = Fraction(scheme.cohort_size, scheme.num_clients)
    added = proven_pair(Round(noise, scheme, "add-remove"), direction)
    assert added == SampledGaussianPair(added.sampling_rate, noise / 2, direction)
    replaced = proven_pair(Round(noise, scheme, "replace-one"), direction)
    assert replaced == SymmetrizedPair(added.sampling_rate, noise / 2)
    assert rate <= Fraction(added.sampling_rate) <= rate * (1 + Fraction(1, 10**15))
    for adjacency, shift in (("add-remove", 2), ("replace-one", 2), ("zero-out", 1)):
        reached = achieved_pair(Round(noise, scheme, adjacency), direction)
        assert reached == SampledGaussianPair(reached.sampling_rate, noise / shift, direction)
        assert rate * (1 - Fraction(1, 10**15)) <= Fraction(reached.sampling_rate) <= rate


@pytest.mark.parametrize("direction", list(Direction))
@given(noise=noise_multipliers())
def test_full_participation_under_replacement_has_half_the_noise(direction, noise):
    for pair_of in (proven_pair, achieved_pair):
        replaced = pair_of(Round(noise, Full(), "replace-one"), direction)
        assert replaced == pair_of(Round(noise / 2, Full()), direction)
        assert replaced == SampledGaussianPair(1.0, noise / 2, direction)
        assert pair_of(Round(noise, Full(), "zero-out"), direction) == pair_of(
            Round(noise, Full()), direction
        )


@given(scheme=st.integers(1, 10**6).map(lambda n: Uniform(n, n)), noise=noise_multipliers(0.2))
def test_a_cohort_of_everybody_is_full_participation(scheme, noise):
    for adjacency in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        (whole,) = rdp(Round(noise, scheme, adjacency), orders=[3.5])
        (full,) = rdp(Round(noise, Full(), adjacency), orders=[3.5])
        assert whole.upper == pytest.approx(full.upper, rel=1e-12)
        assert whole.lower == pytest.approx(full.lower, rel=1e-12)


@pytest.mark.parametrize("direction", list(Direction))
def test_replacing_a_client_under_poisson_is_one_pair_and_reached(direction):
    round_ = Round(3.0, Poisson(0.05), "replace-one")
    assert proven_pair(round_, direction) == ReplacementPair(0.05, 3.0)
    assert achieved_pair(round_, direction) == ReplacementPair(0.05, 3.0)


def plane_densities(means: np.ndarray, weights: np.ndarray, noise: float, axis: Array) -> Array:
    """Density of a mixture of Gaussians in the plane, on the product of ``axis`` with itself."""
    x, y = (np.exp(-((axis[:, None] - m) ** 2) / (2 * noise**2)) for m in means.T)
    return (x * weights) @ y.T / (2 * np.pi * noise**2)


@given(
    q=log_uniform(0.01, 0.99),
    noise=log_uniform(0.4, 3.0),
    angles=st.tuples(st.floats(0.0, 2 * math.pi), st.floats(0.0, 2 * math.pi)),
    lengths=st.tuples(*[st.sampled_from([1.0, 1.0, 0.7, 0.2])] * 3),
    epsilon=st.sampled_from([-2.0, -0.3, *EPSILONS]),
)
def test_no_directions_in_the_plane_exceed_the_pair(q, noise, angles, lengths, epsilon):
    """One more client besides the one that is replaced; contributions of any direction."""
    other, first, second = (
        r * np.array([math.cos(t), math.sin(t)])
        for r, t in zip(lengths, (0.0, *angles), strict=True)
    )
    axis = np.linspace(-2.0 - 7 * noise, 2.0 + 7 * noise, 301)
    weights = np.array([(1 - q) ** 2, q * (1 - q), (1 - q) * q, q * q])
    p, r = (
        plane_densities(np.array([0 * other, other, own, other + own]), weights, noise, axis)
        for own in (first, second)
    )
    found = np.maximum(p - math.exp(epsilon) * r, 0.0).sum() * (axis[1] - axis[0]) ** 2
    allowed = one_round_delta(abs(epsilon), ReplacementPair(q, noise)).upper
    if epsilon < 0:
        allowed = -math.expm1(epsilon) + math.exp(epsilon) * allowed
    assert found <= allowed + 1e-4
