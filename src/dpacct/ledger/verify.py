"""Verification of a ledger: the chain, each round's cost and every total, from all entries.

Rule 1: all entries are replayed (`record.replay`), and the stored totals are those of the replay.
Rule 2: every number that is shown or used is checked. The other facts are listed as unverified.
Rule 3: a verification may go on where an earlier one of the same file ended. Whoever can write to
the file can forge that place: only a verification of all entries counts for somebody else's file.
Rule 4: a person who can write to the file can drop its newest entries, or write another file. Only
a head hash that was kept elsewhere shows that, or the witness as far back as it goes. A missing
witness is a remark.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpacct.display import line
from dpacct.errors import DpacctError, InvalidParameter, LedgerError
from dpacct.ledger.disk.store import Store
from dpacct.ledger.disk.witness import Witness
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.entries import Entry, Said, reading
from dpacct.ledger.record.replay import Replay

MAX_PROBLEMS = 20
# Only the author of an entry can know these facts.
UNVERIFIED = (
    "the budget, the orders and their weights, and the unit of the first entry",
    "names, details, reasons and sensitivities, as they were typed in",
    "times and versions, as the clocks and programs said",
    "that noise was secret in runs declared so, and nothing was drawn in abandoned rounds",
    "that a promise made elsewhere is true, and each client belongs to one part of a partition",
    "that no client remembers whether it took part, where a plan is charged by tight",
)


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Attributes:
        entries: the number of entries.
        rounds: the number of charged rounds.
        head: hash of the latest entry, in hex.
        head_found: whether the given hash is in the chain, or None if none was given.
        problems: the errors, one sentence each, or none if the ledger is sound.
        remarks: odd but harmless facts.
        unverified: facts that no reading of the entries can check.
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


def verify(
    now: Snapshot,
    store: Store,
    head: str | None = None,
    *,
    all_entries: bool = True,
    keep: bool = False,
    watch: Callable[[Entry, Said, Replay], None] | None = None,
) -> Verification:
    """Check a whole ledger.

    Args:
        now: as of the entry up to which it is checked.
        store: of the file, for its witness.
        head: a head hash in hex that was kept elsewhere. It has to be in the chain.
        all_entries: begin with the first entry, and not where an earlier verification ended.
        keep: keep in the file how far it was verified, for later ones.
        watch: is called behind each entry.
    Returns:
        The problems. Damage is reported, not raised. Takes about 50 microseconds per round.
    Raises:
        InvalidParameter: the head is not a text.
    """
    if head is not None and not isinstance(head, str):
        raise InvalidParameter("head", head, "a head is a hash in hex, as Ledger.head gives it")
    problems, remarks = now.read(lambda rows: rows.problems()), list[str]()
    earlier = None if all_entries or head is not None else _from_earlier(now)
    replay, found = earlier or Replay(now.known.opening), False
    clock: int | str | None = None
    began, wanted = replay.number, "" if head is None else head.strip().lower()
    try:
        for entry in now.entries(replay.number):
            said = replay.take(entry)
            time = entry.clock
            # Two types: from here on in the present form.
            if type(time) is type(clock) and time < clock:  # pyright: ignore[reportOperatorIssue]
                remarks.append(f"entry {entry.number}: the clock went backwards. Order is kept")
            clock, found = time, found or entry.hash.hex() == wanted
            if watch is not None:
                watch(entry, said, replay)
        replay.end()
        _check_stored(now, replay)
    except DpacctError as error:
        place = min(replay.number + 1, now.head.number)
        problems.append(f"entry {place}: {' '.join(str(error).split())}")
    remarks = _remarks_on(replay, began) + remarks
    try:
        remarks += _unseen_losses(store.witness())
    except LedgerError as error:
        problems.append(str(error))
    if head is not None and not found:
        shown = line(head, 80)
        problems.append(f"the head {shown} is not in the chain: entries are missing, or changed")
    if keep and not problems and not now.read(lambda rows: rows.old):
        kept = replay.number, replay.hash, replay.kept()
        store.write(lambda rows: rows.keep_verified(*kept))
    return Verification(
        entries=replay.number,
        rounds=replay.ledger.rounds,
        head=replay.hash.hex(),
        head_found=None if head is None else found,
        problems=tuple(problems[:MAX_PROBLEMS]),
        remarks=tuple(remarks[:MAX_PROBLEMS]),
    )


def _remarks_on(replay: Replay, began: int) -> list[str]:
    found = [f"entries 1 to {began} were verified before, and not read again"] if began else []
    if any(start.over_budget for start in replay.starts.values()):
        found.append("rounds that had run elsewhere were recorded beyond the budget")
    return found + replay.remarks


def _from_earlier(now: Snapshot) -> Replay | None:
    """Return the replay where an earlier verification ended, or None if there is no such place."""
    kept = now.verified()
    if kept is None:
        return None
    with reading():
        return Replay.resumed(now.known.opening, *kept, now.start, now.kind)


def _check_stored(now: Snapshot, replay: Replay) -> None:
    """Check that the totals of each run that readings use are those of the replay."""
    for run, latest in replay.runs.items():
        if run <= now.state.runs and now.latest_of(run) != latest:
            raise LedgerError(f"the stored totals of run {run} are not those of its entries")
    if now.state != replay.ledger:
        raise LedgerError("the stored totals are not those of the entries")


def _unseen_losses(witness: Witness | None) -> list[str]:
    """Return a remark if entries could be missing without a trace."""
    if witness is None:
        return ["the file has no witness: entries dropped from its end leave no trace"]
    if witness.since > 1:
        return [f"its witness was made at entry {witness.since}: earlier losses leave no trace"]
    return []
