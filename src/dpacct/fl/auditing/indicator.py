"""The audit of an adaptive clip norm: the noisy count that moves it, and what both releases cost.

Of the count only one number comes out of each round, so its noise is judged over many rounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpacct.fl.auditing.bench import Bench, collect
from dpacct.fl.clients import ClientData
from dpacct.fl.privacy.bounds import INDICATOR_NORM, AdaptiveClip
from dpacct.fl.privacy.findings import Draws, Finding, check_joint_charge, wrong_mean, wrong_std
from dpacct.fl.privacy.noise import GaussianNoise, drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.rounds import Adjacency

# A standard deviation of half the charged one lies 15 standard errors of the square away.
ROUNDS = 512


def check_indicator(bench: Bench) -> tuple[Finding, ...]:
    """What the count reveals, next to what is charged for it; nothing for other bounds."""
    bound = bench.bound
    std = bench.plan.indicator_std(bound)
    if not isinstance(bound, AdaptiveClip) or std is None:
        return ()
    return (_count(bench, std), *check_joint_charge(bench.plan, bound, bench.noise))


def _count(bench: Bench, std: float) -> Finding:
    """How far the count moves between neighbors, and the noise on it."""
    doubled = 2 if bench.plan.adjacency is Adjacency.REPLACE_ONE else 1
    claimed = INDICATOR_NORM * doubled
    base = _exact(bench, bench.everybody)
    moved = max(
        abs(_exact(bench, cohort, clients) - base)
        for client in bench.everybody
        for clients, cohort in bench.neighbors(client)
    )
    if moved > claimed * (1 + 1e-9):
        detail = f"the count moved by {moved:.6g} between neighbors, and {claimed:g} is claimed"
        return Finding("indicator", passed=False, detail=detail)
    noise = _residuals(bench, base)
    charged = drawn_std(bench.noise, std, len(bench.everybody))
    if charged is None or not np.isfinite(noise).all():
        return Finding("indicator", passed=False, detail="nothing was released")
    wrong = wrong_std(noise, charged) or wrong_mean(noise, charged)
    seen = f"the count moved by up to {moved:g}, its noise has standard deviation {charged:.6g}"
    return Finding("indicator", not wrong, wrong or f"{seen} over {noise.size} rounds, as charged")


def _exact(
    bench: Bench, cohort: Sequence[int], clients: Sequence[ClientData] | None = None
) -> float:
    """The count of a cohort without noise."""
    bench.replay()
    plain = replace(bench.engine, noise=GaussianNoise(), clients=clients or bench.problem.clients)
    found = collect(plain, bench.state(), cohort, bench.trainer)
    return math.nan if found.indicators is None else float(found.indicators)


def _residuals(bench: Bench, exact: float) -> Draws:
    """Released count minus exact one, float64 [ROUNDS, 1]; NaN where nothing was released."""
    fresh = Seeded(22)
    bench.replay()
    state = bench.state()
    found = collect(bench.engine, state, bench.everybody, bench.trainer)
    engine = replace(bench.engine, source=fresh)
    counts: list[float] = []
    for _ in range(ROUNDS):
        release = engine.release(state, found)
        count = None if release is None else release.indicator_sum
        counts.append(math.nan if count is None else count)
    return np.array(counts, dtype=np.float64).reshape(-1, 1) - exact
