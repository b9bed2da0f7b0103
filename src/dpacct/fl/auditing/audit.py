"""`audit`: check that a method, with its bound and noise, does what it is charged for.

Runs rounds on neighboring sets of clients and checks what the engine cannot enforce. It finds
faults; passing it is evidence, not a proof. Write it into the tests of a method of your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
from torch import Tensor, nn

from dpacct.fl.auditing.bench import Bench, collect, default_problem
from dpacct.fl.clients import ClientData
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import INDICATOR_NORM, AdaptiveClip, Bound
from dpacct.fl.privacy.findings import (
    Audit,
    Draws,
    Finding,
    check_charge,
    wrong_mean,
    wrong_std,
)
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import choose_bound, choose_sampling
from dpacct.fl.surroundings import undisturbed
from dpacct.rounds import Adjacency, Full, Sampling, Uniform


# If the caller has switched gradients off, no client would move a sum.
@undisturbed()
def audit(
    method: Method | None = None,
    *,
    clip_norm: float | None = None,
    bound: Bound | None = None,
    noise: Noise | None = None,
    noise_multiplier: float = 1.0,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    local: SGD | None = None,
    model: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    clients: Sequence[ClientData] | None = None,
    draws: int = 16,
    vectorize: bool | Literal["auto"] = "auto",
) -> Audit:
    """Check a method, its bound and its noise against what a round of them is charged for.

    Args:
        method, clip_norm, bound, noise, noise_multiplier, sampling, adjacency, local: as for
            `Federation`; default DP-FedAvg, clip norm 0.5 where the method has no bound of its
            own, Gaussian noise, everybody.
        model, loss, clients: what to train; default a small classifier on synthetic clients. Give
            all three or none; at least three clients.
        draws: rounds of noise that are looked at.
        vectorize: which trainers are looked at; "auto": both, if the method can be batched.
    Returns:
        The findings: ``bound``, ``alone``, ``sensitivity``, ``charge``, ``noise``, ``empty
        cohort``, ``fresh``, ``release`` and ``memory``; for an adaptive clip norm also
        ``indicator`` and ``joint charge``.
    Raises:
        InvalidParameter, Unsupported: as for `Federation`.
    """
    method = DPFedAvg() if method is None else method
    if clip_norm is None and bound is None and method.bound is None:
        clip_norm = 0.5
    scheme = choose_sampling(Full() if sampling is None else sampling)
    problem = default_problem(model, loss, clients)
    # The clients of an audit are no secret: their number may be declared.
    declares = adjacency == Adjacency.ADD_REMOVE and not isinstance(scheme, Uniform)
    declared = len(problem.clients) if declares else None
    public = PublicSize.choose(declared, scheme, len(problem.clients))
    bench = Bench(
        problem,
        method,
        choose_bound(bound, clip_norm, method),
        noise or GaussianNoise(),
        NoisePlan(scheme, public.adjacency(scheme, adjacency), noise_multiplier, public),
        method.prepare(SGD(lr=0.5, epochs=1, batch_size=4) if local is None else local),
        vectorize=vectorize,
    )
    return Audit(
        (
            bench.check_bound(),
            bench.check_alone(),
            bench.check_sensitivity(),
            *check_charge(bench.plan, bench.bound, bench.noise),
            *bench.check_noise(draws),
            *check_indicator(bench),
            bench.check_release(),
            bench.check_memory(),
        )
    )


# A standard deviation of half the charged one lies 15 standard errors of the square away.
ROUNDS = 512


def check_indicator(bench: Bench) -> tuple[Finding, ...]:
    """Check the noisy count that moves an adaptive clip norm.

    Of the count only one number comes out of each round, so its noise is judged over many rounds.
    """
    bound = bench.bound
    std = bench.plan.indicator_std(bound)
    if not isinstance(bound, AdaptiveClip) or std is None:
        return ()
    return (_count(bench, std),)


def _count(bench: Bench, std: float) -> Finding:
    """Check how far the count moves between neighbors, and the noise on it."""
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
    """Return the count of a cohort without noise."""
    bench.replay()
    plain = replace(bench.engine, noise=GaussianNoise(), clients=clients or bench.problem.clients)
    found = collect(plain, bench.state(), cohort, bench.trainer)
    return math.nan if found.indicators is None else float(found.indicators)


def _residuals(bench: Bench, exact: float) -> Draws:
    """Return released counts minus the exact one, float64 [ROUNDS, 1]; NaN for no release."""
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
