"""The settings of a sweep, as lists and ranges of texts, and the row of each.

Rule 1: a list is ``0.8,1,1.2``. ``A..B/STEP`` goes from A by STEP, ``A..B*FACTOR`` by a factor,
neither beyond B. Whole numbers need no step.
Rule 2: decimals are exact: 0.1..0.3/0.1 are 0.1, 0.2 and 0.3 to the last bit.
Rule 3: each value is checked alone before anything is computed. If two valid values conflict, their
row has an error.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from decimal import Decimal, InvalidOperation
from itertools import product
from typing import Any, NamedTuple

from dpacct import __version__, validate
from dpacct.accountant import find_accountant
from dpacct.budget import DEFAULT_DELTA
from dpacct.errors import DpacctError
from dpacct.rounds import MAX_CLIENTS, Full, Uniform
from dpacct_cli import errors
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, number
from dpacct_cli.words import called, quoted, spelling

MOST_ROWS = 100_000
MOST_VALUES = 10_000
FORMAT = 2
COLUMNS: tuple[str, ...] = (
    "noise_multiplier",
    "rounds",
    "sampling",
    "sampling_rate",
    "cohort_size",
    "num_clients",
    "adjacency",
    "delta",
    "accountant",
    "epsilon_lower",
    "epsilon_upper",
    "error",
)
_RANGE = re.compile(r"(?P<first>[^/*]+?)\.\.(?P<last>[^/*]+)(?:(?P<kind>[/*])(?P<step>.+))?")


class Task(NamedTuple):
    """One row to compute: its place, and its setting as texts."""

    place: int
    typed: MechanismOptions
    delta: str
    accountant: str


class Done(NamedTuple):
    """A computed row, with the keys of `COLUMNS`."""

    place: int
    row: dict[str, Any]


def sweep_name(tasks: Sequence[Task]) -> dict[str, Any]:
    """Return the identity of a sweep: all of its settings, and the version."""
    settings = [[*task.typed, task.delta, task.accountant] for task in tasks]
    return {"format": FORMAT, "dpacct": __version__, "settings": settings}


def read_tasks(typed: MechanismOptions, delta: str | None, accountant: str) -> list[Task]:
    """Return every noise with every number of rounds, every rate or cohort, and every delta.

    Args:
        typed: its noise, rounds, rate and cohort are lists.
        delta: a list as well.
        accountant: of all rows.
    Raises:
        InvalidParameter, OptionConflict: a value is out of range, missing, or contradicts another.
    """
    find_accountant(accountant)
    # Refused here, before any row of the table.
    _ = typed.relation, typed.num_clients
    noises = _values("--noise", typed.noise, validate.noise_multiplier)
    rounds = _values("--rounds", typed.rounds, validate.rounds)
    rates = _rates(typed)
    deltas = [f"{DEFAULT_DELTA:g}"]
    if delta is not None:
        deltas = _values("--delta", delta, validate.delta)
    count = len(noises) * len(rounds) * len(rates) * len(deltas)
    if count > MOST_ROWS:
        raise OptionConflict(
            f"these are {count:,} rows, and a sweep has at most {MOST_ROWS:,}. Take larger steps."
        )
    settings = product(noises, rounds, rates, deltas)
    return [
        Task(place, typed._replace(noise=z, rounds=t, rate=q, cohort=m), d, accountant)
        for place, (z, t, (q, m), d) in enumerate(settings)
    ]


def _rates(typed: MechanismOptions) -> list[tuple[str | None, str | None]]:
    """Return pairs of a rate and a cohort, of which at most one is given."""
    cohort = f"{spelling('--cohort')} {typed.cohort}"
    if typed.scheme == Full.name:
        why = "every client takes part in every round"
        if typed.rate is not None:
            raise conflict(f"--q {typed.rate}", "--sampling full", why)
        if typed.cohort is not None:
            raise conflict(cohort, "--sampling full", why)
        return [(None, None)]
    if typed.cohort is None:
        if typed.rate is None:
            # This refusal names the other ways.
            typed.read_sampling()
        return [(rate, None) for rate in _values("--q", typed.rate, validate.sampling_rate)]
    if typed.rate is not None:
        raise conflict(f"--q {typed.rate}", cohort, "both set the rate")
    if typed.clients is None:
        raise OptionConflict(
            f"{cohort} needs {called('--clients')}, the population that it is drawn from."
        )
    values = _values(
        "--cohort",
        typed.cohort,
        lambda value: validate.count("cohort_size", value, "the cohort size", MAX_CLIENTS),
    )
    return [(None, value) for value in values]


def _values(option: str, text: str | None, check: Callable[[Any], object]) -> list[str]:
    if text is None:
        check(None)
    found = read_values(option, text or "")
    for value in found:
        check(number(value))
    return found


def read_values(option: str, text: str) -> list[str]:
    """Return the texts of the numbers that an option names, in their order, each once.

    Args:
        option: its name, for the message.
        text: as typed.
    Raises:
        OptionConflict: a range is malformed, or has too many values.
    """
    found: dict[str, None] = {}
    for part in text.split(","):
        for value in _part(option, part.strip()):
            found[value] = None
            if len(found) > MOST_VALUES:
                raise _refused(option, text, f"that is more than {MOST_VALUES:,} values")
    return list(found)


def _part(option: str, part: str) -> Iterator[str]:
    match = _RANGE.fullmatch(part)
    if match is None:
        yield part
        return
    first, last = _number(option, part, match["first"]), _number(option, part, match["last"])
    if last < first:
        raise _refused(option, part, "a range goes up", f"Did you mean {last}..{first}?")
    step, factor = Decimal(1), match["kind"] == "*"
    if match["kind"] is not None:
        step = _number(option, part, match["step"])
        if not factor and step <= 0:
            raise _refused(option, part, "a step is above 0")
        if factor and (step <= 1 or first <= 0):
            raise _refused(option, part, "a factor is above 1, and the range begins above 0")
    elif first != int(first) or last != int(last):
        hint = f"For example {part}/0.1."
        raise _refused(option, part, "a range of decimals has a step", hint)
    value = first
    while value <= last:
        yield _plain(value)
        value = value * step if factor else value + step


def _number(option: str, part: str, text: str) -> Decimal:
    try:
        found = Decimal(text.strip())
    except InvalidOperation:
        found = Decimal("NaN")
    if not found.is_finite():
        raise _refused(option, part, f"{quoted(text)} is not a number")
    return found


def _plain(value: Decimal) -> str:
    """Return a decimal in its usual spelling, whole numbers without point and exponent."""
    if value == value.to_integral_value() and abs(value) < 10**15:
        return str(int(value))
    return f"{value.normalize():g}" if abs(value) >= Decimal("1e-6") else str(value.normalize())


def _refused(option: str, text: str, rule: str, hint: str = "") -> OptionConflict:
    message = (
        f"{spelling(option)} is {quoted(text)}; {rule}. Lists are 1,2,3 and ranges 1..9/2 (by "
        "steps) or 1..64*2 (by factors)."
    )
    return OptionConflict(f"{message} {hint}".strip())


def compute(task: Task) -> Done:
    """Compute the row of a setting. If that is impossible, the reason is in ``error``."""
    row = blank(task)
    try:
        plan = task.typed.read_schedule()
        (first, _), *_ = plan.round_phases()
        sampling = first.sampling
        row["sampling_rate"] = sampling.sampling_rate
        row["adjacency"] = str(plan.adjacency)
        if isinstance(sampling, Uniform) and task.typed.clients is not None:
            row["cohort_size"] = sampling.cohort_size
        found = find_accountant(task.accountant).epsilon(plan, row["delta"])
        row["epsilon_lower"] = found.lower
        row["epsilon_upper"] = found.upper if math.isfinite(found.upper) else None
        if row["epsilon_upper"] is None:
            row["error"] = "no epsilon is proven at this delta"
    except DpacctError as error:
        row["error"] = errors.line(error)
    except MemoryError:
        row["error"] = "there is not enough memory for that"
    return Done(task.place, row)


def blank(task: Task, error: str | None = None) -> dict[str, Any]:
    """Return the row of a setting before anything is computed."""
    typed = task.typed
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    return row | {
        "noise_multiplier": typed.read_noise(),
        "rounds": typed.read_rounds(),
        "sampling": typed.scheme,
        "sampling_rate": None if typed.rate is None else float(typed.rate),
        "cohort_size": None if typed.cohort is None else int(typed.cohort),
        "num_clients": typed.num_clients,
        "adjacency": typed.adjacency,
        "delta": validate.delta(number(task.delta)),
        "accountant": task.accountant,
        "error": error,
    }
