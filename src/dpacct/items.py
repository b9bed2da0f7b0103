"""Everything that a schedule holds, described once: its samplings and its releases.

`SAMPLINGS` and `RELEASES` have a row for each class, and in it a `Key` for each parameter. Schedule
files, ledger entries, JSON output and its schemas, sentences on terminals and in reports, options
of the command line, claim files and the page of items derive from them. A new parameter is one
`Key`, a new release one `Item`.

Rule 1: a phase of a schedule is a table of keys: ``rounds``, how often its release runs, and the
keys of the release. A phase without ``mechanism`` is a `Round`. A table with ``repeat`` and
``schedule`` repeats phases.
Rule 2: a round describes its sampling by the keys of one row of `SAMPLINGS`. ``sampling`` may name
it, and must agree with the keys.
Rule 3: an unknown key is an error, since a misspelt key would change the charge.
Rule 4: what is written is read back as an equal release, to the last bit. A parameter at its
default is left out, unless its key is always written.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, cast

from dpacct import validate
from dpacct.correlated.release import Correlated
from dpacct.correlated.strategy import MAKERS, Strategy, described, make_strategy
from dpacct.display import chosen, line, safe
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import InvalidParameter
from dpacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    ZeroConcentratedDP,
)
from dpacct.rounds import (
    REVEALS_SIZE,
    Adjacency,
    Full,
    Phase,
    Poisson,
    Release,
    Repeated,
    Round,
    Sampling,
    Schedule,
    Uniform,
)
from dpacct.sampled import Sampled
from dpacct.synonyms import meant_name
from dpacct.tuning import BestOf, Runs

Entry = dict[str, Any]
# The default of a parameter that has none.
NEEDED: Any = object()
# An error lists so many keys at most.
_MOST_KEYS = 12
_NOTHING = "no rate and no cohort"


def _unchanged(value: Any, _adjacency: Any = None) -> Any:
    return value


class Form(NamedTuple):
    """The form of a value in JSON, and as text.

    Attributes:
        schema: its JSON Schema.
        shown: returns it as people read it. Shortened noise goes up, a rate down, so that both are
            safe if they are typed again.
        read: returns the argument of a class, of a value in JSON and an adjacency (or None).
        write: returns the value in JSON.
    """

    schema: Mapping[str, Any]
    shown: Callable[[Any], str] = str
    read: Callable[[Any, Any], Any] = _unchanged
    write: Callable[[Any], Any] = _unchanged


def _unlisted(value: Any, _adjacency: Any) -> Any:
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return [*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else value


def _read_runs(value: Any, _adjacency: Any) -> Runs:
    if not isinstance(value, dict):
        return Runs.parse(value)
    table = cast("Entry", value)
    check_known(table, tuple(Runs.__dataclass_fields__))
    check_needed(table, ("kind", "mean"))
    return Runs(**table)


def _write_strategy(strategy: Strategy) -> str:
    return described(strategy)[0]


def _show_schedule(schedule: Schedule) -> str:
    return "; ".join(parts_in_words(schedule))


def _write_schedule(schedule: Schedule) -> list[Entry]:
    # Phases inside a release name their adjacency, in files too, and ledgers hold no repetitions.
    return [phase_entry(phase, alone=True) for phase in schedule]


_MOST_NESTED = 20


def _read_schedule(phases: Any, adjacency: Any) -> Schedule:
    if not isinstance(phases, list) or not all(isinstance(x, dict) for x in phases):  # pyright: ignore[reportUnknownVariableType] parsers return Any
        raise InvalidParameter("schedule", None, "schedule is a list of tables, one for each phase")
    given, level = cast("list[Entry]", phases), cast("list[Any]", phases)
    # All walks through a schedule are recursive.
    for _ in range(_MOST_NESTED):
        tables = [cast("Entry", one) for one in level if isinstance(one, dict)]
        inner = [table["schedule"] for table in tables if "schedule" in table]
        level = [one for held in inner if isinstance(held, list) for one in cast("list[Any]", held)]
    if level:
        raise InvalidParameter(
            "schedule", None, f"schedules are nested {_MOST_NESTED} deep at most"
        )
    return Schedule(read_part(*_apart(one, one.get("adjacency", adjacency))) for one in given)


def _array(of: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": of}}


_RUNS = {"kind": {"type": "string"}, "mean": {"type": "number"}, "shape": {"type": "number"}}
NUMBER = Form({"type": "number"}, chosen)
RATE = Form({"type": "number", "exclusiveMinimum": 0, "maximum": 1}, partial(safe, "sampling_rate"))
COUNT = Form({"type": "integer", "minimum": 1})
TEXT = Form({"type": "string"}, line)
NUMBERS, ROWS = Form(_array("number")), Form(_array("array"))
SHIFT = Form({"anyOf": [{"type": "integer"}, _array("integer")]}, str, _unlisted, _listed)
RUNS = Form({"anyOf": [
    {"type": "string"},
    {"type": "object", "properties": _RUNS, "required": ["kind", "mean"]},
]}, repr, _read_runs, asdict)  # fmt: skip
PHASE = {"$ref": "#/$defs/phase"}
STRATEGY = Form({"enum": [*MAKERS]}, attrgetter("name"), write=_write_strategy)
SCHEDULE = Form(
    {"type": "array", "minItems": 1, "items": PHASE},
    _show_schedule, _read_schedule, _write_schedule,
)  # fmt: skip


def _named(names: Iterable[str]) -> Form:
    return Form({"enum": [*names]})


class Key(NamedTuple):
    """A parameter.

    Attributes:
        name: in files, and of the argument of the class.
        form: of its value.
        default: the value that may be left out. `NEEDED` has to be given. None is never written.
        words: a phrase for people, with values in braces by key. It is left out at the default.
        option: its names on the command line, the documented one first. Empty if it has none.
        metavar, help: of the option. The page of items shows the help.
        needs: another key that has to stand beside it. Empty for none.
        common: ``--help`` lists the option, and not only ``--help-all``.
        written: "changed" is left out at its default, "always" is not. "never" only helps to make
            a value.
    """

    name: str
    form: Form
    default: Any = NEEDED
    words: str = ""
    option: str = ""
    metavar: str = ""
    help: str = ""
    needs: str = ""
    common: bool = False
    written: str = "changed"


class Item(NamedTuple):
    """A kind of sampling or of release.

    Attributes:
        kind: its class.
        name: in files.
        words: a phrase for people, with values in braces by key.
        keys: its parameters, without the adjacency.
        ways: keys of which exactly one group has to be given. Default: all keys without a default.
        make: returns the value of its arguments by name, if not the class itself.
        parts: returns the values of its keys, if they are no attributes of those names.
        chosen_by: the option that chooses it on the command line.
    """

    kind: type[Any]
    name: str
    words: str
    keys: tuple[Key, ...] = ()
    ways: tuple[tuple[str, ...], ...] = ()
    make: Callable[..., Any] | None = None
    parts: Callable[[Any], Mapping[str, Any]] | None = None
    chosen_by: str = "--release"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its keys."""
        return tuple(key.name for key in self.keys)

    @property
    def needed(self) -> tuple[tuple[str, ...], ...]:
        """Groups of keys, of which exactly one has to be given."""
        return self.ways or (tuple(key.name for key in self.keys if key.default is NEEDED),)


