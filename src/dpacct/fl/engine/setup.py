"""From the settings of a run to its engine, its ledger and its first state: checked before all."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dpacct import validate
from dpacct.accountant import spend
from dpacct.budget import Budget, Spent
from dpacct.fl.clients import Population, check_population
from dpacct.fl.engine import checks
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.populations import local_training, unit_of
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import Layout, copies, trainable
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import check_limits
from dpacct.fl.privacy.charge import NoisePlan
from dpacct.fl.privacy.randomness import SEEDED, randomness_for
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import Settings
from dpacct.fl.surroundings import undisturbed
from dpacct.ledger.terms import known_terms
from dpacct.rounds import Poisson


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A run that is about to begin.

    Attributes:
        rounds: its rounds. planned: how many.
        budget: of a new ledger. limit: the budget that noise was given beside, or None.
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
        """What so many rounds like the next one cost where cohorts and noise are secret."""
        return spend(rounds * self.rounds.event().charged, account.delta, self.accountant)


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
    sampling = settings.sampling
    scheme = checks.choose_sampling(Poisson(0.1) if sampling is None else sampling)
    check_population(clients, len(clients))
    public = PublicSize.choose(settings.public_size, scheme, len(clients))
    relation = public.adjacency(scheme, settings.adjacency)
    budget, unit = settings.budget, unit_of(clients)
    at = checks.choose_delta(budget, settings.delta, known_terms(ledger), relation, unit)
    method = DPFedAvg() if settings.method is None else settings.method
    local = local_training(clients, method, settings.local)
    rounds = validate.rounds(settings.rounds)
    noise = checks.choose_noise_source(settings.noise, secure=settings.secure_noise)
    noise.check(scheme, relation, len(clients))
    bound = checks.choose_bound(settings.bound, settings.clip_norm, method)
    params = copies(trainable(model))
    layout = Layout.of(params)
    check_limits(bound, layout)
    source = randomness_for(settings.seed)
    reason = method.not_private_because or (None if source.private else SEEDED)
    accountant = checks.plan_accountant(method, params, settings.accountant, scheme)
    given = settings.noise_multiplier
    multiplier, kept = checks.choose_noise(scheme, relation, rounds, budget, given, at, accountant)
    plan = NoisePlan(scheme, relation, multiplier, public)
    account = Account(ledger, kept, private=reason is None, accountant=accountant, unit=unit)
    device = next(iter(params.values())).device
    engine = Engine(
        clients,
        method,
        layout,
        local,
        plan,
        noise,
        source,
        device,
        settings.server_lr,
        settings.server,
    )
    state = TrainingState(0, params, copies(method.init(copies(params))), {}, bound, None)
    prepared = Prepared(
        Rounds(engine, account, state, model, reason),
        rounds,
        kept,
        budget if given is not None else None,
        given is None,
        accountant,
        settings.name or method.name or type(method).__name__,
    )
    prepared.rounds.event()
    return prepared
