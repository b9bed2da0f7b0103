"""Make the engine, the ledger and the first state of a run from its settings, all checked."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from torch import nn

from dpacct import validate
from dpacct.accountant import epsilon
from dpacct.budget import DEFAULT_DELTA, Budget
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Examples, Owned, Population, check_population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import RunPlan, TrainingState
from dpacct.fl.layout import Layout, copies, is_frozen, keeps_statistics, modules_of, trainable
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.local.sgd import SGD, LocalAdam, RoundValues, values_over
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, first_state, overrides
from dpacct.fl.privacy.account import Account, RoundNoise
from dpacct.fl.privacy.allocation import Allocation, Allocator
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, clip_norm
from dpacct.fl.privacy.correlated import (
    CorrelatedNoise,
    Correlation,
    Cyclic,
    MinSeparation,
    NoiseStream,
)
from dpacct.fl.privacy.noise import GaussianNoise, Noise, SharesElsewhere, share_sigma
from dpacct.fl.privacy.randomness import NOISE_FREE, SEEDED, Randomness, Seeded
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import LocalSettings, Settings, choose_bound, server_rate
from dpacct.fl.tensors import undisturbed
from dpacct.fl.training.choose import TrainerChooser
from dpacct.ledger import CLIENT, PAIRS, TIGHT, noise_of
from dpacct.rounds import (
    AccountantName,
    Adjacency,
    Full,
    Poisson,
    Round,
    Sampling,
    Schedule,
    Uniform,
)
from dpacct.validate import LEAST_NOISE

_CHARGE_ROUNDING = 1e-12


class Parts(NamedTuple):
    """A run before its first round, as `prepare` puts it together.

    Attributes:
        engine: its parts, with noise and sampling of the next round. plan: of all rounds.
        account: the run in its ledger. state: after the finished rounds.
        accountant: that charges the plan. name: of the run in the ledger.
        limit: the budget of a run with a given noise, or None.
        not_private_because: why epsilon is infinite, None if it is not.
    """

    engine: Engine
    plan: RunPlan
    account: Account
    state: TrainingState
    accountant: AccountantName
    name: str
    limit: Budget | None
    not_private_because: str | None


@undisturbed()
def prepare(settings: Settings, model: nn.Module, clients: Population) -> Parts:
    """Check the settings, choose the noise, and put the parts of a run together.

    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
    """
    check_population(clients, len(clients))
    noise = settings.noise_source
    correlation = _choose_correlation(settings, noise, len(clients))
    schemes = settings.samplings if correlation is None else [correlation.sampling]
    schemes = [of_records(s, clients, planned=settings.schedule is not None) for s in schemes]
    # Schemes that disagree about the population are refused one by one.
    public, *_ = [PublicSize.choose(settings.public_size, s, len(clients)) for s in schemes]
    asked = settings.adjacency if settings.schedule is None else settings.schedule.adjacency
    relation, *_ = [public.adjacency(scheme, asked) for scheme in schemes]
    unit = clients.unit if isinstance(clients, Examples | Owned) else CLIENT
    delta = _choose_delta(settings, relation, unit)
    method = DPFedAvg() if settings.method is None else settings.method
    count = settings.planned_rounds
    reason = _why_not_private(settings, method, noise)
    local = _local_training(clients, method, settings.local).over(count)
    server_lr = values_over("server_lr", settings.server_lr, count, server_rate)
    norms = settings.clip_norm
    if callable(norms):
        norms = values_over("clip_norm", norms, count, clip_norm)
    by_round = norms if isinstance(norms, RoundValues) else None
    bound = choose_bound(settings.bound, norms if by_round is None else by_round(1), method)
    params = copies(trainable(model))
    layout = Layout.of(params)
    accountant = settings.accountant
    for scheme in schemes:
        if correlation is None:
            noise.check(scheme, relation, len(clients))
        accountant = plan_accountant(method, settings.accountant, scheme)
    scheme = schemes[0]
    if correlation is not None:
        _check_correlated(settings, correlation, bound, relation, scheme)
    _check_ahead(settings, bound, correlation, scheme)
    terms = relation, delta, accountant
    schedule, budget = _choose_schedule(settings, scheme, *terms, correlation)
    source = Randomness() if settings.seed is None else Seeded(settings.seed)
    ledger, private = settings.ledger_place, reason is None
    account = Account(
        ledger, budget, private=private, accountant=accountant, unit=unit, ahead=settings.ahead
    )
    bare = settings.noise_multiplier == 0
    multiplier = 0.0 if bare else noise_of(schedule.phases[0].round)
    first = RoundNoise(scheme, relation, multiplier, public, correlation)
    device = next(iter(params.values())).device
    parts = (clients, method, layout, local, first, noise, source, device, server_lr)
    allocator = Allocator.start(scheme, source) if isinstance(scheme, Allocation) else None
    engine = Engine(*parts, settings.server, allocator, settings.average)
    given = settings.noise_multiplier is not None
    state = TrainingState(0, params, first_state(method, params), {}, bound, None)
    if isinstance(noise, CorrelatedNoise):
        state.noise = NoiseStream.start(noise.strategy, source, layout.size, device)
    return Parts(
        engine,
        RunPlan(schedule, first, by_round),
        account,
        state,
        name=settings.name or method.name or type(method).__name__,
        accountant=accountant,
        limit=settings.budget if given else None,
        not_private_because=reason,
    )


def _why_not_private(settings: Settings, method: Method, noise: Noise) -> str | None:
    """Return why no epsilon covers a run, None for a private one."""
    bare = settings.noise_multiplier == 0
    if bare and settings.budget is not None:
        rule, hint = "a budget needs noise", "Without noise epsilon is infinite: leave it out."
        raise InvalidParameter("noise_multiplier", 0, rule, hint)
    if (bare or method.as_printed) and not isinstance(noise, GaussianNoise):
        rule = f"{noise.name} noise needs a noise multiplier above 0, and no method as printed"
        name, value = ("noise_multiplier", 0) if bare else ("as_printed", True)
        raise InvalidParameter(name, value, rule)
    reasons = {
        f"{method.printed} (as printed)": method.as_printed,
        NOISE_FREE: bare,
        SEEDED: settings.seed is not None,
    }
    holding = (reason for reason, holds in reasons.items() if holds)
    return method.not_private_because or next(holding, None)


def _choose_delta(settings: Settings, adjacency: Adjacency, unit: str) -> float:
    """Return the one delta of a run. A ledger that exists fixes it. Settings may repeat it."""
    budget, delta = settings.budget, settings.delta
    own = None if delta is None else validate.delta(delta)
    if budget is not None:
        if own not in (None, budget.delta):
            rule = f"the budget has a delta of its own ({budget.delta:g})"
            raise InvalidParameter("delta", delta, rule, "Drop one of them.")
        own = budget.delta
    terms = settings.known_terms
    if terms is not None:
        return terms.check(own, adjacency, unit)
    return DEFAULT_DELTA if own is None else own


def _choose_schedule(
    settings: Settings,
    sampling: Sampling | Allocation,
    adjacency: Adjacency,
    delta: float,
    accountant: AccountantName,
    correlation: Correlation | None,
) -> tuple[Schedule, Budget]:
    """Return the rounds of a run with their noise, and the budget of a new ledger.

    Equal rounds have this sampling and adjacency. A budget scales the noise of a schedule. Rounds
    of correlated noise hold the noise multiplier of the independent rows, and are charged by
    `Correlation.charged`.
    """
    rounds = settings.planned_rounds

    def charged(multiplier: float) -> Schedule:
        if correlation is not None:
            own = correlation.charged(multiplier)
            return correlation.releases * Round(own, correlation.sampling, adjacency)
        if isinstance(sampling, Allocation):
            return sampling.epochs_of(rounds) * sampling.epoch(multiplier, adjacency)
        return rounds * Round(multiplier, sampling, adjacency)

    plan, budget, multiplier = settings.schedule, settings.budget, settings.noise_multiplier
    if multiplier is not None:
        multiplier = validate.noise_or_none(multiplier)
        plan = charged(multiplier or LEAST_NOISE)
    elif budget is None and plan is None:
        rule = "a budget is needed to choose the noise, or a noise_multiplier"
        raise InvalidParameter("budget", None, rule)
    elif budget is not None:
        given = charged(1.0) if plan is None else plan
        solved = calibrate(
            epsilon=budget.epsilon, delta=delta, schedule=given, accountant=accountant
        )
        plan = solved.schedule
    assert plan is not None  # noqa: S101 - one of the three cases above
    if budget is None:
        # No limit was asked for: one that the plan stays below by any accountant, quickly solved.
        quick = accountant if isinstance(sampling, Allocation) else "rdp"
        budget = Budget(2 * epsilon(plan, delta=delta, accountant=quick).upper + 1, delta)
    if correlation is None:
        return plan, budget
    if multiplier is None:
        # Above what rounding takes from the charge.
        [round_] = plan.only_rounds()
        multiplier = round_.noise_multiplier * correlation.sensitivity * (1 + _CHARGE_ROUNDING)
    return rounds * Round(multiplier, Full(), adjacency), budget


def of_records(
    sampling: Sampling | Allocation, clients: Population, *, planned: bool
) -> Sampling | Allocation:
    """Return the sampling of a population of which several records may belong to one owner."""
    known = sampling.num_clients if isinstance(sampling, Poisson) else None
    if known is not None and len(clients) > known:
        rule = f"there are {len(clients)} clients, and the bound is for no more than stated"
        raise InvalidParameter("num_clients", known, rule)
    most = clients.records if isinstance(clients, Examples | Owned) else 1
    stated = sampling.records if isinstance(sampling, Poisson) else 1
    if stated == most:
        return sampling
    if most == 1:
        rule = "the run enforces that number, so the population says whose its records are"
        hint = f"Give fl.Examples(..., owners=..., records={stated}), or fl.Owned of clients."
        raise InvalidParameter("records", stated, rule, hint)
    if not isinstance(sampling, Poisson):
        raise Unsupported(
            f"{type(sampling).__name__} sampling of owners with up to {most} records: only "
            f"Poisson sampling of each record is proven. Take Poisson(rate), Poisson(1) for all, "
            "or one record of each owner (records=1)"
        )
    if stated != 1 or planned:
        rule = f"the population has up to {most} records of one owner"
        hint = f"Charge Poisson({sampling.sampling_rate:g}, records={most})."
        raise InvalidParameter("records", stated, rule, hint)
    return replace(sampling, records=most)


def _choose_correlation(settings: Settings, noise: Noise, num_clients: int) -> Correlation | None:
    """Return strategy and cohorts of correlated noise, or None for independent noise."""
    if not isinstance(noise, CorrelatedNoise):
        return None
    for name, words in (
        ("schedule", "one noise and one rule for the cohorts"),
        ("distributed", "the rows of noise in one process"),
    ):
        if getattr(settings, name, None):
            raise Unsupported(f"{name} with correlated noise, which has {words}")
    if settings.public_size is not None:
        rule = "cohorts follow a public rule, which makes the number of clients public"
        raise InvalidParameter("public_size", settings.public_size, rule, "Leave it out.")
    cohorts = Cyclic(1) if isinstance(settings.sampling, Full) else settings.sampling
    if not isinstance(cohorts, Cyclic | MinSeparation):
        rule = (
            "the charge of correlated noise follows from how far apart a client's rounds are: "
            "fl.Cyclic(groups), fl.MinSeparation(separation, participations, cohort) or Full()"
        )
        hint = "For secret draws within groups take fl.Cyclic(groups, sampling_rate)."
        raise InvalidParameter("sampling", cohorts, rule, hint)
    if noise.strategy.rounds != settings.planned_rounds:
        rule = f"the strategy of the noise has {noise.strategy.rounds} rounds"
        raise InvalidParameter("rounds", settings.planned_rounds, rule)
    return Correlation(noise.strategy, cohorts, num_clients)


def _check_correlated(
    settings: Settings,
    correlation: Correlation,
    bound: Bound,
    adjacency: Adjacency,
    sampling: Sampling | Allocation,
) -> None:
    """Refuse what would change the clip norm from row to row, or has no proof."""
    if isinstance(sampling, Poisson) and sampling.records > 1:
        raise Unsupported(
            "users with several records in groups that take turns: one user would take part more "
            "often than once a turn. Keep one record of each user (records=1)"
        )
    if isinstance(bound, AdaptiveClip) or callable(settings.clip_norm):
        raise Unsupported(
            "a changing clip norm with correlated noise: the noise of earlier rounds, made for "
            "another norm, would cover this one. Take one clip_norm for all rounds"
        )
    if correlation.cohorts.sampling_rate is not None and adjacency is Adjacency.REPLACE_ONE:
        raise Unsupported(
            "replace-one with secret draws within groups. Their bound is proven for zero-out only"
        )


def _check_ahead(
    settings: Settings,
    bound: Bound,
    correlation: Correlation | None,
    sampling: Sampling | Allocation,
) -> None:
    """Refuse to reserve rounds ahead that are not alike, or that are charged together anyway."""
    rule = ""
    if isinstance(bound, AdaptiveClip) or callable(settings.clip_norm):
        rule = "each round is recorded with its own clip norm, once that is known"
    elif correlation is not None or isinstance(sampling, Allocation):
        rule = "the rounds of an epoch, or of correlated noise, are charged together anyway"
    if rule and settings.ahead > 1:
        raise InvalidParameter("ahead", settings.ahead, rule, "Leave it out.")


def plan_accountant(
    method: Method, accountant: AccountantName, sampling: Sampling | Allocation
) -> AccountantName:
    """Return the accountant of a run's plan: fixed pairs if the method's clients have memories.

    docs/derivations/federated.md, "Client memories", has data sets that exceed every bound for
    rounds that are taken one after the other. In cohorts of fixed size one client's memory would
    depend on another client's place.
    """
    if not has_memories(method):
        return accountant
    if not method.everyone_computes and isinstance(sampling, Uniform):
        raise Unsupported(
            f"clients of {method.name or type(method).__name__} remember when they took part. In "
            "cohorts of fixed size a client takes the place of another, so what the others "
            "remember depends on it, and no bound covers that. Take Poisson("
            f"{sampling.sampling_rate:g}), or let all clients update their memory in every round "
            "(everyone_computes = True)"
        )
    return PAIRS if accountant == TIGHT else accountant


def has_memories(method: Method) -> bool:
    """Return whether a method's clients remember something from round to round."""
    return any(overrides(method, member) for member in ("init_client", "client_state"))


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def _local_training(clients: Population, method: Method, local: SGD | None) -> SGD:
    """Return the local training of a run, as the method needs it, with one step for an example."""
    if not isinstance(clients, Examples):
        return method.prepare(SGD() if local is None else local)
    one = method.prepare(SGD(lr=1.0, steps=1, batch_size=1) if local is None else local)
    later = "It takes one step in a round. Take server=fl.Momentum(0.9) or server=fl.Adam(0.01)."
    for name, value, hint in (
        ("local", one.count_steps(1) != 1 and f"{one.count_steps(1)} steps", later),
        ("momentum", one.momentum, later),
        ("local", isinstance(one, LocalAdam) and "LocalAdam", later),
        ("max_grad_norm", one.max_grad_norm, "The clip norm of the run bounds its gradient."),
    ):
        if value:
            raise InvalidParameter(name, value, "an example trains by plain SGD without it", hint)
    return replace(one, steps=1, epochs=None, batch_size=1)


