"""From settings to a training job: data, clients, model, method. Imports PyTorch."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, cast

from dpacct import validate
from dpacct.budget import Budget
from dpacct.correlated import Correlated
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, Population
from dpacct.fl.data import DATASETS, Dataset, PartitionedClients, TableSchema, load, load_table
from dpacct.fl.data.partitions import Partition, dirichlet, divided, iid, natural, of_clients
from dpacct.fl.examples import Examples
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.methods.server_optimizers import ServerOptimizer
from dpacct.fl.models import Model, build_model
from dpacct.fl.privacy.allocation import Allocation, rounds_of, sampling_of
from dpacct.fl.privacy.cohorts import Cyclic
from dpacct.fl.privacy.correlated import CorrelatedNoise
from dpacct.fl.public import PublicSize
from dpacct.fl.tensors import Device, choose_device, from_array
from dpacct.ledger.terms import CLIENT, Terms
from dpacct.rounds import MAX_CLIENTS, Full, Poisson, Sampling, Schedule, Uniform
from dpacct.schedules.files import load_schedule
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, ReadDelta, number
from dpacct_cli.train.methods import build_method, build_server
from dpacct_cli.train.settings import Settings, is_table, option
from dpacct_cli.words import text_of


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """All that a run is made of, checked.

    Attributes:
        dataset, clients, model, method, local: the objects of the training.
        held_out: clients that take no part, drawn at random, or None if all may take part.
        tested: the examples for testing, on the device.
        schedule: the rounds, if they change. ``sampling`` is then that of the first one.
        sampling, adjacency: of the rounds. public: the number of clients that may be printed.
        budget: or ``noise_multiplier`` is set, with ``delta``.
        clip_norm: None where the method bounds updates itself.
        server: the server's optimizer, None for the plain step.
        unit: the privacy unit of the run.
        noise: correlated noise, or None for independent noise.
    """

    dataset: Dataset
    clients: Population
    held_out: PartitionedClients | None
    tested: ClientData
    model: Model
    method: Method
    local: SGD | None
    schedule: Schedule | None
    sampling: Sampling | Allocation | Cyclic
    adjacency: str
    public: PublicSize
    budget: Budget | None
    noise_multiplier: float | None
    delta: ReadDelta
    clip_norm: float | None
    server_lr: float
    server: ServerOptimizer | None
    unit: str
    rounds: int
    device: Device
    seed: int | None
    vectorize: bool | Literal["auto"]
    secure_noise: bool
    noise: CorrelatedNoise | None = None

    @property
    def simulated(self) -> bool:
        """True if the clients are simulated (a rule of `dpacct.fl.data.partitions`)."""
        return isinstance(self.clients, PartitionedClients) and self.clients.simulated


def build_job(settings: Settings, terms: Terms | None = None) -> Job:
    """Read the data, deal them out, build model and method.

    Args:
        settings: the requested settings.
        terms: of the ledger that the run is charged to, if it exists.
    Raises:
        DpacctError: something that was asked for does not exist, or is out of range.
    """
    # Quick checks come before slow reading.
    if terms is not None and settings.get("delta") is not None:
        terms.check(validate.delta(number(settings.get("delta"))))
    method = build_method(settings.method, settings.method_options)
    server = build_server(settings.get("server"), settings.server_options)
    examples = settings.get("examples") is not None
    local = None if examples else _local(settings)
    device = choose_device(settings.get("device") or "auto")
    schedule = _schedule(settings)
    if schedule is None and settings.get("epochs") is None:
        validate.rounds(number(settings.get("rounds")))
    seed = _seed(settings, "seed")
    vectorize = _vectorize(settings, repeatable=seed is not None)
    public_seed = _seed(settings, "public_seed") or 0
    dataset = read_data(settings)
    held_out: PartitionedClients | None = None
    if examples:
        if settings.get("hold_out") is not None:
            why = "clients are held out, and these are single examples"
            raise conflict("--hold-out", "--examples", why)
        clients: Population = _examples(settings, dataset, device)
    else:
        clients, held_out = _people(settings, dataset, public_seed, device)
    declared = _public_size(settings)
    typed = _mechanism(settings, declared or len(clients))
    allocation = _allocation(settings, declared or len(clients))
    correlated = _correlated(typed)
    if schedule is not None:
        sampling: Sampling | Allocation | Cyclic = sampling_of(schedule.phases[0].round)
        rounds = sum(count * rounds_of(item) for item, count in schedule)
    elif correlated is not None:
        groups, drawn = correlated.min_separation, correlated.sampling
        sampling = Cyclic(groups, drawn.sampling_rate if isinstance(drawn, Poisson) else None)
        rounds = correlated.rounds
    elif allocation is not None:
        sampling, rounds = allocation, _rounds_of_epochs(settings, allocation)
    else:
        sampling, rounds = typed.read_sampling(), typed.read_rounds()
    # Groups that take turns leave the number of clients public, like full participation.
    scheme = Full() if isinstance(sampling, Cyclic) else sampling
    public = PublicSize.choose(declared, scheme, len(clients))
    delta = _delta(settings, typed, terms)
    asked = typed.relation if schedule is None else schedule.adjacency
    eps, noise = settings.get("eps"), settings.get("noise")
    budget = None if eps is None else Budget(cast("float", number(eps)), delta.value)
    model = build_model(settings.values["model"], dataset, seed=public_seed)
    inputs, targets = dataset.test.batch(slice(None))
    return Job(
        dataset=dataset,
        clients=clients,
        held_out=held_out,
        tested=ClientData(inputs.to(device), targets.to(device)),
        model=model.to(device),
        method=method,
        local=local,
        schedule=schedule,
        sampling=sampling,
        adjacency=str(public.adjacency(scheme, asked)),
        public=public,
        budget=budget,
        noise_multiplier=None if noise is None else validate.noise_multiplier(number(noise)),
        delta=delta,
        clip_norm=_clip_norm(settings, method),
        server_lr=_positive(settings, "server_lr"),
        server=server,
        unit=clients.unit if isinstance(clients, Examples) else CLIENT,
        rounds=rounds,
        device=device,
        seed=seed,
        vectorize=vectorize,
        secure_noise=settings.get("secure_noise") is not None,
        noise=None if correlated is None else CorrelatedNoise(correlated.strategy),
    )


def _correlated(typed: MechanismOptions) -> Correlated | None:
    """Return the run with correlated noise, of any noise multiplier, or None."""
    if typed.correlated is None:
        typed.refuse_without_correlated()
        return None
    [(run, _)] = typed.read_correlated(1.0)
    return run if isinstance(run, Correlated) else None


def _examples(settings: Settings, dataset: Dataset, device: Device) -> Examples:
    """Return the examples of a run, with --records those of their owners."""
    records, data = settings.get("records"), dataset.train.to(device)
    if records is None:
        return Examples(data)
    if dataset.owners is None:
        rule = f"{dataset.name} does not say whose the examples are"
        raise InvalidParameter("records", records, rule, "Give --owner COLUMN of a table.")
    most = cast("int", number(records))
    return Examples(data, owners=map(int, dataset.owners), records=most)


def _allocation(settings: Settings, size: int) -> Allocation | None:
    """Return the steps of random allocation: as typed, or as many as the batches need."""
    steps, cohort, rate = (settings.get(key) for key in ("steps", "cohort", "q"))
    if settings.get("sampling") != Allocation.name:
        if steps is not None:
            why = "other samplings have a rate"
            raise OptionConflict(f"--steps {steps} needs --sampling allocation; {why}.")
        return None
    if steps is not None:
        return Allocation(cast("int", number(steps)))
    if cohort is not None:
        noun = "the batch"
        share = Fraction(validate.count("cohort_size", number(cohort), noun, size), size)
    else:
        share = Fraction(repr(validate.sampling_rate(number(rate))))
    if share.numerator != 1 and (1 / share).denominator != 1:
        near = max(1, round(1 / share))
        raise OptionConflict(
            f"an epoch of random allocation has whole steps, and that would be "
            f"{float(1 / share):.6g}. Give --steps {near}."
        )
    return Allocation(int(1 / share))


def _rounds_of_epochs(settings: Settings, allocation: Allocation) -> int:
    """Return the rounds of whole epochs."""
    epochs = settings.get("epochs")
    if epochs is None:
        rounds = validate.rounds(number(settings.get("rounds")))
        return allocation.epochs_of(rounds) * allocation.rounds
    noun = "the number of epochs by random allocation"
    return validate.count("epochs", number(epochs), noun) * allocation.rounds


def _schedule(settings: Settings) -> Schedule | None:
    """Return the schedule of ``--schedule``. A file without an adjacency has that of the run."""
    file = settings.get("schedule")
    if file is None:
        return None
    typed = settings.get("adjacency")
    usual = "zero-out" if settings.get("public_size") is None else "add-remove"
    found = load_schedule(file, adjacency=typed or usual)
    if typed is None and all(isinstance(sampling_of(r), Uniform) for r in found.distinct()):
        return load_schedule(file)
    return found


_OF_TABLES = {
    "label": "its labels are known",
    "owner": "its owners are known",
    "classes": "its classes are known",
}


def read_data(settings: Settings) -> Dataset:
    """The data set that the settings name.

    Raises:
        InvalidParameter: it does not exist, or an option of its reader.
    """
    name = settings.values["data"]
    options = dict(settings.data_options)
    if is_table(name):
        return load_table(name, _schema(settings, options))
    first = options.pop("num_train", None)
    for key, why in _OF_TABLES.items():
        if settings.get(key) is not None:
            raise conflict(option(key), f"--data {name}", why)
    known = ["num_train"]
    if name in DATASETS:
        known += [key for key in inspect.signature(DATASETS[name]).parameters if key != "folder"]
    _check_data_options(options, known, name)
    dataset = load(name, settings.get("data_dir"), **options)
    return dataset if first is None else dataset.first(first)


def _schema(settings: Settings, options: dict[str, Any]) -> TableSchema:
    known = [item.name for item in fields(TableSchema)]
    _check_data_options(options, known, Path(settings.values["data"]).name)
    for key in ("label", "owner"):
        if settings.get(key) is not None:
            options[key] = settings.get(key)
    classes = settings.get("classes")
    if classes is not None:
        options["classes"] = [word.strip() for word in classes.split(",")]
    for key in ("numeric", "categorical"):
        if not isinstance(options.get(key, {}), dict):
            raise InvalidParameter("data_options", key, "it is a table from column to values")
    ranges = cast("dict[str, Any]", options.get("numeric", {}))
    for column, bounds in ranges.items():
        if not isinstance(bounds, list) or len(cast("list[Any]", bounds)) != 2:
            rule = f"the range of column {column} is [low, high]"
            raise InvalidParameter("numeric", repr(cast("object", bounds)), rule)
    return TableSchema(**options)


def _check_data_options(options: Mapping[str, Any], known: list[str], name: str) -> None:
    for key in options:
        if key not in known:
            place = "--schema" if text_of("--schema") else "data_options"
            takes = ", ".join(known)
            raise OptionConflict(f"{place} has the key {key!r}, and {name} takes only: {takes}.")


def _people(
    settings: Settings, dataset: Dataset, seed: int, device: Device
) -> tuple[PartitionedClients, PartitionedClients | None]:
    """Return the clients of a run, and the clients that are held out."""
    partition = _partition(settings, dataset, seed)
    share = settings.get("hold_out")
    if share is None:
        return PartitionedClients(dataset.train, partition, device), None
    sides: list[PartitionedClients] = []
    for some in divided(partition, cast("float", number(share)), seed=seed):
        rows, own = of_clients(partition, some)
        sides.append(PartitionedClients(dataset.train.select(from_array(rows)), own, device))
    return sides[0], sides[1]


def _partition(settings: Settings, dataset: Dataset, seed: int) -> Partition:
    text = settings.values["partition"]
    kind, colon, strength = text.partition(":")
    if kind == "natural" and not colon:
        if dataset.owners is None:
            rule = f"{dataset.name} does not say whose the examples are"
            raise InvalidParameter("partition", text, rule, "Try iid or dirichlet:0.5.")
        partition = natural(dataset.owners)
        clients = settings.get("clients")
        if clients is not None and number(clients) != len(partition):
            why = f"{dataset.name} has {len(partition)} owners"
            raise conflict(f"--clients {clients}", "--partition natural", why)
        return partition
    clients = validate.count(
        "num_clients", number(settings.get("clients")), "the number of clients"
    )
    if kind == "iid" and not colon:
        return iid(len(dataset.train), clients, seed=seed)
    if kind != "dirichlet" or not strength:
        rule = "a partition is iid, dirichlet:A with a number A, or natural"
        raise InvalidParameter("partition", text, rule)
    return dirichlet(dataset.labels(), clients, cast("float", number(strength)), seed=seed)


def _public_size(settings: Settings) -> int | None:
    typed = settings.get("public_size")
    if typed is None:
        return None
    if settings.get("sampling") == Uniform.name:
        why = "its sums are divided by the size of the cohort"
        raise conflict(f"--public-size {typed}", "--sampling uniform", why)
    return validate.count("public_size", number(typed), "the public number of clients", MAX_CLIENTS)


def _mechanism(settings: Settings, clients: int) -> MechanismOptions:
    rate, cohort = settings.get("q"), settings.get("cohort")
    if settings.get("sampling") == Uniform.name and rate is not None and "q" not in settings.chosen:
        share = number(rate)
        if isinstance(share, int | float):
            # A default, which knows nothing of this population.
            rate, cohort = None, str(max(1, round(share * clients)))
    return MechanismOptions(
        rounds=settings.get("rounds"),
        epochs=settings.get("epochs"),
        rate=rate,
        sampling=settings.get("sampling"),
        cohort=cohort,
        clients=str(clients),
        adjacency=settings.get("adjacency"),
        correlated=settings.get("correlated"),
        bands=settings.get("bands"),
        separation=settings.get("separation"),
    )


def _delta(settings: Settings, typed: MechanismOptions, terms: Terms | None) -> ReadDelta:
    """The delta that was typed, that of the ledger, or the default."""
    text = settings.get("delta")
    if terms is None or text is not None:
        at = typed.read_delta(text)
        return at if "clients" in settings.chosen else at._replace(clients=None)
    own = terms.check(None)
    return ReadDelta(own, f"that of {terms.path}", None)


def _local(settings: Settings) -> SGD:
    batch = settings.get("batch_size")
    given: dict[str, Any] = {
        "lr": number(settings.get("local_lr")),
        "batch_size": None if batch == "all" else number(batch),
        "total_lr": settings.get("local_total_lr") is not None,
    }
    names = {
        "local_epochs": "epochs",
        "local_steps": "steps",
        "momentum": "momentum",
        "weight_decay": "weight_decay",
        "lr_decay": "lr_decay",
    }
    for key, name in names.items():
        if settings.get(key) is not None:
            given[name] = number(settings.get(key))
    return SGD(**given)


def _clip_norm(settings: Settings, method: Method) -> float | None:
    if method.bound is not None and "clip_norm" not in settings.chosen:
        return None
    return _positive(settings, "clip_norm")


def _positive(settings: Settings, key: str) -> float:
    noun = option(key)[2:].replace("-", " ")
    return validate.above_zero(key, number(settings.get(key)), noun)


def _seed(settings: Settings, key: str) -> int | None:
    text = settings.get(key)
    if text is None:
        return None
    value = number(text)
    if not isinstance(value, int) or not 0 <= value < 2**63:
        raise InvalidParameter(key, value, "a seed is a whole number from 0 to 2^63 - 1")
    return value


def _vectorize(settings: Settings, *, repeatable: bool) -> bool | Literal["auto"]:
    text = settings.get("vectorize")
    if text == "auto" or (text is None and not repeatable):
        return "auto"
    if text not in (None, "yes", "no"):
        raise InvalidParameter("vectorize", text, "it is auto, yes or no")
    return text != "no"