def _uniform(**given: Any) -> Uniform:
    return Uniform.at_rate(**given) if "sampling_rate" in given else Uniform(**given)


def _sampled(schedule: Schedule, rate: float) -> Sampled:
    return Sampled(schedule, rate)


def _of_run(run: Correlated) -> Entry:
    held = {key: getattr(run, key) for key in ("noise_multiplier", "strategy", "min_separation")}
    # With sampling, as many participations as fit.
    poisson = isinstance(run.sampling, Poisson)
    most = "sampling_rate" if poisson else "participations"
    return {**held, "steps": run.rounds, **described(run.strategy)[1], most: getattr(run, most)}


def _correlated(
    noise_multiplier: float, strategy: str, steps: int, min_separation: int,
    participations: int | None = None, sampling_rate: float | None = None,
    adjacency: Adjacency = Adjacency.ADD_REMOVE, **own: Any,
) -> Correlated:  # fmt: skip
    made = make_strategy(strategy, steps, own)
    sampling = None if sampling_rate is None else Poisson(sampling_rate)
    return Correlated(
        noise_multiplier, made, min_separation=min_separation, participations=participations,
        sampling=sampling, adjacency=adjacency,
    )  # fmt: skip


# The table.

# fmt: off
NOISE = Key("noise_multiplier", NUMBER, NEEDED, "noise {noise_multiplier}", "--noise", "Z",
    "Noise multiplier: std of the noise on the sum / clip norm.", common=True)
