"""Callbacks of a run: their protocol, and writers of CSV, JSON lines and TensorBoard."""

from __future__ import annotations

import csv
import json
import math
import os
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from dpacct import validate
from dpacct.errors import Unsupported
from dpacct.fl.report.reports import RoundReport
from dpacct.packages import install_command


class Callback(Protocol):
    """The functions that a `Federation` calls, with itself as ``run``. Each may be left as it is.

    A callback has the view of the trusted server. The ledger covers only the model and the fields
    of a `RoundReport` in `dpacct.fl.report.reports.RELEASED`. All other values are not covered if
    they are shown to others, nor is the time of a call, which grows with the cohort.
    """

    def start(self, run: Any) -> None:
        """Act before the first round (again after a resume)."""

    def report(self, run: Any, report: RoundReport) -> None:
        """Act after each round. ``run.model`` holds the new parameters."""

    def finish(self, run: Any) -> None:
        """Act after the last round, or when the iteration is left early."""


def open_report(path: Path) -> IO[str]:
    """Open a file of reports to append to. A new one is readable by its owner alone (mode 0600).

    Its owner may open it to others, who then read the `UNPROTECTED` fields.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(descriptor, "a", encoding="utf-8", newline="")


class JSONLinesWriter(Callback):
    """A callback that appends one JSON object a round to a file.

    NaN and infinities become null and strings.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = validate.file_path("path", path)

    def report(self, run: Any, report: RoundReport) -> None:
        """Write one line."""
        del run
        row = {key: _plain(value) for key, value in report.to_dict().items()}
        with open_report(self._path) as stream:
            stream.write(json.dumps(row, allow_nan=False) + "\n")


class CSVWriter(Callback):
    """A callback that appends one row a round to a file, with a header in a new file."""

    def __init__(self, path: str | Path) -> None:
        self._path = validate.file_path("path", path)

    def report(self, run: Any, report: RoundReport) -> None:
        """Write one row."""
        del run
        row = report.to_dict()
        fresh = not self._path.exists() or self._path.stat().st_size == 0
        with open_report(self._path) as stream:
            writer = csv.DictWriter(stream, fieldnames=list(row))
            if fresh:
                writer.writeheader()
            writer.writerow(row)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


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
                "TensorBoardWriter needs the package tensorboard: "
                + install_command(packages=("tensorboard",))
            ) from None
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        self._writer: Any = module.SummaryWriter(str(folder))

    def report(self, run: Any, report: RoundReport) -> None:
        """Write one point of each curve."""
        del run
        for key, value in report.to_dict().items():
            if isinstance(value, float) and math.isfinite(value):
                self._writer.add_scalar(key.replace("_", "/", 1), value, report.round)

    def finish(self, run: Any) -> None:
        """Flush."""
        del run
        self._writer.flush()
