"""Verification: reads every entry, recomputes the chain, each round's cost and every total.

Rule 1: a number is recomputed from the entries alone, by the functions that wrote it.
Rule 2: every number that is shown or used is checked; what cannot be is listed as unverified.
Rule 3: a person who can write to the file can drop its newest entries, or write another file. Only
a head hash that was kept elsewhere shows that, or the witness beside the file as far back as it
goes. If there is none, this is remarked.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.display import line
from dpacct.errors import DpacctError, InvalidParameter, LedgerError
from dpacct.ledger.disk.rows import Rows
from dpacct.ledger.disk.store import Store
from dpacct.ledger.disk.witness import Witness
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.entries import (
    GENESIS,
    Entry,
    Settle,
    canonical,
    link,
    read,
    read_state,
    read_time,
)
from dpacct.ledger.record.state import Replay

MAX_PROBLEMS = 20
# Only the author of an entry can know this.
UNVERIFIED = (
    "the budget, the orders and their weights, and the unit of the first entry",
    "names, details, reasons and sensitivities, as they were typed in",
    "times and versions, as the clocks and programs said",
    "that noise was secret where a run says so, and nothing drawn where a round was abandoned",
    "that no client remembers whether it took part, where a plan is charged by tight",
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        entries: how many were read.
        rounds: how many are charged.
        head: hash of the latest entry, in hex.
        head_found: whether the hash that was asked for is in the chain; None if none was.
        problems: what is wrong, one sentence each; none if the ledger is sound.
        remarks: what is odd but harmless.
        unverified: what no reading of the entries can check.
    """

    entries: int
    rounds: int
    head: str
    head_found: bool | None
    problems: tuple[str, ...]
    remarks: tuple[str, ...]
    unverified: tuple[str, ...] = UNVERIFIED

    @property
    def sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.problems


def verify(now: Snapshot, store: Store, head: str | None = None) -> Verification:
    """Check a whole ledger.

    Args:
        now: as of the entry up to which it is checked.
        store: of the file, for its witness.
        head: a head hash in hex that was kept elsewhere; it has to be in the chain.
    Returns:
        The problems; damage is reported, not raised. Takes about 0.3 ms per round.
    Raises:
        InvalidParameter: the head is no text.
    """
    if head is not None and not isinstance(head, str):
        raise InvalidParameter("head", head, "a head is a hash in hex, as Ledger.head gives it")
    problems, remarks = now.read(Rows.problems), list[str]()
    replay, latest, count, clock, place = Replay(now.known.opening), GENESIS, 0, "", 1
    wanted, found = "" if head is None else head.strip().lower(), False
    try:
        for entry, closes in now.entries():
            place = count + 1
            if entry.number != place:
                raise LedgerError(f"it is missing; the next is entry {entry.number}")
            time = _check(replay, entry, closes, latest)
            if time < clock:
                remarks.append(f"entry {entry.number}: the clock went backwards; order is kept")
            clock, latest, count = time, entry.hash, entry.number
            found = found or entry.hash.hex() == wanted
        replay.check_budget()
    except DpacctError as error:
        problems.append(f"entry {place}: {' '.join(str(error).split())}")
    if not count and not problems:
        problems.append("there are no entries")
    if replay.elsewhere:
        remarks.insert(0, "rounds that had run elsewhere were recorded beyond the budget")
    try:
        remarks += _of_witness(store.witness())
    except LedgerError as error:
        problems.append(str(error))
    if head is not None and not found:
        shown = line(head, 80)
        problems.append(f"the head {shown} is not in the chain: entries are missing, or changed")
    return Verification(
        count,
        0 if replay.ledger is None else replay.ledger.rounds,
        latest.hex(),
        None if head is None else found,
        tuple(problems[:MAX_PROBLEMS]),
        tuple(remarks[:MAX_PROBLEMS]),
    )


def _of_witness(witness: Witness | None) -> list[str]:
    """Return what the witness beside the file cannot show."""
    if witness is None:
        return ["there is no witness beside the file: entries dropped from its end leave no trace"]
    if witness.since > 1:
        return [f"its witness was made at entry {witness.since}: of losses before it knows nothing"]
    return []


def _check(replay: Replay, entry: Entry, closes: int | None, previous: bytes) -> str:
    """Check that an entry follows from those before; return its time."""
    if link(previous, entry.text) != entry.hash:
        raise LedgerError("its hash is not that of its text")
    orders = len(replay.mixture.orders)
    said, totals, time = read(entry), read_state(entry, orders), read_time(entry)
    if canonical(entry.content) != entry.text:
        raise LedgerError("it is not in its one form")
    settles = said.round if isinstance(said, Settle) else None
    if type(closes) is not type(settles) or closes != settles:
        raise LedgerError("it contradicts its own index")
    replay.step(entry, said, totals)
    return time
