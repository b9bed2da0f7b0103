"""What a verification says beside whether the ledger is sound."""

from __future__ import annotations

import re

from dpacct import Ledger, Round
from dpacct.ledger.verify import UNVERIFIED

ROUND = Round(9.0)


def test_what_no_reading_of_the_entries_can_check_is_listed(ledger: Ledger) -> None:
    found = ledger.verify()
    assert found.sound
    assert found.unverified == UNVERIFIED
    for word in (
        "budget",
        "names",
        "details",
        "sensitivities",
        "times",
        "noise was secret",
        "remembers",
    ):
        assert any(word in what for what in found.unverified)
    page = re.sub(r"\\(.)", r"\1", ledger.report_markdown())
    assert all(what in page for what in UNVERIFIED)


def test_a_head_is_looked_for_among_all_entries(ledger: Ledger) -> None:
    heads = [ledger.head]
    run = ledger.start_run("one")
    for _ in range(3):
        run.reserve(ROUND).commit()
        heads.append(ledger.head)
    for head in [*heads, f" {heads[0].upper()}\n"]:
        found = ledger.verify(head)
        assert found.sound
        assert found.head_found is True
    for head in ("00", "", "\x1b[31m" + "x" * 1000):
        found = ledger.verify(head)
        assert found.head_found is False
        (problem,) = found.problems
        assert "is not in the chain" in problem
        assert problem.isprintable()
        assert len(problem) < 250
