"""The settings of a sweep: every noise with every number of rounds, every rate and every delta.

Rule 1: each value is checked by itself before anything is computed; what only two of them together
forbid is the reason of their row.
Rule 2: a sweep is known by its settings, so that a file of rows cannot be taken for another's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from dpacct import __version__, validate
from dpacct.accountant import find_accountant
from dpacct.budget import DEFAULT_DELTA
from dpacct.rounds import MAX_CLIENTS, Adjacency, Full
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.explore.values import read_values
from dpacct_cli.options import MechanismOptions, number
from dpacct_cli.words import called, spelling

MOST_ROWS = 100_000
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Setting:
    """One row's question, as texts of numbers; a rate or a cohort is None where there is none."""

    noise: str
    rounds: str
    rate: str | None
    cohort: str | None
    delta: str


@dataclass(frozen=True, slots=True)
class Fixed:
    """What all rows share."""

    sampling: str
    clients: str | None
    adjacency: str | None
    accountant: str

    def mechanism(self, setting: Setting) -> MechanismOptions:
        """The options of one row."""
        return MechanismOptions(
            setting.noise, setting.rounds, setting.rate, None, self.sampling, setting.cohort,
            self.clients, self.adjacency,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Sweep:
    """All rows, in the order in which they are told."""

    fixed: Fixed
    settings: tuple[Setting, ...]

    @property
    def name(self) -> dict[str, Any]:
        """What tells it from others: the version that computes it, and all of its settings."""
        return {
            "format": FORMAT,
            "dpacct": __version__,
            **asdict(self.fixed),
            "settings": [list(asdict(setting).values()) for setting in self.settings],
        }


@dataclass(frozen=True, slots=True)
class Typed:
    """The lists as typed."""

    noise: str | None
    rounds: str | None
    rate: str | None
    cohort: str | None
    delta: str | None


def read_sweep(typed: Typed, fixed: Fixed) -> Sweep:
    """The sweep that was typed, if each of its values is one.

    Raises:
        InvalidParameter, OptionConflict: a value is out of range, missing, or contradicts another.
    """
    find_accountant(fixed.accountant)
    if fixed.adjacency is not None:
        Adjacency.parse(fixed.adjacency)
    # Refused here, before any row of the table.
    _ = MechanismOptions(clients=fixed.clients).num_clients
    noises = _values("--noise", typed.noise, validate.noise_multiplier)
    rounds = _values("--rounds", typed.rounds, validate.rounds)
    who = _who(typed, fixed)
    if typed.delta is None:
        deltas = [f"{DEFAULT_DELTA:g}"]
    else:
        deltas = _values("--delta", typed.delta, validate.delta)
    count = len(noises) * len(rounds) * len(who) * len(deltas)
    if count > MOST_ROWS:
        raise OptionConflict(
            f"these are {count:,} rows, and a sweep has at most {MOST_ROWS:,}. Take larger steps."
        )
    settings = tuple(
        Setting(z, t, rate, cohort, d)
        for z, t, (rate, cohort), d in product(noises, rounds, who, deltas)
    )
    return Sweep(fixed, settings)


def _values(option: str, text: str | None, check: Any) -> list[str]:
    if text is None:
        check(None)
    found = read_values(option, text or "")
    for value in found:
        check(number(value))
    return found


def _who(typed: Typed, fixed: Fixed) -> list[tuple[str | None, str | None]]:
    """The rates, or the cohorts."""
    scheme = MechanismOptions(sampling=fixed.sampling).scheme
    if scheme == Full.name:
        for option, text in (("--q", typed.rate), ("--cohort", typed.cohort)):
            if text is not None:
                why = "every client takes part in every round"
                raise conflict(f"{spelling(option)} {text}", "--sampling full", why)
        return [(None, None)]
    if typed.rate is not None and typed.cohort is not None:
        one, other = f"--q {typed.rate}", f"{spelling('--cohort')} {typed.cohort}"
        raise conflict(one, other, "both set the rate")
    if typed.cohort is not None:
        if fixed.clients is None:
            raise OptionConflict(
                f"{spelling('--cohort')} {typed.cohort} needs {called('--clients')}, the "
                "population that it is drawn from."
            )

        def check(value: object) -> int:
            return validate.count("cohort_size", value, "the cohort size", MAX_CLIENTS)

        return [(None, cohort) for cohort in _values("--cohort", typed.cohort, check)]
    if typed.rate is None:
        # It says what else there is.
        MechanismOptions(sampling=fixed.sampling, clients=fixed.clients).read_sampling()
    return [(rate, None) for rate in _values("--q", typed.rate, validate.sampling_rate)]
