"""From settings to a training job: data, clients, model, method. Imports PyTorch.

Quick checks come before slow reading. A wrong class or option is rejected before anything is read
or charged. An error inside your own code is passed on unchanged.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

from dpacct import validate
from dpacct.budget import Budget
from dpacct.errors import DpacctError, InvalidParameter
from dpacct.fl.clients import ClientData, Examples, Population
from dpacct.fl.data import DATASETS, Dataset, PartitionedClients, TableSchema, load, load_table
from dpacct.fl.data.partitions import Partition, dirichlet, divided, iid, natural, of_clients
from dpacct.fl.local.sgd import SGD, LocalAdam
from dpacct.fl.methods import METHODS
from dpacct.fl.methods.protocol import Method
from dpacct.fl.models import Model, build_model, cross_entropy, evaluate, load_parameters
from dpacct.fl.postprocess import Adam, Momentum, ServerOptimizer
from dpacct.fl.privacy.allocation import Allocation, rounds_of, sampling_of
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound, Clip, PerLayerClip
from dpacct.fl.privacy.correlated import CorrelatedNoise, Cyclic
from dpacct.fl.public import PublicSize
from dpacct.fl.tensors import Device, choose_device, from_array
from dpacct.ledger import CLIENT, Terms
from dpacct.rounds import MAX_CLIENTS, Adjacency, Full, Poisson, Sampling, Schedule, Uniform
from dpacct.schedules.files import load_schedule
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, ReadDelta, number
from dpacct_cli.train.own_code import own_class
from dpacct_cli.train.settings import RunSettings, is_table, option
from dpacct_cli.words import text_of

# The names of ``SERVERS`` and ``OPTIMIZERS`` in `dpacct_cli.train.options`.
SERVERS: dict[str, Callable[..., ServerOptimizer]] = {"momentum": Momentum, "adam": Adam}
LOCAL: dict[str, type[SGD]] = {"sgd": SGD, "adam": LocalAdam}
TRAINED_ON = 10_000  # Training examples whose accuracy is computed
# Options of data whose value may stand behind their name, as in emnist:letters.
PARTS = {"emnist": "split", "svhn": "extra", "glue": "task"}
Made = TypeVar("Made")
Looked = Literal["test_accuracy", "validation_accuracy", "unprotected_validation_accuracy"]
# The settings that are arguments of `SGD`, there without the prefix.
_LOCAL = (
    "local_lr", "local_epochs", "local_steps", "momentum", "weight_decay", "lr_decay",
    "max_grad_norm", "precision",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """All that a run is made of, checked."""

    # The objects of the training
    dataset: Dataset
    clients: Population
    # Clients that take no part, drawn at random, or None if all may take part
    held_out: PartitionedClients | None
    tested: ClientData  # The examples for testing, on the device
    validated: ClientData | None  # Those that are looked at while training, instead
    model: Model
    # Of the cohorts. With a schedule, those of the first round.
    sampling: Sampling | Allocation | Cyclic
    adjacency: Adjacency  # Of the rounds
    public: PublicSize  # The number of clients that may be printed
    delta: ReadDelta  # Of the run, with its origin
    keywords: Mapping[str, Any]  # The other arguments of `Federation`

    @property
    def unit(self) -> str:
        """The privacy unit of the run."""
        return self.clients.unit if isinstance(self.clients, Examples) else CLIENT

    def accuracy(self, model: Model, part: ClientData | None = None) -> float:
        """Return the accuracy on test data, or on another part: 0 to 1."""
        return evaluate(model, cross_entropy, self.tested if part is None else part).accuracy

    def train_accuracy(self, model: Model) -> float:
        """Return the accuracy on the first `TRAINED_ON` training examples. It is not private."""
        seen = self.dataset.train.to(self.tested.targets.device).batch(slice(0, TRAINED_ON))
        return self.accuracy(model, ClientData(*seen))

    @property
    def looked(self) -> Looked:
        """The field of the accuracy that is computed while training, by the data behind it."""
        if self.validated is None:
            return "test_accuracy"
        public = self.dataset.test_data == "public"
        return "validation_accuracy" if public else "unprotected_validation_accuracy"

    @property
    def simulated(self) -> bool:
        """True if the clients are simulated (a rule of `dpacct.fl.data.partitions`)."""
        return isinstance(self.clients, PartitionedClients) and self.clients.simulated


def build_job(settings: RunSettings, terms: Terms | None = None) -> Job:
    """Read the data, deal them out, build model and method."""
    if terms is not None and settings.get("delta") is not None:
        terms.check(validate.delta(settings.number("delta")))
    build = own_class(settings.method) if ":" in settings.method else METHODS.get(settings.method)
    if build is None:
        known = f"a method is one of {', '.join(METHODS)}, or package.module:Class of your own"
        raise InvalidParameter("method", settings.method, known)
    method = _built(build, settings.method, settings.method_options, "--set")
    if settings.get("as_printed"):
        forms = fields(method) if is_dataclass(method) else ()
        if not any(field.name == "as_printed" for field in forms):
            raise OptionConflict(f"--as-printed: {method.name} has no printed form of its own.")
        method = replace(cast("Any", method), as_printed=True)
    server, name = None, settings.get("server")
    if name is not None:
        validate.one_of("server_optimizer", name, "a server's optimizer", SERVERS)
        server = _built(SERVERS[name], name, settings.server_options, "--server-set")
    local = _local(settings)
    device = choose_device(settings.get("device") or "auto")
    schedule = _schedule(settings)
    if schedule is None and settings.get("epochs") is None:
        validate.rounds(settings.number("rounds"))
    seed = _seed(settings, "seed")
    vectorize = _vectorize(settings, repeatable=seed is not None)
    public_seed = _seed(settings, "public_seed") or 0
    dataset = read_data(settings)
    if (share := settings.number("validation")) is not None:
        dataset = dataset.validated(share, seed=public_seed)
    clients, held_out = _population(settings, dataset, public_seed, device)
    declared = _public_size(settings)
    typed = _mechanism(settings, declared or len(clients))
    sampling, rounds, noise = _rounds(schedule, typed)
    # Groups that take turns leave the number of clients public, like full participation.
    scheme = Full() if isinstance(sampling, Cyclic) else sampling
    public = PublicSize.choose(declared, scheme, len(clients))
    delta = _delta(settings, typed, terms)
    asked = typed.relation if schedule is None else schedule.adjacency
    adjacency = public.adjacency(scheme, asked)
    eps, level = settings.number("eps"), settings.number("noise")
    budget = None if eps is None else Budget(eps, delta.value)
    multiplier = None if level is None else validate.noise_or_none(level)
    model = build_model(settings.values["model"], dataset, seed=public_seed)
    if (file := settings.get("init")) is not None:
        load_parameters(model, file)
    keywords: dict[str, Any] = {
        "method": method,
        "server": server,
        "local": local,
        "device": device,
        "schedule": schedule,
        "rounds": rounds,
        "seed": seed,
        "vectorize": vectorize,
        "budget": budget,
        "delta": delta.value if budget is None else None,
        "noise": noise,
        "noise_multiplier": multiplier,
        "bound": _bound(settings, method),
        "server_lr": _positive("server_lr", settings.number("server_lr")),
        "secure_noise": settings.get("secure_noise") is not None,
        "adjacency": adjacency,
        "public_size": declared,
        "ahead": 1 if settings.get("ahead") is None else settings.number("ahead"),
    }
    tested, validated = (
        None if part is None else ClientData(*part.to(device).batch(slice(None)))
        for part in (dataset.test, dataset.validation)
    )
    return Job(
        dataset, clients, held_out, cast("ClientData", tested), validated, model.to(device),
        sampling, adjacency, public, delta, keywords,
    )  # fmt: skip


# The data and the clients.


def read_data(settings: RunSettings) -> Dataset:
    """Return the data set that the settings name."""
    name, _, split = settings.values["data"].partition(":")
    options = dict(settings.data_options)
    if split and name in PARTS:
        key = PARTS[name]
        validate.one_of("data", split, "a part", ("extra",)) if key == "extra" else None
        options[key] = split if key != "extra" else True
    else:
        name = settings.values["data"]
    if is_table(name):
        return load_table(name, _schema(settings, options))
    first = options.pop("num_train", None)
    for key in ("label", "columns", "owner", "classes"):
        if settings.get(key) is not None:
            noun = key if key[-1] == "s" else f"{key}s"
            raise conflict(option(key), f"--data {name}", f"its {noun} are known")
    known = ["num_train"]
    if name in DATASETS:
        known += [key for key in inspect.signature(DATASETS[name]).parameters if key != "folder"]
    _check_data_options(options, known, name)
    dataset = load(name, settings.get("data_dir"), **options)
    return dataset if first is None else dataset.first(first)


def _schema(settings: RunSettings, options: dict[str, Any]) -> TableSchema:
    known = [item.name for item in fields(TableSchema)]
    _check_data_options(options, known, Path(settings.values["data"]).name)
    options |= {key: settings.values[key] for key in ("label", "owner") if settings.get(key)}
    for key in ("classes", "columns"):
        if (listed := settings.get(key)) is not None:
            options[key] = [word.strip() for word in listed.split(",")]
    return TableSchema(**options)


def _check_data_options(options: Mapping[str, Any], known: list[str], name: str) -> None:
    for key in options:
        if key not in known:
            place = "--schema" if text_of("--schema") else "data_options"
            takes = ", ".join(known)
            raise OptionConflict(f"{place} has the key {key!r}, and {name} takes only: {takes}.")


def _population(
    settings: RunSettings, dataset: Dataset, seed: int, device: Device
) -> tuple[Population, PartitionedClients | None]:
    """Return the clients or examples of a run, and the clients that are held out."""
    share, records = settings.number("hold_out"), settings.number("records")
    if settings.get("examples"):
        if share is not None:
            why = "clients are held out, and these are single examples"
            raise conflict("--hold-out", "--examples", why)
        data = dataset.train.to(device)
        if records is None:
            return Examples(data), None
        if dataset.owners is None:
            rule = f"{dataset.name} does not say whose the examples are"
            raise InvalidParameter("records", records, rule, "Give --owner COLUMN of a table.")
        return Examples(data, owners=[*map(int, dataset.owners)], records=records), None
    partition = _partition(settings, dataset, seed)
    if share is None:
        return PartitionedClients(dataset.train, partition, device), None
    sides: list[PartitionedClients] = []
    for some in divided(partition, share, seed=seed):
        rows, own = of_clients(partition, some)
        sides.append(PartitionedClients(dataset.train.select(from_array(rows)), own, device))
    return sides[0], sides[1]


def _partition(settings: RunSettings, dataset: Dataset, seed: int) -> Partition:
    text, typed = settings.values.get("partition", ""), settings.get("clients")
    kind, colon, strength = text.partition(":")
    if kind == "natural" and not colon:
        if dataset.owners is None:
            rule = f"{dataset.name} does not say whose the examples are"
            raise InvalidParameter("partition", text, rule, "Try iid or dirichlet:0.5.")
        partition = natural(dataset.owners)
        if typed is not None and number(typed) != len(partition):
            why = f"{dataset.name} has {len(partition)} owners"
            raise conflict(f"--clients {typed}", "--partition natural", why)
        return partition
    clients = validate.count("num_clients", number(typed), "the number of clients")
    if kind == "iid" and not colon:
        return iid(len(dataset.train), clients, seed=seed)
    if kind != "dirichlet" or not strength:
        rule = "a partition is iid, dirichlet:A with a number A, or natural"
        raise InvalidParameter("partition", text, rule)
    return dirichlet(dataset.labels(), clients, number(strength), seed=seed)


def _public_size(settings: RunSettings) -> int | None:
    typed = settings.get("public_size")
    if typed is None:
        return None
    if settings.get("sampling") == Uniform.name:
        why = "its sums are divided by the size of the cohort"
        raise conflict(f"--public-size {typed}", "--sampling uniform", why)
    return validate.count("public_size", number(typed), "the public number of clients", MAX_CLIENTS)


# The rounds.


def _schedule(settings: RunSettings) -> Schedule | None:
    """Return the schedule of ``--schedule``. A file without an adjacency has that of the run."""
    file = settings.get("schedule")
    if file is None:
        return None
    typed: Any = settings.get("adjacency")  # `load_schedule` checks it
    usual = "zero-out" if settings.get("public_size") is None else "add-remove"
    plan = load_schedule(file, adjacency=typed or usual)
    if typed is None and all(isinstance(sampling_of(r), Uniform) for r in plan.distinct()):
        return load_schedule(file)
    return plan


def _mechanism(settings: RunSettings, clients: int) -> MechanismOptions:
    rate, cohort = settings.get("q"), settings.get("cohort")
    if settings.get("sampling") == Uniform.name and rate is not None and "q" not in settings.chosen:
        share = number(rate)
        if isinstance(share, int | float):
            # A default, which knows nothing of this population.
            rate, cohort = None, str(max(1, round(share * clients)))
    same = ("rounds", "epochs", "steps", "sampling", "adjacency", "bands")
    given = {key: settings.get(key) for key in same}
    given |= {"strategy": settings.get("correlated"), "min_separation": settings.get("separation")}
    return MechanismOptions(
        sampling_rate=rate, cohort_size=cohort, num_clients=str(clients), **given
    )


def _rounds(
    schedule: Schedule | None, typed: MechanismOptions
) -> tuple[Sampling | Allocation | Cyclic, int, CorrelatedNoise | None]:
    """Return the sampling, the number of rounds, and correlated noise, if there is any."""
    typed.but(rounds=None).refuse_foreign()
    if "strategy" in typed:
        run = typed.read_correlated(1.0)
        rate = run.sampling.sampling_rate if isinstance(run.sampling, Poisson) else None
        cohorts = Cyclic(run.min_separation, rate)
        return cohorts, run.rounds, CorrelatedNoise(run.strategy)
    if schedule is not None:
        rounds = sum(count * rounds_of(item) for item, count in schedule)
        return sampling_of(schedule.phases[0].round), rounds, None
    if not typed.by_epochs:
        return typed.read_sampling(), typed.read_rounds(), None
    allocation = Allocation(typed.read_steps())
    if "epochs" not in typed:
        epochs = allocation.epochs_of(validate.rounds(typed.value("rounds")))
    else:
        noun = "the number of epochs by random allocation"
        epochs = validate.count("epochs", typed.value("epochs"), noun)
    return allocation, epochs * allocation.rounds, None


def _delta(settings: RunSettings, typed: MechanismOptions, terms: Terms | None) -> ReadDelta:
    """Return the delta that was typed, that of the ledger, or the default."""
    text = settings.get("delta")
    if terms is None or text is not None:
        return typed.read_delta(text)
    return ReadDelta(terms.check(None), f"that of {terms.path}", None)


# What the clients and the server do.


def _local(settings: RunSettings) -> SGD | None:
    """Return the training of each client. An example takes one step."""
    if settings.get("examples"):
        precision = cast("Any", settings.get("precision"))
        one = precision is not None
        return SGD(lr=1.0, steps=1, batch_size=1, precision=precision) if one else None
    batch = settings.get("batch_size")
    given: dict[str, Any] = {
        key.removeprefix("local_"): settings.number(key) for key in _LOCAL if settings.get(key)
    }
    given["batch_size"] = None if batch == "all" else number(batch)
    name = settings.get("local_optimizer") or "sgd"
    validate.one_of("local_optimizer", name, "a client's optimizer", LOCAL)
    if name == "adam" and "momentum" in given:
        raise conflict("--momentum", "--local-optimizer adam", "it belongs to sgd")
    return LOCAL[name](**given)


def _bound(settings: RunSettings, method: Method) -> Bound | None:
    """Return the bound of each update, or None if the method has its own."""
    text, quantile = settings.get("clip_norm"), settings.get("adaptive_clip")
    if text == "median":
        rule = "the median of a cohort's norms is private, and so is a clip norm made of it"
        hint = "--adaptive-clip 0.5 (fl.AdaptiveClip) follows the median, and its noise covers it."
        raise InvalidParameter("clip_norm", text, rule, hint)
    parts = [text] if text is None else text.split(",")
    norms = [_positive("clip_norm", number(part)) for part in parts]
    if method.bound is not None:
        rule = f"{type(method.bound).__name__} bounds the updates already"
        for key, value in (("clip_norm", norms[0]), ("adaptive_clip", quantile)):
            if key in settings.chosen:
                raise InvalidParameter(key, value, rule, "Drop one of them.")
        return None
    if quantile is not None:
        if len(norms) > 1:
            raise conflict(
                f"--adaptive-clip {quantile}", f"--clip-norm {text}", "it moves one norm"
            )
        return AdaptiveClip(norms[0], number(quantile))
    return Clip(norms[0]) if len(norms) == 1 else PerLayerClip(tuple(norms))


def _positive(key: str, value: object) -> float:
    return validate.above_zero(key, value, key.replace("_", " "))


def _seed(settings: RunSettings, key: str) -> int | None:
    value = settings.number(key)
    if value is not None and (not isinstance(value, int) or not 0 <= value < 2**63):
        raise InvalidParameter(key, value, "a seed is a whole number from 0 to 2^63 - 1")
    return value


def _vectorize(settings: RunSettings, *, repeatable: bool) -> bool | Literal["auto"]:
    text = settings.get("vectorize")
    if text == "auto" or (text is None and not repeatable):
        return "auto"
    if text not in (None, "yes", "no"):
        raise InvalidParameter("vectorize", text, "it is auto, yes or no")
    return text != "no"


def _built(build: Callable[..., Made], name: str, options: Mapping[str, Any], flag: str) -> Made:
    """Call a constructor with its options."""
    try:
        return build(**options)
    except InvalidParameter as error:
        # Other options have the same names, so the label says whose option it is.
        label = f"{flag} {error.name}" if error.name in options else error.name
        raise InvalidParameter(label, error.value, error.rule, error.hint) from None
    except DpacctError:
        raise
    except (TypeError, ValueError) as error:
        takes = ", ".join(inspect.signature(build).parameters) or "none"
        raise OptionConflict(
            f"{flag}: {name} refuses its options ({error}). They are {takes}."
        ) from error
