"""The files of a run, and the unfinished run that --resume continues.

Rule 1: one ledger for a data set. Every run on it is charged there, unless another is named.
Rule 2: settings, checkpoint, model and report belong to one run. No run takes a name in use.
Rule 3: the ledger of a run records its end. The settings of a run name its ledger.
"""

from __future__ import annotations

import os
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger import Address, as_place
from dpacct.validate import is_address
from dpacct_cli.errors import OptionConflict
from dpacct_cli.train.settings import RunSettings, is_table, load

SUFFIX = ".ledger"
SETTINGS = ".settings.json"
_LISTED = 6


class RunFiles(NamedTuple):
    """Paths of one run."""

    ledger: Path | Address  # The record of the spent budget, which several runs share
    stem: str  # The beginning of the names of the run's other files
    settings: Path  # Of the run as JSON, written first
    checkpoint: Path  # The state from which the run can resume
    model: Path  # The trained parameters
    report: Path  # A line of JSON for each round

    @classmethod
    def of(cls, ledger: Path | Address, stem: str) -> RunFiles:
        """Return the paths of a run by its ledger and the beginning of its names."""
        suffixes = (SETTINGS, ".checkpoint", ".model.pt", ".report.jsonl")
        folder = _folder_of(ledger)
        return cls(ledger, stem, *(folder / (stem + suffix) for suffix in suffixes))

    @property
    def name_of_ledger(self) -> str:
        """The name of the ledger in the settings of the run."""
        return self.ledger.name if isinstance(self.ledger, Path) else str(self.ledger)

    @property
    def free(self) -> bool:
        """None of the run's own files exists yet."""
        own = (self.settings, self.checkpoint, self.model, self.report)
        return not any(file.exists() or file.is_symlink() for file in own)

    def run_name(self, method: str) -> str:
        """Return the name of the run in the ledger, unique among the runs of the folder."""
        return self.stem if self.stem.startswith(method) else f"{method} {self.stem}"


class Begun(NamedTuple):
    """The files and settings of a run that was begun."""

    files: RunFiles
    settings: RunSettings

    @property
    def finished(self) -> bool:
        """True if the ledger records the end of the run. False if it cannot be read."""
        from dpacct.ledger import Ledger

        try:
            with Ledger.open(self.files.ledger, read_only=True) as ledger:
                name = self.files.run_name(self.settings.method)
                runs = [run for run in ledger.runs if run.name == name]
                return bool(runs) and runs[-1].finished
        except LedgerError:
            return False


def begin(ledger: str | None, method: str, data: str) -> RunFiles:
    """Return the files of a new run, none of which exists yet except the ledger."""
    if ledger is not None:
        path = as_place(ledger)
        name = path.name.removesuffix(SUFFIX) or path.name
    else:
        path = ledger_of_data(data)
        # `Class` for package.module:Class
        name = f"{method.rpartition(':')[2]}-{path.stem}"
    if not _folder_of(path).is_dir():
        raise InvalidParameter("ledger", str(path), f"there is no folder {_folder_of(path)}")
    if isinstance(path, Path) and path.is_dir():
        raise InvalidParameter("ledger", str(path), "a ledger is a file, and this is a folder")
    stems = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(files for stem in stems if (files := RunFiles.of(path, stem)).free)


def ledger_of_data(data: str) -> Path:
    """Return the ledger of a data set: next to a table, else in the working folder."""
    return Path(data).with_suffix(SUFFIX) if is_table(data) else Path(f"{data}{SUFFIX}")


def ledger_of_settings(file: Path, settings: RunSettings) -> Path | Address:
    """Return the ledger of a run, given the file of its settings."""
    if settings.ledger is not None and is_address(settings.ledger):
        return as_place(settings.ledger)
    return file.with_name(settings.ledger or file.name.removesuffix(SETTINGS) + SUFFIX)


def other_ledgers(files: RunFiles, data: str) -> list[Path]:
    """Return other ledgers of the same data in the same folder, or at the default place."""
    ledgers: list[Path | Address] = [ledger_of_data(data)]
    for other in _begun_in(_folder_of(files.ledger)):
        if other.settings.get("data") == data and other.files.ledger not in ledgers:
            ledgers.append(other.files.ledger)
    paths = [path for path in ledgers if isinstance(path, Path) and path.is_file()]
    return [path for path in paths if not _same(path, files.ledger)]


def find_run(ledger: str | None, run: str | None, method: str | None, data: str | None) -> Begun:
    """Return the run that ``--resume`` continues.

    Args:
        ledger, run: as typed, the place of the run and its name.
        method, data: as typed. They choose among several runs.
    """
    folder = Path() if ledger is None else _folder_of(as_place(ledger))
    if ledger is None and data is not None and is_table(data):
        folder = Path(data).parent
    if run is not None:
        stem = Path(run) if ledger is None else folder / run
        file = stem.parent / f"{stem.name}{SETTINGS}"
        if not file.is_file():
            raise InvalidParameter("run", run or None, f"no run to resume: there is no {file}")
        return _read(file)
    begun = _begun_in(folder) if ledger is None else _begun_on(as_place(ledger))
    wanted = [
        one
        for one in begun
        if method in (None, one.settings.method) and data in (None, one.settings.get("data"))
    ]
    # If no run has the method, the method contradicts --resume. It is not a missing run.
    left = [one for one in wanted or begun if not one.finished]
    if len(left) == 1:
        return left[0]
    place = "this folder" if folder == Path() else str(folder)
    if not left:
        finished = ", ".join(one.files.stem for one in begun[:_LISTED])
        others = f"; finished: {finished}" if finished else ""
        raise OptionConflict(
            f"--resume: there is no run to resume in {place}{others}. --ledger or --run says where "
            "one was begun."
        )
    named = ", ".join(one.files.stem for one in left[:_LISTED])
    raise OptionConflict(
        f"--resume continues one run, and {len(left)} are unfinished in {place}: {named}. Choose "
        f"with --run, e.g. --run {left[0].files.stem}."
    )


def unfinished(ledger: Path | Address) -> list[Begun]:
    """Return the runs that were begun on a ledger, in its folder, and have not ended."""
    return [one for one in _begun_on(ledger) if not one.finished]


def _begun_on(ledger: Path | Address) -> list[Begun]:
    begun = _begun_in(_folder_of(ledger))
    return [one for one in begun if _same(one.files.ledger, ledger)]


def _begun_in(folder: Path) -> list[Begun]:
    """Return all runs of a folder with readable settings, shorter names first."""
    runs: list[Begun] = []
    for file in sorted(folder.glob(f"*{SETTINGS}"), key=lambda path: (len(path.name), path.name)):
        try:
            runs.append(_read(file))
        except InvalidParameter:
            continue
    return runs


def _read(file: Path) -> Begun:
    settings, stem = load(file), file.name.removesuffix(SETTINGS)
    return Begun(RunFiles.of(ledger_of_settings(file, settings), stem), settings)


def _folder_of(ledger: Path | Address) -> Path:
    """Return the folder of the files of runs: that of the ledger, or the working folder."""
    return ledger.parent if isinstance(ledger, Path) else Path()


def _same(one: Path | Address, other: Path | Address) -> bool:
    if not (isinstance(one, Path) and isinstance(other, Path)):
        return str(one) == str(other)
    # Path.resolve raises RuntimeError for loops of links.
    return os.path.realpath(one) == os.path.realpath(other)
