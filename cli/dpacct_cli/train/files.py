"""The files of a run: the ledger of its data, and beside it settings, checkpoint, model and report.

Rule 1: one ledger for a data set: every run on it is charged there, unless another is asked for.
Rule 2: the other files belong to one run, and no run takes a name that is in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from dpacct.errors import InvalidParameter
from dpacct_cli.train.settings import is_table

SUFFIX = ".ledger"
SETTINGS = ".settings.json"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Paths of one run.

    Attributes:
        ledger: what was spent; several runs share it.
        stem: what the names of the run's other files begin with.
    """

    ledger: Path
    stem: str

    def _beside(self, suffix: str) -> Path:
        return self.ledger.with_name(self.stem + suffix)

    @property
    def settings(self) -> Path:
        """What the run was told, as JSON; written first."""
        return self._beside(SETTINGS)

    @property
    def checkpoint(self) -> Path:
        """What it needs to go on."""
        return self._beside(".checkpoint")

    @property
    def model(self) -> Path:
        """The trained parameters."""
        return self._beside(".model.pt")

    @property
    def report(self) -> Path:
        """A line of JSON for each round."""
        return self._beside(".report.jsonl")

    @property
    def free(self) -> bool:
        """Whether none of the run's own files exists yet."""
        own = (self.settings, self.checkpoint, self.model, self.report)
        return not any(file.exists() or file.is_symlink() for file in own)

    def run_name(self, method: str) -> str:
        """What the run is called in the ledger: unique among the runs beside it."""
        return self.stem if self.stem.startswith(method) else f"{method} {self.stem}"


def short_name(method: str) -> str:
    """A method as files are called by it: ``Class`` for ``package.module:Class``."""
    return method.rpartition(":")[2]


def home_of(data: str) -> Path:
    """The ledger of a data set: beside a table, else in the working folder."""
    return Path(data).with_suffix(SUFFIX) if is_table(data) else Path(f"{data}{SUFFIX}")


def base_of(ledger: Path) -> str:
    """The name of a ledger, from which its runs take theirs."""
    return ledger.name.removesuffix(SUFFIX) or ledger.name


def _numbered(name: str) -> Iterator[str]:
    for number in count(1):
        yield name if number == 1 else f"{name}-{number}"


def begin(ledger: str | None, method: str, data: str, *, new_ledger: bool = False) -> RunFiles:
    """Files of a new run, none of which exists yet but the ledger.

    Args:
        ledger: the file that was named; None for that of the data.
        method, data: from which the run's own files take their names.
        new_ledger: beside the ledger of the data, with the first free number behind its name.
    Raises:
        InvalidParameter: the folder of the ledger does not exist.
    """
    if ledger is not None:
        path = Path(ledger)
        name = base_of(path)
    else:
        path = home_of(data)
        name = f"{short_name(method)}-{path.stem}"
        if new_ledger:
            names = (path.with_name(stem + SUFFIX) for stem in _numbered(path.stem))
            path = next(path for path in names if not path.exists())
    if not path.parent.is_dir():
        raise InvalidParameter("ledger", str(path), f"there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidParameter("ledger", str(path), "a ledger is a file, and this is a folder")
    files = (RunFiles(path, stem) for stem in _numbered(name))
    return next(found for found in files if found.free)
