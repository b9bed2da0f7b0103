"""The options that several commands share, declared once, and their combinations.

A command lists its options as its parameters. A parameter that is one of the tuples below
(`MechanismOptions`, `StyleOptions`) stands for all options of that tuple: `expanded` tells Typer.

Rule 1: every value arrives as the text that was typed, so that the library judges it. Defaults
stand in the help texts, as they may depend on other options.
Rule 2: options that contradict each other are refused, even if one of them could win.
"""

from __future__ import annotations

import inspect
import math
import shlex
from collections.abc import Callable, Iterable
from copy import copy
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import DEFAULT_DELTA
from dpacct.correlated.release import Correlated
from dpacct.errors import InvalidParameter
from dpacct.items import OPTIONS, RELEASES, SAMPLINGS, Item, read_release, read_sampling
from dpacct.outputs import mechanism_of
from dpacct.rounds import (
    MAX_CLIENTS,
    Adjacency,
    Full,
    Poisson,
    Release,
    Round,
    Sampling,
    Schedule,
    Uniform,
)
from dpacct_cli import words
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.outputs import Described
from dpacct_cli.render import Style
from dpacct_cli.words import called, unit

# The headings of a help, in their order.
FIND, WHAT_RUNS, PRIVACY, OUTPUT = "What to find", "What runs", "Privacy", "Output"
# Whole epochs, whose steps are no rounds of their own.
EPOCHS = tuple(name for name, item in RELEASES.items() if item.chosen_by == "--sampling")
# For the commands, which know their values as options.
number = words.number
Text = str | None
Known = Callable[[], Iterable[str]] | None


def option(
    names: str, metavar: str, panel: str, text: str, *, known: Known = None, advanced: bool = False
) -> Any:
    """Declare an option with a value.

    ``names`` has spaces between them, the documented one first. ``a|b`` as metavar lists values to
    complete, unless ``known`` returns them. Only --help-all shows an advanced option.
    """
    completion = _completion(metavar, known)
    if len(metavar) > 24:  # Its column would break words at 80 columns
        text, metavar = f"{text} One of {metavar.replace('|', ', ')}.", "NAME"
    return typer.Option(
        *names.split(), metavar=metavar, help=text, rich_help_panel=panel or None,
        show_default=False, autocompletion=completion, hidden=advanced,
    )  # fmt: skip


def flag(names: str, panel: str, text: str, *, advanced: bool = False) -> Any:
    """Declare an option without a value."""
    return typer.Option(
        *names.split(),
        help=text,
        rich_help_panel=panel or None,
        show_default=False,
        hidden=advanced,
    )  # fmt: skip


def argument(metavar: str, text: str, *, known: Known = None) -> Any:
    """Declare a value without a name, with its metavar in brackets if it is optional."""
    return typer.Argument(
        metavar=metavar, help=text, show_default=False, autocompletion=_completion(metavar, known)
    )


def _completion(metavar: str, known: Known) -> Callable[[str], list[str]] | None:
    """Return a function that completes a value."""
    listed = [value for value in metavar.split("|") if value == value.lower()]
    if known is None and len(listed) < 2:
        return None
    return lambda incomplete: [
        value for value in (known() if known else listed) if value.startswith(incomplete)
    ]


class Advanced(NamedTuple):
    """A mark on several options: the fields that --help-all alone shows."""

    fields: tuple[str, ...]


def _declared(kind: Any) -> dict[str, tuple[Any, Any]] | None:
    """Return the options for which a parameter of this type stands, None if it is one option."""
    if kind is MechanismOptions:
        return {field: (annotation, None) for field, annotation in MECHANISM.items()}
    if not hasattr(kind, "_fields"):
        return None
    hints = get_type_hints(kind, include_extras=True)
    return {field: (hints[field], kind._field_defaults[field]) for field in kind._fields}