_RATE = Key("sampling_rate", RATE, NEEDED, "", "--q", "Q",
    "Sampling rate in (0, 1]: the fraction of all clients in a round.", common=True)
# In central training, a client is an example and a cohort a batch.
_CLIENTS = Key("num_clients", COUNT, None, "", "--clients --examples", "N",
    "Number of clients in the population.", common=True)
_STEPS = Key("steps", COUNT, NEEDED, "", "--steps", "T",
    "Steps of an epoch, with --sampling allocation or shuffle.")
_EPSILON = Key("epsilon", NUMBER, help="Epsilon of one release.")
_SOURCE = Key("source", TEXT, "", "of {source}", help="Where the promise was found.")
_SCALE = Key("scale", NUMBER, help="Scale of the noise on each number.")
_SHIFT = Key("shift", SHIFT, 1, "shift {shift}", written="always",
    help="The most by which each number moves, an integer; a list for a vector.")
_BY_SAMPLING = "--sampling"

SAMPLINGS: dict[str, Item] = {item.name: item for item in (
    Item(Poisson, "poisson", "Poisson sampling at rate {sampling_rate}", (
        _RATE,
        Key("records", COUNT, 1, "up to {records} records a user", "--records", "K",
            "The most records of one user. Each joins a Poisson round independently, and is "
            "clipped by itself."),
        Key("max_cohort", COUNT, None, "at most {max_cohort} in a round", "--max-cohort", "B",
            "With --clients: the largest cohort. If more are drawn, this many are kept at random.",
            needs="num_clients"),
        Key("reveals_size", _named(REVEALS_SIZE), None, "size revealed, fixed noise on the "
            "{reveals_size}", "--reveals-size", "|".join(REVEALS_SIZE), "With --clients: the size "
            "of a cohort becomes known, because the noisy sum is divided by it (sum), each client "
            "adds noise, or the noise on the mean is fixed. --noise is for the expected size.",
            needs="num_clients"),
        _CLIENTS._replace(words="of {num_clients} clients"),
    ), chosen_by=_BY_SAMPLING),
    Item(Uniform, "uniform", "{cohort_size} of {num_clients} clients without replacement", (
        Key("cohort_size", COUNT, None, "", "--cohort --batch", "M",
            "Clients in a round, with --clients, instead of --q (Poisson: on average; uniform: "
            "exactly). With gradient accumulation, the logical batch of one optimizer step.",
            common=True),
        _CLIENTS,
        _RATE._replace(default=None, written="never"),
    ), (("cohort_size", "num_clients"), ("sampling_rate",)), _uniform, chosen_by=_BY_SAMPLING),
    Item(Full, "full", "every client in every round", chosen_by=_BY_SAMPLING),
)}
# What a phase without a mechanism is, beside the keys of its sampling.
ROUND = Item(Round, "", "", (NOISE, Key("sampling", _named(SAMPLINGS), None,
    help="The name of its sampling, which its keys imply.")))

