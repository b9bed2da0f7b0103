"""Which run goes on: the unfinished one, if there is only one, else the one that is named.

Whether a run is finished its ledger says; which ledger that is, its settings.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dpacct.errors import InvalidParameter, LedgerError
from dpacct_cli.errors import OptionConflict
from dpacct_cli.train.files import SETTINGS, SUFFIX, RunFiles, home_of
from dpacct_cli.train.settings import Settings, is_table, load

_LISTED = 6


@dataclass(frozen=True, slots=True)
class Begun:
    """A run that was begun.

    Attributes:
        files: of the run.
        settings: what it was told.
    """

    files: RunFiles
    settings: Settings

    @property
    def finished(self) -> bool:
        """Whether its ledger says so; what cannot be read is left to whoever goes on with it."""
        from dpacct.ledger import Ledger

        try:
            with Ledger.open(self.files.ledger, read_only=True) as ledger:
                name = self.files.run_name(self.settings.method)
                runs = [run for run in ledger.runs if run.name == name]
                return bool(runs) and runs[-1].finished
        except LedgerError:
            return False


def begun_in(folder: Path) -> list[Begun]:
    """All runs whose settings stand in a folder and can be read, shorter names first."""
    found: list[Begun] = []
    files = folder.glob(f"*{SETTINGS}")
    for file in sorted(files, key=lambda path: (len(path.name), path.name)):
        try:
            settings = load(file)
        except InvalidParameter:
            continue
        found.append(Begun(RunFiles(ledger_of(file, settings), _stem(file)), settings))
    return found


def ledger_of(file: Path, settings: Settings) -> Path:
    """Return the ledger of a run, by the file of its settings."""
    return file.with_name(settings.ledger or f"{_stem(file)}{SUFFIX}")


def go_on(ledger: str | None, run: str | None, method: str | None, data: str | None) -> Begun:
    """The run that ``--resume`` means.

    Args:
        ledger, run: as typed; they say where to look, and for what.
        method, data: as typed; they choose among several.
    Raises:
        InvalidParameter: there is no such run, or its settings are damaged.
        OptionConflict: there are several.
    """
    if run is not None and not Path(run).name:
        raise InvalidParameter("run", run or None, "a run is called as its files are")
    if run is not None:
        return _named(Path(run) if ledger is None else Path(ledger).parent / run)
    folder = Path() if ledger is None else Path(ledger).parent
    if ledger is None and data is not None and is_table(data):
        folder = Path(data).parent
    begun = begun_in(folder)
    if ledger is not None:
        begun = [found for found in begun if _same(found.files.ledger, Path(ledger))]
        if not begun:
            raise InvalidParameter("ledger", ledger, "no run to resume: none was begun with it")
    wanted = [
        found
        for found in begun
        if method in (None, found.settings.method)
        and data in (None, found.settings.values.get("data"))
    ]
    if not begun:
        place = "this folder" if folder == Path() else str(folder)
        raise OptionConflict(
            f"--resume: there is no run to resume in {place}; --ledger or --run says where one was "
            f"begun."
        )
    # A method that no run has is refused as a contradiction, not as missing.
    return _only(wanted or begun)


def _only(begun: list[Begun]) -> Begun:
    left = [found for found in begun if not found.finished]
    if len(left) == 1:
        return left[0]
    if not left:
        named = ", ".join(found.files.stem for found in begun[:_LISTED])
        raise OptionConflict(f"--resume: there is no run to resume; finished: {named}.")
    shown = [f"{found.files.stem} (charged to {found.files.ledger})" for found in left[:_LISTED]]
    if len(left) > _LISTED:
        shown.append(f"{len(left) - _LISTED} more")
    raise OptionConflict(
        f"--resume goes on with one run, and {len(left)} are unfinished: {', '.join(shown)}. "
        f"Choose with --run, e.g. --run {left[0].files.stem}."
    )


def _named(stem: Path) -> Begun:
    file = stem.parent / f"{stem.name}{SETTINGS}"
    if not file.is_file():
        raise InvalidParameter("run", str(stem), f"no run to resume: there is no {file}")
    settings = load(file)
    return Begun(RunFiles(ledger_of(file, settings), stem.name), settings)


def others_of(files: RunFiles, data: str) -> list[Path]:
    """Other ledgers of the same data, as far as they stand in the same folder or at its home."""
    found = [home_of(data)]
    for other in begun_in(files.ledger.parent):
        if other.settings.values.get("data") == data and other.files.ledger not in found:
            found.append(other.files.ledger)
    return [path for path in found if path.is_file() and not _same(path, files.ledger)]


def _stem(file: Path) -> str:
    return file.name.removesuffix(SETTINGS)


def _same(one: Path, other: Path) -> bool:
    # Path.resolve refuses loops of links, with a RuntimeError.
    return os.path.realpath(one) == os.path.realpath(other)
