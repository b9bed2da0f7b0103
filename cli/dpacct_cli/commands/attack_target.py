"""The target of `dpacct attack`: a trained model, the compared clients, and the proven limit.

Rule 1: a checkpoint, its settings, its data and its ledger belong together, or the attack is
rejected: a model on other data would seem to remember no client.
Rule 2: clients that were held out at random are like the members, and the limit is about them. If
there are none, the test set is used, and the answer says so.
Rule 3: without a guarantee there is no limit, and the answer gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.attacks import without_members
from dpacct.fl.clients import ClientData
from dpacct.fl.data import PartitionedClients
from dpacct.fl.data.partitions import dirichlet, iid, natural
from dpacct.fl.engine.checkpoint import load_parameters, noise_of, read_checkpoint, saved_in
from dpacct.fl.federation import Federation
from dpacct.fl.layout import trainable
from dpacct.fl.models import Model, build_model, cross_entropy
from dpacct.fl.privacy.account import check_run
from dpacct.fl.privacy.allocation import Allocation
from dpacct.fl.privacy.cohorts import Cyclic
from dpacct.fl.privacy.randomness import SEEDED
from dpacct.fl.tensors import from_array
from dpacct.ledger import Ledger, Run
from dpacct.ledger.record.events import noise_of as noise_level
from dpacct.ledger.record.events import with_noise
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import AnyMechanism, accusations
from dpacct.rounds import Adjacency, Phase, Round, Schedule, Uniform, first_rounds
from dpacct_cli import waiting
from dpacct_cli.errors import conflict
from dpacct_cli.render import plain, up
from dpacct_cli.train.files import SETTINGS, RunFiles, ledger_of_settings
from dpacct_cli.train.job import Job, build_job, build_method, read_data
from dpacct_cli.train.settings import Settings, load

ARGUMENT = "CHECKPOINT"
LEAST_NOISE = validate.NOISE_MULTIPLIER_RANGE[0]
# Settings of the run that shadow models share.
LIKE_THE_RUN = ("bound", "local", "server", "server_lr", "device", "vectorize")
_SUFFIX = ".checkpoint"
_SIZES = re.compile(r"(?P<clients>\d+) clients, (?P<parameters>\d+) parameters")


# The model.


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A trained model with its run.

    Attributes:
        path: of the checkpoint. content: of that file.
        settings, files, job: of the run. The job's model has the parameters of the checkpoint.
        rounds: released so far.
    """

    path: Path
    content: Mapping[str, Any]
    settings: Settings
    files: RunFiles
    job: Job
    rounds: int

    @property
    def seed(self) -> int:
        """The public seed of the run."""
        return int(self.settings.get("public_seed") or 0)


def read_target(text: str, data: str | None, changed: Mapping[str, str | None]) -> Target:
    """Return the model of a checkpoint.

    Args:
        text: the file. data: the claimed training data of its run, or None.
        changed: settings that may differ from the settings of the run.
    Raises:
        InvalidParameter: no checkpoint of `dpacct train`, or of other settings or data.
        OptionConflict: it was trained on other data than is said.
    """
    path = Path(text)
    if path.suffix != _SUFFIX and path.is_file():
        rule = f"a checkpoint of dpacct train ends in {_SUFFIX}"
        raise InvalidParameter(ARGUMENT, text, rule)
    stem = path.name.removesuffix(_SUFFIX)
    beside = path.with_name(stem + SETTINGS)
    try:
        content = read_checkpoint(path, "cpu")
        settings = _settings_beside(path, beside)
        own = settings.values.get("data")
        if data is not None and data != own:
            trained = f"its model was trained on {own}"
            raise conflict(f"--data {data}", f"{ARGUMENT} {text}", trained)
        typed = {key: value for key, value in changed.items() if value is not None}
        settings = replace(settings, values={**settings.values, **typed})
        job = build_job(settings)
        _check_sizes(job, content, path)
        load_parameters(dict(content), path, job.model)
    except InvalidParameter as error:
        if error.name not in ("checkpoint", "resume"):
            raise
        raise InvalidParameter(ARGUMENT, error.value, error.rule, error.hint) from None
    done = content.get("round")
    if type(done) is not int or done < 0:
        raise InvalidParameter(ARGUMENT, text, "it does not say how many rounds it holds")
    files = RunFiles.of(ledger_of_settings(beside, settings), stem)
    return Target(path, content, settings, files, job, done)


def _settings_beside(path: Path, file: Path) -> Settings:
    if not file.is_file():
        rule = f"the settings of its run belong in the same folder, and there is no {file}"
        hint = "dpacct train writes both; dpacct.fl.attacks takes any model."
        raise InvalidParameter(ARGUMENT, str(path), rule, hint)
    return load(file)


