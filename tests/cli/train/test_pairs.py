"""Whatever ledger a run meets: what it prints is what the rounds that ran cost, or a refusal.

Every pair of values of two columns stands together in some row.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")


import dpacct as library
from dpacct import Adjacency, Budget, Ledger, Round

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = "--sampling full --batch-size all --local-steps 1 --vectorize no --rounds 3"
BUDGET = Budget(20, 1e-3)
EPSILON = re.compile(
    r"epsilon +(\S+) proven +(\S+) achieved +at delta (\S+)(?: \((.*)\))?$", re.MULTILINE
)


class Row(NamedTuple):
    """One setting; the ledger of a run that goes on is what became of it meanwhile."""

    ledger: str
    resumed: bool
    typed: bool
    clients: int
    method: str


COLUMNS = (
    ("new", "existing", "other delta", "other adjacency", "spent", "dead run"),
    (False, True),
    (False, True),
    (5, 40),
    ("dp-fedavg", "fed-alpha-normec"),
)


def all_pairs() -> list[Row]:
    """A few rows that hold every pair, found greedily."""
    whole = [Row(*values) for values in itertools.product(*COLUMNS)]

    def pairs(row: Row) -> set[tuple[int, Any, int, Any]]:
        return {(i, row[i], j, row[j]) for i, j in itertools.combinations(range(len(row)), 2)}

    left = set().union(*map(pairs, whole))
    chosen: list[Row] = []
    while left:
        best = max(whole, key=lambda row: len(pairs(row) & left))
        chosen.append(best)
        left -= pairs(best)
    return chosen


ROWS = all_pairs()
ROUND = Round(1.0, adjacency="zero-out")


def test_every_pair_is_there() -> None:
    for i, j in itertools.combinations(range(len(COLUMNS)), 2):
        found = {(row[i], row[j]) for row in ROWS}
        assert found == set(itertools.product(COLUMNS[i], COLUMNS[j]))


def make(kind: str, clients: int) -> None:
    """The ledger of the data as a new run finds it."""
    path = Path("digits.ledger")
    match kind:
        case "existing":
            Ledger.open(path, BUDGET).close()
        case "other delta":
            Ledger.open(path, Budget(20, 0.05)).close()
        case "other adjacency":
            Ledger.open(path, BUDGET, adjacency=Adjacency.REPLACE_ONE).close()
        case "spent":
            with Ledger.open(path, BUDGET) as ledger:
                ledger.charge("all of it", ledger.remaining_as_plan(ROUND) * ROUND)
        case "dead run":
            with Ledger.open(path, BUDGET) as ledger:
                ledger.start_run("dead", ledger.remaining_as_plan(ROUND) * ROUND)
        case _:
            assert clients


def change(kind: str) -> None:
    """What becomes of the ledger of a run that was stopped."""
    path = Path("digits.ledger")
    match kind:
        case "new" | "other delta" | "other adjacency":
            for file in Path().glob("digits.ledger*"):
                file.unlink()
            make(kind, 1)
        case "spent":
            with Ledger.open(path) as ledger:
                ledger.charge("news", 9 * ROUND, over_budget=True)
        case "dead run":
            with Ledger.open(path) as ledger:
                ledger.start_run("dead")
        case _:
            pass


def refused(row: Row) -> str:
    """A part of the expected refusal, or nothing."""
    if row.resumed:
        return {
            "new": "there is no such ledger, and the checkpoint",
            "other delta": "--delta" if row.typed else "belongs to another ledger",
            "other adjacency": "adjacency is 'zero-out';",
        }.get(row.ledger, "")
    return {
        "other delta": "--delta is 1e-3; the ledger digits.ledger has delta 0.05" * row.typed,
        "other adjacency": "adjacency is 'zero-out';",
        "spent": "does not fit",
        "dead run": "held by run 1 ('dead'",
    }.get(row.ledger, "")


def ran(name: str) -> tuple[library.Schedule, float]:
    """The rounds that a run was charged for, from the entries alone, and the ledger's delta."""
    with Ledger.open("digits.ledger", read_only=True) as ledger:
        entries = list(ledger.export())
        delta = ledger.budget.delta
    [number] = [e["run"] for e in entries if e["kind"] == "run" and e["data"]["name"] == name]
    charged = [e["data"]["charged"] for e in entries
               if e["kind"] == "reserve" and e["run"] == number]  # fmt: skip
    plan = library.Schedule()
    for found in charged:
        assert (found["sampling"], found["adjacency"]) == ("full", "zero-out")
        plan += 1 * Round(found["noise_multiplier"], adjacency="zero-out")
    return plan, delta


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(map(str, row)))
def test_what_is_printed_is_what_ran_or_nothing(
    dpacct: Any, row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    delta = "--delta 1e-3" if row.typed else ""
    words = f"train {row.method} {QUICK} --clients {row.clients} --eps 4 {delta}"
    if row.resumed:
        with stop_after(1):
            assert dpacct(words).code == 130
        change(row.ledger)
        words = "train --resume"
    else:
        make(row.ledger, row.clients)
    before = Path("digits.ledger").read_bytes() if Path("digits.ledger").exists() else b""
    done = dpacct(words)
    why = refused(row)
    if why:
        assert (done.code in (1, 2), done.out) == (True, ""), done.out
        assert done.err.splitlines()[-1].startswith("dpacct: ")
        assert why in done.err
        if before:
            assert Path("digits.ledger").read_bytes() == before
        return
    found = EPSILON.search(done.text)
    assert found is not None, done.out
    rounds, at = ran(f"{row.method}-digits")
    assert rounds.rounds == 3
    truth = library.epsilon(rounds, delta=at)
    proven, achieved, shown = (float(found[k]) for k in (1, 2, 3))
    assert truth.upper * (1 - 1e-9) <= proven <= truth.upper * (1 + 1e-4)
    assert truth.lower * (1 - 1e-4) <= achieved <= truth.lower * (1 + 1e-9)
    # At the delta beside it, or at a smaller one.
    assert at <= shown <= at * 1.01
    if row.typed:
        assert shown == at == 1e-3
    elif row.resumed or row.ledger == "new":
        assert at == 1e-5
        assert found[4] is None
    else:
        assert found[4] == "that of digits.ledger"
    assert truth.upper == pytest.approx(4, rel=1e-5)
