"""From the settings of a run to its engine, its ledger and its first state: checked before all."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from dpacct import validate
from dpacct.accountant import epsilon
from dpacct.budget import DEFAULT_DELTA, Budget
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Population, check_population
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.examples import Examples
from dpacct.fl.layout import (
    Layout,
    Params,
    copies,
    is_frozen,
    keeps_statistics,
    modules_of,
    trainable,
)
from dpacct.fl.local.losses import LossFunction
from dpacct.fl.local.rates import RoundValues, values_over
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.privacy.account import Account, NoisePlan
from dpacct.fl.privacy.bounds import AdaptiveClip, check_limits, clip_norm
from dpacct.fl.privacy.noise import NoiseShares, SharesElsewhere, share_sigma
from dpacct.fl.privacy.randomness import SEEDED, Randomness, Seeded
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import (
    LocalSettings,
    Settings,
    choose_bound,
    choose_noise_source,
    choose_sampling,
    server_rate,
)
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.training.choose import TrainerChooser
from dpacct.ledger.record.plans import PAIRS, TIGHT
from dpacct.ledger.terms import CLIENT, Terms, known_terms
from dpacct.rounds import Adjacency, Round, Sampling, Schedule, Uniform


@undisturbed()
def prepare(settings: Settings, model: nn.Module, clients: Population) -> Rounds:
    """Check the settings, choose the noise, and put the parts of a run together.

    Args:
        settings: of the run. model: on its device. clients: the population.
    Raises:
        InvalidParameter, Unsupported: a setting that makes no sense, or is not private.
    """
    ledger, checkpoint = settings.ledger, settings.checkpoint_path
    if ledger is None and checkpoint is not None:
        ledger = checkpoint.with_name(f"{checkpoint.name}.ledger")
    check_population(clients, len(clients))
    schemes = [choose_sampling(each) for each in settings.samplings]
    # Schemes that disagree about the population are refused one by one.
    public, *_ = [PublicSize.choose(settings.public_size, s, len(clients)) for s in schemes]
    asked = settings.adjacency if settings.schedule is None else settings.schedule.adjacency
    relation, *_ = [public.adjacency(scheme, asked) for scheme in schemes]
    budget, unit = settings.budget, unit_of(clients)
    delta = _choose_delta(budget, settings.delta, known_terms(ledger), relation, unit)
    method = DPFedAvg() if settings.method is None else settings.method
    count = settings.planned_rounds
    local = local_training(clients, method, settings.local).over(count)
    server_lr = values_over("server_lr", settings.server_lr, count, server_rate)
    norms = settings.clip_norm
    if callable(norms):
        norms = values_over("clip_norm", norms, count, clip_norm)
    norm = norms(1) if isinstance(norms, RoundValues) else norms
    bound = choose_bound(settings.bound, norm, method)
    params = copies(trainable(model))
    layout = Layout.of(params)
    check_limits(bound, layout)
    noise = choose_noise_source(settings.noise, secure=settings.secure_noise)
    accountant = settings.accountant
    for scheme in schemes:
        noise.check(scheme, relation, len(clients))
        accountant = plan_accountant(method, params, settings.accountant, scheme)
    schedule, kept = _choose_schedule(
        settings.schedule,
        count,
        schemes[0],
        relation,
        budget,
        settings.noise_multiplier,
        delta,
        accountant,
    )
    source = Randomness() if settings.seed is None else Seeded(settings.seed)
    reason = method.not_private_because or (None if source.private else SEEDED)
    account = Account(ledger, kept, private=reason is None, accountant=accountant, unit=unit)
    multiplier = schedule.phases[0].round.noise_multiplier
    first = NoisePlan(schemes[0], relation, multiplier, public)
    plan = RunPlan(schedule, first, norms if isinstance(norms, RoundValues) else None)
    device = next(iter(params.values())).device
    engine = Engine(
        clients,
        method,
        layout,
        local,
        first,
        noise,
        source,
        device,
        server_lr,
        settings.server,
    )
    state = TrainingState(0, params, copies(method.init(copies(params))), {}, bound, None)
    given = settings.noise_multiplier is not None
    rounds = Rounds(
        engine,
        plan,
        account,
        state,
        model,
        name=settings.name or method.name or type(method).__name__,
        accountant=accountant,
        limit=budget if given else None,
        calibrated=budget is not None and not given,
        not_private_because=reason,
    )
    # A bound or noise that cannot be charged for in some round is refused here.
    rounds.charged()
    return rounds


def _choose_delta(
    budget: Budget | None,
    delta: float | None,
    terms: Terms | None,
    adjacency: Adjacency,
    unit: str,
) -> float:
    """The one delta of a run: that of its ledger, which its budget and its own may only repeat.

    Raises:
        InvalidParameter: two of them differ, one is out of range, or the ledger has another
            adjacency or unit.
    """
    own = None if delta is None else validate.delta(delta)
    if budget is not None:
        if own not in (None, budget.delta):
            rule = f"the budget has a delta of its own ({budget.delta:g})"
            raise InvalidParameter("delta", delta, rule, "Drop one of them.")
        own = budget.delta
    if terms is not None:
        return terms.check(own, adjacency, unit)
    return DEFAULT_DELTA if own is None else own


def _choose_schedule(
    planned: Schedule | None,
    rounds: int | None,
    sampling: Sampling,
    adjacency: Adjacency,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float,
    accountant: str,
) -> tuple[Schedule, Budget]:
    """Return the rounds of a run with their noise, and the budget of a new ledger.

    Args:
        planned: a schedule; a budget scales its noise. None: equal rounds of the next arguments.
        rounds, sampling, adjacency, noise_multiplier: of equal rounds.
        budget: that the noise has to meet, or that goes with given noise; None for no limit.
        delta: of the run. accountant: that calibrates.
    Raises:
        InvalidParameter: neither budget nor noise.
    """
    plan = planned
    if plan is None and noise_multiplier is not None:
        multiplier = validate.noise_multiplier(noise_multiplier)
        plan = validate.rounds(rounds) * Round(multiplier, sampling, adjacency)
        if budget is not None:
            return plan, budget
    if budget is None:
        if plan is None:
            rule = "a budget is needed to choose the noise, or a noise_multiplier"
            raise InvalidParameter("budget", None, rule)
        # No limit was asked for: one that the plan stays below by any accountant, quickly found.
        return plan, Budget(2 * epsilon(plan, delta=delta, accountant="rdp").upper + 1, delta)
    if plan is not None:
        found = calibrate(epsilon=budget.epsilon, delta=delta, schedule=plan, accountant=accountant)
        return found.schedule, budget
    found = calibrate(
        epsilon=budget.epsilon,
        delta=delta,
        rounds=rounds,
        sampling=sampling,
        adjacency=adjacency,
        accountant=accountant,
    )
    return found.schedule, budget


def plan_accountant(method: Method, params: Params, accountant: str, sampling: Sampling) -> str:
    """The accountant of a run's plan: the one asked for, unless the method's clients remember.

    Args:
        method: of the run.
        params: the model's.
        accountant: that was asked for.
        sampling: of its rounds.
    Raises:
        Unsupported: memories that are kept by those who take part, in cohorts of fixed size.
    """
    remembers = has_memories(method, params)
    if remembers and not method.everyone_computes and method.not_private_because is None:
        _check_memories(method, sampling)
    return PAIRS if remembers and accountant == TIGHT else accountant


def has_memories(method: Method, params: Params) -> bool:
    """Return whether a method's clients remember something from round to round."""
    overridden = any(overrides(method, member) for member in ("init_client", "client_state"))
    return overridden or method.init_client(params) is not None