@undisturbed()
def choose_chooser(
    engine: Engine, model: nn.Module, loss: LossFunction, settings: LocalSettings
) -> TrainerChooser:
    """Return the object that chooses how this population is trained."""
    parts = (model, loss, engine.method, engine.layout, engine.local)
    examples, chunk = isinstance(engine.clients, Examples), settings.chunk_size
    if examples:
        _refuse_for_examples(model, engine.method)
    return TrainerChooser(*parts, vectorize=settings.vectorize, chunk=chunk, examples=examples)


def _refuse_for_examples(model: nn.Module, method: Method) -> None:
    """Refuse a layer that mixes the examples of a batch, and a method with memories."""
    for name, module in modules_of(model):
        # Without running statistics a norm takes the statistics of the batch, in eval mode too.
        fixed = keeps_statistics(module) and is_frozen(module)
        if isinstance(module, _BATCH_NORMS) and not fixed:
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) mixes the examples of a batch: "
                "the gradient of one depends on the others, and no bound on one example's gradient "
                "covers that. Use group or layer norm, or freeze this norm before the run: "
                "norm.eval().requires_grad_(False)"
            )
    if method.everyone_computes or has_memories(method):
        raise Unsupported(
            f"{method.name or type(method).__name__} gives each client a memory, and examples have "
            "none. Train clients, or take a method without memories"
        )


def check_shares(parts: Parts) -> None:
    """Refuse noise shares from elsewhere if the server would receive a client's own value."""
    engine, bound = parts.engine, parts.state.bound
    noise, method = engine.noise, engine.method
    if not isinstance(noise, SharesElsewhere):
        return
    if method.everyone_computes or has_memories(method):
        raise Unsupported(
            f"{method.name or type(method).__name__} with noise shares: the server would keep the "
            "clients' memories without noise. Take a method without memories"
        )
    if isinstance(bound, AdaptiveClip):
        raise Unsupported(
            "an adaptive clip norm with noise shares: a second sum counts the clipped clients, "
            "and is not hidden. Take a fixed clip_norm"
        )
    if not parts.plan.constant or parts.plan.clip_norms is not None:
        raise Unsupported(
            "noise shares of clients elsewhere with a schedule: clients agree on one noise for the "
            "whole run. Take equal rounds and one clip norm, or noise added by the server"
        )
    if engine.layout.size:
        # A share that clients cannot draw is refused before anything is charged.
        limits = bound.limits(engine.layout)
        share_sigma(limits, engine.plan.update_std(bound), noise.minimum)