RELEASES: dict[str, Item] = {item.name: item for item in (
    Item(Laplace, "laplace", "Laplace noise {noise_multiplier}", (
        Key("noise_multiplier", NUMBER, None,
            help="Scale of the noise / largest l1 norm of one client's contribution."),
        Key("epsilon", NUMBER, None, written="never", help="Instead, the epsilon of one release."),
    )),
    Item(RandomizedResponse, "randomized-response", "randomized response, epsilon {epsilon}", (
        _EPSILON,
        Key("answers", COUNT, 2, "{answers} answers", help="The number of possible answers."),
    )),
    Item(PureDP, "pure-dp", "a promise of epsilon {epsilon}", (_EPSILON, _SOURCE)),
    Item(ApproximateDP, "approximate-dp", "a promise of epsilon {epsilon} at delta {delta}",
        (_EPSILON, Key("delta", NUMBER, help="Delta of one release."), _SOURCE)),
    Item(ZeroConcentratedDP, "zcdp", "a promise of {rho}-zCDP",
        (Key("rho", NUMBER, help="Rho of one release."), _SOURCE)),
    Item(DiscreteGaussian, "discrete-gaussian", "discrete Gaussian noise {scale}",
        (_SCALE, _SHIFT)),
    Item(DiscreteLaplace, "discrete-laplace", "discrete Laplace noise {scale}", (_SCALE, _SHIFT)),
    Item(ExponentialMechanism, "exponential", "exponential mechanism, epsilon {epsilon}",
        (_EPSILON,)),
    Item(Epoch, "allocation", "epoch of {steps} steps, random allocation", (
        NOISE,
        _STEPS,
        Key("passes", COUNT, 1, "{passes} passes", "--passes", "K", "Epochs that use one "
            "allocation, with --sampling allocation.", written="always"),
    ), chosen_by=_BY_SAMPLING),
    Item(ShuffledEpoch, "shuffle", "epoch of {steps} steps, shuffled batches", (NOISE, _STEPS),
        chosen_by=_BY_SAMPLING),
    Item(Correlated, "correlated", "{steps} rounds of correlated noise ({strategy})", (
        NOISE,
        Key("strategy", STRATEGY, NEEDED, "", "--correlated",
            "independent|square-root|optimized|buffered-toeplitz", "Correlated noise (DP-FTRL) "
            "over all rounds, with --separation; no sampling is needed. With --q, cyclic Poisson "
            "sampling inside --separation groups."),
        Key("steps", COUNT, help="Rounds of the run."),
        Key("bands", COUNT, None, "{bands} bands", "--bands", "B", "With --correlated: the bands "
            "of the strategy, or the buffers of buffered-toeplitz."),
        Key("coefficients", NUMBERS, None, help="Of toeplitz: its first column."),
        Key("buffers", ROWS, None, help="Of buffered-toeplitz: its pairs of numbers."),
        Key("diagonals", ROWS, None, help="Of banded: its diagonals."),
        Key("min_separation", COUNT, NEEDED, "{min_separation} rounds apart", "--separation", "B",
            "With --correlated: the least number of rounds between two participations of a "
            "client."),
        Key("participations", COUNT, None, "up to {participations} participations",
            "--participations", "K", "With --correlated: the most participations of a client; "
            "default as many as fit."),
        _RATE._replace(default=None, words="Poisson sampling at rate {sampling_rate} in groups"),
    ), (), _correlated, _of_run, "--correlated"),
    Item(BestOf, "best-of", "the best of {runs} runs", (
        Key("runs", RUNS, NEEDED, "", "--best-of", "KIND:MEAN", "The best of a random number of "
            "such runs: poisson:10, geometric:10 or negative-binomial:10,0.5."),
        Key("schedule", SCHEDULE, words="each {schedule}", help="One run."),
    ), chosen_by="--best-of"),
    Item(Sampled, "sampled", "one sample at rate {rate}", (
        Key("rate", RATE, NEEDED, "", "--one-sample", "Q", "Compute everything on one secret "
            "Poisson sample of the clients, drawn once at this rate."),
        Key("schedule", SCHEDULE, words="of it {schedule}", help="What is computed on the sample."),
    ), (), _sampled, chosen_by="--one-sample"),
)}
# fmt: on

