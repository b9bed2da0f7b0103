"""Forged and damaged ledgers: read as what they say, or refused in one line; never sound with less.

`tests/forgeries.py` makes them.
"""

from __future__ import annotations

import copy
import math
import random
import sqlite3
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import forgeries
from dpacct import Budget, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.record.plans import left_of
from forgeries import BUDGET, QUICK, Row, forge, outcome, read, uses, write
from ledgers import MANY

Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> list[list[Row]]:
    """The lines of the quick examples."""
    folder = tmp_path_factory.mktemp("originals")
    found = []
    for number, make in enumerate(QUICK):
        path = folder / str(number)
        make(path)
        with Ledger.open(path, read_only=True) as ledger:
            assert ledger.verify().sound
        found.append(read(path))
    return found


def spends_less(forged: dict[str, Any], truth: dict[str, Any]) -> bool:
    """Whether a summary tells of fewer rounds, or of a smaller epsilon."""

    def figures(said: dict[str, Any]) -> list[float]:
        found = (said["rounds"], said["epsilon"]["upper"], said["epsilon_any_stop"])
        return [math.inf if value is None else value for value in found]

    pairs = zip(figures(forged), figures(truth), strict=True)
    return any(told < true * (1 - 1e-9) for told, true in pairs)


def is_one_line(line: str) -> bool:
    return line.isprintable() and 0 < len(line) < 1000


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", range(3))
def test_no_forgery_gives_a_traceback_and_none_that_is_sound_spends_less(
    tmp_path: Path, originals: list[list[Row]], seed: int
) -> None:
    dice = random.Random(seed)  # noqa: S311 - not for privacy
    path, truth = tmp_path / "forged", []
    for rows in originals:
        write(path, rows)
        with Ledger.open(path, read_only=True) as ledger:
            truth.append(ledger.summary())
    refused = 0
    for _ in range(1 + MANY):
        which = dice.randrange(len(originals))
        write(path, forge(originals[which], dice))
        data, said = path.read_bytes(), {}
        for name, use in uses(path):
            if name in forgeries.WRITING:
                forgeries.put(path, data)
            said[name], line = outcome(use)
            refused += bool(line)
            assert not line or is_one_line(line), (name, line)
        for page in (said["markdown"], said["html"]):
            assert page is None or all(c.isprintable() or c == "\n" for c in page)
        found = said["verify"]
        if found is not None and found.sound:
            assert not spends_less(said["summary"], truth[which])
    # The forgeries are no harmless ones.
    assert refused > 5


# One forgery at a time: (the kind of entry that is changed, the change, what is said of it).


def put(value: Any, *place: Any) -> Change:
    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        content[place[-1]] = value(content[place[-1]]) if callable(value) else value

    return change


def drop(*place: Any) -> Change:
    def change(content: Any) -> None:
        for key in place[:-1]:
            content = content[key]
        del content[place[-1]]

    return change


