"""Pictures of schedules, accountants, attacks, ledgers and runs; drawn with the extra `plot`.

Each function returns a `Picture`, which is data; `Drawing` shows and saves it.
"""

from typing import Any

from dpacct.pictures.accountants import compare_picture
from dpacct.pictures.attacks import tradeoff_picture
from dpacct.pictures.drawing import Drawing
from dpacct.pictures.ledgers import ledger_picture
from dpacct.pictures.picture import Bar, Curve, Level, Mark, Panel, Picture, as_data
from dpacct.pictures.plans import schedule_picture
from dpacct.pictures.renyi import rdp_picture
from dpacct.pictures.roc import roc_picture
from dpacct.pictures.runs import TrainedRun, read_run, runs_picture
from dpacct.pictures.spending import Setting, delta_picture, epsilon_picture
from dpacct.rounds import Schedule

__all__ = [
    "Bar",
    "Curve",
    "Drawing",
    "Level",
    "Mark",
    "Panel",
    "Picture",
    "Setting",
    "TrainedRun",
    "as_data",
    "compare_picture",
    "delta_picture",
    "draw_ledger",
    "draw_schedule",
    "epsilon_picture",
    "ledger_picture",
    "rdp_picture",
    "read_run",
    "roc_picture",
    "runs_picture",
    "schedule_picture",
    "tradeoff_picture",
]


def draw_schedule(schedule: Schedule, *, dark: bool = False) -> Drawing:
    """What `Schedule.plot` shows."""
    return Drawing(schedule_picture(schedule), dark=dark)


def draw_ledger(report: dict[str, Any], *, dark: bool = False) -> Drawing:
    """What `Ledger.plot` shows, of what `Ledger.report` says."""
    return Drawing(ledger_picture(report), dark=dark)
