"""Pictures of schedules, accountants, attacks, ledgers and runs, drawn with the extra `plot`.

Each ``..._picture`` function returns a `Picture`, which is data. `Drawing` shows and saves it. The
``draw_...`` functions are those that other rooms call by name.
"""

from typing import Any

from dpacct.pictures.drawing import Drawing
from dpacct.pictures.picture import Bar, Curve, Level, Mark, Panel, Picture, as_data
from dpacct.pictures.records import (
    TrainedRun,
    epsilon_panel,
    ledger_picture,
    people_picture,
    read_run,
    roc_picture,
    runs_picture,
)
from dpacct.pictures.schedules import (
    Setting,
    compare_picture,
    delta_picture,
    epsilon_picture,
    rdp_picture,
    schedule_picture,
    tradeoff_picture,
)
from dpacct.report.risks import Risks
from dpacct.rounds import Schedule

__all__ = [
    "Bar", "Curve", "Drawing", "Level", "Mark", "Panel", "Picture", "Setting", "TrainedRun",
    "as_data", "compare_picture", "delta_picture", "draw_epsilon", "draw_ledger", "draw_people",
    "draw_schedule", "epsilon_picture", "ledger_picture", "people_picture", "rdp_picture",
    "read_run", "roc_picture", "runs_picture", "schedule_picture", "tradeoff_picture",
]  # fmt: skip


def draw_schedule(schedule: Schedule, *, dark: bool = False) -> Drawing:
    """Draw what `Schedule.plot` shows."""
    return Drawing(schedule_picture(schedule), dark=dark)


def draw_epsilon(report: dict[str, Any]) -> Drawing:
    """Draw the epsilon by round of a report, from its facts."""
    return Drawing(Picture("", (epsilon_panel(report),)))


def draw_people(risks: Risks) -> Drawing:
    """Draw the best attacks of a report, in people out of a thousand."""
    return Drawing(people_picture(risks))


def draw_ledger(report: dict[str, Any], *, dark: bool = False) -> Drawing:
    """Draw what `Ledger.plot` shows, from the facts of `Ledger.report`."""
    return Drawing(ledger_picture(report), dark=dark)
