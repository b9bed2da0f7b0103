"""`audit_loop`: the audit of a training loop that somebody wrote by hand around `privatize`.

The loop runs as it is: its sampling, its training, what it makes of updates before they are summed.
Canaries are the last numbers of its population, and send what was decided beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, SupportsIndex, TypeGuard, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.canaries import Canaries
from dpacct.fl.auditing.passing import passing_ledger
from dpacct.fl.auditing.verdict import SURELY, RunAudit, Wanted, check_functions, conclude
from dpacct.fl.auditing.watching import Aimed, Watch
from dpacct.fl.layout import Layout, check_tensors
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.privatize import AggregationPlan, Tensors
from dpacct.ledger import Run
from dpacct.rounds import Adjacency, Uniform

Update = Callable[[int], Any]
Loop = Callable[[AggregationPlan, Run, Update], Iterable[Tensor | Tensors]]


def audit_loop(
    loop: Loop,
    update: Update,
    plan: AggregationPlan,
    *,
    like: Tensor | Tensors,
    rounds: int,
    canaries: int = 200,
    others: str = "silent",
    delta: float = 1e-5,
    error: float = 1e-6,
    confidence: float = 0.95,
    generator: torch.Generator | None = None,
) -> RunAudit:
    """Run a loop with canaries in its population, and test what it releases.

    Args:
        loop: ``loop(plan, run, update)`` trains, and yields each mean that it releases. It draws
            cohorts by the plan it is given, whose population has the canaries behind the clients;
            what a client sends it asks of ``update(number)``, once for each that takes part; it
            charges the run, as `privatize` does.
        update: what a client of this number sends: a tensor [d], or tensors by name.
        plan: of the loop, for its own clients.
        like: tensors of the layout of an update (the model's parameters), or one tensor [d].
        rounds: that the run of the ledger is planned for.
        delta: at which epsilon is shown.
        canaries, others, error, confidence, generator: as for `audit_run`.
    Returns:
        What was shown; as for `audit_run`.
    Raises:
        AuditFailed: the loop released more than it charged.
        InvalidParameter: as for `audit_run`; an argument of another kind; or fewer means were
            yielded than were charged, or one of another layout.
        Unsupported: rounds were charged that are not those of the plan; a parameter is no
            floating-point number; or the loop asked for no canary, and shows nothing.
    """
    wanted = Wanted.checked(canaries, others, error, confidence, generator)
    length, at = validate.rounds(rounds), validate.delta(delta)
    _check_kinds(loop, update, plan, like)
    clients, planted = plan.num_clients or plan.public.size, wanted.plant()
    grown = _grown(plan, len(planted))
    template = {"update": like} if isinstance(like, Tensor) else like
    layout, bound = Layout.of(template), cast("Bound", grown.bound)
    check_tensors(template, layout, "like")
    replaced = grown.adjacency is Adjacency.REPLACE_ONE
    planted.aim(layout.size, bound.clip_norm, replaced=replaced)
    sent = _Sent(planted, clients, update, layout, like, silent=wanted.silent)
    aimed = Aimed.of(planted, _bounded(grown, layout), _row(template, layout), bound.clip_norm)
    event = grown.charge.event(bound, grown.noise, {"clip_norm": bound.clip_norm})
    relation = Adjacency(cast("str", grown.adjacency))
    watch = Watch(planted, grown.sampling.sampling_rate, relation, layout.sizes)
    cohort = grown.charge.cohort_size
    with passing_ledger(at) as ledger:
        run = ledger.start_run("audit", plan=length * grown.round)
        count = 0
        for released in _releases(loop(grown, run, sent)):
            count += 1
            watch.see(_flat(released, layout) * cohort, aimed, event)
            if count > run.committed:
                raise AuditFailed(f"release {count} was not charged: {run!r} has {run.committed}")
        if not count:
            raise InvalidParameter("loop", "no release", "it yields each mean that it releases")
        if count < run.committed:
            rule = f"it yields each mean that it releases, and charged {run.committed}"
            raise InvalidParameter("loop", f"{count} releases", rule)
        if not run.on_plan:
            raise Unsupported(f"the loop charged other rounds than the plan's, {grown.round!r}")
        charged = run.epsilon()
    expected = grown.sampling.sampling_rate * len(planted) * count
    if not planted.asked and expected > SURELY:
        raise Unsupported(
            "the loop asked for no canary: it draws cohorts by the plan that it is given, and asks "
            "the update that it is given"
        )
    return conclude(watch, charged, "tight", wanted, clients)


def _grown(plan: AggregationPlan, canaries: int) -> AggregationPlan:
    """The plan for a population with canaries, of which a cohort has the same share."""
    number = (plan.num_clients or plan.public.size) + canaries
    sampling = plan.sampling
    if isinstance(sampling, Uniform):
        cohort = max(1, min(number - 1, round(sampling.sampling_rate * number)))
        sampling = Uniform(cohort, number)
    # The clip norm is that of the bound.
    return replace(plan, clip_norm=None, num_clients=number, sampling=sampling)


def _check_kinds(loop: object, update: object, plan: object, like: object) -> None:
    check_functions(loop=loop, update=update)
    if not isinstance(plan, AggregationPlan):
        raise InvalidParameter("plan", type(plan).__name__, "it is an AggregationPlan")
    if not _is_update(like):
        rule = "it is a tensor, or tensors by name: dict(model.named_parameters())"
        raise InvalidParameter("like", type(like).__name__, rule)


def _releases(found: object) -> Iterable[Any]:
    if not isinstance(found, Iterable):
        rule = "it yields each mean that it releases"
        raise InvalidParameter("loop", type(found).__name__, rule)
    return cast("Iterable[Any]", found)


def _is_update(given: object) -> TypeGuard[Tensor | Tensors]:
    if isinstance(given, Mapping):
        return all(isinstance(part, Tensor) for part in cast("Tensors", given).values())
    return isinstance(given, Tensor)


def _bounded(plan: AggregationPlan, layout: Layout) -> Callable[[Tensor], Tensor]:
    bound, most = cast("Bound", plan.bound), plan.charge.contributions
    return lambda rows: contribute(rows, bound, layout, most)[0]


def _row(template: Tensors, layout: Layout) -> Tensor:
    """An update of the layout, of the dtype in which it is bounded."""
    flat = layout.flatten(template).detach()
    return flat if flat.dtype == torch.float64 else flat.float()


def _flat(released: object, layout: Layout) -> Tensor:
    if not _is_update(released):
        rule = "each mean that it yields is a tensor, or tensors by name"
        raise InvalidParameter("loop", type(released).__name__, rule)
    named: Mapping[str, Tensor] = (
        {"update": released} if isinstance(released, Tensor) else dict(released)
    )
    check_tensors(named, layout, "a released mean")
    return layout.flatten(named).detach()


class _Sent:
    """What each number of the population sends."""

    def __init__(
        self,
        canaries: Canaries,
        clients: int,
        update: Update,
        layout: Layout,
        like: Tensor | Tensors,
        *,
        silent: bool,
    ) -> None:
        self._canaries, self._clients, self._update = canaries, clients, update
        self._layout, self._like, self._silent = layout, like, silent

    def __call__(self, number: int) -> Any:
        people = self._clients + len(self._canaries)
        if not (isinstance(number, SupportsIndex) and 0 <= number.__index__() < people):
            rule = f"the numbers that the plan draws are those from 0 to {people - 1}"
            raise InvalidParameter("number", number, rule)
        number = number.__index__()
        if number >= self._clients:
            return self._shaped(self._canaries.sent(number - self._clients))
        own = self._update(number)
        return self._shaped(self._canaries.nothing()) if self._silent else own

    def _shaped(self, row: Tensor) -> Any:
        """A row as the loop knows updates."""
        if isinstance(self._like, Tensor):
            return row.to(self._like)
        like = self._like
        return {name: part.to(like[name]) for name, part in self._layout.unflatten(row).items()}