def expanded(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function for Typer, in which each tuple of options is these options."""
    hints = get_type_hints(function, include_extras=True)
    tuples: dict[str, tuple[Any, list[str]]] = {}
    # The annotation and the default of each option.
    declared_options: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *marks = get_args(hints[name]) or (hints[name],)
        of_kind = _declared(kind)
        if of_kind is None:
            declared_options[name] = (hints[name], parameter.default)
            continue
        advanced = next((mark.fields for mark in marks if isinstance(mark, Advanced)), ())
        tuples[name] = kind, list(of_kind)
        for field, (annotation, default) in of_kind.items():
            value, declared = get_args(annotation)
            if field in advanced:
                declared = copy(declared)
                declared.hidden = True
            declared_options[field] = (Annotated[value, declared], default)
    if any(get_args(annotation)[1].hidden for annotation, _ in declared_options.values()):
        declared_options["help_all"] = (HelpAll, False)

    def command(**given: Any) -> None:
        given.pop("help_all", None)
        for name, (kind, fields) in tuples.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        function(**given)

    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in declared_options.items()
    ]
    parameters.sort(key=lambda each: get_args(each.annotation)[1].rich_help_panel == OUTPUT)
    command.__doc__ = function.__doc__
    command.__annotations__ = {each.name: each.annotation for each in parameters}
    command.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportFunctionMemberAccess]
    return command


HelpAll = Annotated[bool, flag("--help-all", OUTPUT, "Show all options and exit.")]
Eps = Annotated[Text, option("--eps", "E", PRIVACY, "Target epsilon, e.g. 8.")]
Delta = Annotated[Text, option("--delta", "D", PRIVACY, "Target delta; default 1e-05.")]
Rounds = Annotated[Text, option("--rounds", "T", WHAT_RUNS, "Number of rounds.")]
# fmt: off
ScheduleFile = Annotated[Text, option("--schedule", "FILE", WHAT_RUNS,
    "Rounds from a .toml, .csv or .json file, instead of --rounds, --q and --noise.")]
SamplingName = Annotated[Text, option("--sampling", "|".join((*SAMPLINGS, *EPOCHS)), WHAT_RUNS,
    "How a round draws its clients; default poisson. With --epochs also allocation (each client in "
    "one random step of an epoch) and shuffle (batches of a shuffled list).")]
Epochs = Annotated[Text, option("--epochs", "E", WHAT_RUNS,
    "Epochs instead of --rounds: how often each example takes part on average. E / rate rounds "
    "run, rounded up.", advanced=True)]
AdjacencyName = Annotated[Text, option("--adjacency", "|".join(Adjacency), WHAT_RUNS,
    "How neighboring data sets differ; default replace-one for uniform, else add-remove.",
    advanced=True)]
ReleaseText = Annotated[Text, option("--release", "RELEASE", WHAT_RUNS,
    "Any other release, as NAME:KEY=VALUE,KEY=VALUE, e.g. laplace:epsilon=0.1 or "
    "discrete-gaussian:scale=2. Lists have ; between their values.", advanced=True)]
Laplace = Annotated[Text, option("--laplace", "E", WHAT_RUNS,
    "A release with Laplace noise, by its own epsilon.", advanced=True)]
Times = Annotated[Text, option("--times", "N", WHAT_RUNS,
    "With --release or --laplace: how often it is made; default 1.", advanced=True)]
AccountantName = Annotated[str, option("--accountant", "|".join(ACCOUNTANTS), PRIVACY,
    f"Theory that proves the bound; default {DEFAULT_ACCOUNTANT}.", advanced=True)]
# fmt: on


def of_key(name: str, *, plain: bool = False) -> Any:
    """Return the option of a key of the table of items. ``plain``: under its first name only."""
    key = OPTIONS[name]
    names = key.option.split()[0] if plain else key.option
    return option(names, key.metavar, WHAT_RUNS, key.help, advanced=not key.common)


# The options that describe what runs, by the keys of the table and by names of their own.
_OF_KEYS = {name: Annotated[Text, of_key(name)] for name in OPTIONS}
MECHANISM: dict[str, Any] = {
    "noise_multiplier": _OF_KEYS["noise_multiplier"], "rounds": Rounds, "epochs": Epochs,
    "sampling_rate": _OF_KEYS["sampling_rate"], "schedule": ScheduleFile,
    "sampling": SamplingName, "cohort_size": _OF_KEYS["cohort_size"],
    "num_clients": _OF_KEYS["num_clients"], "adjacency": AdjacencyName, **_OF_KEYS,
    "release": ReleaseText, "laplace": Laplace, "times": Times,
}  # fmt: skip
AsJson = Annotated[bool, flag("--json", OUTPUT, "Print one JSON object.")]
Quiet = Annotated[bool, flag("--quiet -q", OUTPUT, "Print the number alone.")]


def read_list(text: str, check: Callable[[Any], float]) -> list[float]:
    """Return the numbers of a list with commas, each of which the library checks."""
    return [check(number(part.strip())) for part in text.split(",")]


def read_rates(text: str) -> list[float]:
    """Return false positive rates in (0, 1), separated by commas."""
    noun = "a false positive rate"
    return read_list(
        text, lambda rate: validate.positive_probability("fpr", rate, noun, below_one=True)
    )


class StyleOptions(NamedTuple):
    """The options that say how a command answers."""

    as_json: AsJson = False
    quiet: Quiet = False

    @property
    def style(self) -> Style:
        """The style of output."""
        if self.as_json and self.quiet:
            raise conflict(words.spelling("--quiet"), "--json")
        if self.as_json:
            return Style.JSON
        return Style.QUIET if self.quiet else Style.HUMAN


class ReadDelta(NamedTuple):
    """A delta."""

    value: float  # In (0, 1)
    origin: str  # Its source, if neither --delta nor the default
    typed: str | None  # The text of --delta

    @property
    def retyped(self) -> str:
        """The option, for a command that can be pasted. It never relies on another default."""
        text = repr(self.value) if self.typed is None else self.typed.strip()
        return f" --delta {shlex.quote(text)}"


def _member(name: str, noun: str, listed: tuple[str, ...]) -> Callable[[Any], str]:
    return lambda value: validate.one_of(name, value, noun, listed)


def _counted(name: str, noun: str, most: int = validate.MAX_ROUNDS) -> Callable[[Any], int]:
    return lambda value: validate.count(name, value, noun, most)


# The range of a value by itself, for those that have one. The library checks all of them.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "noise_multiplier": validate.noise_multiplier,
    "rounds": validate.rounds,
    "epochs": lambda value: validate.above_zero("num_epochs", value, "the number of epochs"),
    "sampling_rate": validate.sampling_rate,
    "sampling": _member("sampling", "a sampling scheme", (*SAMPLINGS, *EPOCHS)),
    "cohort_size": _counted("cohort_size", "the cohort size", MAX_CLIENTS),
    "num_clients": _counted("num_clients", "the number of clients", MAX_CLIENTS),
    "adjacency": Adjacency.parse,
    "steps": _counted("steps", "the number of steps of an epoch"),
    "records": lambda value: Poisson(1.0, value).records,
    "strategy": _member("correlated", "a strategy", tuple(OPTIONS["strategy"].metavar.split("|"))),
    "rate": lambda value: validate.sampling_rate(value, "rate"),
    "runs": lambda value: OPTIONS["runs"].form.read(str(value), None),
    "times": _counted("times", "the number of releases"),
}
# Options that say how long, in the place of --rounds.
_LENGTHS = ("epochs", "schedule", "release", "laplace")
# The first name of the option of each field, which Typer keeps as its default.
_NAMES = {field: get_args(annotation)[1].default for field, annotation in MECHANISM.items()}


class MechanismOptions:
    """The options that describe what runs, as typed, and their conversion to a `Schedule`.

    Its fields are keys of the table of items, and names of options without a key. A key that the
    table gives an option to arrives here, and in every command. The typed values become the keys
    of a phase in a schedule file. An option that belongs to another item is rejected.
    """

    def __init__(self, **texts: str | None) -> None:
        self.texts = {field: text for field, text in texts.items() if text is not None}

    def __contains__(self, field: str) -> bool:
        return field in self.texts

    def __bool__(self) -> bool:
        return bool(self.texts)

    def __getitem__(self, field: str) -> str:
        return self.texts[field]

    def but(self, **texts: str | None) -> MechanismOptions:
        """Return the same options with others in the place of some. None takes one away."""
        return MechanismOptions(**{**self.texts, **texts})

    def fields(self) -> list[str]:
        """Return the fields that were typed, in the order of the help."""
        return [field for field in MECHANISM if field in self]

    def described(self, schedule: Schedule) -> Described:
        """Return the JSON keys of the schedule that the options describe, and of the population."""
        data: Described = {**mechanism_of(schedule)}
        if self.num_clients is not None:
            data["num_clients"] = self.num_clients
        return data

    def by_option(self) -> dict[str, str]:
        """Return the typed texts by the names of their options."""
        return {_NAMES[field]: self[field] for field in self.fields()}

    @cached_property
    def values(self) -> dict[str, Any]:
        """The typed values, each checked by itself before options are combined."""
        typed = {field: number(self[field]) for field in (*CHECKS, *self.texts) if field in self}
        return {f: CHECKS[f](value) if f in CHECKS else value for f, value in typed.items()}

    def value(self, field: str) -> Any:
        """Return the checked value of an option, None if it was not typed."""
        return self.values.get(field)

    @property
    def num_clients(self) -> int | None:
        """The population, if it was given."""
        return self.value("num_clients")

    @property
    def relation(self) -> Adjacency | None:
        """The adjacency, if one was given."""
        return self.value("adjacency")

    @property
    def ratio_only(self) -> bool:
        """Only the share of a cohort is known, neither its size nor the population."""
        return "schedule" not in self and "num_clients" not in self

    @property
    def item(self) -> Item:
        """The row of the table that the options choose: a sampling, epochs or correlated noise."""
        name = self.value("sampling") or Poisson.name
        chosen = RELEASES["correlated"] if "strategy" in self else SAMPLINGS.get(name)
        return chosen or RELEASES[name]

    @property
    def by_epochs(self) -> bool:
        """True if whole epochs are released: by random allocation, or in shuffled batches."""
        return "schedule" not in self and self.item.name in EPOCHS

    def read_delta(self, typed: str | None) -> ReadDelta:
        """Return the delta that was typed, or the default."""
        value = DEFAULT_DELTA if typed is None else validate.delta(number(typed))
        return ReadDelta(value, "", typed)

    # What runs

    def read_schedule(self, adjacency: Adjacency | None = None) -> Schedule:
        """Return one run, on one sample or not, or the best of several such runs.

        ``adjacency`` holds for what names none, in place of the usual one.
        """
        run = self._read_run(adjacency)
        if "rate" in self:
            from dpacct.sampled import Sampled

            run = 1 * Sampled(run, self.value("rate"))
        if "runs" not in self:
            return run
        from dpacct.tuning import best_of

        return 1 * best_of(run, self["runs"])

    def _read_run(self, adjacency: Adjacency | None) -> Schedule:
        """Return what a file holds, or the release that the options describe, repeatedly."""
        if "schedule" in self:
            self.refuse_beside_schedule()
            from dpacct.schedules import load_schedule

            return load_schedule(self["schedule"], adjacency=adjacency)
        relation = self.relation or adjacency
        for field in ("laplace", "release"):
            if field in self:
                beside = ("times", "adjacency", "num_clients", "runs", "rate", field)
                others = self.but(**dict.fromkeys(beside)).by_option()
                self._refuse(others, self._typed(field), "it says what runs")
                release = read_one(_NAMES[field], self[field], relation)
                return (self.value("times") or 1) * release
        # Checked in the order in which a person would read them back.
        noise = self.value("noise_multiplier") or validate.noise_multiplier(None)
        self.refuse_foreign()
        if "strategy" in self:
            return 1 * self.read_correlated(noise, relation)
        if self.by_epochs:
            entry = {"mechanism": self.item.name, "steps": self.read_steps(), **self._beside()}
            return self.read_epochs() * read_release(entry | {"noise_multiplier": noise}, relation)
        count, sampling = self.read_rounds(), self.read_sampling()
        return count * Round(noise, sampling, relation)

    def at_least_once(self) -> MechanismOptions:
        """Return the same options, with one round unless they say how many."""
        long = self.by_epochs or any(field in self for field in ("rounds", *_LENGTHS))
        return self if long else self.but(rounds="1")

    def _beside(self) -> dict[str, Any]:
        """Return the keys of the item that neither size its cohorts nor its steps."""
        sizes = ("noise_multiplier", "sampling_rate", "cohort_size", "num_clients", "steps")
        own = [key for key in self.item.keys if key.name in self and key.name not in sizes]
        entry = {key.name: self.value(key.name) for key in own}
        for key in own:
            if key.needs and key.needs not in self:
                needs = called(_NAMES[key.needs])
                raise OptionConflict(f"{self._typed(key.name)} needs {needs}.")
            entry |= {key.needs: self.value(key.needs)} if key.needs else {}
        return entry

    def read_rounds(self) -> int:
        """Return the number of rounds: as typed, or as many as the epochs take."""
        epochs = self.value("epochs")
        if epochs is None:
            return validate.rounds(self.value("rounds"))
        self._refuse(("--rounds",), f"--epochs {self['epochs']}", "both say how long", first=True)
        sampling, clients = self.read_sampling(), self.num_clients
        # The decimals that were typed, so that 20 epochs of 256 of 50000 are exactly that.
        rate = Fraction(repr(sampling.sampling_rate))
        if "cohort_size" in self and clients is not None:
            rate = Fraction(self._read_cohort(clients), clients)
        return validate.rounds(math.ceil(Fraction(repr(epochs)) / rate))

    def read_sampling(self) -> Sampling:
        """Return the sampling scheme with its rate or its cohort."""
        scheme = self.item.name
        if scheme not in SAMPLINGS:
            rule = "its epochs are released as a whole, and this takes rounds"
            raise InvalidParameter("sampling", scheme, rule)
        return read_sampling({"sampling": scheme, **self._read_size(scheme), **self._beside()})

    def _read_size(self, scheme: str) -> dict[str, Any]:
        """Return the rate, or the cohort and the population, as keys of a phase."""
        rate, clients = self.value("sampling_rate"), self.num_clients
        if scheme == Full.name:
            return {}
        if "cohort_size" in self:
            why = "both set the rate"
            self._refuse(("--q",), self._typed("cohort_size"), why)
            whole = Uniform(self._read_cohort(clients), clients or 0)
            if scheme == Uniform.name:
                return {"cohort_size": whole.cohort_size, "num_clients": clients}
            return {"sampling_rate": whole.sampling_rate}
        if rate is None:
            ways = f"{called('--cohort')} with {called('--clients')}"
            if scheme == Poisson.name:
                ways += " or --sampling full"
            raise OptionConflict(
                f"--q is missing; a sampling rate lies in (0, 1]. Give it, or {ways} instead."
            )
        if scheme == Uniform.name and clients is not None:
            return {"cohort_size": self._exact_cohort(rate, clients), "num_clients": clients}
        return {"sampling_rate": rate}

    def read_epochs(self) -> int:
        """Return the number of allocations or of shuffles."""
        # A part of an epoch costs no more than the whole one.
        passes, typed = self.value("passes") or 1, self.value("epochs")
        count = 1 if typed is None else math.ceil(typed / validate.count("passes", passes, "it"))
        return validate.count("num_epochs", count, "the number of epochs")

    def read_steps(self) -> int:
        """Return the steps of an epoch: as typed, or as many as the batches take."""
        steps, clients = self.value("steps"), self.num_clients
        if "cohort_size" not in self:
            if steps is None:
                raise OptionConflict(
                    f"--sampling {self.item.name} needs --steps, the steps of an epoch, or "
                    f"{called('--cohort')} with {called('--clients')}."
                )
            return steps
        cohort = self._read_cohort(clients)
        # A part of a batch at the end is a step as well.
        least = -(-(clients or 0) // cohort)
        if steps not in (None, least):
            why = f"they take {least} steps"
            raise conflict(self._typed("steps"), f"{called('--cohort')} of all", why)
        return least

    def read_correlated(self, noise: float, adjacency: Adjacency | None = None) -> Correlated:
        """Return the run with correlated noise that the options describe."""
        from dpacct.correlated import buffered_toeplitz, optimized
        from dpacct.correlated.strategy import make_strategy

        kind, rounds, rate = self["strategy"], self.read_rounds(), self.value("sampling_rate")
        if "min_separation" not in self:
            raise OptionConflict(
                "--correlated needs --separation, the least number of rounds between two "
                "participations of a client."
            )
        # The library checks what they are.
        apart, bands = self.value("min_separation"), self.value("bands")
        most = self.value("participations")
        if kind == "optimized":
            strategy = optimized(rounds, apart if bands is None else bands, apart)
        elif kind == "buffered-toeplitz":
            count = validate.count("bands", 4 if bands is None else bands, "the number of buffers")
            strategy = buffered_toeplitz(rounds, count, min_separation=apart, participations=most)
        else:
            strategy = make_strategy(kind, rounds, {} if bands is None else {"bands": bands})
        return Correlated(
            noise, strategy, min_separation=apart, participations=most,
            sampling=None if rate is None else Poisson(rate),
            adjacency=adjacency or Adjacency.ADD_REMOVE,
        )  # fmt: skip

    # What contradicts

    def refuse_foreign(self) -> None:
        """Reject an option that the chosen item does not take."""
        item = self.item
        known = {*_own(item), "noise_multiplier", "num_clients", "adjacency", "runs", "rate"}
        known |= {"rounds", "epochs"} - ({"rounds"} if self.by_epochs else set())
        known -= {"epochs"} if item.kind is Correlated else set()
        head = next((self._typed(f) for f in ("strategy", "sampling") if f in self), "")
        for field in MECHANISM:
            if field in self and field not in known and self._typed(field) != head:
                takes = _takers(field)
                why = "its rounds say how long" if field == "epochs" else "it needs no sampling"
                why = why if item.kind is Correlated else "epochs and their steps say how long"
                why = f"it belongs to {takes}" if takes else why
                if head:
                    raise conflict(self._typed(field), head, why)
                raise OptionConflict(f"{self._typed(field)} needs {takes}.")

    def refuse_unused_clients(self) -> None:
        """Reject a population of which neither the sampling nor a note depends."""
        if "num_clients" not in self:
            return
        depends = {"cohort_size", "max_cohort", "reveals_size"}
        drawn = self.item.name == Uniform.name or depends & {*self.texts}
        if "schedule" in self or not drawn:
            raise OptionConflict(
                f"{self._typed('num_clients')} changes nothing without {called('--cohort')} or "
                "--sampling uniform. Drop it."
            )

    def refuse_beside_schedule(self) -> None:
        """Reject each option that a schedule file already determines."""
        others = self.but(schedule=None, num_clients=None, runs=None)
        self._refuse(others.by_option(), f"--schedule {self['schedule']}", "the file says it")

    def _refuse(
        self, options: Iterable[str], beside: str, why: str, *, first: bool = False
    ) -> None:
        """Reject the first of these options that was typed. ``first`` names it second."""
        typed = self.by_option()
        for option in options:
            if option in typed:
                one = f"{called(option)} {typed[option]}"
                raise conflict(beside, one, why) if first else conflict(one, beside, why)

    def retyped(self, *, noise: str | None = None) -> str:
        """Return the same options once more, for a command that can be pasted."""
        changed = self if noise is None else self.but(noise_multiplier=noise)
        return " ".join(
            f"{called(option)} {shlex.quote(word if option == '--schedule' else word.strip())}"
            for option, word in changed.by_option().items()
        )

    def _typed(self, field: str) -> str:
        return f"{called(_NAMES[field])} {self[field]}"

    def _read_cohort(self, clients: int | None) -> int:
        cohort = self.value("cohort_size")
        if clients is None:
            raise OptionConflict(
                f"{self._typed('cohort_size')} needs {called('--clients')}, the population that it "
                "is drawn from."
            )
        return Uniform(cohort, clients).cohort_size

    def _exact_cohort(self, rate: float, clients: int) -> int:
        cohort = rate * clients
        whole = max(round(cohort), 1)
        if not math.isclose(whole, cohort, rel_tol=1e-9):
            rule = f"of {self._typed('num_clients')} that is a cohort of {cohort:.6g}, and uniform "
            hint = f"Give {called('--cohort')} {math.ceil(cohort)} instead of --q."
            raise InvalidParameter(
                "sampling_rate", rate, f"{rule}sampling draws whole {unit()}s", hint
            )
        return whole


def _own(item: Item) -> set[str]:
    """Return the keys of an item that an option gives."""
    keys = {key.name for key in item.keys if key.option}
    # A cohort sets the rate, or the steps of an epoch.
    sized = item.chosen_by == "--sampling" and item.kind is not Full
    return keys | ({"cohort_size"} if sized else set())


def _takers(field: str) -> str:
    """Return the options that choose the items to which a key belongs, or empty."""
    if field == "times":
        return "--release or --laplace"
    items = [*SAMPLINGS.values(), *RELEASES.values()]
    takers = [item for item in items if field in _own(item)]
    names = " or ".join(item.name for item in takers if item.chosen_by == "--sampling")
    others = [item.chosen_by for item in takers if item.chosen_by != "--sampling"]
    return " or ".join([f"--sampling {names}"] * bool(names) + others)


def read_one(option: str, text: str, adjacency: Adjacency | None) -> Release:
    """Return the release of --laplace E, or of --release NAME:KEY=VALUE,... with lists by ;."""
    kind, _, rest = text.partition(":")
    pairs = [pair.partition("=") for pair in rest.split(",") if pair.strip()]
    entry = {"mechanism": kind.strip(), **{key.strip(): _listed(value) for key, _, value in pairs}}
    if option == "--laplace":
        entry = {"mechanism": "laplace", "epsilon": number(text)}
    try:
        return read_release(entry, adjacency)
    except InvalidParameter as error:
        if error.name == "adjacency":
            raise
        unknown = error.value is None and error.name in entry  # Its rule names the key
        label = option if unknown or option == "--laplace" else f"{option}: {error.name}"
        value = text if unknown else error.value
        raise InvalidParameter(label, value, error.rule, error.hint) from None


def _listed(text: str) -> Any:
    if ";" in text:
        return [number(part.strip()) for part in text.split(";")]
    return number(text.strip())