def _check_memories(method: Method, sampling: Sampling) -> None:
    """Refuse cohorts in which one client's memory would tell of another client's place.

    docs/derivations/federated.md, "Client memories", has data sets that exceed every bound for
    rounds that are taken one after the other.
    """
    if isinstance(sampling, Uniform):
        raise Unsupported(
            f"clients of {method.name or type(method).__name__} remember when they took part, and "
            f"in cohorts of fixed size one takes part in the place of another: what others "
            f"remember tells of each, which no bound covers. Take Poisson("
            f"{sampling.sampling_rate:g}), or let all clients update their memory in every round "
            "(everyone_computes = True)"
        )


_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def unit_of(clients: Population) -> str:
    """The unit that a run on this population protects, in words."""
    return clients.unit if isinstance(clients, Examples) else CLIENT


def local_training(clients: Population, method: Method, local: SGD | None) -> SGD:
    """The local training of a run: as asked and as the method needs it; one step for an example.

    Raises:
        InvalidParameter: more than one step for an example, or momentum, which has no second step;
            or what the method refuses.
    """
    if not isinstance(clients, Examples):
        return method.prepare(SGD() if local is None else local)
    one = method.prepare(SGD(lr=1.0, steps=1, batch_size=1) if local is None else local)
    if one.count_steps(1) != 1:
        rule = "an example takes one step in a round"
        hint = "Leave it out, or take fl.SGD(lr=1.0, steps=1)."
        raise InvalidParameter("local", f"{one.count_steps(1)} steps", rule, hint)
    if one.momentum:
        rule = "an example takes one step in a round, in which momentum does nothing"
        hint = "For momentum from round to round give server=fl.Momentum(0.9)."
        raise InvalidParameter("momentum", one.momentum, rule, hint)
    return replace(one, steps=1, epochs=None, batch_size=1)