def half(totals: list[int]) -> list[int]:
    return [total // 2 for total in totals]


SPENT = ("state", "ledger", "spent")
# Which entry of the first quick example; the change; words of the problem that `verify` names.
LIES: list[tuple[str, Change, str]] = [
    ("reserve", put(half, *SPENT), "more than all runs"),
    ("reserve", put(half, "state", "run", "spent"), "totals"),
    ("reserve", put(0, "state", "ledger", "rounds"), "more than all runs|totals"),
    ("reserve", put(lambda n: n + 1, "state", "ledger", "rounds"), "totals"),
    ("reserve", put(lambda n: n + 1, "state", "run", "cursor"), "totals"),
    ("reserve", put(lambda flag: not flag, "state", "run", "private"), "totals"),
    ("reserve", put(lambda flag: not flag, "state", "run", "initial"), "totals"),
    ("reserve", put(lambda delta: 2 * delta, "state", "ledger", "delta"), "totals"),
    ("reserve", put(1e-6, "state", "ledger", "plan_delta"), "totals"),
    ("reserve", put("replace-one", "state", "ledger", "adjacency"), "totals"),
    ("reserve", put(lambda z: 2 * z, "data", "charged", "noise_multiplier"), "releases together"),
    ("reserve", put(lambda z: z / 2, "data", "charged", "noise_multiplier"), "releases together"),
    ("reserve", put(4.0, "data", "releases", 1, "noise_multiplier"), "releases together"),
    ("reserve", put(4.0, "data", "releases", 0, "noise_multiplier"), "releases together"),
    ("reserve", put(4.0, "data", "noise_multiplier"), "releases together"),
    ("reserve", put(True, "data", "left"), "left the plan"),
    ("reserve", put(1, "data", "slot"), "frees another amount"),
    ("reserve", put(99, "data", "slot"), "plan covers"),
    ("reserve", put(None, "data", "slot"), "left the plan"),
    ("run", put(half, "state", "ledger", "held"), "more than all runs"),
    ("run", put(lambda flag: not flag, "data", "private"), "totals"),
    ("run", put(2, "data", "plan", 0, "rounds"), "charges more"),
    ("run", put(9, "data", "plan", 0, "rounds"), "charges less"),
    ("run", put(3.0, "data", "plan", 0, "noise_multiplier"), "charges less"),
    ("run", put(lambda n: n + 1, "state", "ledger", "runs"), "totals"),
    ("abandon", put(2, "data", "round"), "index|not open"),
    ("commit", put(99, "data", "round"), "index"),
    ("commit", put(lambda n: n + 1, "state", "run", "committed"), "totals|at most the number"),
    ("finish", put(False, "state", "run", "finished"), "totals"),
    ("ledger", put(1e-4, "data", "budget", "delta"), "totals"),
    ("run", put(10.0, "data", "plan", 0, "noise_multiplier"), "charges more"),
    ("ledger", put(lambda orders: [2 * order for order in orders], "data", "orders"), "less"),
    ("ledger", put(lambda orders: [order**0.5 for order in orders], "data", "orders"), "more"),
    ("ledger", put(lambda orders: orders[::-1], "data", "orders"), "less|more"),
    ("ledger", put([0] * 11, "state", "ledger", "held"), ""),
]


def forged(path: Path, rows: list[Row], kind: str, change: Change) -> int:
    """One entry of a kind changed, everything linked anew; its number."""
    changed = copy.deepcopy(rows)
    number = next(n for n, row in enumerate(changed, 1) if row.content["kind"] == kind)
    change(changed[number - 1].content)
    write(path, changed)
    return number


@pytest.mark.parametrize(("kind", "change", "words"), LIES)
def test_every_stored_figure_is_recomputed_and_the_entry_named(
    path: Path, originals: list[list[Row]], kind: str, change: Change, words: str
) -> None:
    number = forged(path, originals[0], kind, change)
    try:
        with Ledger.open(path, read_only=True) as ledger:
            found = ledger.verify()
    except LedgerError as error:
        problems = [str(error)]
    else:
        problems = list(found.problems)
        assert found.sound == (not words)
    if words:
        (problem,) = problems
        assert any(word in problem for word in words.split("|")), problem
        named = int(problem.split("entry ")[1].split(":")[0])
        # What does not follow from a changed entry is the next one at the latest that used it.
        assert named >= number


def problem_of(path: Path, rows: list[Row]) -> str:
    write(path, rows)
    with Ledger.open(path) as ledger:
        (problem,) = ledger.verify().problems
    return problem


def test_what_is_set_aside_for_a_plan_is_enough_for_it(path: Path) -> None:
    with Ledger.open(path, Budget(1, 1e-5)) as ledger:
        round_ = Round(3.0, Poisson(0.1))
        ledger.start_run("all of it", ledger.remaining_as_plan(round_) * round_)
    for share in (0.0, 0.5):
        rows = read(path)
        state = rows[-1].content["state"]["ledger"]
        assert 0 < state["plan_delta"] <= 1e-5
        state["plan_delta"] *= share
        state["delta"] = left_of(1e-5, state["plan_delta"])
        problem = problem_of(path.with_name(str(share)), rows)
        assert "its plans do not fit into the budget as it says" in problem


def test_a_round_that_its_place_in_the_plan_does_not_cover_is_found(path: Path) -> None:
    """It is charged as the planned one, which costs less."""
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("planned", 3 * Round(9.0)).reserve(Round(9.0)).commit()
    for number, (change, words) in enumerate((
        ({"noise_multiplier": 8.0}, "no round of the plan covers it"),
        ({"adjacency": "zero-out"}, "its adjacency is another"),
    )):  # fmt: skip
        rows = read(path)
        rows[2].content["data"]["charged"] |= change
        assert words in problem_of(path.with_name(str(number)), rows)


MALFORMED: list[tuple[str, Change]] = [
    (kind, change)
    for kind in ("ledger", "run", "reserve", "commit")
    for change in (
        put(1, "data", "extra"),
        put({}, "extra"),
        put(1, "state", "ledger", "extra"),
        put(1, "state", "extra"),
        put([], "data"),
        put(None, "state"),
        put(True, "state", "ledger", "runs"),
        put(1.5, "state", "ledger", "rounds"),
        put("3", *SPENT, 0),
        put(-1, *SPENT, 0),
        put(10**400, *SPENT, 0),
        put([0], *SPENT),
        put(2.0, "state", "ledger", "delta"),
        put("x", "state", "ledger", "adjacency"),
        drop("state", "ledger", "started"),
        drop("time"),
        drop("state", "run"),
    )
] + [
    ("ledger", drop("data", "orders")),
    ("ledger", put([1.0] * 11, "data", "orders")),
    ("ledger", put([0.5] * 11, "data", "weights")),
    ("ledger", put(["1"] * 11, "data", "weights")),
    ("ledger", put({"epsilon": -1.0, "delta": 1e-5}, "data", "budget")),
    ("ledger", put(7, "data", "unit")),
    ("run", put(7, "data", "name")),
    ("run", put("yes", "data", "private")),
    ("run", put({}, "data", "plan")),
    ("run", put([], "data", "plan")),
    ("run", put("x", "data", "plan", 0, "sampling")),
    ("run", put(0.1, "data", "plan", 0, "sampling_rate")),
    ("run", put(10**13, "data", "plan", 0, "rounds")),
    ("run", put([], "data", "details")),
    ("reserve", put(1.0, "data", "slot")),
    ("reserve", put(None, "data", "left")),
    ("reserve", put("9", "data", "charged", "noise_multiplier")),
    ("reserve", drop("data", "noise_multiplier")),
    ("reserve", put("x", "data", "releases", 0)),
    ("reserve", put(-1.0, "data", "releases", 0, "sensitivity")),
    ("commit", put("3", "data", "round")),
    ("abandon", put(None, "data", "reason")),
]  # fmt: skip


@pytest.mark.sampled(30)
@pytest.mark.parametrize(("kind", "change"), MALFORMED)
def test_keys_and_types_that_are_not_an_entrys_are_refused_by_its_number(
    path: Path, originals: list[list[Row]], kind: str, change: Change
) -> None:
    number = forged(path, originals[0], kind, change)
    try:
        with Ledger.open(path, read_only=True) as ledger:
            (problem,) = ledger.verify().problems
    except LedgerError as error:
        problem = str(error)
    assert f"entry {number}: " in problem
    assert is_one_line(problem)


def test_dates_and_forms_that_are_none_are_found(path: Path, originals: list[list[Row]]) -> None:
    for time in ("", "2026-01-01", "2026-13-01T00:00:00.000000+00:00", "yesterday", 7, None,
                 "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:00.000000+02:00"):  # fmt: skip
        number = forged(path, originals[0], "commit", put(time, "time"))
        with Ledger.open(path, read_only=True) as ledger:
            assert f"entry {number}: time is " in ledger.verify().problems[0]
    for text in (
        '{"x":1,"x":2}',
        "NaN",
        "1e400",
        "[" * 100_000,
        "1" * 5000,
        '"\u1234"',
        "01",
        "{} ",
    ):
        change = put({"x": forgeries.Raw(text)}, "data", "details")
        number = forged(path, originals[0], "commit", change)
        with Ledger.open(path, read_only=True) as ledger:
            assert f"entry {number}: " in ledger.verify().problems[0]
            line = outcome(lambda: list(ledger.export()))[1]
        assert not line or is_one_line(line)


def test_rounds_given_back_do_not_hide_that_there_was_too_much(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, Budget(1, 1e-5)) as ledger:
        run = ledger.start_run("x")
        monkeypatch.setattr("dpacct.ledger.writing.exceeds", lambda *_: False)
        run.reserve(Round(0.5)).abandon("hidden")
        assert "the rounds charged before it exceed the budget" in ledger.verify().problems[0]


def test_an_entry_before_the_first_is_found(path: Path, originals: list[list[Row]]) -> None:
    rows = copy.deepcopy(originals[1])
    rows[-1].content["number"] = -13
    write(path, rows)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.verify().problems == ("1 entries are numbered below 1",)


# What SQLite gives back of values that somebody put into its columns.


@pytest.mark.sampled(12)
@pytest.mark.parametrize("column", ["number", "run", "kind", "closes", "text", "hash"])
@pytest.mark.parametrize(
    "value", ["NULL", "1.5", "-1", "9223372036854775807", "x'ff'", "CAST(x'ff' AS TEXT)"]
)  # fmt: skip
def test_values_of_any_type_in_any_column_are_refused_in_words(
    path: Path, originals: list[list[Row]], column: str, value: str
) -> None:
    write(path, originals[0])
    connection = sqlite3.connect(path, isolation_level=None)
    for trigger in ("entries_keep", "entries_stay"):
        connection.execute(f"DROP TRIGGER {trigger}")
    try:
        connection.execute(f"UPDATE entries SET {column} = {value} WHERE number = 4")  # noqa: S608
    except sqlite3.IntegrityError:
        return
    finally:
        connection.close()
    for name, use in uses(path, ("open", "verify", "epsilon", "export")):
        found, line = outcome(use)
        assert not line or is_one_line(line), name
        if name == "verify":
            assert line or not found.sound


def test_what_is_written_into_a_forged_ledger_is_refused_or_sound(
    path: Path, originals: list[list[Row]]
) -> None:
    """A run whose totals exceed those of all runs is not gone on with."""
    changed = copy.deepcopy(originals[1])
    for row in changed:
        if row.content["state"]["run"] is not None:
            row.content["state"]["run"]["spent"][0] += 10**30
    write(path, changed)
    with pytest.raises(LedgerError, match="more than all runs"), Ledger.open(path) as ledger:
        ledger.resume_run(2).reserve(Round(9.0))


@pytest.mark.parametrize("key", ["spent", "held", "rounds"])
def test_runs_that_do_not_add_up_are_refused_at_once(
    path: Path, originals: list[list[Row]], key: str
) -> None:
    """A damaged index would find an older entry of a run, with less in it."""
    changed = copy.deepcopy(originals[0])
    totals = changed[-1].content["state"]["ledger"]
    totals[key] = totals[key] + 1 if key == "rounds" else [n + 1 for n in totals[key]]
    write(path, changed)
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="the runs do not add up"):
            Ledger.open(path, read_only=read_only)


def test_no_forgery_makes_numbers_overflow(path: Path, originals: list[list[Row]]) -> None:
    """Totals at the end of what is read, and orders at both ends."""
    for orders in ([1 + 2e-6] * 11, [1e7] * 11):
        for total in (0, 1, 1 << 199, (1 << 200) + 1, 1 << 512):
            changed = copy.deepcopy(originals[0])
            changed[0].content["data"]["orders"] = orders
            for row in changed:
                for part in filter(None, row.content["state"].values()):
                    part["spent"] = [total] * 11
            write(path, changed)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                for _, use in uses(path, ("epsilon", "remaining", "summary", "verify")):
                    outcome(use)
