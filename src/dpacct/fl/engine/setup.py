"""From the settings of a run to its engine, its ledger and its first state: checked before all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpacct.accountant import spend
from dpacct.budget import Budget, Spent
from dpacct.fl.clients import Population, check_population
from dpacct.fl.engine import checks
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.plan import RunPlan
from dpacct.fl.engine.populations import local_training, unit_of
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import Layout, copies, trainable
from dpacct.fl.local.rates import RoundValues, values_over
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.privacy.account import Account, NoisePlan
from dpacct.fl.privacy.bounds import check_limits, clip_norm
from dpacct.fl.privacy.randomness import SEEDED, randomness_for
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import Settings, server_rate
from dpacct.fl.surroundings import undisturbed
from dpacct.ledger.record.plans import Plan
from dpacct.ledger.terms import known_terms


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A run that is about to begin.

    Attributes:
        rounds: its rounds. planned: how many.
        budget: of a new ledger. limit: the budget that noise was given with, or None.
        calibrated: whether the noise was found for the budget.
        accountant: that charges the plan. name: of the run in the ledger.
    """

    rounds: Rounds
    planned: int
    budget: Budget
    limit: Budget | None
    calibrated: bool
    accountant: str
    name: str

    def planned_epsilon(self, rounds: int, account: Account) -> Spent:
        """Return what the first rounds of the plan cost if cohorts and noise are secret."""
        return spend(Plan(self.rounds.charged()).first(rounds), account.delta, self.accountant)


@undisturbed()
def prepare(settings: Settings, model: nn.Module, clients: Population) -> Prepared:
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
    schemes = [checks.choose_sampling(each) for each in settings.samplings]
    # Schemes that disagree about the population are refused one by one.
    public, *_ = [PublicSize.choose(settings.public_size, s, len(clients)) for s in schemes]
    asked = settings.adjacency if settings.schedule is None else settings.schedule.adjacency
    relation, *_ = [public.adjacency(scheme, asked) for scheme in schemes]
    budget, unit = settings.budget, unit_of(clients)
    delta = checks.choose_delta(budget, settings.delta, known_terms(ledger), relation, unit)
    method = DPFedAvg() if settings.method is None else settings.method
    count = settings.planned_rounds
    local = local_training(clients, method, settings.local).over(count)
    server_lr = values_over("server_lr", settings.server_lr, count, server_rate)
    norms = settings.clip_norm
    if callable(norms):
        norms = values_over("clip_norm", norms, count, clip_norm)
    norm = norms(1) if isinstance(norms, RoundValues) else norms
    bound = checks.choose_bound(settings.bound, norm, method)
    params = copies(trainable(model))
    layout = Layout.of(params)
    check_limits(bound, layout)
    noise = checks.choose_noise_source(settings.noise, secure=settings.secure_noise)
    accountant = settings.accountant
    for scheme in schemes:
        noise.check(scheme, relation, len(clients))
        accountant = checks.plan_accountant(method, params, settings.accountant, scheme)
    schedule, kept = checks.choose_schedule(
        settings.schedule,
        count,
        schemes[0],
        relation,
        budget,
        settings.noise_multiplier,
        delta,
        accountant,
    )
    source = randomness_for(settings.seed)
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
    prepared = Prepared(
        Rounds(engine, plan, account, state, model, reason),
        count,
        kept,
        budget if given else None,
        budget is not None and not given,
        accountant,
        settings.name or method.name or type(method).__name__,
    )
    # A bound or noise that cannot be charged for in some round is refused here.
    prepared.rounds.charged()
    return prepared
