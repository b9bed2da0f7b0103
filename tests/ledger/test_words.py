"""Names, units, reasons and details: rejected at the door, harmless where an old file has them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dpacct import InvalidParameter, Ledger, Round
from dpacct.ledger import Address
from forgeries import Row, read, write
from ledgers import BUDGET

ROUND = Round(9.0)
NO_LINES = [
    "", " ", "a\nb", "a\rb", "\x1b[2J", "\x00", "\x7f", "\x9b31m", "\u202eevil", "\u2028", "\ud800",
    "\udfff", "x" * 201, "y" * 10**6, 7, None, b"bytes", ["x"], [10**5000], [[]] * 10**5,
]  # fmt: skip


def test_what_is_no_line_of_words_is_rejected_by_its_name(ledger: Ledger) -> None:
    new, ticket = ledger.path.with_name("new"), ledger.start_run("one").reserve(ROUND)
    head = ledger.head
    uses: dict[str, Callable[[Any], object]] = {
        "name": ledger.start_run,
        "unit": lambda words: Ledger.open(new, BUDGET, unit=words),
        "reason": ticket.abandon,
    }
    for words in NO_LINES:
        for name, use in uses.items():
            with pytest.raises(InvalidParameter) as refused:
                use(words)
            assert refused.value.name == name
            assert str(refused.value).isprintable()
            assert len(str(refused.value)) < 500
    assert (ledger.head, ticket.state, new.exists()) == (head, "reserved", False)
    ticket.abandon("no client answered: Größe 数")
    assert ledger.rounds == 0


def deep(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def test_details_that_no_reader_could_take_are_rejected(ledger: Ledger) -> None:
    for details in (
        {"x": "\ud800"}, {"\udc00": 1}, {"x": "y" * 100_000}, {"x": [[[]] * 2] * 20_000},
        {"x": 10**5000}, {"x": float("nan")}, *({"x": deep(levels)} for levels in (50, 900, 10**5)),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter) as refused:
            ledger.start_run("one", details=details)
        assert refused.value.name == "details"
        assert len(str(refused.value)) < 500
    assert ledger.start_run("one", details={"x": deep(49)}).details == {"x": deep(49)}


EVIL = "\x1b[31mred\x1b[0m\x07 \u202egnp.exe \ud800 \u2028 a\nb | **b** <script>x</script> `c`"


@pytest.mark.needs("matplotlib", "markdown_it")
def test_an_old_ledger_with_such_words_still_opens_and_its_pages_are_clean(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("one", details={"key": "value"})
        run.reserve(ROUND).abandon("reason")
        run.reserve(ROUND).commit()
    rows = [Row(json.loads(json.dumps(row.content))) for row in read(path)]
    for row in rows:
        data = row.content["data"]
        for key in {"name", "unit", "reason", "software"} & set(data):
            data[key] = EVIL * (100 if key == "name" else 1)
        if "details" in data:
            data["details"] = {EVIL: EVIL}
    write(path, rows)
    with Ledger.open(path) as ledger:
        assert ledger.verify().sound
        assert (ledger.unit, ledger.runs[0].name) == (EVIL, EVIL * 100)
        ledger.resume_run(1).reserve(ROUND).commit()
        assert json.loads(json.dumps(ledger.report()))["runs"][0]["details"] == {EVIL: EVIL}
        pages = (ledger.report_markdown(), ledger.report_html())
    for page in pages:
        assert all(letter.isprintable() or letter == "\n" for letter in page)
        page.encode("utf-8")
        # It is told, cut where it is long.
        assert "x1b[31mred" in page.replace("\\", "")
        assert "characters)" in page
    # Beside the words an HTML page holds its style and its chart.
    assert len(pages[0]) < 40_000
    assert "<script" not in pages[1]


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://host/d?sslmode=\ud800#census",
        "postgresql://\udfffhost/d#census",
        "postgresql://host/d?x=%ff%fe#\x1b[2J",
        "postgresql://host/dsslmode=require&password=s3cret#census",
        "postgresql://u:s3cret@host#census",
        "postgresql://u:s3cret@host/d#a b",
        "postgresql://u:s3cret@[host/d#census",
    ],
)
def test_an_address_of_somebody_else_is_rejected_without_its_password(address: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        Address.parse(address)
    assert "s3cret" not in str(refused.value)
