"""Reports as scalars for TensorBoard, where it is installed.

Tags that begin ``unprotected/`` are not private. Nor is the time at which a point was
written, which each of them carries.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from typing import Any

from dpacct.errors import Unsupported
from dpacct.fl.report.callbacks import Callback, RunView
from dpacct.fl.report.reports import Report


class TensorBoardWriter(Callback):
    """Writes each number of a report to an event file in a folder.

    Raises:
        Unsupported: the package ``tensorboard`` is not installed.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            module: Any = import_module("torch.utils.tensorboard")
        except ImportError:
            raise Unsupported(
                "TensorBoardWriter needs the package tensorboard: pip install tensorboard"
            ) from None
        self._writer: Any = module.SummaryWriter(str(folder))

    def report(self, run: RunView, report: Report) -> None:
        """Write one point of each curve."""
        del run
        for key, value in report.to_dict().items():
            if isinstance(value, float) and math.isfinite(value):
                self._writer.add_scalar(key.replace("_", "/", 1), value, report.round)

    def finish(self, run: RunView) -> None:
        """Flush."""
        del run
        self._writer.flush()
