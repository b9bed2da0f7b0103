"""From the settings of a run to its engine, its ledger and its first state: checked before all."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
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
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.dp_fedavg import DPFedAvg
from dpacct.fl.methods.protocol import Method
from dpacct.fl.methods.server_optimizers import ServerOptimizer
from dpacct.fl.privacy.account import Account
from dpacct.fl.privacy.bounds import Bound, check_limits
from dpacct.fl.privacy.charge import NoisePlan
from dpacct.fl.privacy.noise import Noise
from dpacct.fl.privacy.randomness import SEEDED, expected_cohort, randomness_for
from dpacct.fl.surroundings import undisturbed
from dpacct.ledger import Ledger
from dpacct.ledger.terms import known_terms
from dpacct.rounds import Adjacency, Poisson, Sampling


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settings:
    """What a run is asked to be; `dpacct.fl.federation.Federation` says what each of them means."""

    rounds: int
    method: Method | None = None
    clip_norm: float | None = None
    bound: Bound | None = None
    sampling: Sampling | None = None
    adjacency: Adjacency | str | None = None
    budget: Budget | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    local: SGD | None = None
    server_lr: float = 1.0
    server: ServerOptimizer | None = None
    noise: Noise | None = None
    secure_noise: bool = False
    ledger: Ledger | str | Path | None = None
    name: str | None = None
    accountant: str = "tight"
    seed: int | None = None
    checkpoint: Path | None = None


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
    ledger = settings.ledger
    if ledger is None and settings.checkpoint is not None:
        ledger = settings.checkpoint.with_name(f"{settings.checkpoint.name}.ledger")
    sampling = settings.sampling
    scheme = checks.choose_sampling(Poisson(0.1) if sampling is None else sampling)
    relation = settings.adjacency
    relation = Adjacency.parse(scheme.default_adjacency if relation is None else relation)
    budget, unit = settings.budget, unit_of(clients)
    at = checks.choose_delta(budget, settings.delta, known_terms(ledger), relation, unit)
    method = DPFedAvg() if settings.method is None else settings.method
    local = local_training(clients, method, settings.local)
    rounds = validate.rounds(settings.rounds)
    check_population(clients, len(clients))
    noise = checks.choose_noise_source(settings.noise, secure=settings.secure_noise)
    noise.check(scheme, relation, len(clients))
    bound = checks.choose_bound(settings.bound, settings.clip_norm, method)
    params = copies(trainable(model))
    layout = Layout.of(params)
    check_limits(bound, layout)
    source = randomness_for(settings.seed)
    reason = method.not_private_because or (None if source.private else SEEDED)
    cohort = expected_cohort(scheme, len(clients))
    accountant = checks.plan_accountant(method, params, settings.accountant, scheme)
    given = settings.noise_multiplier
    multiplier, kept = checks.choose_noise(scheme, relation, rounds, budget, given, at, accountant)
    plan = NoisePlan(scheme, relation, multiplier, cohort)
    account = Account(ledger, kept, private=reason is None, accountant=accountant, unit=unit)
    rule = "a server learning rate is a finite number"
    rate = validate.real("server_lr", settings.server_lr, rule)
    device = next(iter(params.values())).device
    engine = Engine(
        clients, method, layout, local, plan, noise, source, device, rate, settings.server
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


@undisturbed()
def place(model: nn.Module, device: torch.device | str | None) -> nn.Module:
    """The model on the device, by default its own."""
    own = next(model.parameters(), torch.empty(0)).device
    return model.to(torch.device(own if device is None else device))
