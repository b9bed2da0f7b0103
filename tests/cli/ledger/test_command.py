"""`dpacct ledger ...`: every command, for people and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Budget, Laplace, Ledger, Poisson, Round
from dpacct.display import up
from forgeries import Row, read, write

COMMANDS = ["init", "show", "verify", "report", "remaining", "charge", "finish", "export"]
ROUND = Round(1.3, Poisson(0.1))


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    with Ledger.open("census.ledger", Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("training")
        for _ in range(5):
            run.reserve(ROUND).commit()
        run.reserve(ROUND)
    return "census.ledger"


@pytest.fixture
def part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Ten of thirty planned rounds."""
    monkeypatch.chdir(tmp_path)
    with Ledger.open("part.ledger", Budget(8, 1e-5)) as ledger:
        run = ledger.start_run("training", 30 * Round(9.0))
        for _ in range(10):
            run.reserve(Round(9.0)).commit()
        run.finish()
    return "part.ledger"


def assert_refused(result: Any, code: int, *parts: str) -> None:
    assert result.code == code, result.out + result.err
    assert result.err.startswith("dpacct: ")
    assert result.err.count("\n") == 1
    for part in parts:
        assert part in result.err


@pytest.mark.usefixtures("file")
def test_init(dpacct: Any) -> None:
    words = "ledger init new.ledger --eps 3 --delta 1e-6 --adjacency replace-one --unit writer"
    data = dpacct(words, "--json").json
    assert data["budget"] == {"epsilon": 3.0, "delta": 1e-6}
    assert (data["unit"], data["adjacency"]) == ("writer", "replace-one")
    with Ledger.open("new.ledger") as ledger:
        assert ledger.budget == Budget(3, 1e-6)
    assert_refused(dpacct(words), 2, "FILE is 'new.ledger'", "ever replaced")
    assert "budget" in dpacct("ledger init other.ledger --eps 3").text
    assert dpacct("ledger init third.ledger --eps 3 -q").text == "third.ledger\n"


def test_show(dpacct: Any, file: str) -> None:
    with Ledger.open(file) as ledger:
        upper = ledger.upper_epsilon()
    data = dpacct("ledger show", file, "--json").json
    assert data["epsilon"]["upper"] == upper
    assert (data["rounds"], data["guarantee"], data["delta"]) == (6, "adaptive", 1e-5)
    (run,) = data["runs"]
    assert (run["name"], run["committed"], run["uncommitted"]) == ("training", 5, 1)
    assert dpacct("ledger show", file, "-q").text == f"{upper!r}\n"
    text = dpacct("ledger show", file).text
    for word in ("epsilon", "proven", "achieved", "budget", "one client, add-remove", "training"):
        assert word in text


def test_show_of_a_seeded_run_promises_nothing(dpacct: Any, file: str) -> None:
    with Ledger.open(file) as ledger:
        ledger.start_run("seeded", private=False).reserve(ROUND).commit()
    assert dpacct("ledger show", file, "-q").text == "inf\n"
    assert dpacct("ledger show", file, "--json").json["epsilon"]["upper"] is None
    text = dpacct("ledger show", file).text
    assert "none" in text.splitlines()[1]
    assert "none, not private" in text


def test_the_number_alone_is_the_one_that_holds_in_any_case(dpacct: Any, part: str) -> None:
    data = dpacct("ledger show", part, "--json").json
    whole, so_far = data["epsilon_any_stop"], data["epsilon"]["upper"]
    assert whole > 1.5 * so_far
    assert dpacct("ledger show", part, "-q").text == f"{whole!r}\n"
    lines = dpacct("ledger show", part).text.splitlines()
    assert up(whole) in lines[1]
    assert "even if results influenced when to stop" in lines[1]
    assert up(so_far) in lines[2]
    assert "only if stopping here was decided" in lines[2]
    assert any("10 of 30 planned rounds" in line for line in lines)
    (run,) = (line for line in lines if line.startswith("  1 "))
    assert run.index(up(whole)) < run.index(up(so_far))
    assert "decided in advance" in run


def test_verify(dpacct: Any, file: str) -> None:
    data = dpacct("ledger verify", file, "--json").json
    assert data["sound"] is True
    assert any("names" in what for what in data["unverified"])
    assert (data["rounds"], data["entries"], data["head_found"]) == (6, 14, None)
    head = dpacct("ledger verify", file, "-q").text.strip()
    assert head == data["head"]
    assert "the head you kept is in the chain" in dpacct("ledger verify", file, "--head", head).text
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("DROP TRIGGER entries_stay")
    connection.close()
    result = dpacct("ledger verify", file, "--head", head[::-1], "--json")
    assert_refused(result, 1, "damaged")
    shown = json.loads(result.out)
    assert (shown["sound"], shown["head_found"]) == (False, False)
    human = dpacct("ledger verify", file)
    assert_refused(human, 1, "the tables are not those of a ledger")
    assert "damaged" in human.out
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("DELETE FROM entries WHERE number = 14")
    connection.close()
    # A witness, and the stored totals, remember what was dropped.
    assert_refused(dpacct("ledger verify", file), 1, "entr")
    Path(f"{file}.witness").unlink()
    assert_refused(dpacct("ledger verify", file), 1, "entry 14 is missing")