SAMPLING_KEYS = tuple(dict.fromkeys(k for item in SAMPLINGS.values() for k in item.names))
_ROUND_KEYS = ("rounds", *ROUND.names, *SAMPLING_KEYS)
# All keys of phases, and those that have an option.
_ALL = [k for item in (ROUND, *SAMPLINGS.values(), *RELEASES.values()) for k in item.keys]
KEYS = tuple(dict.fromkeys((*_ROUND_KEYS, "mechanism", *(key.name for key in _ALL), "repeat")))
OPTIONS = {key.name: key for key in reversed(_ALL) if key.option}


def item_of(value: Sampling | Release) -> Item:
    """Return the row of a sampling or a release.

    Raises:
        InvalidParameter: it has none.
    """
    for item in (*SAMPLINGS.values(), *RELEASES.values()):
        if type(value) is item.kind:
            return item
    rule = "a schedule file has rounds, and mechanisms of the kinds " + ", ".join(RELEASES)
    raise InvalidParameter("schedule", repr(value), rule)


# To words of files, and to words for people.


def _parts(value: Sampling | Release) -> list[tuple[Key, Any]]:
    """Return the keys that are written, with their values."""
    item = item_of(value)
    keys = [key for key in item.keys if key.written != "never"]
    held = item.parts(value) if item.parts else {k.name: getattr(value, k.name) for k in keys}
    pairs = [(key, held.get(key.name)) for key in keys]
    return [(k, v) for k, v in pairs if v is not None and (k.written == "always" or v != k.default)]


def keys_of(value: Sampling | Release) -> Entry:
    """Return the keys of a sampling or a release with its values, without those left out."""
    return {key.name: key.form.write(part) for key, part in _parts(value)}


def release_entry(release: Release, *, alone: bool = False) -> Entry:
    """Return a release in the words of files. ``alone`` adds its adjacency.

    Raises:
        InvalidParameter: no file has a name for it.
    """
    if isinstance(release, Round):
        entry = {"noise_multiplier": release.noise_multiplier}
        entry |= {"sampling": release.sampling.name, **keys_of(release.sampling)}
    else:
        entry = {"mechanism": item_of(release).name, **keys_of(release)}
    return entry | ({"adjacency": str(release.adjacency)} if alone else {})


def phase_entry(phase: Phase, *, alone: bool = False) -> Entry:
    """Return a phase in the words of files. See `release_entry`."""
    return {"rounds": phase.rounds, **release_entry(phase.round, alone=alone)}


def part_entry(part: Phase | Repeated) -> Entry:
    """Return a part of a schedule in the words of files."""
    if isinstance(part, Phase):
        return phase_entry(part)
    return {"repeat": part.times, "schedule": [part_entry(one) for one in part.schedule.parts]}


def in_words(value: Sampling | Release, *, noise: bool = True) -> str:
    """Return a phrase for a sampling or a release, without its adjacency. ``noise``: and noise."""
    if isinstance(value, Round):
        level = f"noise {safe('noise_multiplier', value.noise_multiplier)}, " if noise else ""
        return level + in_words(value.sampling)
    item, parts = item_of(value), _parts(value)
    shown = {key.name: key.form.shown(part) for key, part in parts}
    own = [key.words for key, part in parts if part != key.default and (noise or key != NOISE)]
    return ", ".join(words.format_map(shown) for words in (item.words, *own) if words)