def _refuse_for_examples(model: nn.Module, method: Method) -> None:
    """What makes no sense where single examples are protected.

    Raises:
        Unsupported: a layer that mixes the examples of a batch, or a method with memories.
    """
    for name, module in modules_of(model):
        # Without running statistics a norm takes the batch's own, in eval mode too.
        fixed = keeps_statistics(module) and is_frozen(module)
        if isinstance(module, _BATCH_NORMS) and not fixed:
            raise Unsupported(
                f"{name or 'the model'} ({type(module).__name__}) mixes the examples of a batch: "
                "the gradient of one depends on the others, and no bound on one example's gradient "
                "covers that. Use group or layer norm, or freeze this norm before the run: "
                "norm.eval().requires_grad_(False)"
            )
    members = ("init_client", "client_state")
    if method.everyone_computes or any(overrides(method, member) for member in members):
        raise Unsupported(
            f"{method.name or type(method).__name__} gives each client a memory, and examples have "
            "none. Train clients, or take a method without memories"
        )


@undisturbed()
def choose_chooser(
    engine: Engine, model: nn.Module, loss: LossFunction, settings: LocalSettings
) -> TrainerChooser:
    """Return the object that chooses how this population is trained.

    Raises:
        Unsupported: as `TrainerChooser`, or a model or method that has no meaning for examples.
    """
    examples = isinstance(engine.clients, Examples)
    if examples:
        _refuse_for_examples(model, engine.method)
    return TrainerChooser(
        model,
        loss,
        engine.method,
        engine.layout,
        engine.local,
        vectorize=settings.vectorize,
        chunk=settings.chunk_size,
        memory_limit=settings.memory_limit,
        examples=examples,
    )


def elsewhere(noise: NoiseShares) -> SharesElsewhere:
    """Return noise whose shares real clients add.

    Raises:
        InvalidParameter: drop-outs are to be simulated.
    """
    if noise.dropout_rate:
        rule = "it simulates who drops out; of clients elsewhere that is seen"
        raise InvalidParameter("dropout_rate", noise.dropout_rate, rule, "Leave it out.")
    return SharesElsewhere(noise.minimum)


def check_shares(rounds: Rounds) -> None:
    """Check that a run with noise shares from elsewhere hides all that is a client's own.

    Raises:
        Unsupported: something of a client would be seen, or a share cannot be drawn.
    """
    engine, bound = rounds.engine, rounds.state.bound
    noise, method = engine.noise, engine.method
    if not isinstance(noise, SharesElsewhere):
        return
    name = method.name or type(method).__name__
    if method.everyone_computes or overrides(method, "init_client"):
        raise Unsupported(
            f"{name} with noise shares: the server keeps its clients' memories, which no noise "
            "covers. Take a method without memories"
        )
    if isinstance(bound, AdaptiveClip):
        raise Unsupported(
            "an adaptive clip norm with noise shares: who was clipped is counted in a second sum, "
            "which is not hidden. Take a fixed clip_norm"
        )
    if not rounds.plan.constant or rounds.plan.clip_norms is not None:
        raise Unsupported(
            "noise shares of clients elsewhere with a schedule: clients agree on one noise for the "
            "whole run. Take equal rounds and one clip norm, or noise added by the server"
        )
    # What clients are to draw is tried before anything is charged.
    limits = bound.limits(engine.layout)
    if engine.layout.size:
        share_sigma(limits, engine.plan.update_std(bound), noise.minimum)


def rehearsed(engine: Engine) -> Engine:
    """Return an engine in which synthetic clients add the shares."""
    noise = engine.noise
    if not isinstance(noise, SharesElsewhere):
        return engine
    return replace(engine, noise=replace(noise, rehearsed=True))
