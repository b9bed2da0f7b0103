"""Pictures of schedules: epsilon by round, delta, attack rates, Renyi curves, noise."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.calibration.calibrate import calibrate
from dpacct.correlated.release import Correlated
from dpacct.display import chosen, up
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import InvalidParameter
from dpacct.items import all_in_words, count_of, in_words, noun_of
from dpacct.pairs.dominating import Direction
from dpacct.pictures.picture import Bar, Curve, Level, Mark, Panel, Picture
from dpacct.renyi.curve import RenyiAccountant, rdp
from dpacct.report.front import chosen_of_thousand, of_thousand
from dpacct.risk.attacks import Attacks, PrivacyProfile
from dpacct.rounds import AccountantName, Round, Schedule, first_rounds
from dpacct.tight.accountant import TightAccountant

# The ratio of neighboring numbers of rounds at which a curve is computed: a straight line between
# them is off by less than a pixel.
ROUNDS_RATIO = 1.15
SMALLEST_DELTA, LEAST = 1e-10, 1e-11
SMALLEST_FPR, FPR_POINTS = 1e-4, 33
ORDER_POINTS = 48
# The releases that are drawn by round.
_WITH_ROUNDS = Round | Correlated | Epoch | ShuffledEpoch
# A schedule with more phases is drawn with every k-th of them.
MOST_PHASES = 2000


@dataclass(frozen=True, slots=True)
class Setting:
    """A schedule, its name, and the accountant that analyzes it."""

    name: str
    schedule: Schedule
    accountant: AccountantName


def describe(schedule: Schedule) -> str:
    """Return rounds, sampling, noise and adjacency of a schedule in a few words."""
    return f"{all_in_words(schedule)}, {schedule.adjacency}"


def _note(settings: Sequence[Setting], one: str, several: str) -> str:
    """Return the only schedule in words with ``one``, or what all share with ``several``."""
    first = settings[0].schedule
    if len(settings) > 1:
        return f"adjacency {first.adjacency}{several}"
    return f"{describe(first)}{one}"


def _each(settings: Sequence[Setting], figures: Sequence[str]) -> str:
    """Return the only figure, or those of the first three settings with their names."""
    if len(settings) == 1:
        return figures[0]
    pairs = zip(figures[:3], settings, strict=False)
    words = ", ".join(f"{figure} ({setting.name})" for figure, setting in pairs)
    return f"{words}, ..." if len(settings) > 3 else words


def _curve(name: str, points: Iterable[tuple[float, Interval]]) -> Curve:
    """Return the upper bounds as a line, with a band down to the lower bounds."""
    xs, bounds = zip(*points, strict=True)
    lowers = [one.lower for one in bounds]
    return Curve(name, [*map(float, xs)], [one.upper for one in bounds], lower=lowers)


def round_counts(rounds: int) -> list[int]:
    """Return the numbers of rounds at which a curve is computed, from 1 to ``rounds``."""
    counts = [1]
    while counts[-1] < rounds:
        counts.append(min(rounds, max(counts[-1] + 1, math.ceil(counts[-1] * ROUNDS_RATIO))))
    return counts


def epsilon_by_round(setting: Setting, delta: float) -> list[tuple[int, Interval]]:
    """Return epsilon after some numbers of rounds, each fixed in advance."""
    plan = setting.schedule
    accountant = find_accountant(setting.accountant)
    points: list[tuple[int, Interval]] = []
    for n in round_counts(plan.rounds):
        if isinstance(accountant, TightAccountant) and accountant.plays(plan):
            # One game bounds every number of rounds from above. Fixed pairs bound from below.
            pairs = accountant.of_pairs.epsilon(first_rounds(plan, n), delta)
            upper = min(pairs.upper, accountant.upper_epsilon_of_first(plan, n, delta))
            points.append((n, Interval.bracket(pairs.lower, upper)))
        else:
            points.append((n, accountant.epsilon(first_rounds(plan, n), delta)))
    return points


def epsilon_picture(
    settings: Sequence[Setting], delta: float, *, target: float | None = None
) -> Picture:
    """Draw epsilon by round, with a level at the budget ``target``.

    If accountants of one schedule disagree whether it meets the budget, the title says what the
    others cost in noise.

    Raises:
        Unsupported: an accountant has no bound for these rounds.
    """
    several = len(settings) > 1
    curves: list[Curve] = []
    by_round = [epsilon_by_round(setting, delta) for setting in settings]
    ends = [up(points[-1][1].upper, 4) for points in by_round]
    for setting, points, end in zip(settings, by_round, ends, strict=True):
        name = f"{setting.name}: {end}" if several else ""
        curve = _curve(name, [(0, Interval(0.0, 0.0)), *points])
        # The doubt about a schedule reaches from its least upper bound down, not from looser ones.
        least = min(
            other[-1][1].upper
            for one, other in zip(settings, by_round, strict=True)
            if one.schedule == setting.schedule
        )
        curves.append(curve if points[-1][1].upper <= least else replace(curve, lower=None))
    levels = [] if target is None else [Level(target, f"budget {chosen(target)}")]
    rounds = {setting.schedule.rounds for setting in settings}
    noun = noun_of(*(setting.schedule for setting in settings))
    last = count_of(rounds.pop(), noun) if len(rounds) == 1 else f"the last {noun}"
    title = f"Epsilon after {last}{':' if several else ' is at most'} {_each(settings, ends)}"
    if target is not None:
        met = [points[-1][1].upper <= target for points in by_round]
        title = _noise_to_meet(target, settings, met, delta) or title
        if len(set(met)) == 2 and title.startswith("Epsilon after"):
            kept, over = (
                [f"{one.name}{'' if want else f' costs {end}'}" for one, end, fits in
                 zip(settings, ends, met, strict=True) if fits is want]
                for want in (True, False)
            )  # fmt: skip
            stays = "stay" if len(kept) > 1 else "stays"
            title = f"{' and '.join(kept)} {stays} within epsilon {chosen(target)}"
            title = f"{title[:1].upper()}{title[1:]}; {', '.join(over)}"
    label = f"epsilon at delta {chosen(delta, 3)}, proven"
    panel = Panel(f"{noun}s", label, curves, levels=levels)
    return Picture(title, [panel], _note_on_bands(settings))


def _noise_to_meet(
    target: float, settings: Sequence[Setting], met: Sequence[bool], delta: float
) -> str:
    """Return how much more noise accountants ask for that do not find one schedule in a budget.

    Nothing if they agree, or if the noise of the schedule has no factor.
    """
    plan = settings[0].schedule
    alike = all(one.schedule == plan for one in settings)
    if len(set(met)) == 1 or not alike or not all(isinstance(k, Round) for k in plan.distinct()):
        return ""
    inside = [one.name for one, fits in zip(settings, met, strict=True) if fits]
    words = f"The run meets epsilon {chosen(target)} by {' and '.join(inside)}"
    for setting in (one for one, fits in zip(settings, met, strict=True) if not fits):
        needed = calibrate(
            schedule=plan, epsilon=target, delta=delta, accountant=setting.accountant
        ).noise_scale
        words += f"; {setting.name} asks for {up(100 * (needed - 1), 2)} % more noise"
    return words


def _note_on_bands(settings: Sequence[Setting]) -> str:
    one = f"; by {settings[0].accountant}; band: down to the lower bound"
    return _note(settings, one, "; bands reach down to the lower bounds")


def delta_picture(settings: Sequence[Setting], at: float | None = None) -> Picture:
    """Draw delta against epsilon on a logarithmic scale, with a mark at epsilon ``at``.

    Raises:
        Unsupported: an accountant has no bound for these rounds.
    """
    curves: list[Curve] = []
    marks: list[Mark] = []
    for setting in settings:
        accountant = find_accountant(setting.accountant)
        profile = PrivacyProfile(setting.schedule, accountant)
        most = min(accountant.upper_epsilon(setting.schedule, SMALLEST_DELTA), 1e4)
        most = most if at is None else max(most, 1.1 * at)
        pairs = [(x, _delta(profile, x)) for x in (most * (k / 40) for k in range(41))]
        # The axis is logarithmic and ends a little below the smallest delta.
        shown = [(x, Interval(max(d.lower, LEAST), d.upper)) for x, d in pairs if d.upper >= LEAST]
        curves.append(_curve(setting.name if len(settings) > 1 else "", shown))
        if at is not None:
            value = _delta(profile, at).upper
            words = f"epsilon {chosen(at)}: delta {up(value, 3)}"
            marks.append(Mark(at, value, words, above=True))
    title = "Each point of a curve is a valid pair of epsilon and delta"
    if at is not None:
        figures = _each(settings, [up(mark.y, 3) for mark in marks])
        title = f"At epsilon {chosen(at)}, delta is at most {figures}"
        if len(settings) > 1:
            title = f"Delta at epsilon {chosen(at)}: {figures}"
    panel = Panel("epsilon", "delta, proven", curves, marks=marks, log_y=True)
    return Picture(title, [panel], _note_on_bands(settings))


def _delta(profile: PrivacyProfile, epsilon: float) -> Interval:
    upper = max(profile.proven(direction, epsilon).upper for direction in Direction)
    lower = max(profile.achieved(direction, epsilon).lower for direction in Direction)
    return Interval.bracket(lower, min(upper, 1.0))


def tradeoff_picture(settings: Sequence[Setting], marked: Sequence[float]) -> Picture:
    """Draw the best true positive rate against the false positive rate.

    Args:
        settings: the schedules.
        marked: false positive rates in (0, 1) to mark on the first curve.
    Raises:
        Unsupported: an accountant has no bound for these rounds.
    """
    rates = [SMALLEST_FPR ** (1 - k / (FPR_POINTS - 1)) for k in range(FPR_POINTS)]
    curves = [Curve("guessing", rates, rates, plain=True)]
    marks: list[Mark] = []
    first, several = settings[0], len(settings) > 1
    for setting in settings:
        attacks = Attacks(setting.schedule, find_accountant(setting.accountant))
        for rate in marked if setting is first else ():
            upper = attacks.upper_tpr(rate)
            marks.append(Mark(rate, upper, f"{of_thousand(upper)} of 1,000"))
        tprs = [*attacks.curve(rates[:-1]), attacks.tpr(1.0)]
        name = setting.name if several else "proven"
        curves.append(_curve(name, zip(rates, tprs, strict=True)))
    title = "The best attack: true positive rate against false positive rate"
    if marks:
        title = (
            f"{f'{first.name}: an' if several else 'An'} attack that wrongly accuses "
            f"{chosen_of_thousand(marks[0].x)} of 1,000 non-members finds at most "
            f"{of_thousand(marks[0].y)} of 1,000 members"
        )
    note = _note(settings, f"; by {first.accountant}", f"; marks are those of {first.name}")
    return Picture(title, [rates_panel(curves, marks)], note)


def rates_panel(curves: Sequence[Curve], marks: Sequence[Mark] = ()) -> Panel:
    """Return a panel of true positive rates by false positive rate."""
    return Panel(
        "false positive rate: non-members who are accused",
        "true positive rate: members who are found",
        curves,
        marks=marks,
        log_x=True,
        log_y=True,
        y_max=1.0,
    )


def rdp_picture(settings: Sequence[Setting], delta: float) -> Picture:
    """Draw the Renyi divergence by order, and mark the order that is best at ``delta``."""
    accountant = RenyiAccountant()
    bests = [accountant.best_order(setting.schedule, delta) for setting in settings]
    # Orders around the best ones, evenly spaced by the logarithm of (order - 1).
    low = min(1.05, 1 + (max(bests) - 1) / 4) - 1
    high = min(max(8.0, 6 * max(bests)), 512.0) - 1
    orders = [1 + low * (high / low) ** (k / (ORDER_POINTS - 1)) for k in range(ORDER_POINTS)]
    curves: list[Curve] = []
    marks: list[Mark] = []
    for setting, best in zip(settings, bests, strict=True):
        values = rdp(setting.schedule, orders=orders)
        kept = [(v.order, Interval(v.lower, v.upper)) for v in values if math.isfinite(v.upper)]
        curves.append(_curve(setting.name if len(settings) > 1 else "", kept))
        (at,) = rdp(setting.schedule, orders=[best])
        epsilon = accountant.upper_epsilon(setting.schedule, delta)
        marks.append(Mark(best, at.upper, f"order {best:.3g}: epsilon {up(epsilon, 4)}"))
    figures = _each(settings, [f"{best:.3g}" for best in bests])
    title = f"Order {figures} gives the smallest RDP epsilon at delta {chosen(delta, 3)}"
    if len(settings) > 1:
        title = f"Best Renyi order at delta {chosen(delta, 3)}: {figures}"
    label = "Renyi divergence, proven"
    panel = Panel("Renyi order", label, curves, marks=marks, log_x=True, log_y=True)
    return Picture(title, [panel], _note(settings, "", ""))


def _rounds_in(release: Round | Correlated | Epoch | ShuffledEpoch) -> int:
    if isinstance(release, Epoch | ShuffledEpoch):
        return release.steps
    return release.rounds if isinstance(release, Correlated) else 1


def schedule_picture(schedule: Schedule) -> Picture:
    """Draw the noise multiplier and the sampling rate by round, in one panel each.

    Raises:
        InvalidParameter: the schedule has no rounds.
    """
    phases = [(kind, n) for kind, n in schedule.phases if isinstance(kind, _WITH_ROUNDS)]
    if not phases:
        rule = "a picture of noise by round needs at least one round"
        raise InvalidParameter("schedule", describe(schedule), rule)
    starts = [0, *accumulate(n * _rounds_in(kind) for kind, n in phases)]
    step = max(1, len(phases) // MOST_PHASES)
    shown = [*phases[::step], phases[-1]]
    xs = [*starts[:-1:step], starts[-1]]
    noises = [round_.noise_multiplier for round_, _ in shown]
    rates = [round_.sampling_rate for round_, _ in shown]
    rounds = starts[-1]
    title = f"{count_of(rounds, 'round')} at noise {chosen(noises[0])}"
    if min(noises) < max(noises):
        ends = f"{chosen(min(noises), least=True)} and {chosen(max(noises))}"
        title = f"Noise between {ends} in {count_of(rounds, 'round')}"
    if len(phases) == 2:
        changes = [
            f"{name} {chosen(ends[1])} instead of {chosen(ends[0])}"
            for name, ends in (("noise", noises), ("rate", rates))
            if ends[0] != ends[1]
        ]
        title = f"From round {starts[1] + 1:,} on: {', '.join(changes)}" if changes else title
    kinds = {in_words(kind.sampling if isinstance(kind, Round) else kind) for kind, _ in phases}
    note = f"{kinds.pop()}, {schedule.adjacency}" if len(kinds) == 1 else describe(schedule)
    if others := schedule.rounds - sum(n for _, n in phases):
        note += f"; beside {count_of(others, 'release')} without rounds"
    panels = [
        Panel("rounds", label, [Curve("", xs, values, steps=True)])
        for label, values in (("noise / clip norm", noises), ("sampling rate", rates))
    ]
    return Picture(title, panels, note)


def compare_picture(
    schedule: Schedule,
    delta: float,
    answers: Sequence[tuple[str, float | None, float | None, str]],
    note: str = "",
) -> Picture:
    """Draw one bar of epsilon for each accountant, or for each way of drawing the batches of a job.

    An answer is a name, the lower and the upper bound (None if there is none), and the reason then.
    The note is about the schedule, unless one is given.
    """
    bars = [
        Bar(name, upper, lower, why if upper is None else "") for name, lower, upper, why in answers
    ]
    bars.sort(key=lambda bar: math.inf if bar.upper is None else bar.upper)
    title = f"No bound of epsilon at delta {chosen(delta, 3)}"
    if bars and bars[0].upper is not None:
        # Accountants that show the same digits are as good.
        least = up(bars[0].upper)
        *others, last = [
            bar.name for bar in bars if bar.upper is not None and up(bar.upper) == least
        ]
        names = f"{', '.join(others)} and {last}" if others else last
        title = f"The smallest epsilon is {least}, by {names}"
    label = f"epsilon at delta {chosen(delta, 3)}; dark: lower bound"
    return Picture(title, [Panel(label, "", bars=bars)], note or describe(schedule))