def counted(release: Release, count: int, *, noise: bool = True) -> str:
    """Return `in_words` of a release that is made ``count`` times."""
    words = in_words(release, noise=noise)
    if isinstance(release, Round):
        return f"{count_of(count, 'round')}, {words}"
    return words if count == 1 else f"{count:,} x {words}"


def parts_in_words(schedule: Schedule) -> list[str]:
    """Return a phrase for each part of a schedule."""
    return [
        counted(part.round, part.rounds)
        if isinstance(part, Phase)
        else f"{part.times:,} x ({'; '.join(parts_in_words(part.schedule))})"
        for part in schedule.parts
    ]


def count_of(count: int, noun: str) -> str:
    """Return a number of rounds, or of something else."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def noun_of(*schedules: Schedule) -> str:
    """Return "round" if schedules hold nothing else, or else "release"."""
    kinds = (kind for schedule in schedules for kind in schedule.distinct())
    return "round" if all(isinstance(kind, Round) for kind in kinds) else "release"


def noise_in_words(release: Release | None) -> str:
    """Return what the noise multiplier of a release is a multiple of."""
    keys = () if release is None or isinstance(release, Round) else item_of(release).keys
    text = next((key.help for key in keys if key.name == NOISE.name), NOISE.help)
    words = text.removeprefix("Noise multiplier: ").removesuffix(".")
    return words[:1].lower() + words[1:]


def all_in_words(schedule: Schedule) -> str:
    """Return a phrase for a whole schedule: its only release, or the number of its kinds."""
    only, *others = schedule.distinct() or (None,)
    if only is not None and not others:
        return counted(only, schedule.rounds)
    count = count_of(schedule.rounds, noun_of(schedule))
    return f"{count} of {len(schedule.distinct())} kinds"


# From words of files.


def read_alone(entry: Entry, also: tuple[str, ...] = ()) -> Release:
    """Return the release of a ledger's entry, which names its adjacency. See `read_release`."""
    return read_release(*_apart(entry, entry["adjacency"]), also)


def _apart(entry: Entry, adjacency: Any) -> tuple[Entry, Any]:
    return {key: value for key, value in entry.items() if key != "adjacency"}, adjacency


def read_part(entry: Entry, adjacency: Any) -> Phase | Repeated:
    """Return the phase with these keys, or the schedule that they repeat. See `read_release`."""
    if "repeat" not in entry:
        return read_phase(entry, adjacency)
    check_known(entry, ("repeat", "schedule"))
    check_needed(entry, ("schedule",))
    times = validate.count("repeat", entry["repeat"], "the number of repetitions")
    return Repeated(_read_schedule(entry["schedule"], adjacency), times)


def read_phase(entry: Entry, adjacency: Any) -> Phase:
    """Return the phase with these keys and an adjacency (or None).

    Raises:
        InvalidParameter: see `read_release`.
    """
    release = read_release(entry, adjacency, ("rounds",))
    if isinstance(release, Round):
        check_needed(entry, ("rounds",))
    return Phase(release, validate.rounds(entry.get("rounds", 1)))


def read_release(
    entry: Entry, adjacency: Any, also: tuple[str, ...] = (), called: str = "mechanism"
) -> Release:
    """Return the release with these keys and an adjacency (or None).

    The key ``called`` names its mechanism. Keys ``also`` are ignored.

    Raises:
        InvalidParameter: the mechanism or a key is unknown, a key is missing or belongs to another
            sampling, or a value is invalid.
    """
    if called not in entry:
        check_known(entry, tuple(dict.fromkeys((*also, *_ROUND_KEYS, called))))
        check_needed(entry, ("noise_multiplier",))
        return Round(entry["noise_multiplier"], read_sampling(entry), adjacency)
    hint = "" if meant_name(str(entry[called]), RELEASES) else "Gaussian noise is a round."
    name = validate.one_of("mechanism", entry[called], "a mechanism", RELEASES, hint)
    item = RELEASES[name]
    check_known(entry, (*also, called, *item.names))
    check_needed(entry, item.needed[0])
    # A release of a schedule has the adjacency of its phases.
    given = adjacency is not None and "schedule" not in item.names
    relation = {"adjacency": adjacency} if given else {}
    release: Release = _made(item, entry, adjacency, relation)
    if adjacency is not None and release.adjacency != Adjacency.parse(adjacency):
        rule = f"the phases of {name} have {release.adjacency}"
        raise InvalidParameter("adjacency", str(adjacency), rule)
    return release


