"""Hypothesis strategies for the parameters of the package, spread over decades."""

from __future__ import annotations

import math

from hypothesis import settings
from hypothesis import strategies as st

from dpacct.rounds import Adjacency, Full, Phase, Poisson, Round, Schedule, Uniform

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
