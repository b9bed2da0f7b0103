"""The files of a run: the ledger, and beside it settings, checkpoint, model and report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from dpacct.errors import InvalidParameter

SUFFIX = ".ledger"


@dataclass(frozen=True, slots=True)
class RunFiles:
    """Paths of one run.

    Attributes:
        ledger: what was spent; several runs may share it.
        stem: what the names of the run's other files begin with.
    """

    ledger: Path
    stem: str

    def _beside(self, suffix: str) -> Path:
        return self.ledger.with_name(self.stem + suffix)

    @property
    def settings(self) -> Path:
        """What the run was told, as JSON; written first."""
        return self._beside(".settings.json")

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


def _base(ledger: Path) -> str:
    return ledger.name.removesuffix(SUFFIX) or ledger.name


def _numbered(ledger: Path) -> list[RunFiles]:
    """The runs that stand beside a ledger, the oldest first."""
    found: list[RunFiles] = []
    for files in _candidates(ledger):
        if not files.settings.exists():
            return found
        found.append(files)
    return found


def _candidates(ledger: Path) -> Iterator[RunFiles]:
    base = _base(ledger)
    for number in count(1):
        yield RunFiles(ledger, base if number == 1 else f"{base}-{number}")


def begin(ledger: str | None, method: str, data: str) -> RunFiles:
    """Files of a new run, none of which exists yet.

    Without ``ledger`` the run gets a new one, METHOD-DATA.ledger or that with the first free
    number behind it. With one, the run is charged to it, beside whatever it holds.

    Raises:
        InvalidParameter: the folder of the ledger does not exist.
    """
    if ledger is None:
        default = Path(f"{method}-{data}{SUFFIX}")
        for files in _candidates(default):
            own = default.with_name(files.stem + SUFFIX)
            if not own.exists() and not files.settings.exists():
                return RunFiles(own, files.stem)
    path = Path(ledger or "")
    if not path.parent.is_dir():
        raise InvalidParameter("ledger", ledger, f"there is no folder {path.parent}")
    if path.is_dir():
        raise InvalidParameter("ledger", ledger, "a ledger is a file, and this is a folder")
    return next(files for files in _candidates(path) if not files.settings.exists())


def go_on(ledger: str | None, method: str, data: str) -> RunFiles:
    """Files of the latest run of a ledger; without ``ledger``, of the latest one by default name.

    Raises:
        InvalidParameter: there is no such run.
    """
    if ledger is not None:
        found = _numbered(Path(ledger))
        if not found:
            settings = RunFiles(Path(ledger), _base(Path(ledger))).settings
            raise InvalidParameter("ledger", ledger, f"no run to resume: there is no {settings}")
        return found[-1]
    default = Path(f"{method}-{data}{SUFFIX}")
    latest: RunFiles | None = None
    for files in _candidates(default):
        own = RunFiles(default.with_name(files.stem + SUFFIX), files.stem)
        if not own.ledger.exists():
            break
        latest = own
    if latest is None:
        raise InvalidParameter("ledger", None, f"no run to resume: there is no {default} here")
    return latest
