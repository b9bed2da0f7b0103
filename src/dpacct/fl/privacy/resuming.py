"""Whether a checkpoint and a run of a ledger belong together.

Rule 1: the ledger is the one that the checkpoint knows, and has all entries that it knew.
Rule 2: its run has the checkpoint's number and setting, and at least its rounds: what the model has
learned from is charged.
Rule 3: a checkpoint of version 0.1 knows no ledger: there Rule 2 has to do, which is worth a note.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.errors import LedgerError
from dpacct.ledger import Ledger, Position
from dpacct.rounds import Adjacency


@dataclass(frozen=True, slots=True)
class Saved:
    """Where a run stood in its ledger when a checkpoint of it was written.

    Attributes:
        run: its number.
        charged, committed: how many of its rounds were, in all.
        position: of the ledger; None in checkpoints of version 0.1.
    """

    run: int
    charged: int
    committed: int
    position: Position | None


def relabeled(setting: str) -> str:
    """Return a setting as today's runs write it.

    Version 0.2 called runs with Poisson or full participation add-remove, although their divisor
    followed the number of clients: what they promised is zero-out, at the same epsilon.
    """
    if "public_size=" in setting or "sampling=Uniform(" in setting:
        return setting
    return setting.replace(repr(Adjacency.ADD_REMOVE), repr(Adjacency.ZERO_OUT))


def check_run(ledger: Ledger, saved: Saved, setting: str, holder: str) -> str | None:
    """Refuse a ledger whose run is not that of the checkpoint.

    Args:
        ledger: an open one, which is the one that the checkpoint knows, if it knows one.
        saved: what the checkpoint knows.
        setting: of the run that goes on. holder: the checkpoint, in words.
    Returns:
        What is worth a note, or None.
    Raises:
        LedgerError: they do not belong together, or the ledger has lost rounds.
    """
    runs = ledger.runs
    if saved.run > len(runs):
        raise LedgerError(
            f"{ledger.path}: {holder} belongs to run {saved.run}, and there is no run {saved.run} "
            f"(runs are 1 to {len(runs)}). It belongs to another ledger, or to a newer copy."
        )
    run = runs[saved.run - 1]
    if relabeled(str(run.details.get("setting"))) != setting:
        raise LedgerError(
            f"{ledger.path}: run {run.id} ({run.name!r}) has another setting than {holder}, which "
            f"belongs to another ledger."
        )
    if run.committed < saved.committed or run.rounds < saved.charged:
        raise LedgerError(
            f"{ledger.path}: run {run.id} has {run.committed} released rounds, and {holder} knows "
            f"{saved.committed}. The ledger is an older copy, or another one; use that of the run."
        )
    if saved.position is not None:
        return None
    return (
        f"{holder} is of version 0.1 and does not name its ledger; run {run.id} of {ledger.path} "
        f"has its setting and at least its {saved.committed} rounds, and is taken for its own."
    )
