"""What a schedule spends: epsilon over its rounds, delta over epsilon."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.display import chosen, up
from dpacct.pairs.dominating import Direction
from dpacct.pictures.picture import Curve, Level, Mark, Panel, Picture
from dpacct.pictures.words import in_words
from dpacct.risk.profile import PrivacyProfile
from dpacct.rounds import Phase, Schedule
from dpacct.tight.accountant import TightAccountant

# Of two neighboring numbers of rounds.
_RATIO = 1.15
# The smallest delta that a curve over epsilon reaches.
SMALLEST = 1e-10


@dataclass(frozen=True, slots=True)
class Setting:
    """A schedule under a name, and who accounts for it."""

    name: str
    schedule: Schedule
    accountant: str


def first_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """The first so many rounds."""
    phases: list[Phase] = []
    left = rounds
    for round_, count in schedule:
        if left <= 0:
            break
        phases.append(Phase(round_, min(count, left)))
        left -= count
    return Schedule(phases)


def counts(rounds: int) -> list[int]:
    """Numbers of rounds at which a curve is computed, the last one among them.

    So close that a straight line between two of them is off by less than a pixel.
    """
    found = [1]
    while found[-1] < rounds:
        found.append(min(rounds, max(found[-1] + 1, math.ceil(found[-1] * _RATIO))))
    return found


def spent_after(setting: Setting, delta: float) -> list[tuple[int, Interval]]:
    """Epsilon after some numbers of rounds, settled in advance."""
    plan = setting.schedule
    accountant = find_accountant(setting.accountant)
    if not isinstance(accountant, TightAccountant) or not accountant.plays(plan):
        return [(n, accountant.epsilon(first_rounds(plan, n), delta)) for n in counts(plan.rounds)]
    # One game bounds every number of rounds from above; fixed pairs bound from below.
    found: list[tuple[int, Interval]] = []
    for n in counts(plan.rounds):
        pairs = accountant.of_pairs.epsilon(first_rounds(plan, n), delta)
        upper = min(pairs.upper, accountant.upper_epsilon_of_first(plan, n, delta))
        found.append((n, Interval.bracket(pairs.lower, upper)))
    return found


def epsilon_picture(
    settings: Sequence[Setting], delta: float, *, target: float | None = None
) -> Picture:
    """Epsilon over rounds, each with its bracket.

    Raises:
        Unsupported: an accountant knows no bound for such rounds.
    """
    curves: list[Curve] = []
    last = 0.0
    for setting in settings:
        found = spent_after(setting, delta)
        last = found[-1][1].upper
        curves.append(
            Curve(
                _named(setting, settings, up(last, 4)),
                [0.0, *(float(n) for n, _ in found)],
                [0.0, *(spent.upper for _, spent in found)],
                lower=[0.0, *(spent.lower for _, spent in found)],
            )
        )
    levels = () if target is None else (Level(target, f"budget {chosen(target)}"),)
    first = settings[0]
    if len(settings) == 1:
        rounds = first.schedule.rounds
        title = f"{rounds} rounds spend epsilon {up(last, 4)} at delta {chosen(delta, 3)}"
    else:
        title = f"Epsilon of {len(settings)} settings at delta {chosen(delta, 3)}"
    panel = Panel(
        "rounds", f"epsilon at delta {chosen(delta, 3)}, proven", tuple(curves), levels=levels
    )
    return Picture(title, (panel,), _note(settings))


def _named(setting: Setting, settings: Sequence[Setting], value: str) -> str:
    return "" if len(settings) == 1 else f"{setting.name}: {value}"


def _note(settings: Sequence[Setting]) -> str:
    """What runs, where it is the same; else how it is told apart."""
    first = settings[0]
    if len(settings) > 1:
        return f"adjacency {first.schedule.adjacency}; bands: down to achieved"
    return f"{in_words(first.schedule)}; by {first.accountant}; band: down to achieved"


def delta_picture(settings: Sequence[Setting], at: float | None = None) -> Picture:
    """Delta over epsilon, on a logarithmic scale.

    Args:
        settings: what runs.
        at: an epsilon to mark.
    Raises:
        Unsupported: an accountant knows no bound for such rounds.
    """
    curves: list[Curve] = []
    marks: list[Mark] = []
    for setting in settings:
        delta = _delta_of(setting)
        most = find_accountant(setting.accountant).upper_epsilon(setting.schedule, SMALLEST)
        most = min(most, 1e4) if at is None else max(min(most, 1e4), 1.1 * at)
        xs = [most * (k / 40) for k in range(41)]
        found = [delta(x) for x in xs]
        kept = [(x, one) for x, one in zip(xs, found, strict=True) if one.upper >= SMALLEST / 10]
        curves.append(
            Curve(
                "" if len(settings) == 1 else setting.name,
                [x for x, _ in kept],
                [one.upper for _, one in kept],
                lower=[max(one.lower, SMALLEST / 10) for _, one in kept],
            )
        )
        if at is not None:
            value = delta(at).upper
            words = f"epsilon {chosen(at)}: delta {up(value, 3)}"
            marks.append(Mark(at, value, words, above=True))
    title = "Delta over epsilon: what is promised at one holds at all of them"
    if len(settings) == 1 and marks:
        title = f"At epsilon {chosen(at or 0.0)}, delta is {up(marks[0].y, 3)}"
    panel = Panel("epsilon", "delta, proven", tuple(curves), marks=tuple(marks), log_y=True)
    return Picture(title, (panel,), _note(settings))


def _delta_of(setting: Setting) -> Callable[[float], Interval]:
    profile = PrivacyProfile(setting.schedule, find_accountant(setting.accountant))

    @cache
    def delta(epsilon: float) -> Interval:
        upper = max(profile.proven(way, epsilon).upper for way in Direction)
        lower = max(profile.achieved(way, epsilon).lower for way in Direction)
        return Interval.bracket(lower, min(upper, 1.0))

    return delta