def test_remaining(dpacct: Any, file: str) -> None:
    words = f"ledger remaining {file} --noise 1.3 --q 0.1"
    with Ledger.open(file) as ledger:
        expected, after = ledger.remaining(ROUND), ledger.would_read(1 * ROUND)
    assert dpacct(words, "-q").text == f"{expected}\n"
    data = dpacct(words, "--json").json
    assert (data["remaining"], data["remaining_as_plan"]) == (expected, expected)
    assert data["would_read"] == {"lower": after.lower, "upper": after.upper}
    assert "more such rounds" in dpacct(words).text
    dpacct("ledger init fresh.ledger --eps 8")
    fresh = dpacct("ledger remaining fresh.ledger --noise 1.3 --q 0.1").text
    assert "chosen one by one" in fresh
    uniform = "ledger remaining fresh.ledger --noise 4 --sampling uniform --cohort 10 --clients 999"
    assert dpacct(uniform, "--json").json["remaining"] > 1
    step = [{"rounds": 2, "noise_multiplier": 4.0}, {"mechanism": "laplace", "epsilon": 0.1}]
    Path("step.json").write_text(json.dumps({"phase": step}), encoding="utf-8")
    steps = dpacct("ledger remaining fresh.ledger --schedule step.json")
    assert "more such runs of 3 releases" in steps.text


def old(name: str, folder: Path) -> Path:
    """A ledger of version 0.3."""
    fixtures = Path(__file__).parents[2] / "fixtures" / "v0_3"
    for file in fixtures.glob(f"{name}.ledger*"):
        shutil.copy(file, folder)
    return folder / f"{name}.ledger"


def test_a_ledger_with_totals_that_are_too_low_says_so_until_it_is_written_to(
    dpacct: Any, tmp_path: Path
) -> None:
    file = old("low", tmp_path)
    for words in (f"ledger show {file}", f"ledger charge {file} --laplace 0.1"):
        assert dpacct(words).err.startswith("note: dpacct 0.3 charged a run")
    assert not dpacct(f"ledger show {file}").err
    assert dpacct(f"ledger show {file} --json").json["epsilon"]["upper"] >= 2.1


@pytest.mark.usefixtures("file")
def test_the_game_is_an_option_that_the_refusal_names(dpacct: Any) -> None:
    rounds = "--noise 4 --rounds 8 --sampling uniform --q 0.27"
    epsilon = dpacct(f"epsilon {rounds} --delta 1e-6 -q").text
    dpacct(f"ledger init game.ledger --delta 1e-6 --eps {float(epsilon) * (1 + 1e-6)!r}")
    refused = dpacct(f"ledger charge game.ledger {rounds}")
    assert refused.code == 1
    assert "--accountant tight" in refused.err
    assert dpacct(f"ledger charge game.ledger {rounds} --accountant tight -q").text
    wrong = dpacct(f"ledger charge game.ledger {rounds} --accountant rdp")
    assert (wrong.code, "pairs" in wrong.err) == (2, True)


@pytest.mark.usefixtures("file")
def test_charge_records_rounds_that_ran_elsewhere(dpacct: Any) -> None:
    dpacct("ledger init new.ledger --eps 8")
    words = "ledger charge new.ledger --noise 1.3 --rounds 40 --q 0.1 --name notebook"
    data = dpacct(words, "--json").json
    spent = library.epsilon(40 * ROUND, delta=1e-5)
    assert data["epsilon"]["upper"] == pytest.approx(spent.upper, rel=1e-6)
    assert (data["run"], data["charged"], data["delta"]) == (1, 40, 1e-5)
    assert (data["adjacency"], data["sampling_rate"]) == ("add-remove", 0.1)
    text = dpacct(words).text
    assert re.search(r"charged +40 +rounds, as run 2", text)
    shown = dpacct("ledger show new.ledger --json").json
    assert [run["name"] for run in shown["runs"]] == ["notebook", "notebook"]
    assert all(run["finished"] for run in shown["runs"])
    number = dpacct("ledger charge new.ledger --noise 9 --rounds 1 --q 0.1 -q").text
    assert float(number) == dpacct("ledger show new.ledger --json").json["epsilon"]["upper"]


@pytest.mark.usefixtures("file")
def test_charge_records_a_statistic(dpacct: Any) -> None:
    dpacct("ledger init new.ledger --eps 3")
    data = dpacct("ledger charge new.ledger --laplace 0.1 --times 5 --json --name ages").json
    with Ledger.open("python.ledger", Budget(3, 1e-5)) as ledger:
        ledger.charge("ages", 5 * Laplace(epsilon=0.1))
        summary = ledger.summary()
    assert data["epsilon"] == summary["epsilon"]
    assert data["phases"] == [{"rounds": 5, "mechanism": "laplace", "noise_multiplier": 10.0}]
    assert dpacct("ledger show new.ledger --json").json["runs"][0]["name"] == "ages"


