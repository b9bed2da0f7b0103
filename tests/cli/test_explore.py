"""Sweeps: every row is what the library says, whole or not there."""

from __future__ import annotations

import csv
import io
import json
import re
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct as library
from dpacct import Poisson, Round
from dpacct.display import down
from dpacct_cli.commands import explore
from dpacct_cli.commands.explore import read_values
from dpacct_cli.errors import OptionConflict

SMALL = "explore --noise 8,9 --rounds 10..30/10 --sampling full"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    return sorted(path.name for path in Path.cwd().iterdir())


def read(file: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(Path(file).read_text(encoding="utf-8"))))


def test_every_row_is_what_the_library_says(dpacct: Any) -> None:
    data = dpacct("explore --noise 1,2 --rounds 5 --q 0.1,0.2 --delta 1e-5,1e-6 --json").json
    assert data["failed"] == 0
    rows = data["rows"]
    assert len(rows) == 8
    assert [row["noise_multiplier"] for row in rows] == 4 * [1.0] + 4 * [2.0]
    for row in rows:
        plan = row["rounds"] * Round(row["noise_multiplier"], Poisson(row["sampling_rate"]))
        spent = library.epsilon(plan, delta=row["delta"])
        assert row["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
        assert (row["sampling"], row["adjacency"]) == ("poisson", "add-remove")


def test_the_table_shows_what_varies_and_says_the_rest_once(dpacct: Any) -> None:
    text = dpacct(SMALL).text
    assert "delta 1e-05, full sampling, add-remove" in text
    assert text.count("1e-05") == 1
    assert len([line for line in text.splitlines() if line.startswith(("  8 ", "  9 "))]) == 6


def test_quiet_prints_the_proven_epsilons(dpacct: Any) -> None:
    numbers = [float(line) for line in dpacct(SMALL, "-q").text.splitlines()]
    rows = dpacct(SMALL, "--json").json["rows"]
    assert numbers == [row["epsilon"]["upper"] for row in rows]


def test_files_hold_all_rows_and_leave_nothing_beside_them(dpacct: Any) -> None:
    assert dpacct(SMALL, "-o a.csv").text == ""
    assert dpacct(SMALL, "-o a.json").text == ""
    rows = read("a.csv")
    assert tuple(rows[0]) == explore.COLUMNS
    data = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert [float(row["epsilon_upper"]) for row in rows] == [
        row["epsilon"]["upper"] for row in data["rows"]
    ]
    assert names() == ["a.csv", "a.json"]


def test_a_row_that_cannot_be_computed_has_its_reason(dpacct: Any) -> None:
    words = "explore --noise 1 --rounds 1 --sampling full --accountant gdp"
    assert dpacct(words, "--json").json["failed"] == 0
    result = dpacct("explore --noise 1 --rounds 5 --cohort 3,30 --clients 20 -o a.csv")
    assert result.code == 0
    assert "1 of 2 rows could not be computed. The first: --cohort is 30;" in result.err
    good, bad = read("a.csv")
    assert (good["error"], bad["epsilon_upper"]) == ("", "")
    assert float(good["epsilon_upper"]) > 0
    assert "at most as many members" in bad["error"]
    every = dpacct("explore --noise 9 --rounds 5 --q 0.1,0.2 --accountant gdp --json")
    assert every.code == 1
    assert json.loads(every.out)["failed"] == 2
    assert json.loads(every.out)["rows"][0]["epsilon"] is None


def test_a_chart_shows_the_rows(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures: list[Any] = []
    monkeypatch.setattr(
        "dpacct.pictures.Drawing.to_bytes", lambda self, _: pictures.append(self) or b""
    )
    words = "explore --noise 9,8,10 --rounds 10,20 --sampling full --accountant gdp --delta 1e-6"
    assert dpacct(words, "-o a.svg").code == 0
    picture = pictures[0].picture
    [panel] = picture.panels
    rows = dpacct(words, "--json").json["rows"]
    for curve, rounds in zip(panel.curves, (10, 20), strict=True):
        own = {row["noise_multiplier"]: row["epsilon"] for row in rows if row["rounds"] == rounds}
        assert curve.name == f"rounds {rounds}"
        assert list(curve.x) == [8, 9, 10]
        assert list(curve.y) == [own[x]["upper"] for x in curve.x]
        assert list(curve.lower) == [own[x]["lower"] for x in curve.x]
    assert re.fullmatch(
        r"Epsilon \S+ \(noise 10, rounds 10\) to \S+ \(noise 8, rounds 20\)", picture.title
    )
    assert "add-remove" in picture.note
    budget = own[9]["upper"]
    assert dpacct(words, f"--eps {budget} -o b.svg").code == 0
    cells = pictures[1].picture.panels[0].cells
    assert (cells.rows, cells.columns, cells.limit) == (["9", "8", "10"], ["10", "20"], budget)
    shown = {(row["noise_multiplier"], row["rounds"]): row["epsilon"]["upper"] for row in rows}
    assert cells.values == [[shown[noise, n] for n in (10, 20)] for noise in (9, 8, 10)]
    chosen = down(budget, 7)
    inside = sum(upper <= budget for upper in shown.values())
    assert pictures[1].picture.title == f"{inside} of 6 settings are within epsilon {chosen}"
    assert cells.fits(0, 1)
    many = dpacct("explore --noise 1..10 --rounds 1..11 --sampling full --accountant gdp -o c.svg")
    assert many.code == 0
    assert pictures[2].picture.panels[0].cells.limit is None
    refused = dpacct(words, "--eps 3")
    assert (refused.code, "--eps 3 needs -o FILE.png" in refused.err) == (2, True)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1", ["1"]),
        ("0.8,1,1.2", ["0.8", "1", "1.2"]),
        (" 0.8 , 1 ", ["0.8", "1"]),
        ("1,1,2", ["1", "2"]),
        ("100..300/100", ["100", "200", "300"]),
        ("100..350/100", ["100", "200", "300"]),
        ("1..4", ["1", "2", "3", "4"]),
        ("0.1..0.3/0.1", ["0.1", "0.2", "0.3"]),
        ("1..64*4", ["1", "4", "16", "64"]),
        ("1e-6..1e-4*10", ["0.000001", "0.00001", "0.0001"]),
        ("1e-8..1e-7*10", ["0.00000001", "0.0000001"]),
        ("1e3..3e3/1e3", ["1000", "2000", "3000"]),
        ("5,1..3", ["5", "1", "2", "3"]),
        ("7..7", ["7"]),
        # The library judges what is no number.
        ("x", ["x"]),
        ("1,,2", ["1", "", "2"]),
    ],
)
def test_what_is_typed_is_what_is_swept(text: str, found: list[str]) -> None:
    assert read_values("--noise", text) == found


@pytest.mark.parametrize(
    "text",
    ["3..1", "0.5..1", "1..2/0", "1..2/-1", "1..2*1", "0..2*2", "1..x", "1..2/nan", "1..inf"],
)
def test_a_range_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(OptionConflict, match=r"--noise is .*; a range goes up: .*1\.\.9/2"):
        read_values("--noise", text)


@given(st.integers(1, 400), st.integers(1, 200), st.integers(1, 40))
def test_a_range_never_leaves_its_ends(first: int, more: int, step: int) -> None:
    last = first + more
    text = f"{first / 100}..{last / 100}/{step / 100}"
    found = [Fraction(value) for value in read_values("--noise", text)]
    assert found[0] == Fraction(first, 100)
    assert all(b - a == Fraction(step, 100) for a, b in pairwise(found))
    assert found[-1] <= Fraction(last, 100) < found[-1] + Fraction(step, 100)


def test_no_list_is_longer_than_can_be_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "MOST_VALUES", 3)
    assert len(read_values("--noise", "1..3")) == 3
    with pytest.raises(OptionConflict, match="more than 3 values"):
        read_values("--noise", "1..4")