def _check_sizes(job: Job, content: Mapping[str, Any], path: Path) -> None:
    sizes = _SIZES.search(str(content.get("setting")))
    here = {
        "clients": len(job.clients),
        "parameters": sum(value.numel() for value in trainable(job.model).values()),
    }
    for what, count in here.items():
        if sizes is not None and int(sizes[what]) != count:
            rule = (
                f"its run had {int(sizes[what]):,} {what}, and by the settings beside it there are "
                f"{count:,}: it belongs to another model, or the data have changed"
            )
            raise InvalidParameter(ARGUMENT, str(path), rule)


# The compared clients.


class People(NamedTuple):
    """The two sides of a comparison.

    Attributes:
        members, nonmembers: clients.
        strangers: True if the held-out examples belong to no client that was trained on.
        random: True if members were drawn at random from all clients.
        told: a description of the non-members.
        left_out: the number of held-out examples that a member has, too.
    """

    members: list[ClientData]
    nonmembers: list[ClientData]
    strangers: bool
    random: bool
    told: str
    left_out: int


def people_of(target: Target, most: int) -> People:
    """Return members and non-members of a run, chosen by the public seed and sizes alone.

    Args:
        target: its model. most: examples of each side, in whole clients.
    Raises:
        InvalidParameter: the held-out examples were used for training.
        Unsupported: the run protects single examples.
    """
    job, seed = target.job, target.seed
    clients, test = job.clients, job.dataset.test
    if not isinstance(clients, PartitionedClients):
        raise Unsupported("it was trained on single examples (--examples); this compares clients")
    kind, _, strength = target.settings.values["partition"].partition(":")
    strangers = True
    if job.held_out is not None:
        outside, told = job.held_out, "of clients whom --hold-out kept out of the run"
    elif kind == "natural":
        outside, strangers = _others(target)
        told = "of people without training examples" if strangers else "of clients who took part"
    else:
        # Dealt out as the training examples were, to clients of about the same size.
        count = max(1, len(test) * len(clients) // len(job.dataset.train))
        dealt = iid(len(test), count, seed=seed)
        if kind == "dirichlet":
            dealt = dirichlet(test.targets.numpy(), count, float(strength), seed=seed)
        outside = PartitionedClients(test, dealt, job.keywords["device"])
        told = "of the test set, dealt out as the members' are"
    # All clients are looked at, because one that is not compared may have a held-out example.
    everybody = (clients[number] for number in range(len(clients)))
    found = without_members(everybody, _some(outside, most, seed))
    random = job.held_out is not None
    members = _some(clients, most, seed)
    return People(members, found.clients, strangers, random, told, found.left_out)


def _others(target: Target) -> tuple[PartitionedClients, bool]:
    """Return test examples by owner, and whether their owners have no training examples."""
    job, settings = target.job, target.settings
    dataset = job.dataset
    if settings.values["data"] == "femnist":
        options = {**settings.data_options, "test_writers": "new"}
        dataset = read_data(replace(settings, data_options=options))
    owners, known = dataset.test_owners, dataset.owners
    fresh = np.zeros(len(dataset.test), np.bool_)
    if owners is not None and known is not None:
        fresh = ~np.isin(owners, known)
    rows = np.flatnonzero(fresh) if fresh.any() else np.arange(len(dataset.test))
    part = dataset.test.select(from_array(rows))
    whose = np.zeros(len(rows), np.int64) if owners is None else owners[rows]
    return PartitionedClients(part, natural(whose), job.keywords["device"]), bool(fresh.any())


def _some(clients: PartitionedClients, most: int, seed: int) -> list[ClientData]:
    """Return random clients with at least this number of examples in total."""
    order = np.random.default_rng(seed).permutation(len(clients))
    sizes = clients.sizes[order]
    before = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    return [clients[int(client)] for client in sorted(order[before < most])]


# The proven limit. It is that of the rounds which the checkpoint has learned from, as its ledger
# charged them, and holds on average over trainings.


class Limit(NamedTuple):
    """The proven bounds on every attack.

    Attributes:
        auc, advantage: the largest AUC and TPR - FPR of any score, None if nothing is proven.
        tpr: the largest TPR at an FPR.
        because: the reason if nothing is proven.
        told: the adjacency, or the mechanism in words.
    """

    auc: float | None = None
    advantage: float | None = None
    tpr: Callable[[float], float | None] = lambda _: None
    because: str = ""
    told: str = ""


def proven(target: Target, *, strangers: bool) -> tuple[Limit, Limit]:
    """Return the limits of a run for comparing clients, and for comparing examples.

    Without a guarantee of the run, the first one is unknown.

    Args:
        target: its model.
        strangers: True if the held-out examples belong to no client that took part. If they do, an
            example that was trained on and one that was not differ as one client replaced by
            another, under any adjacency of the run.
    Raises:
        LedgerError: the ledger is damaged, or not that of the checkpoint.
    """
    path = target.files.ledger
    saved = saved_in(dict(target.content))
    if saved is None:
        nothing = _limit(Schedule(), DEFAULT_ACCOUNTANT)
        return nothing, nothing
    because = f"its ledger {path} is not there"
    if path.is_file():
        with Ledger.open(path, read_only=True) as ledger:
            holder = f"the checkpoint {target.path}"
            ledger.require(saved.position, holder)
            run = check_run(ledger, saved, str(target.content.get("setting")), holder)
            if run.private:
                return _of_run(run, target.rounds, strangers=strangers)
            why = target.job.keywords["method"].not_private_because or SEEDED
            because = f"the run is not private: {why}"
    return Limit(because=because), Limit(because=because)


def _of_run(run: Run, rounds: int, *, strangers: bool) -> tuple[Limit, Limit]:
    if rounds and (run.plan is None or not run.on_plan):
        spent = run.epsilon()
        if not 0.0 < spent.upper < float("inf"):
            unknown = Limit(because="no epsilon is proven for its rounds")
            return unknown, unknown
        told = f"any mechanism with epsilon {up(spent.upper)} at delta {plain(spent.delta)}"
        found = AnyMechanism(spent.upper, spent.delta)
        clients = Limit(found.auc(), found.advantage(), found.tpr, told=told)
        none = Limit(because="the held-out examples are of clients who took part")
        return clients, clients if strangers else none
    schedule = Schedule()
    if rounds and run.plan is not None:
        kinds = run.plan.distinct()
        # The bound of a longer plan also bounds its beginning. Epochs are charged as a whole.
        equal = len(kinds) == 1 and len(run.plan.only_rounds()) == 1
        schedule = rounds * next(iter(kinds)) if equal else run.plan
    clients = _limit(schedule, run.accountant)
    if strangers or not rounds or schedule.adjacency is Adjacency.REPLACE_ONE:
        return clients, clients
    if len(schedule.only_rounds()) < len(schedule.distinct()):
        return clients, Limit(because="no bound under replace-one is proven for epochs")
    replaced = Schedule(
        Phase(Round(round_.noise_multiplier, round_.sampling, Adjacency.REPLACE_ONE), count)
        for round_, count in schedule
        if isinstance(round_, Round)
    )
    return clients, _limit(replaced, run.accountant)


def _limit(schedule: Schedule, accountant: str) -> Limit:
    found = accusations(Attacks(schedule, find_accountant(accountant)))
    return Limit(found.auc, found.advantage, found.tpr, told=str(schedule.adjacency))


# Shadow models.


def shadows_of(target: Target, count: int) -> Callable[[Sequence[ClientData], int], Model]:
    """Return a function that trains shadow models like the model of a checkpoint.

    An attacker knows how a model was trained, and has clients of the same kind. Shadow models have
    fewer clients. Their noise on the sum is smaller by as much as their cohorts, so that the noise
    on the mean is that of the run.

    Args:
        target: the checkpoint. count: the number of shadow models, for the progress bar.
    """
    job, settings = target.job, target.settings

    def train(clients: Sequence[ClientData], number: int) -> Model:
        waiting.say("dpacct attack, shadow models", number, count)
        model = build_model(settings.values["model"], job.dataset, seed=target.seed)
        if target.rounds == 0:
            return model.to(job.keywords["device"])
        with Federation(
            model,
            cross_entropy,
            list(clients),
            schedule=_shrunk(_plan(target), len(clients), len(clients) / len(job.clients)),
            method=build_method(settings.method, settings.method_options),
            delta=0.5,
            seed=number,
            preflight=False,
            **{key: job.keywords[key] for key in LIKE_THE_RUN},
        ) as run:
            run.run()
        return model

    return train


def _plan(target: Target) -> Schedule:
    """Return the rounds that the checkpoint has seen."""
    job, rounds = target.job, target.rounds
    plan, budget, sampling = job.keywords["schedule"], job.keywords["budget"], job.sampling
    if isinstance(sampling, Cyclic):
        raise Unsupported("shadow models of a run with correlated noise: they train by rounds")
    if plan is None:
        noise = noise_of(dict(target.content)) or LEAST_NOISE
        if isinstance(sampling, Allocation):
            return -(-rounds // sampling.rounds) * sampling.epoch(noise, Adjacency(job.adjacency))
        return rounds * Round(noise, sampling, job.adjacency)
    if budget is not None:
        plan = calibrate(schedule=plan, epsilon=budget.epsilon, delta=budget.delta).schedule
    return first_rounds(plan, rounds)


def _shrunk(plan: Schedule, clients: int, share: float) -> Schedule:
    """Return the same rounds for fewer clients, with so much less noise on the sum."""
    phases: list[Phase] = []
    for item, count in plan:
        noise = max(LEAST_NOISE, share * noise_level(item))
        # An epoch, of which shadow models play all steps.
        less = with_noise(item, noise)
        if isinstance(item, Round):
            sampling = item.sampling
            if isinstance(sampling, Uniform):
                sampling = Uniform(max(1, round(sampling.sampling_rate * clients)), clients)
            # Shadow models are not charged, so their adjacency is the one that always applies.
            less = Round(noise, sampling, "zero-out")
        phases.append(Phase(less, count))
    return Schedule(phases)
