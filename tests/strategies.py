"""Hypothesis strategies for the parameters of the package, spread over decades."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st

from dpacct.correlated import Correlated, buffered_toeplitz, square_root, toeplitz
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    ZeroConcentratedDP,
)
from dpacct.rounds import (
    REVEALS_SIZE,
    Adjacency,
    Full,
    Phase,
    Poisson,
    Release,
    Round,
    Schedule,
    Uniform,
)
from dpacct.sampled import Sampled
from dpacct.tuning import BestOf, Runs

# For tests whose examples take long, or that have relatives.
FEWER = settings(max_examples=max(6, settings.default.max_examples // 4))


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    """Floats whose logarithm is spread evenly."""
    ends = math.log(low), math.log(high)
    return st.floats(*ends).map(lambda t: min(max(math.exp(t), low), high))


def sampling_rates(low: float = 1e-7) -> st.SearchStrategy[float]:
    """Small rates, rates close to one, and one itself."""
    return st.one_of(
        log_uniform(low, 1.0), log_uniform(1e-9, 0.5).map(lambda gap: 1.0 - gap), st.just(1.0)
    )


def noise_multipliers(low: float = 0.05, high: float = 1000.0) -> st.SearchStrategy[float]:
    return log_uniform(low, high)


def orders(low_gap: float = 1e-4, high: float = 1e5) -> st.SearchStrategy[float]:
    """Orders above one, by the logarithm of their distance from one."""
    return log_uniform(low_gap, high - 1).map(lambda gap: 1.0 + gap)


def uniform_schemes() -> st.SearchStrategy[Uniform]:
    return st.integers(1, 10**6).flatmap(
        lambda clients: st.integers(1, clients).map(lambda cohort: Uniform(cohort, clients))
    )


def samplings() -> st.SearchStrategy[Poisson | Uniform | Full]:
    return st.one_of(sampling_rates().map(Poisson), uniform_schemes(), st.just(Full()))


@st.composite
def rounds(draw: st.DrawFn, adjacency: Adjacency | None = None) -> Round:
    relation = adjacency or draw(st.sampled_from(Adjacency))
    return Round(draw(noise_multipliers(1e-3, 1e10)), draw(samplings()), relation)


@st.composite
def schedules(draw: st.DrawFn, adjacency: Adjacency | None = None, min_size: int = 1) -> Schedule:
    """Up to six phases of one adjacency; equal neighbors occur."""
    relation = adjacency or draw(st.sampled_from(Adjacency))
    kinds = draw(st.lists(rounds(relation), min_size=1, max_size=3))
    phases = st.tuples(st.sampled_from(kinds), st.integers(1, 1000))
    return Schedule(Phase(*p) for p in draw(st.lists(phases, min_size=min_size, max_size=6)))


def special_samplings() -> st.SearchStrategy[Poisson]:
    """Users with several records, and truncated cohorts, which are add-remove."""
    rates = log_uniform(1e-7, 0.9)
    truncated = st.integers(1, 10**6).flatmap(
        lambda n: st.builds(Poisson, rates, st.just(1), st.integers(1, n), st.just(n))
    )
    return st.one_of(truncated, st.builds(Poisson, rates, st.integers(2, 100)))


def releases(adjacency: Adjacency, *, nested: bool = True) -> st.SearchStrategy[Release]:
    """A release of each kind that has this adjacency."""
    relation, noises = st.just(adjacency), noise_multipliers(0.1, 100.0)
    epsilons, sources = log_uniform(1e-6, 100.0), st.sampled_from(["", "a paper", 'p. 3, "x"'])
    shifts = st.integers(1, 9) | st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple)
    strategies = st.sampled_from(
        [square_root(12), square_root(12, 3), toeplitz([1.0, 1 / 3], 12), toeplitz([1.0], 12),
         buffered_toeplitz(12, [(0.3, 0.9)])]
    )  # fmt: skip
    kinds: list[st.SearchStrategy[Release]] = [
        rounds(adjacency),
        st.builds(Laplace, noises, adjacency=relation),
        st.builds(RandomizedResponse, epsilons, relation, answers=st.integers(2, 99)),
        st.builds(PureDP, epsilons, relation, source=sources),
        st.builds(ApproximateDP, epsilons, log_uniform(1e-9, 0.5), relation, source=sources),
        st.builds(ZeroConcentratedDP, log_uniform(1e-6, 10.0), relation, source=sources),
        st.builds(DiscreteGaussian, noises, shifts, relation),
        st.builds(DiscreteLaplace, noises, shifts, relation),
        st.builds(ExponentialMechanism, epsilons, relation),
        st.builds(
            Correlated, noises, strategies, min_separation=st.integers(4, 12), adjacency=relation
        ),
        st.builds(
            Correlated, noises, strategies, min_separation=st.just(12), adjacency=relation,
            sampling=sampling_rates().map(Poisson),
        ),
    ]  # fmt: skip
    counts = st.integers(1, 10**6)
    if adjacency is not Adjacency.REPLACE_ONE:
        kinds.append(st.builds(Epoch, noises, counts, st.integers(1, 9), relation))
    if adjacency is Adjacency.ZERO_OUT:
        kinds.append(st.builds(ShuffledEpoch, noises, counts, relation))
    if adjacency is Adjacency.ADD_REMOVE:
        kinds.append(st.builds(Round, noises, special_samplings(), relation))
    else:
        revealed = st.builds(
            Poisson, log_uniform(1e-7, 0.9), num_clients=st.integers(1, 10**6),
            reveals_size=st.sampled_from(REVEALS_SIZE),
        )  # fmt: skip
        kinds.append(st.builds(Round, noises, revealed, relation))
    if adjacency is not Adjacency.REPLACE_ONE:
        one = noises.map(lambda z: Laplace(z, adjacency=adjacency))
        noisy = st.builds(lambda n, release: n * release, st.integers(1, 9), one)
        kinds.append(st.builds(Sampled, noisy, st.floats(0.01, 0.9)))
    if nested:
        means = log_uniform(1.1, 100.0)
        runs = st.builds(Runs, st.just("poisson"), means) | st.builds(
            Runs, st.just("negative-binomial"), means, st.floats(0.0, 9.0)
        )
        kinds.append(st.builds(BestOf, plans(adjacency, nested=False), runs))
    return st.one_of(kinds)


def plans(
    adjacency: Adjacency, *, nested: bool = True, most: int = 1000
) -> st.SearchStrategy[Schedule]:
    """Schedules of releases of all kinds, each up to ``most`` times, and repetitions of them."""
    phases = st.tuples(releases(adjacency, nested=nested), st.integers(1, most))
    listed = st.lists(phases, min_size=1, max_size=4).map(Schedule)
    repeated = st.builds(lambda plan, times: times * plan, listed, st.integers(2, 9))
    return listed | repeated | st.builds(lambda *parts: sum(parts, Schedule()), listed, repeated)
