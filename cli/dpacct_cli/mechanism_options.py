"""What was typed about the mechanism, turned into a delta, a sampling scheme and a schedule.

Rule 1: what was typed reaches the library's own checks; nothing is corrected on the way.
Rule 2: options that contradict each other are refused, even where one could win.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from dpacct import validate
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
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import SCHEMES, number
from dpacct_cli.render import plain, shown_delta
from dpacct_cli.words import called, pasted, unit

if TYPE_CHECKING:
    from fractions import Fraction


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