@pytest.mark.usefixtures("file")
def test_charge_beyond_the_budget_needs_to_be_said(dpacct: Any) -> None:
    words = "ledger charge census.ledger --noise 0.5 --rounds 99 --q 0.1"
    with Ledger.open("census.ledger") as ledger:
        before = ledger.head
        assert_refused(dpacct(words), 1, "does not fit", "--over-budget records them")
        assert ledger.head == before
    text = dpacct(words, "--over-budget").text
    assert "more than the budget: no further round is admitted" in text
    shown = dpacct("ledger show census.ledger").text
    assert "more than the budget" in shown
    assert "recorded beyond the budget" in dpacct("ledger verify census.ledger").text
    again = dpacct("ledger charge census.ledger --noise 1e3 --rounds 1 --q 0.1")
    assert_refused(again, 1, "does not fit")


@pytest.mark.usefixtures("file")
def test_finish_frees_what_a_dead_run_holds(dpacct: Any) -> None:
    dpacct("ledger init new.ledger --eps 8")
    with Ledger.open("new.ledger") as ledger:
        run = ledger.start_run("dead", 150 * ROUND)
        run.reserve(ROUND).commit()
        run.reserve(ROUND)
    words = "ledger charge new.ledger --noise 1.3 --rounds 150 --q 0.1"
    refused = dpacct(words)
    assert_refused(refused, 1, "run 1 ('dead', 148 rounds)")
    found = re.search(r"`dpacct (ledger finish \S+ --run 1)` frees it, and", refused.err)
    assert found is not None
    text = dpacct(found[1]).text
    assert re.search(r"free again +148 +rounds", text)
    assert "1 of them reserved and never released" in text
    assert dpacct(words).code == 0
    assert_refused(dpacct(found[1]), 1, "run 1 is finished")
    with Ledger.open("new.ledger") as ledger:
        assert ledger.rounds == 152
        ledger.start_run("other", 3 * Round(9.0, Poisson(0.1)))
    data = dpacct("ledger finish new.ledger --run 3 --json").json
    assert (data["freed"], data["run"], data["finished"]) == (3, 3, True)


@pytest.mark.usefixtures("file")
def test_a_new_ledger_with_a_large_delta_is_worth_a_note(dpacct: Any) -> None:
    loose = dpacct("ledger init loose --eps 30 --delta 0.05")
    assert loose.err.count("note: delta 0.05") == loose.err.count("\n") == 1
    assert dpacct("ledger init tight --eps 30").err == ""


def test_export(dpacct: Any, file: str) -> None:
    lines = dpacct("ledger export", file).text.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["number"] for entry in entries] == list(range(1, 15))
    assert dpacct("ledger export", file, "--json").json["entries"] == entries
    assert dpacct("ledger export", file, "-o all.jsonl").text == ""
    assert Path("all.jsonl").read_text(encoding="utf-8").splitlines() == lines


def test_a_ledger_is_never_overwritten(dpacct: Any, file: str) -> None:
    before = Path(file).read_bytes()
    Path("link.md").symlink_to(file)
    Path("hard.md").hardlink_to(file)
    for target in ("link.md", "hard.md", "./link.md"):
        for words in ("ledger report census.ledger", "ledger export census.ledger"):
            refused = dpacct(words, f"-o {target} --force")
            assert_refused(refused, 2, "it is a ledger, and is never replaced")
    for target in (file, f"./{file}", str(Path(file).absolute()), f"{file}-wal", f"{file}.witness"):
        refused = dpacct("ledger export census.ledger --force -o", target)
        assert_refused(refused, 2, "and is never replaced")
    assert Path(file).read_bytes() == before
    Path("hard.md").unlink()
    assert dpacct("ledger verify", file, "--json").json["sound"] is True


def test_no_control_character_reaches_the_terminal(dpacct: Any, part: str) -> None:
    evil = "\x1b[31mred\x07\ud800\u202e" * 1000
    rows = [Row(json.loads(json.dumps(row.content))) for row in read(Path(part))]
    for row in rows:
        data = row.content["data"]
        for key in {"name", "unit", "software"} & set(data):
            data[key] = evil
        if "details" in data:
            data["details"] = {evil: evil}
    write(Path(part), rows)
    for command in ("show", "verify", "report", "export", "remaining --noise 9 --sampling full"):
        name, _, options = command.partition(" ")
        for style in ("", "--json"):
            ran = dpacct(f"ledger {name}", part, options, style)
            assert ran.code == 0, ran.err
            for text in (ran.out, ran.err):
                assert all(letter.isprintable() or letter == "\n" for letter in text)
    assert max(map(len, dpacct("ledger show", part).text.splitlines())) < 250
    rows[1].content["data"]["plan"] = evil
    write(Path(part), rows)
    ran = dpacct("ledger show", part)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert ran.err.strip().isprintable()
