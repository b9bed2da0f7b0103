"""The options that several commands share, and what they say: a mechanism, a delta, a style.

Rule 1: all values arrive as the text that was typed, so that the library judges them and nothing is
corrected on the way. Defaults stand in the help texts, as they may depend on other options.
Rule 2: options that contradict each other are refused, even if one of them could win.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

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
from dpacct_cli.render import Style, plain, shown_delta
from dpacct_cli.words import called, pasted, unit

if TYPE_CHECKING:
    from fractions import Fraction

# Headings of long helps.
PRIVACY, WHAT_RUNS, ACCOUNTING = "Privacy", "What runs", "Accounting"
SCHEMES = (Poisson.name, Uniform.name, Full.name)
# For the commands, which know their values as options.
number = words.number


def option(
    *names: str,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    panel: str = "",
    known: Callable[[], Iterable[str]] | None = None,
    advanced: bool = False,
) -> Any:
    """Declare an option with a value.

    Args:
        names: the documented name first.
        metavar: stands for the value in the help; ``a|b`` lists all values.
        help: a sentence or two.
        panel: the heading of its group in the help.
        known: the values, for completion, if the metavar does not list them.
        advanced: shown by --help-all only.
    """
    return typer.Option(
        *names,
        metavar=metavar,
        help=help,
        rich_help_panel=panel or None,
        show_default=False,
        autocompletion=_completion(metavar, known),
        hidden=advanced,
    )


def flag(*names: str, help: str, panel: str = "", advanced: bool = False) -> Any:  # noqa: A002 - the text of --help
    """Declare an option without a value."""
    return typer.Option(
        *names, help=help, rich_help_panel=panel or None, show_default=False, hidden=advanced
    )


# An option that may be given several times. Its function takes a list of texts.
repeated = option


def argument(
    *,
    metavar: str,
    help: str,  # noqa: A002 - the text of --help
    known: Callable[[], Iterable[str]] | None = None,
) -> Any:
    """Declare a value without a name, with its metavar in brackets if it is optional."""
    return typer.Argument(
        metavar=metavar, help=help, show_default=False, autocompletion=_completion(metavar, known)
    )


def _completion(
    metavar: str, known: Callable[[], Iterable[str]] | None
) -> Callable[[str], list[str]] | None:
    """Return what completes a value: the part behind the last comma, if there are several."""
    listed = [value for value in metavar.split("|") if value == value.lower()]
    if known is None and len(listed) < 2:
        return None

    def complete(incomplete: str) -> list[str]:
        before, comma, begun = incomplete.rpartition(",")
        values = listed if known is None else known()
        return [f"{before}{comma}{value}" for value in values if value.startswith(begun)]

    return complete


Eps = Annotated[str | None, option("--eps", metavar="E", help="Epsilon, e.g. 8.", panel=PRIVACY)]
Delta = Annotated[
    str | None,
    option(
        "--delta",
        metavar="D",
        help="Target delta; default 1e-05.",
        panel=PRIVACY,
    ),
]
Rounds = Annotated[
    str | None,
    option("--rounds", metavar="T", help="Number of rounds.", panel=WHAT_RUNS),
]
Rate = Annotated[
    str | None,
    option(
        "--q", metavar="Q", help="Sampling rate in (0, 1]: the share of a round.", panel=WHAT_RUNS
    ),
]
Noise = Annotated[
    str | None,
    option(
        "--noise",
        metavar="Z",
        help="Noise multiplier: std of the noise on the sum / clip norm.",
        panel=WHAT_RUNS,
    ),
]
ScheduleFile = Annotated[
    str | None,
    option(
        "--schedule",
        metavar="FILE",
        help="Rounds from a .toml, .csv or .json file, instead of --rounds, --q and --noise.",
        panel=WHAT_RUNS,
    ),
]
SamplingName = Annotated[
    str | None,
    option(
        "--sampling",
        metavar="|".join(SCHEMES),
        help="How a round picks its clients; default poisson.",
        panel=WHAT_RUNS,
    ),
]
COHORT_HELP = (
    "Clients in a round, with --clients, instead of --q (Poisson: on average; uniform: exactly)."
)
CLIENTS_HELP = "Number of clients in the population."
# Where models are trained centrally, a client is an example and a cohort a batch.
Cohort = Annotated[
    str | None, option("--cohort", "--batch", metavar="M", help=COHORT_HELP, panel=WHAT_RUNS)
]
Clients = Annotated[
    str | None, option("--clients", "--examples", metavar="N", help=CLIENTS_HELP, panel=WHAT_RUNS)
]
CohortOnly = Annotated[
    str | None, option("--cohort", metavar="M", help=COHORT_HELP, panel=WHAT_RUNS)
]
ClientsOnly = Annotated[
    str | None, option("--clients", metavar="N", help=CLIENTS_HELP, panel=WHAT_RUNS)
]
Epochs = Annotated[
    str | None,
    option(
        "--epochs",
        metavar="E",
        help="How often each example takes part on average, instead of --rounds: E / rate "
        "rounds, rounded up.",
        panel=WHAT_RUNS,
    ),
]
AdjacencyName = Annotated[
    str | None,
    option(
        "--adjacency",
        metavar="|".join(Adjacency),
        help="When two data sets are neighbors; default add-remove, for uniform replace-one.",
        panel=WHAT_RUNS,
    ),
]
AccountantName = Annotated[
    str,
    option(
        "--accountant",
        metavar="|".join(ACCOUNTANTS),
        help=f"Which theory proves the bound; default {DEFAULT_ACCOUNTANT}.",
        panel=ACCOUNTING,
    ),
]
Gap = Annotated[
    str | None,
    option(
        "--gap",
        metavar="G",
        help="Relative width of epsilon wanted for cohorts of fixed size, e.g. 0.003; slower.",
        panel=ACCOUNTING,
    ),
]
Clip = Annotated[
    str | None,
    option(
        "--clip",
        "--clip-norm",
        metavar="C",
        help="Clip norm of one client's contribution; the noise is then shown in its units.",
    ),
]
AsJson = Annotated[bool, flag("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, flag("--quiet", "-q", help="Print the number alone.")]


def read_gap(text: str | None) -> float | None:
    """What was typed as --gap; the library judges whether it is in range."""
    if text is None:
        return None
    return validate.real("gap", number(text), "a relative gap is a number")


def shipped_ids() -> list[str]:
    """The ids of the claims that are shipped, for whoever completes one."""
    from dpacct.claims import shipped_claims

    return [claim.id for claim in shipped_claims().claims]


def read_style(as_json: bool, quiet: bool) -> Style:
    """The style of output."""
    if as_json and quiet:
        raise conflict(words.spelling("--quiet"), "--json")
    if as_json:
        return Style.JSON
    return Style.QUIET if quiet else Style.HUMAN


def read_clip_norm(text: str | None) -> float | None:
    """The clip norm, if one was given."""
    if text is None:
        return None
    return validate.above_zero("clip_norm", number(text), "a clip norm")


class ReadDelta(NamedTuple):
    """A delta.

    Attributes:
        value: in (0, 1).
        origin: where it comes from, if neither from --delta nor from the default.
        typed: the text of --delta.
        clients: the population, where --delta was left to its default.
    """

    value: float
    origin: str
    typed: str | None
    clients: int | None = None

    @property
    def moved_note(self) -> str:
        """The note, for one release, on a default that --clients used to change."""
        if self.clients is None or self.clients == 1:
            return ""
        before = shown_delta(float(self.clients) ** -1.1)
        return (
            f"{called('--clients')} no longer changes delta (was {before}, now "
            f"{plain(self.value)}). Pass --delta to choose."
        )

    @property
    def retyped(self) -> str:
        """The option, for a command that a person can paste; never left to another default."""
        text = repr(self.value) if self.typed is None else self.typed.strip()
        return f" --delta {pasted(text)}"


class MechanismOptions(NamedTuple):
    """The options that say what runs, as typed, in the order in which every command lists them."""

    noise: str | None = None
    rounds: str | None = None
    rate: str | None = None
    schedule: str | None = None
    sampling: str | None = None
    cohort: str | None = None
    clients: str | None = None
    adjacency: str | None = None
    epochs: str | None = None

    @property
    def says_what_runs(self) -> bool:
        """Any option was typed that says what runs."""
        said = (self.noise, self.rounds, self.rate, self.schedule, self.sampling, self.cohort)
        return any(text is not None for text in (*said, self.adjacency, self.epochs))

    @property
    def num_clients(self) -> int | None:
        """The population, if it was given."""
        if self.clients is None:
            return None
        return validate.count(
            "num_clients", number(self.clients), "the number of clients", MAX_CLIENTS
        )

    @property
    def relation(self) -> Adjacency | None:
        """The adjacency, if one was given."""
        return None if self.adjacency is None else Adjacency.parse(self.adjacency)

    @property
    def ratio_only(self) -> bool:
        """Only the share of a cohort is known, neither its size nor the population."""
        return self.schedule is None and self.clients is None

    @property
    def scheme(self) -> str:
        """The name of the sampling scheme."""
        name = Poisson.name if self.sampling is None else self.sampling
        if name not in SCHEMES:
            rule = "a sampling scheme is one of " + ", ".join(SCHEMES)
            hint = self._shuffled_hint() if name.startswith("shuffle") else ""
            raise InvalidParameter("sampling", name, rule, hint)
        return name

    def _shuffled_hint(self) -> str:
        """What holds for batches cut from a shuffled list, and what costs less."""
        typed, epochs = None if self.epochs is None else number(self.epochs), "E"
        if isinstance(typed, int | float) and 0 < typed < math.inf:
            epochs = str(math.ceil(typed))
        return (
            "In shuffled batches an example takes part once an epoch, so E epochs cost at most E "
            f"rounds of full participation: --sampling full --rounds {epochs} --adjacency zero-out "
            "(or replace-one, at twice the sensitivity). Batches drawn by Poisson sampling cost "
            "far less: --sampling poisson."
        )

    def read_delta(self, typed: str | None) -> ReadDelta:
        """The delta that was typed, or the default."""
        if typed is not None:
            return ReadDelta(validate.delta(number(typed)), "", typed)
        return ReadDelta(DEFAULT_DELTA, "", None, self.num_clients)

    def read_rounds(self) -> int:
        """The number of rounds: as typed, or as many as the epochs take."""
        if self.epochs is None:
            return validate.rounds(number(self.rounds))
        if self.rounds is not None:
            raise conflict(
                f"--epochs {self.epochs}", f"--rounds {self.rounds}", "both say how long"
            )
        noun = "the number of epochs"
        epochs = validate.above_zero("num_epochs", number(self.epochs), noun)
        from fractions import Fraction

        # The decimals that were typed, so that 20 epochs of 256 of 50000 are exactly that.
        return validate.rounds(math.ceil(Fraction(repr(epochs)) / self._exact_rate()))

    def _exact_rate(self) -> Fraction:
        """The rate as it was typed, of a scheme that was read."""
        from fractions import Fraction

        sampling, clients = self.read_sampling(), self.num_clients
        if isinstance(sampling, Uniform):
            return Fraction(sampling.cohort_size, sampling.num_clients)
        if isinstance(sampling, Poisson) and self.cohort is not None and clients is not None:
            return Fraction(self._read_cohort(clients), clients)
        return Fraction(repr(sampling.sampling_rate))

    def read_noise(self) -> float:
        """The noise multiplier."""
        return validate.noise_multiplier(number(self.noise))

    def read_sampling(self) -> Sampling:
        """Who takes part in a round."""
        scheme = self.scheme
        rate = None if self.rate is None else validate.sampling_rate(number(self.rate))
        clients = self.num_clients
        cohort = None if self.cohort is None else self._read_cohort(clients)
        if scheme == Full.name:
            return self._full(rate, cohort, clients)
        if rate is not None and cohort is not None:
            raise conflict(
                f"--q {self.rate}", f"{called('--cohort')} {self.cohort}", "both set the rate"
            )
        if cohort is not None and clients is not None:
            uniform = Uniform(cohort, clients)
            return uniform if scheme == Uniform.name else Poisson(uniform.sampling_rate)
        if rate is None:
            self._refuse_without_rate(scheme)
        if scheme == Poisson.name:
            return Poisson(rate)
        return Uniform.at_rate(rate) if clients is None else self._exact_cohort(rate, clients)

    def read_schedule(self) -> Schedule:
        """What runs: the file, or the same round again and again."""
        if self.schedule is not None:
            self.refuse_beside_schedule()
            from dpacct.schedules import load_schedule

            return load_schedule(self.schedule)
        # Checked in the order in which a person would read them back.
        noise = self.read_noise()
        count = self.read_rounds()
        return Schedule([Phase(Round(noise, self.read_sampling(), self.relation), count)])

    def refuse_beside_schedule(self) -> None:
        """Refuse each option that a schedule file answers by itself."""
        beside = {
            "--rounds": self.rounds,
            "--epochs": self.epochs,
            "--q": self.rate,
            "--noise": self.noise,
            "--sampling": self.sampling,
            "--cohort": self.cohort,
            "--adjacency": self.adjacency,
        }
        for option, typed in beside.items():
            if typed is not None:
                why = "the file says it"
                raise conflict(f"{called(option)} {typed}", f"--schedule {self.schedule}", why)

    def retyped(self, *, noise: str | None = None, rounds: str | None = None) -> str:
        """The same options once more, for a command that a person can paste."""
        words = {
            "--schedule": self.schedule,
            "--noise": self.noise if noise is None else noise,
            "--rounds": self.rounds if rounds is None or self.epochs is not None else rounds,
            "--epochs": self.epochs,
            "--q": self.rate,
            "--sampling": self.sampling,
            "--cohort": self.cohort,
            "--clients": self.clients,
            "--adjacency": self.adjacency,
        }
        return " ".join(
            f"{called(option)} {pasted(word if option == '--schedule' else word.strip())}"
            for option, word in words.items()
            if word is not None
        )

    def _read_cohort(self, clients: int | None) -> int:
        cohort = validate.count("cohort_size", number(self.cohort), "the cohort size", MAX_CLIENTS)
        if clients is None:
            raise OptionConflict(
                f"{called('--cohort')} {self.cohort} needs {called('--clients')}, the population "
                "that it is drawn from."
            )
        return Uniform(cohort, clients).cohort_size

    def _full(self, rate: float | None, cohort: int | None, clients: int | None) -> Full:
        why = "every client takes part in every round"
        if rate is not None and rate != 1.0:
            raise conflict(f"--q {self.rate}", "--sampling full", why)
        if cohort != clients and cohort is not None:
            raise conflict(f"{called('--cohort')} {self.cohort}", "--sampling full", why)
        return Full()

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

    def _refuse_without_rate(self, scheme: str) -> NoReturn:
        message = "--q is missing; a sampling rate lies in (0, 1]."
        ways = f"{called('--cohort')} with {called('--clients')}"
        if scheme == Poisson.name:
            ways += " or --sampling full"
        raise OptionConflict(f"{message} Give it, or {ways} instead.")
