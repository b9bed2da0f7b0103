"""A schedule itself: noise and sampling rate over its rounds."""

from __future__ import annotations

from dpacct.display import chosen
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Curve, Panel, Picture
from dpacct.pictures.words import in_words, sampled
from dpacct.rounds import Schedule

# More phases than a picture can show are thinned out.
MOST = 2000


def schedule_picture(schedule: Schedule) -> Picture:
    """Noise multiplier and sampling rate over the rounds, each in a panel of its own.

    Raises:
        InvalidParameter: the schedule has no rounds.
    """
    if not schedule.rounds:
        rule = "a picture needs at least one round"
        raise InvalidParameter("schedule", "empty", rule)
    xs: list[float] = []
    noises: list[float] = []
    rates: list[float] = []
    round_number = 0
    step = max(1, len(schedule.phases) // MOST)
    for number, (round_, count) in enumerate(schedule):
        if number % step == 0:
            xs.append(round_number)
            noises.append(round_.noise_multiplier)
            rates.append(round_.sampling_rate)
        round_number += count
    xs.append(round_number)
    noises.append(schedule.phases[-1].round.noise_multiplier)
    rates.append(schedule.phases[-1].round.sampling_rate)
    kinds = {sampled(phase.round) for phase in schedule.phases}
    panels = (
        Panel("rounds", "noise / clip norm", (Curve("", xs, noises, steps=True),)),
        Panel("rounds", "sampling rate", (Curve("", xs, rates, steps=True),)),
    )
    return Picture(_title(schedule, noises), panels, _note(schedule, len(kinds)))


def _title(schedule: Schedule, noises: list[float]) -> str:
    low, high = min(noises), max(noises)
    if low == high:
        return f"{schedule.rounds} rounds at noise {chosen(low)}"
    return f"Noise between {chosen(low, least=True)} and {chosen(high)} in {schedule.rounds} rounds"


def _note(schedule: Schedule, kinds: int) -> str:
    if kinds == 1:
        return f"{sampled(schedule.phases[0].round)}, {schedule.adjacency}"
    return in_words(schedule)
