"""`privatize`: the private aggregate of one round, for users with a training loop of their own.

The caller trains, samples and sends; here updates are bounded, summed, noised, divided and charged.
What cannot be checked here is the caller's promise: that the cohort was drawn in secret as the plan
says, and that the rows are all who came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, overload

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.adaptive_clip import AdaptiveClip
from dpacct.fl.bounds import Bound, Clip
from dpacct.fl.charge import Plan
from dpacct.fl.layout import Layout, Params, check_tensors
from dpacct.fl.noise import GaussianNoise, Noise
from dpacct.fl.norms import margin, row_norms
from dpacct.fl.randomness import OperatingSystem, expected_cohort
from dpacct.fl.settings import choose_sampling
from dpacct.ledger import Ledger, Run
from dpacct.rounds import Adjacency, Full, Sampling, Uniform

Tensors = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """How the updates of a round are made private.

    Args:
        noise_multiplier: std of the noise on the sum / clip norm.
        clip_norm: norm bound of one whole update; short for ``bound=Clip(...)``.
        sampling: how the caller draws cohorts: in secret, afresh in each round.
        num_clients: in the population; for `Uniform` it may be left out.
        adjacency: default that of the sampling.
        bound: another bound than `Clip`; adaptive ones belong to `Federation`.
        noise: where the noise comes from.

    Raises:
        InvalidParameter, Unsupported: a value out of range, or a setting that is not private.
    """

    noise_multiplier: float
    clip_norm: float | None = None
    sampling: Sampling = field(default_factory=Full)
    num_clients: int | None = None
    adjacency: Adjacency | str | None = None
    bound: Bound | None = None
    noise: Noise = field(default_factory=GaussianNoise)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "noise_multiplier", validate.noise_multiplier(self.noise_multiplier))
        put(self, "sampling", choose_sampling(self.sampling))
        clients = self.num_clients
        if clients is None:
            clients = getattr(self.sampling, "num_clients", None)
        put(self, "num_clients", validate.count("num_clients", clients, "the population"))
        relation = self.sampling.default_adjacency if self.adjacency is None else self.adjacency
        put(self, "adjacency", Adjacency.parse(relation))
        if (self.bound is None) == (self.clip_norm is None):
            rule = "one of clip_norm and bound is given"
            raise InvalidParameter("clip_norm", self.clip_norm, rule)
        if isinstance(self.bound, AdaptiveClip):
            rule = "an adaptive norm changes from round to round, which a plan does not"
            raise InvalidParameter("bound", "AdaptiveClip", rule, "Use Federation.")
        if self.clip_norm is not None:
            put(self, "bound", Clip(self.clip_norm))
        self.noise.check(self.sampling, Adjacency(relation), cast("int", self.num_clients))
        expected_cohort(self.sampling, cast("int", self.num_clients))

    @property
    def charge(self) -> Plan:
        """The plan as the engine knows it."""
        clients = cast("int", self.num_clients)
        return Plan(
            self.sampling,
            Adjacency(cast("str", self.adjacency)),
            self.noise_multiplier,
            expected_cohort(self.sampling, clients),
        )


@overload
def privatize(deltas: Tensor, plan: AggregationPlan, ledger: Run | Ledger) -> Tensor: ...


@overload
def privatize(deltas: Sequence[Tensors], plan: AggregationPlan, ledger: Run | Ledger) -> Params: ...


def privatize(
    deltas: Tensor | Sequence[Tensors], plan: AggregationPlan, ledger: Run | Ledger
) -> Tensor | Params:
    """Bound, sum, noise and charge the updates of one round.

    Args:
        deltas: tensor [m, d], one update a row (m may be 0), or m >= 1 dictionaries of
            floating-point tensors of one layout. Rows that hold NaN or infinity count as zero.
        plan: of the round.
        ledger: the run of a ledger that is charged; given a ledger, its run "privatize" that was
            started last, or a new one.
    Returns:
        The noisy sum / planned cohort size, [d] or a dictionary, float32 (float64 for float64).
        The ledger has committed the round when this returns.
    Raises:
        InvalidParameter: shapes that do not fit, or more rows than the plan allows.
        Unsupported: integer tensors, or too few noise shares.
        BudgetExceeded: the round does not fit; nothing was drawn.
    """
    rows, layout = _rows(deltas)
    _check_count(len(rows), plan)
    bound, charge = cast("Bound", plan.bound), plan.charge
    limits = bound.limits(layout)
    std = plan.noise.actual_std(charge.update_std(bound), len(rows))
    if std is None:
        rule = "fewer noise shares than the plan's minimum arrived, so nothing may be released"
        raise InvalidParameter("deltas", len(rows), rule)
    run = _find_run(ledger)
    ticket = run.reserve(charge.event(bound, plan.noise, {"clip_norm": bound.clip_norm}))
    ticket.draw()
    norms = row_norms(rows)
    bad = ~torch.isfinite(rows).all(dim=1)
    rows = torch.where(bad.unsqueeze(1), 0.0, rows)
    norms = torch.where(bad, 0.0, norms)
    inside = bound.apply(rows, norms, layout, margin(charge.cohort_size))
    total = plan.noise.zeros(layout.size, rows.device)
    total += plan.noise.encode(inside, limits, std).to(total.dtype).sum(dim=0)
    noisy = plan.noise.add(total, limits, std, OperatingSystem())
    mean = (noisy / charge.cohort_size).to(rows.dtype)
    ticket.commit()
    return mean if isinstance(deltas, Tensor) else layout.unflatten(mean)


def _rows(deltas: Tensor | Sequence[Tensors]) -> tuple[Tensor, Layout]:
    """A matrix of our own, and its layout."""
    if isinstance(deltas, Tensor):
        if deltas.ndim != 2 or not deltas.shape[1]:
            rule = "updates are a tensor [m, d], one update a row"
            raise InvalidParameter("deltas", tuple(deltas.shape), rule)
        size = deltas.shape[1]
        layout = Layout(("delta",), (torch.Size([size]),), (size,))
        check_tensors({"delta": deltas[:0].sum(dim=0)}, layout, "deltas")
        return _at_least_single(deltas.detach().clone()), layout
    if not len(deltas):
        rule = "an empty list has no shape; give a tensor [0, d] for an empty cohort"
        raise InvalidParameter("deltas", 0, rule)
    layout = Layout.of(deltas[0])
    for tensors in deltas:
        check_tensors(tensors, layout, "deltas")
    rows = torch.stack([layout.flatten(tensors).detach() for tensors in deltas])
    return _at_least_single(rows), layout


def _at_least_single(rows: Tensor) -> Tensor:
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def _check_count(count: int, plan: AggregationPlan) -> None:
    clients = cast("int", plan.num_clients)
    most = plan.sampling.cohort_size if isinstance(plan.sampling, Uniform) else clients
    if count > most:
        rule = f"at most {most} clients take part in a round of the plan"
        raise InvalidParameter("deltas", count, rule)


def _find_run(ledger: Run | Ledger) -> Run:
    if isinstance(ledger, Run):
        return ledger
    if not isinstance(ledger, Ledger):
        rule = "what is charged is a Ledger or one of its runs"
        raise InvalidParameter("ledger", type(ledger).__name__, rule)
    for run in reversed(ledger.runs):
        if run.name == "privatize" and not run.finished and run.private:
            return run
    return ledger.start_run("privatize")
