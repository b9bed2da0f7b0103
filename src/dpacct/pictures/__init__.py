"""Pictures of schedules, accountants, attacks, ledgers and runs, drawn with the extra `plot`.

Each ``..._picture`` function returns a `Picture`, which is data. `Drawing` shows and saves it.
"""

from dpacct.outputs import as_data
from dpacct.pictures.drawing import Drawing
from dpacct.pictures.picture import Bar, Cells, Curve, Level, Mark, Panel, Picture
from dpacct.pictures.records import (
    TrainedRun,
    epsilon_chart,
    ledger_picture,
    read_run,
    roc_picture,
    runs_picture,
    spent_panel,
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

__all__ = [
    "Bar", "Cells", "Curve", "Drawing", "Level", "Mark", "Panel", "Picture", "Setting",
    "TrainedRun", "as_data", "compare_picture", "delta_picture",
    "epsilon_chart", "epsilon_picture", "ledger_picture", "rdp_picture", "read_run",
    "roc_picture", "runs_picture", "schedule_picture", "spent_panel", "tradeoff_picture",
]  # fmt: skip
