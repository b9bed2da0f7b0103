"""Forged and damaged ledgers: read as what they say, or refused in one line; never sound with less.

`tests/forgeries.py` makes them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from sqlite3 import IntegrityError
from typing import Any

import pytest

from dpacct import Budget, DpacctError, Ledger, LedgerError, Poisson, Round
from dpacct.items import read_alone
from dpacct.ledger.record.plans import left_of
from forgeries import BUDGET, QUICK, Row, read, write
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
NONE = [0] * 16
# Which entry of the first quick example; the change; words of the problem that `verify` names.
LIES: list[tuple[str, Change, str]] = [
    ("reserve", put(half, *SPENT), "totals"),
    ("reserve", put(half, "state", "run", "spent"), "totals"),
    ("reserve", put(0, "state", "ledger", "rounds"), "totals"),
    ("reserve", put(lambda n: n + 1, "state", "ledger", "rounds"), "totals"),
    ("reserve", put(lambda n: n + 1, "state", "ledger", "latest"), "totals"),
    ("reserve", put(lambda n: n + 1, "state", "run", "cursor"), "totals"),
    ("reserve", put(lambda flag: not flag, "state", "run", "private"), "totals"),
    ("reserve", put(lambda flag: not flag, "state", "run", "initial"), "totals"),
    ("reserve", put(lambda delta: 2 * delta, "state", "ledger", "delta"), "totals"),
    ("reserve", put(1e-6, "state", "ledger", "plan_delta"), "totals"),
    ("reserve", put("replace-one", "state", "ledger", "adjacency"), "totals"),
    ("kind", put(lambda z: 2 * z, "data", "charged", "noise_multiplier"), "charges more"),
    ("kind", put(lambda z: z / 2, "data", "charged", "noise_multiplier"), "charges less"),
    ("kind", put(half, "data", "cost"), "charges less"),
    ("kind", put(lambda cost: [2 * part for part in cost], "data", "cost"), "charges more"),
    ("kind", put(4.0, "data", "releases", 1, "noise_multiplier"), "releases together"),
    ("kind", put(4.0, "data", "releases", 0, "noise_multiplier"), "releases together"),
    ("kind", put(4.0, "data", "noise_multiplier"), "releases together"),
    ("reserve", put(1, "data", "s"), "frees another amount"),
    ("reserve", put(99, "data", "s"), "plan covers"),
    ("reserve", put(None, "data", "s"), "totals"),
    ("reserve", put(2, "data", "n"), "totals"),
    ("reserve", put(0, "data", "n"), "several rounds"),
    ("reserve", put(2.0, "data", "n"), "several rounds"),
    ("reserve", put(4, "data", "n"), "cover all of them"),
    ("reserve", put(NONE, "data", "freed"), "frees another amount"),
    ("reserve", put(NONE, "data", "cost"), "charges less"),
    ("reserve", put([0], "data", "cost"), "cannot be read|charges less"),
    ("reserve", put(2, "data", "k"), "no entry before describes"),
    ("reserve", put(9, "data", "k"), "no entry before describes"),
    ("run", put(half, "state", "ledger", "held"), "totals"),
    ("run", put(half, "data", "cost"), "charges less"),
    ("run", put([1e-5, 0.0, 0.0], "data", "room"), "do not fit into the budget"),
    ("run", put(lambda flag: not flag, "data", "private"), "totals"),
    ("run", put(2, "data", "plan", 0, "rounds"), "charges more"),
    ("run", put(9, "data", "plan", 0, "rounds"), "charges less"),
    ("run", put(3.0, "data", "plan", 0, "noise_multiplier"), "charges less"),
    ("run", put(lambda n: n + 1, "state", "ledger", "runs"), "totals"),
    ("abandon", put(2, "closes"), "not open"),
    ("abandon", put(None, "closes"), "index"),
    ("commit", put(99, "closes"), "not open"),
    ("commit", put(None, "closes"), "index"),
    ("reserve", put(3, "closes"), "index"),
    ("commit", put(lambda n: n + 1, "state", "run", "committed"), "totals"),
    ("finish", put(False, "state", "run", "finished"), "totals"),
    ("ledger", put(1e-4, "data", "budget", "delta"), "totals"),
    ("run", put(10.0, "data", "plan", 0, "noise_multiplier"), "charges more"),
    ("ledger", put(lambda orders: [2 * order for order in orders], "data", "orders"), "less"),
    ("ledger", put(lambda orders: [order**0.5 for order in orders], "data", "orders"), "more"),
    ("ledger", put(lambda orders: orders[::-1], "data", "orders"), "less|more"),
    ("ledger", put([0] * 16, "state", "ledger", "held"), ""),
    ("ledger", put([0] * 11, "state", "ledger", "held"), "another form|totals"),
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
        state, data = rows[-1].content["state"]["ledger"], rows[-1].content["data"]
        assert 0 < state["plan_delta"] <= 1e-5
        state["plan_delta"] *= share
        state["delta"] = left_of(1e-5, state["plan_delta"])
        data["room"][:2] = state["delta"], state["plan_delta"]
        problem = problem_of(path.with_name(str(share)), rows)
        assert "its plans do not fit into the budget as it says" in problem


def test_a_round_that_its_place_in_the_plan_does_not_cover_is_found(path: Path) -> None:
    """It is charged as the planned one, which costs less."""
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("planned", 3 * Round(9.0)).reserve(Round(9.0)).commit()
        mixture = ledger._file.known.opening.mixture
    for number, (change, words) in enumerate((
        ({"noise_multiplier": 8.0}, "no round of the plan covers it"),
        ({"adjacency": "zero-out"}, "no round of the plan covers it"),
    )):  # fmt: skip
        rows = read(path)
        data = rows[2].content["data"]
        data["charged"] |= change
        data["cost"] = mixture.cost(read_alone(data["charged"]))
        assert words in problem_of(path.with_name(str(number)), rows)


def test_rounds_given_back_do_not_hide_that_there_was_too_much(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, Budget(1, 1e-5)) as ledger:
        run = ledger.start_run("x")
        monkeypatch.setattr("dpacct.ledger.writing.exceeds", lambda *_: False)
        run.reserve(Round(0.5)).abandon("hidden")
        assert "the rounds charged before it exceed the budget" in ledger.verify().problems[0]


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


def test_an_entry_that_no_ledger_wrote_is_refused_by_its_number(
    path: Path, originals: list[list[Row]]
) -> None:
    for kind, change in (
        ("ledger", drop("data", "orders")),
        ("ledger", put({"epsilon": -1.0, "delta": 1e-5}, "data", "budget")),
        ("ledger", put([0.5] * 11, "data", "weights")),
        ("ledger", put({"country": ["DE"]}, "data", "partitions")),
        ("run", put("x", "data", "plan", 0, "sampling")),
        ("finish", put(1, "state", "ledger", "extra")),
        ("kind", put("x", "data", "releases", 0)),
        ("reserve", put("later", "kind")),
        ("reserve", drop("data", "k")),
    ):
        number = forged(path, originals[0], kind, change)
        try:
            with Ledger.open(path, read_only=True) as ledger:
                (problem,) = ledger.verify().problems
        except LedgerError as error:
            problem = str(error)
        assert f"entry {number}: " in problem
        assert problem.isprintable()


def test_a_value_of_another_type_is_refused_in_words_wherever_it_stands(
    path: Path, originals: list[list[Row]]
) -> None:
    deep: Any = []
    for _ in range(900):
        deep = [deep]
    rows = originals[0]
    places = {
        (row.content["kind"], *(0 if type(key) is int else key for key in place)): (number, place)
        for number, row in enumerate(rows)
        for place in places_of(row.content)
        if len(place) > 1
    }
    wrong = (None, "x", [], {"a": 1}, True, -1, 0.5, 10**300, deep)
    for turn, (number, place) in enumerate([*places.values()][:: 3 if MANY == 1 else 1]):
        changed = copy.deepcopy(rows)
        put(wrong[turn % len(wrong)], *place)(changed[number].content)
        write(path, changed)
        with suppress(DpacctError), Ledger.open(path, read_only=True) as ledger:
            for reading in (ledger.verify, ledger.epsilon, ledger.report, ledger.export):
                with suppress(DpacctError):
                    list(found) if isinstance(found := reading(), Iterator) else None
            for run in ledger.runs:
                run.unsettled()


@pytest.mark.parametrize("run", [0, 1, 2, 9])
def test_an_entry_of_another_run_is_read_or_refused_in_words(
    path: Path, originals: list[list[Row]], run: int
) -> None:
    for rows in originals:
        for number in range(1, len(rows)):
            changed = copy.deepcopy(rows)
            changed[number].content["run"] = run
            # Two totals of one run are no table that could be read.
            with suppress(IntegrityError):
                write(path, changed)
            with suppress(DpacctError), Ledger.open(path, read_only=True) as ledger:
                for reading in (ledger.verify, ledger.report, ledger.summary):
                    with suppress(DpacctError):
                        reading()


def places_of(content: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value within a JSON object."""
    inner = content.items() if type(content) is dict else enumerate(content)
    for key, value in inner:
        yield (*place, key)
        if type(value) in (dict, list):
            yield from places_of(value, (*place, key))
