"""`privatize`: the private aggregate of one round, for users with a training loop of their own.

The caller trains, samples and sends. `privatize` bounds, sums, noises, divides and charges updates.
The caller is responsible for the draw: each cohort is drawn in secret, afresh and by the plan, and
a client sends one row. Only a number of rows that such a draw cannot give is refused here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, at_least_single, check_limits
from dpacct.fl.privacy.correlated import CorrelatedNoise
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std
from dpacct.fl.privacy.randomness import Randomness, draw_cohort
from dpacct.fl.privacy.sums import add_rows, contribute
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import check_form, choose_bound, choose_independent
from dpacct.ledger import Ledger, Run
from dpacct.numerics.binomial import binomial_tail
from dpacct.rounds import Adjacency, AdjacencyName, Full, Poisson, Round, Sampling, Uniform

# A cohort that is larger has a probability below this under Poisson sampling. If the number of
# clients is public, refusing costs nothing: neighbors draw cohorts of equal size. If it is secret,
# the refusal itself could tell, and happens to an honest caller with negligible probability only.
_IMPOSSIBLE, _IMPOSSIBLE_IF_SECRET = 1e-9, 1e-30


@dataclass(frozen=True, slots=True)
class AggregationPlan:
    """The mechanism that makes the updates of a round private.

    Args:
        noise_multiplier: std of the noise on the sum / clip norm.
        clip_norm: norm bound of one whole update. Short for ``bound=Clip(...)``.
        sampling: how the caller draws cohorts: in secret, afresh in each round.
        num_clients: the true number of clients. `Uniform` has it. With ``public_size`` it is
            a secret, used only by `draw_cohort` and by the check of a cohort's size. Leave it out
            if you draw cohorts otherwise.
        adjacency: as for `Federation`: replace-one for `Uniform`, add-remove with
            ``public_size``, else zero-out.
        bound: another bound than `Clip`. Adaptive ones belong to `Federation`.
        noise: source of the noise.
        public_size: a public number of clients, as for `Federation`.

    Raises:
        InvalidParameter, Unsupported: a value out of range, or a setting that is not private.
    """

    noise_multiplier: float
    clip_norm: float | None = None
    sampling: Sampling = field(default_factory=Full)
    num_clients: int | None = field(default=None, repr=False)
    adjacency: Adjacency | AdjacencyName | None = None
    bound: Bound | None = None
    noise: Noise = field(default_factory=GaussianNoise)
    public_size: int | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "noise_multiplier", validate.noise_multiplier(self.noise_multiplier))
        if isinstance(self.noise, CorrelatedNoise):
            raise Unsupported(
                "correlated noise: it covers all rounds of a run, and privatize releases one. Take "
                "fl.Server, which opens the rounds of a loop of your own"
            )
        sampling = choose_independent(self.sampling)
        if isinstance(sampling, Poisson) and sampling.records > 1:
            rule = "a plan of own rounds cannot see whose the updates are"
            hint = "Clip all records of a user together, and sample users."
            raise InvalidParameter("records", sampling.records, rule, hint)
        put(self, "sampling", sampling)
        clients = self.num_clients
        if clients is None and isinstance(self.sampling, Uniform):
            clients = self.sampling.num_clients
        if clients is not None or self.public_size is None:
            clients = validate.count("num_clients", clients, "the population")
        put(self, "num_clients", clients)
        relation = self.public.adjacency(self.sampling, self.adjacency)
        put(self, "adjacency", relation)
        if isinstance(self.bound, AdaptiveClip):
            rule = "an adaptive norm changes from round to round, which a plan does not"
            raise InvalidParameter("bound", "AdaptiveClip", rule, "Use Federation.")
        put(self, "bound", choose_bound(self.bound, self.clip_norm))
        check_form("noise", self.noise)
        self.noise.check(self.sampling, relation, clients or self.public.size)
        _ = self.charge

    @property
    def public(self) -> PublicSize:
        """Return the public number of clients, from which the divisor is made."""
        return PublicSize.choose(self.public_size, self.sampling, self.num_clients)

    @property
    def charge(self) -> RoundNoise:
        """Return the plan as the engine has it."""
        relation = Adjacency(cast("str", self.adjacency))
        return RoundNoise(self.sampling, relation, self.noise_multiplier, self.public)

    @property
    def round(self) -> Round:
        """Return the charge of one round: ``ledger.start_run(name, plan=300 * plan.round)``.

        A run that registers its rounds so is charged for them exactly. Without a plan, each round
        is charged by the adaptive bound, which is dearer.
        """
        bound = cast("Bound", self.bound)
        event = self.charge.event(bound, self.noise, {"clip_norm": bound.clip_norm})
        return cast("Round", event.charged)

    def draw_cohort(self) -> list[int]:
        """Return the clients of one round, ascending, drawn from secret randomness.

        Call it once for each `privatize`, take all its clients, and keep them secret. Sampling
        amplifies privacy only while cohorts are secret, and not chosen among several. An empty
        cohort is possible, and such a round releases noise like any other.

        Raises:
            InvalidParameter: the plan was made without ``num_clients``.
        """
        if self.num_clients is None:
            rule = "a cohort is drawn from all clients, of whom public_size need not be the number"
            raise InvalidParameter("num_clients", None, rule)
        return draw_cohort(self.sampling, self.num_clients, Randomness())


def privatize(deltas: Tensor, plan: AggregationPlan, ledger: Run | Ledger) -> Tensor:
    """Bound, sum, noise and charge the updates of one round.

    Memory: a copy of the updates, which stay as they are.

    Args:
        deltas: [m, d], one update a row (m may be 0), of a floating-point type. Rows that hold NaN
            or infinity count as zero. `torch.nn.utils.parameters_to_vector` makes a row.
        plan: of the round.
        ledger: the run of a ledger that is charged. Given a ledger, its run "privatize" that was
            started last, or a new one.
    Returns:
        The noisy sum / planned cohort size, [d], float32 (float64 for float64).
        The ledger has committed the round when this returns.
    Raises:
        InvalidParameter: shapes that do not fit, or more rows than the plan's sampling can draw.
        Unsupported: integer tensors, or too few noise shares.
        BudgetExceeded: the round does not fit. Nothing was drawn.
    """
    if not isinstance(cast("object", plan), AggregationPlan):
        raise InvalidParameter("plan", type(plan).__name__, "a plan is an AggregationPlan")
    layout = _layout_of(deltas)
    _check_count(len(deltas), plan)
    bound, charge = cast("Bound", plan.bound), plan.charge
    check_limits(bound, layout)
    limits = bound.limits(layout)
    std = drawn_std(plan.noise, charge.update_std(bound), len(deltas))
    if std is None:
        rule = "fewer noise shares than the plan's minimum arrived, so nothing may be released"
        raise InvalidParameter("deltas", len(deltas), rule)
    rows = at_least_single(deltas.detach().clone())
    ticket = _find_run(ledger).reserve(
        charge.event(bound, plan.noise, {"clip_norm": bound.clip_norm})
    )
    ticket.draw()
    total = plan.noise.zeros(layout.size, rows.device)
    rows, _, _ = contribute(rows, bound, layout, charge.contributions)
    add_rows(total, plan.noise.encode(rows, limits, std))
    noisy = plan.noise.add(total, limits, std, Randomness())
    mean = (noisy / charge.cohort_size).to(rows.dtype)
    ticket.commit()
    return mean


def _layout_of(deltas: Tensor) -> Layout:
    """Return the layout of an update.

    Everything is checked here, since an error after the reservation would cost a round.
    """
    rule = "updates are a dense tensor [m, d], one update a row"
    if not isinstance(cast("object", deltas), Tensor) or deltas.is_nested:
        raise InvalidParameter("deltas", type(deltas).__name__, rule)
    if deltas.ndim != 2 or not deltas.shape[1] or deltas.layout != torch.strided or deltas.is_meta:
        shown = f"{tuple(deltas.shape)}, {deltas.layout}, on {deltas.device}"
        raise InvalidParameter("deltas", shown, f"{rule}, with at least one coordinate")
    if not deltas.is_floating_point():
        raise Unsupported(f"deltas are {deltas.dtype}. Only floating-point updates can be bounded")
    return Layout.of({"delta": deltas.new_empty(deltas.shape[1])})


def _check_count(count: int, plan: AggregationPlan) -> None:
    """Refuse more rows than the plan's draw can give. Fewer are fine: absent clients count zero."""
    clients, sampling = plan.num_clients, plan.sampling
    most = plan.charge.contributions if clients is None else clients
    if isinstance(sampling, Uniform):
        most = sampling.cohort_size
    if count > most:
        rule = f"at most {most} clients take part in a round of the plan"
        raise InvalidParameter("deltas", count, rule)
    if not isinstance(sampling, Poisson) or clients is None or not count:
        return
    tail = _IMPOSSIBLE_IF_SECRET if plan.public.stated else _IMPOSSIBLE
    # P(at least count of them are drawn).
    if binomial_tail(clients, sampling.sampling_rate, count).upper < tail:
        expected = sampling.sampling_rate * clients
        rule = (
            f"Poisson({sampling.sampling_rate:g}) draws {expected:.4g} of {clients} clients on "
            f"average, and so many with a probability below {tail:g}: the cohort was drawn "
            "otherwise, and would be charged too little"
        )
        raise InvalidParameter("deltas", count, rule, "Draw cohorts with plan.draw_cohort().")


def _find_run(ledger: Run | Ledger) -> Run:
    if isinstance(ledger, Run):
        return ledger
    if not isinstance(ledger, Ledger):
        rule = "a round is charged to a Ledger or one of its runs"
        raise InvalidParameter("ledger", type(ledger).__name__, rule)
    for run in reversed(ledger.runs):
        if run.name == "privatize" and not run.finished and run.private:
            return run
    return ledger.start_run("privatize")