def read_sampling(entry: Entry) -> Sampling:
    """Return the sampling that the keys of a phase describe. Other keys are ignored."""
    given = [key for key in SAMPLING_KEYS if key in entry]
    default = Poisson.name if "sampling_rate" in given else Uniform.name if given else Full.name
    name = validate.one_of("sampling", entry.get("sampling", default), "sampling", SAMPLINGS)
    item = SAMPLINGS[name]
    others = {key for way in item.needed for key in way}
    fits = [way for way in item.needed if others & {*given} == {*way}]
    if not fits or not {*given} <= {*item.names}:
        ways = ", or ".join(" and ".join(way) or _NOTHING for way in item.needed)
        rule = f"that takes {ways}, and the phase has {', '.join(given) or _NOTHING}"
        raise InvalidParameter("sampling", name, rule)
    return _made(item, entry, None, {})


def _made(item: Item, entry: Entry, adjacency: Any, relation: Entry) -> Any:
    held = [key for key in item.keys if key.name in entry]
    given = {key.name: key.form.read(entry[key.name], adjacency) for key in held}
    return (item.make or item.kind)(**given, **relation)


def check_known(entry: Iterable[str], known: tuple[str, ...]) -> None:
    """Check that all keys of a table are known."""
    for key in entry:
        if key not in known:
            listed = ", ".join(known[:_MOST_KEYS]) + ", ..." * (len(known) > _MOST_KEYS)
            rule = f"the key {reprlib.repr(key)} is not one of {listed}"
            meant = meant_name(key, known)
            raise InvalidParameter(key, None, rule, f"Did you mean {meant}?" if meant else "")


def check_needed(entry: Iterable[str], needed: Iterable[str]) -> None:
    """Check that a table has these keys."""
    for key in needed:
        if key not in entry:
            raise InvalidParameter(key, None, f"{key} is missing")


def phase_schema() -> dict[str, Any]:
    """Return the JSON Schema of a part of a schedule, to which `PHASE` refers.

    Phases inside a release have an adjacency.
    """

    def table(item: Item, needed: tuple[str, ...], **more: Any) -> dict[str, Any]:
        keys = {
            "rounds": COUNT.schema,
            "adjacency": _named(map(str, Adjacency)).schema,
            **more,
        }
        keys |= {key.name: key.form.schema for key in item.keys}
        ways = [{"required": [*needed, *way]} for way in item.needed]
        return {
            "type": "object",
            "properties": keys,
            "additionalProperties": False,
            **(ways[0] if len(ways) == 1 else {"anyOf": ways}),
        }

    noise, of_rounds = {"noise_multiplier": NUMBER.schema}, ("rounds", "noise_multiplier")
    rounds = [
        table(item, of_rounds, sampling={"const": item.name}, **noise)
        for item in SAMPLINGS.values()
    ]
    named = [
        table(item, ("mechanism",), mechanism={"const": item.name}) for item in RELEASES.values()
    ]
    repeated: Entry = {
        "type": "object",
        "properties": {"repeat": COUNT.schema, "schedule": SCHEDULE.schema},
        "required": ["repeat", "schedule"],
        "additionalProperties": False,
    }
    return {"anyOf": [*rounds, *named, repeated]}
