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
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints

import typer

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import DEFAULT_DELTA
from dpacct.errors import InvalidParameter
from dpacct.rounds import (
    MAX_CLIENTS,
    Adjacency,
    Full,
    Phase,
    Poisson,
    Round,
    Sampling,
    Schedule,
    Uniform,
)
from dpacct_cli import words
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.render import Style
from dpacct_cli.words import called, unit

# The headings of a help, in their order.
FIND, WHAT_RUNS, PRIVACY, OUTPUT = "What to find", "What runs", "Privacy", "Output"
SCHEMES = (Poisson.name, Uniform.name, Full.name)
# Whole epochs, whose steps are no rounds of their own.
EPOCHS = ("allocation", "shuffle")
# For the commands, which know their values as options.
number = words.number
Text = str | None
Known = Callable[[], Iterable[str]] | None


def option(
    names: str, metavar: str, panel: str, text: str, *, known: Known = None, advanced: bool = False
) -> Any:
    """Declare an option with a value.

    ``names`` has spaces between them, the documented one first. ``a|b`` as metavar lists all
    values, which are completed, unless ``known`` returns them. An advanced option is shown by
    --help-all only.
    """
    return typer.Option(
        *names.split(), metavar=metavar, help=text, rich_help_panel=panel or None,
        show_default=False, autocompletion=_completion(metavar, known), hidden=advanced,
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


class Fields(NamedTuple):
    """A mark on a tuple of options: the fields that a command has, and those of --help-all only."""

    only: tuple[str, ...] = ()
    advanced: tuple[str, ...] = ()


def expanded(function: Callable[..., object]) -> Callable[..., object]:
    """Return a function for Typer, in which each tuple of options is these options."""
    hints = get_type_hints(function, include_extras=True)
    tuples: dict[str, tuple[Any, list[str]]] = {}
    # The annotation and the default of each option.
    found: dict[str, tuple[Any, object]] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        kind, *marks = get_args(hints[name]) or (hints[name],)
        if not hasattr(kind, "_fields"):
            found[name] = (hints[name], parameter.default)
            continue
        mark = next((mark for mark in marks if isinstance(mark, Fields)), Fields())
        of_kind = get_type_hints(kind, include_extras=True)
        tuples[name] = kind, [field for field in of_kind if not mark.only or field in mark.only]
        for field in tuples[name][1]:
            value, declared = get_args(of_kind[field])
            if field in mark.advanced:
                declared = copy(declared)
                declared.hidden = True
            found[field] = (Annotated[value, declared], kind._field_defaults[field])
    if any(get_args(annotation)[1].hidden for annotation, _ in found.values()):
        found["help_all"] = (HelpAll, False)

    def command(**given: Any) -> None:
        given.pop("help_all", None)
        for name, (kind, fields) in tuples.items():
            given[name] = kind(**{field: given.pop(field) for field in fields})
        function(**given)

    parameters = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for name, (annotation, default) in found.items()
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
Rate = Annotated[Text, option("--q", "Q", WHAT_RUNS,
    "Sampling rate in (0, 1]: the fraction of all clients in a round.")]
Noise = Annotated[Text, option("--noise", "Z", WHAT_RUNS,
    "Noise multiplier: std of the noise on the sum / clip norm.")]
ScheduleFile = Annotated[Text, option("--schedule", "FILE", WHAT_RUNS,
    "Rounds from a .toml, .csv or .json file, instead of --rounds, --q and --noise.")]
SamplingName = Annotated[Text, option("--sampling", "|".join((*SCHEMES, *EPOCHS)), WHAT_RUNS,
    "How a round picks its clients; default poisson. With --epochs: allocation, a random step for "
    "each client, or shuffle, batches of a shuffled list.")]
CLIENTS_HELP = "Number of clients in the population."
# In central training, a client is an example and a cohort a batch.
Cohort = Annotated[Text, option("--cohort --batch", "M", WHAT_RUNS,
    "Clients in a round, with --clients, instead of --q (Poisson: on average; uniform: exactly).")]
Clients = Annotated[Text, option("--clients --examples", "N", WHAT_RUNS, CLIENTS_HELP)]
ClientsOnly = Annotated[Text, option("--clients", "N", WHAT_RUNS, CLIENTS_HELP)]
# Strategies of correlated noise that need no more than a number.
CORRELATED = ("independent", "square-root", "optimized", "buffered-toeplitz")
Epochs = Annotated[Text, option("--epochs", "E", WHAT_RUNS,
    "Epochs instead of --rounds: how often each example takes part on average. E / rate rounds "
    "run, rounded up.", advanced=True)]
Steps = Annotated[Text, option("--steps", "T", WHAT_RUNS,
    "Steps of an epoch, with --sampling allocation or shuffle.", advanced=True)]
Records = Annotated[Text, option("--records", "K", WHAT_RUNS,
    "Records of one user at most: each joins a Poisson round by itself and is clipped alone.",
    advanced=True)]
CorrelatedName = Annotated[Text, option("--correlated", "|".join(CORRELATED), WHAT_RUNS,
    "Correlated noise (DP-FTRL) over all rounds, with --separation; no sampling is needed. With "
    "--q, cyclic Poisson sampling inside --separation groups.", advanced=True)]
BestOfRuns = Annotated[Text, option("--best-of", "LAW:MEAN", WHAT_RUNS,
    "The best of a random number of such runs: poisson:10, geometric:10 or "
    "negative-binomial:10,0.5.", advanced=True)]
Bands = Annotated[Text, option("--bands", "B", WHAT_RUNS,
    "With --correlated: the bands of the strategy, or the buffers of buffered-toeplitz.",
    advanced=True)]
Separation = Annotated[Text, option("--separation", "B", WHAT_RUNS,
    "With --correlated: the least number of rounds between two participations of a client.",
    advanced=True)]
Participations = Annotated[Text, option("--participations", "K", WHAT_RUNS,
    "With --correlated: the most participations of a client; default as many as fit.",
    advanced=True)]
AdjacencyName = Annotated[Text, option("--adjacency", "|".join(Adjacency), WHAT_RUNS,
    "When two data sets are neighbors; default add-remove, for uniform replace-one.",
    advanced=True)]
AccountantName = Annotated[str, option("--accountant", "|".join(ACCOUNTANTS), PRIVACY,
    f"Theory that proves the bound; default {DEFAULT_ACCOUNTANT}.", advanced=True)]
# fmt: on
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


def _law_of_runs(value: Any) -> str:
    from dpacct.tuning import Runs

    Runs.parse(str(value))
    return str(value)


# The range of each value by itself. The library checks the options of correlated noise.
CHECKS: dict[str, Callable[[Any], Any]] = {
    "noise": validate.noise_multiplier,
    "rounds": validate.rounds,
    "epochs": lambda value: validate.above_zero("num_epochs", value, "the number of epochs"),
    "rate": validate.sampling_rate,
    "sampling": _member("sampling", "a sampling scheme", (*SCHEMES, *EPOCHS)),
    "cohort": _counted("cohort_size", "the cohort size", MAX_CLIENTS),
    "clients": _counted("num_clients", "the number of clients", MAX_CLIENTS),
    "adjacency": Adjacency.parse,
    "steps": _counted("steps", "the number of steps of an epoch"),
    "records": lambda value: Poisson(1.0, value).records,
    "best_of": _law_of_runs,
    "correlated": _member("correlated", "a strategy", CORRELATED),
}


class MechanismOptions(NamedTuple):
    """The options that describe the mechanism, as typed, and their conversion to a `Schedule`."""

    noise: Noise = None
    rounds: Rounds = None
    epochs: Epochs = None
    rate: Rate = None
    schedule: ScheduleFile = None
    sampling: SamplingName = None
    cohort: Cohort = None
    clients: Clients = None
    adjacency: AdjacencyName = None
    steps: Steps = None
    records: Records = None
    best_of: BestOfRuns = None
    correlated: CorrelatedName = None
    bands: Bands = None
    separation: Separation = None
    participations: Participations = None

    def by_option(self) -> dict[str, str]:
        """Return the typed texts by the names of their options."""
        return {
            "--q" if field == "rate" else f"--{field.replace('_', '-')}": text
            for field, text in zip(self._fields, self, strict=True)
            if text is not None
        }

    def value(self, field: str) -> Any:
        """Return the checked value of an option in `CHECKS`, None if it was not typed."""
        text = getattr(self, field)
        return None if text is None else CHECKS[field](number(text))

    def check(self) -> None:
        """Reject every value that is out of range by itself, before options are combined."""
        for field in CHECKS:
            self.value(field)

    @property
    def num_clients(self) -> int | None:
        """The population, if it was given."""
        return self.value("clients")

    @property
    def relation(self) -> Adjacency | None:
        """The adjacency, if one was given."""
        return self.value("adjacency")

    @property
    def ratio_only(self) -> bool:
        """Only the share of a cohort is known, neither its size nor the population."""
        return self.schedule is None and self.clients is None

    @property
    def scheme(self) -> str:
        """The name of the sampling scheme."""
        return self.value("sampling") or Poisson.name

    @property
    def by_epochs(self) -> bool:
        """True if whole epochs are released: by random allocation, or in shuffled batches."""
        return self.schedule is None and self.sampling in EPOCHS

    def read_delta(self, typed: str | None) -> ReadDelta:
        """Return the delta that was typed, or the default."""
        value = DEFAULT_DELTA if typed is None else validate.delta(number(typed))
        return ReadDelta(value, "", typed)

    def read_noise(self) -> float:
        """Return the noise multiplier."""
        return validate.noise_multiplier(number(self.noise))

    def read_rounds(self) -> int:
        """Return the number of rounds: as typed, or as many as the epochs take."""
        epochs = self.value("epochs")
        if epochs is None:
            return validate.rounds(number(self.rounds))
        if self.rounds is not None:
            raise conflict(
                f"--epochs {self.epochs}", f"--rounds {self.rounds}", "both say how long"
            )
        from fractions import Fraction

        sampling, clients = self.read_sampling(), self.num_clients
        # The decimals that were typed, so that 20 epochs of 256 of 50000 are exactly that.
        rate = Fraction(repr(sampling.sampling_rate))
        if self.cohort is not None and clients is not None:
            rate = Fraction(self._read_cohort(clients), clients)
        return validate.rounds(math.ceil(Fraction(repr(epochs)) / rate))

    def read_sampling(self) -> Sampling:
        """Return the sampling scheme with its rate or its cohort."""
        scheme = self.scheme
        if scheme in EPOCHS:
            rule = "its epochs are released as a whole, and this takes rounds"
            raise InvalidParameter("sampling", scheme, rule)
        rate, clients = self.value("rate"), self.num_clients
        cohort = None if self.cohort is None else self._read_cohort(clients)
        if scheme == Full.name:
            why = "every client takes part in every round"
            if rate is not None and rate != 1.0:
                raise conflict(f"--q {self.rate}", "--sampling full", why)
            if cohort is not None and cohort != clients:
                raise conflict(self._typed_cohort, "--sampling full", why)
            return Full()
        if rate is not None and cohort is not None:
            raise conflict(f"--q {self.rate}", self._typed_cohort, "both set the rate")
        if cohort is not None and clients is not None:
            uniform = Uniform(cohort, clients)
            return uniform if scheme == Uniform.name else self._poisson(uniform.sampling_rate)
        if rate is None:
            ways = f"{called('--cohort')} with {called('--clients')}"
            if scheme == Poisson.name:
                ways += " or --sampling full"
            raise OptionConflict(
                f"--q is missing; a sampling rate lies in (0, 1]. Give it, or {ways} instead."
            )
        if scheme == Poisson.name:
            return self._poisson(rate)
        return Uniform.at_rate(rate) if clients is None else self._exact_cohort(rate, clients)

    def read_schedule(self) -> Schedule:
        """Return one run, or with --best-of the best of several such runs as one release."""
        run = self._read_run()
        if self.best_of is None:
            return run
        from dpacct.tuning import best_of

        return 1 * best_of(run, self.best_of)

    def _read_run(self) -> Schedule:
        """Return the rounds of the file, or the same round repeatedly."""
        if self.schedule is not None:
            self.refuse_beside_schedule()
            from dpacct.schedules import load_schedule

            return load_schedule(self.schedule)
        self.check()
        # Checked in the order in which a person would read them back.
        noise = self.read_noise()
        if self.correlated is not None:
            return self.read_correlated(noise)
        self.refuse_without_correlated()
        if self.by_epochs:
            return self.read_epochs(noise)
        count = self.read_rounds()
        return Schedule([Phase(Round(noise, self.read_sampling(), self.relation), count)])

    def read_epochs(self, noise: float) -> Schedule:
        """Return the epochs by random allocation or of shuffled batches."""
        from dpacct.epochs import Epoch, ShuffledEpoch

        why = "epochs and their steps say how long"
        self._refuse(("--rounds", "--q"), f"--sampling {self.sampling}", why)
        # A part of an epoch costs no more than the whole one.
        noun, typed = "the number of epochs", self.value("epochs")
        epochs = validate.count("num_epochs", math.ceil(1 if typed is None else typed), noun)
        kind = Epoch if self.sampling == Epoch.name else ShuffledEpoch
        relation = self.relation or Adjacency.ZERO_OUT
        return epochs * kind(noise, self.read_steps(), adjacency=relation)

    def read_steps(self) -> int:
        """Return the steps of an epoch: as typed, or as many as the batches take."""
        steps, clients = self.value("steps"), self.num_clients
        if self.cohort is None or clients is None:
            if steps is None:
                raise OptionConflict(
                    f"--sampling {self.sampling} needs --steps, the steps of an epoch, or "
                    f"{called('--cohort')} with {called('--clients')}."
                )
            return steps
        # A part of a batch at the end is a step as well.
        least = -(-clients // self._read_cohort(clients))
        if steps not in (None, least):
            why = f"they take {least} steps"
            raise conflict(f"--steps {self.steps}", f"{called('--cohort')} of all", why)
        return least

    def _poisson(self, rate: float) -> Poisson:
        """Return Poisson sampling, of clients or of users with several records."""
        return Poisson(rate, 1 if self.records is None else self.value("records"))

    def refuse_without_correlated(self) -> None:
        """Reject options that belong to correlated noise or to another sampling."""
        typed = self.by_option()
        for option in ("--bands", "--separation", "--participations"):
            if option in typed:
                needs = "needs --correlated, the kind of the noise"
                raise OptionConflict(f"{option} {typed[option]} {needs}.")
        if self.steps is not None and not self.by_epochs:
            raise OptionConflict(f"--steps {self.steps} needs --sampling {' or '.join(EPOCHS)}.")
        if self.sampling not in (None, Poisson.name):
            why = "it belongs to Poisson sampling"
            self._refuse(("--records",), f"--sampling {self.sampling}", why)

    def _refuse(self, options: Iterable[str], beside: str, why: str) -> None:
        """Reject the first of these options that was typed."""
        typed = self.by_option()
        for option in options:
            if option in typed:
                raise conflict(f"{called(option)} {typed[option]}", beside, why)

    def read_correlated(self, noise: float) -> Schedule:
        """Return the run with correlated noise that the options describe."""
        from dpacct.correlated import Correlated, buffered_toeplitz, optimized
        from dpacct.correlated.entries import make_strategy

        kind = self.value("correlated")
        others = ("--epochs", "--sampling", "--cohort", "--steps", "--records")
        why = "each client takes part in rounds that are --separation apart"
        self._refuse(others, f"--correlated {kind}", why)
        rounds, rate = self.read_rounds(), self.value("rate")
        if self.separation is None:
            raise OptionConflict(
                "--correlated needs --separation, the least number of rounds between two "
                "participations of a client."
            )
        # The library checks what they are.
        apart: Any = number(self.separation)
        bands: Any = number(self.bands)
        most: Any = number(self.participations)
        if kind == "optimized":
            strategy = optimized(rounds, apart if bands is None else bands, apart)
        elif kind == "buffered-toeplitz":
            count = validate.count("bands", 4 if bands is None else bands, "the number of buffers")
            strategy = buffered_toeplitz(rounds, count, min_separation=apart, participations=most)
        else:
            strategy = make_strategy(kind, rounds, {} if bands is None else {"bands": bands})
        return 1 * Correlated(
            noise,
            strategy,
            min_separation=apart,
            participations=most,
            sampling=None if rate is None else Poisson(rate),
            adjacency=self.relation or Adjacency.ADD_REMOVE,
        )

    def refuse_unused_clients(self) -> None:
        """Reject a population of which neither the sampling nor a note depends."""
        drawn = self.cohort is not None or self.sampling == Uniform.name
        if self.clients is not None and (self.schedule is not None or not drawn):
            raise OptionConflict(
                f"{called('--clients')} {self.clients} changes nothing without "
                f"{called('--cohort')} or --sampling uniform. Drop it."
            )

    def refuse_beside_schedule(self) -> None:
        """Reject each option that a schedule file already determines."""
        others = self._replace(schedule=None, clients=None, best_of=None)
        self._refuse(others.by_option(), f"--schedule {self.schedule}", "the file says it")

    def retyped(self, *, noise: str | None = None) -> str:
        """Return the same options once more, for a command that can be pasted."""
        changed = self if noise is None else self._replace(noise=noise)
        return " ".join(
            f"{called(option)} {shlex.quote(word if option == '--schedule' else word.strip())}"
            for option, word in changed.by_option().items()
        )

    @property
    def _typed_cohort(self) -> str:
        return f"{called('--cohort')} {self.cohort}"

    def _read_cohort(self, clients: int | None) -> int:
        cohort = self.value("cohort")
        if clients is None:
            raise OptionConflict(
                f"{self._typed_cohort} needs {called('--clients')}, the population that it is "
                "drawn from."
            )
        return Uniform(cohort, clients).cohort_size

    def _exact_cohort(self, rate: float, clients: int) -> Uniform:
        cohort = rate * clients
        whole = max(round(cohort), 1)
        if not math.isclose(whole, cohort, rel_tol=1e-9):
            raise OptionConflict(
                f"--q {self.rate} of {called('--clients')} {self.clients} is a cohort of "
                f"{cohort:.6g}, and uniform sampling draws whole {unit()}s. "
                f"Give {called('--cohort')} {math.ceil(cohort)} instead of --q."
            )
        return Uniform(whole, clients)
