"""Reports of a run's rounds, and the part of them that epsilon covers.

Rule 1: `RELEASED` is the one list of fields that follow from plan, releases and test data. Test
data are public, or the field ``test_data`` is "unprotected". Validation data are public.
Rule 2: everything else is not private. If it leaves this process as a column of a file, as a curve
or as text, its name begins with `UNPROTECTED`. The duration of a round is of that kind: it grows
with the cohort.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

from dpacct import validate
from dpacct.budget import Spent
from dpacct.errors import Unsupported
from dpacct.packages import install_command

UNPROTECTED = "unprotected_"
# Fields of a `RoundReport`, and columns of its files.
RELEASED = frozenset((
    "round", "rounds", "spent", "epsilon_lower", "epsilon_upper", "delta", "not_private_because",
    "private", "noise_multiplier", "noise_std", "clip_norm", "released", "unit", "adjacency",
    "test_accuracy", "validation_accuracy", "test_data", "bytes_down", "bytes_up",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Figures from before the noise: useful for training, and **not private**.

    They are covered by no epsilon. Do not publish them, and do not tune with them.

    Attributes:
        cohort_size: clients that took part.
        clipped_fraction: share of them with an update longer than the bound (NaN if none came).
        norm_mean, norm_median, norm_max: of the raw updates, before bounding (NaN if none came).
        dropped_updates: updates set to zero: they held NaN or infinity, or were not computed.
        signal_to_noise: norm of the sum of bounded updates / expected norm of the noise (NaN where
            nothing was released).
    """

    cohort_size: int
    clipped_fraction: float
    norm_mean: float
    norm_median: float
    norm_max: float
    dropped_updates: int
    signal_to_noise: float


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round.

    Attributes:
        round: 1, 2, ...
        rounds: planned number of rounds.
        spent: computes ``epsilon`` and ``delta`` when they are asked for.
        not_private_because: why the run is not private, None where it is.
        noise_multiplier: the charged one.
        noise_std: standard deviation of the noise on each coordinate of the sum of updates.
        clip_norm: norm bound of one update in this round (of the whole update).
        released: False where a round released nothing (too few noise shares arrived).
        bytes_down, bytes_up: values that a client of this round receives (trained parameters and
            the method's public state) and sends (kept coordinates), uncompressed. Public.
        unit, adjacency: the difference of neighboring data sets. One ``unit`` ("client",
            "example") is added or removed, or replaced, or its contribution becomes zero.
        diagnostics: not private, and left out of ``repr``.
        seconds: of the round. Not private: it grows with the cohort and its examples. Likewise.
    """

    round: int
    rounds: int
    spent: Callable[[], Spent] = field(repr=False, compare=False)
    not_private_because: str | None
    noise_multiplier: float
    noise_std: float
    clip_norm: float
    released: bool
    bytes_down: int
    bytes_up: int
    unit: str
    adjacency: str
    diagnostics: Diagnostics = field(repr=False)
    seconds: float = field(repr=False)

    @property
    def epsilon(self) -> Spent:
        """[achieved, proven] epsilon of all that the run had charged after this round.

        The proven end is infinite where the run is not private. Computed on first use, which takes
        milliseconds.
        """
        return self.spent()

    def __str__(self) -> str:
        private = "" if self.not_private_because is None else f"; {self.not_private_because}"
        return (
            f"epsilon {self.epsilon}, {self.adjacency} of one {self.unit}, after round "
            f"{self.round} of {self.rounds} (noise multiplier {self.noise_multiplier:g}){private}"
        )

    @property
    def delta(self) -> float:
        """The delta at which ``epsilon`` was computed."""
        return self.epsilon.delta

    @property
    def clipped_fraction(self) -> float:
        """Share of the cohort that was clipped. A diagnostic, not private."""
        return self.diagnostics.clipped_fraction

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary: `RELEASED` fields, and the rest marked as `UNPROTECTED`."""
        spent = self.epsilon
        row: dict[str, Any] = {
            "round": self.round,
            "rounds": self.rounds,
            "epsilon_lower": spent.lower,
            "epsilon_upper": spent.upper,
            "delta": spent.delta,
            "private": self.not_private_because is None,
            "noise_multiplier": self.noise_multiplier,
            "noise_std": self.noise_std,
            "clip_norm": self.clip_norm,
            "released": self.released,
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
        }
        bare = asdict(self.diagnostics)
        bare["seconds"] = self.seconds
        row |= {f"{UNPROTECTED}{key}": value for key, value in bare.items()}
        return row | {"unit": self.unit, "adjacency": self.adjacency}


class Callback(Protocol):
    """The functions that a `Federation` calls, with itself as ``run``. Each may be left as it is.

    A callback has the view of the trusted server. The ledger covers only the model and the fields
    of a `RoundReport` in `dpacct.fl.report.RELEASED`. All other values are not covered if
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
