"""Which ledger a run is charged to, at which delta, and which run goes on."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


import dpacct as library
from dpacct import Budget, Ledger, Round
from dpacct.renyi.odometer import Odometer

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

# Everybody in every round: what that costs is computed at once.
QUICK = "--sampling full --batch-size all --local-steps 1 --vectorize no"
TINY = f"--rounds 2 --clients 12 {QUICK}"
DELTA = 1e-5


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def stopped(dpacct: Any, stop_after: Any, words: str) -> Any:
    with stop_after(1):
        ran = dpacct(words)
    assert ran.code == 130
    return ran


def cost(rounds: int, noise: float, delta: float) -> float:
    return library.epsilon(rounds * Round(noise), delta=delta).upper


# One ledger for a data set.


def test_runs_on_the_same_data_are_charged_to_one_ledger(dpacct: Any, folder: Path) -> None:
    dpacct("ledger init digits.ledger --eps 20 --delta 1e-3")
    runs = [dpacct(f"train {method} {TINY} --noise 1.5 --json").json
            for method in ("dp-fedavg", "blur", "dp-fedavg")]  # fmt: skip
    assert {run["ledger"] for run in runs} == {"digits.ledger"}
    assert [run["model_file"] for run in runs] == [
        "dp-fedavg-digits.model.pt",
        "blur-digits.model.pt",
        "dp-fedavg-digits-2.model.pt",
    ]
    for run in runs:
        assert run["delta"] == 1e-3
        assert run["epsilon"]["upper"] == pytest.approx(cost(2, 1.5, 1e-3), rel=1e-6)
    odometer = Odometer(Budget(20, 1e-3))
    odometer.add(Round(1.5), 6)
    shown = dpacct("ledger show digits.ledger --json").json
    # The first run is a plan, for which an eighth of delta is set aside.
    assert odometer.epsilon < shown["epsilon"]["upper"] < odometer.epsilon * 1.02
    assert shown["epsilon"]["upper"] > max(run["epsilon"]["upper"] for run in runs)
    assert [run["name"] for run in shown["runs"]] == [
        "dp-fedavg-digits",
        "blur-digits",
        "dp-fedavg-digits-2",
    ]
    assert names(folder) & {"digits-2.ledger", "dp-fedavg-digits.ledger"} == set()


def test_a_spent_ledger_refuses_the_next_run_in_words(dpacct: Any, folder: Path) -> None:
    first = dpacct(f"train dp-fedavg {TINY} --json").json
    assert first["epsilon"]["upper"] == pytest.approx(8, rel=1e-5)
    before = names(folder)
    shown = float(dpacct("ledger show digits.ledger -q").text)
    for words in ("--json", "--eps 1 --json"):
        ran = dpacct(f"train dp-fedavg {TINY}", words)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err.count("\n") == 1
        found = re.search(r"the ledger reads epsilon (\S+) of 8 at delta", ran.err)
        assert found is not None
        assert shown <= float(found[1]) <= shown * (1 + 1e-4)
        assert "adaptive bound" in ran.err
        assert "dpacct ledger show digits.ledger" in ran.err
        # The way out comes before the figures.
        assert ran.err.startswith("dpacct: To begin a second budget for the same clients")
        assert ran.err.index("--ledger FILE") < ran.err.index("the ledger reads")
        assert "--resume" not in ran.err
        assert "adds up" in ran.err
    assert names(folder) == before
    with Ledger.open("digits.ledger", read_only=True) as ledger:
        assert len(ledger.runs) == 1


def test_whoever_insists_gets_a_second_budget_and_is_told_what_that_means(
    dpacct: Any, folder: Path
) -> None:
    assert dpacct(f"train dp-fedavg {TINY} --json").json["ledger"] == "digits.ledger"
    ran = dpacct(f"train dp-fedavg {TINY} --ledger mine.ledger")
    assert re.search(r"ledger +mine\.ledger", ran.text)
    note = ran.err.splitlines()[0]
    assert note.startswith("note: mine.ledger and digits.ledger are budgets of their own")
    assert "add up" in note
    assert {"digits.ledger", "mine.ledger"} <= names(folder)


def test_the_ledger_of_a_table_stands_beside_it(dpacct: Any, folder: Path) -> None:
    (folder / "sub").mkdir()
    rows = "\n".join(["a,answer", *(f"{k % 7},{'yes' if k % 7 > 3 else 'no'}" for k in range(90))])
    (folder / "sub" / "people.csv").write_text(rows + "\n", encoding="utf-8")
    words = f"train dp-fedavg --data sub/people.csv --label answer {TINY} --json"
    assert dpacct(words).json["ledger"] == "sub/people.ledger"
    assert (folder / "sub" / "dp-fedavg-people.model.pt").exists()
    assert names(folder) == {"sub"}


# One delta: that of the ledger.


def test_the_ledgers_delta_is_the_default_and_is_said_first(dpacct: Any) -> None:
    dpacct("ledger init loose --eps 30 --delta 0.05")
    ran = dpacct(f"train dp-fedavg --ledger loose --eps 4 {TINY}")
    assert ran.err.splitlines()[0] == ("note: delta is 0.05, that of loose; --delta was not given.")
    assert re.search(
        r"epsilon +4\.0000 proven +3\.9999 achieved +at delta 0\.05 \(that of loose\)", ran.text
    )
    data = dpacct(f"train dp-fedavg --ledger loose --noise 3 {TINY} --json").json
    assert data["delta"] == 0.05
    assert data["epsilon"]["upper"] == pytest.approx(cost(2, 3.0, 0.05), rel=1e-6)
    assert dpacct(f"train dp-fedavg --ledger loose --noise 3 --delta 0.05 {TINY} --json").code == 0


# Runs that were stopped.


def test_a_start_names_the_run_that_holds_the_room_and_both_ways_are_open(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch, stop_after: Any
) -> None:
    stopped(dpacct, stop_after, f"train dp-fedavg {TINY}")
    for way in ("finish", "resume"):
        refused = dpacct(f"train dp-fedavg {TINY}")
        assert refused.code == 1
        assert "held by run 1 ('dp-fedavg-digits', 1 rounds)" in refused.err
        found = re.search(rf"`dpacct ((?:ledger|train) [^`]*{way}[^`]*)`", refused.err)
        assert found is not None
        shutil.copytree(".", f"../{way}-{Path.cwd().name}")
        home = Path.cwd()
        monkeypatch.chdir(f"../{way}-{home.name}")
        assert dpacct(found[1]).code == 0
        data = dpacct("ledger show digits.ledger --json").json
        assert data["runs"][0]["finished"]
        assert data["rounds"] == (1 if way == "finish" else 2)
        monkeypatch.chdir(home)


def test_resume_alone_knows_what_ran(dpacct: Any, stop_after: Any) -> None:
    ran = stopped(dpacct, stop_after, f"train blur {TINY} --set radius=0.5")
    found = re.search(r"dpacct (train blur .* --resume) goes on\.$", ran.err)
    assert found is not None
    data = dpacct("train --resume --json").json
    assert (data["method"], data["rounds"]) == ("blur", 2)
    assert data["epsilon"]["upper"] == pytest.approx(
        cost(2, data["noise_multiplier"], DELTA), rel=1e-6
    )
    again = dpacct("train --resume")
    assert again.code == 2
    assert "no run to resume in this folder; finished: blur-digits" in again.err


@pytest.mark.parametrize(
    "words",
    [
        # A bound of its own, beside a clip norm that is a default of the data.
        f"fed-alpha-normec {TINY}",
        # A default rate that is no whole cohort of so many clients.
        "dp-fedavg --rounds 2 --clients 12 --sampling uniform --noise 9 --local-epochs 1",
    ],
)
def test_what_was_a_default_is_one_when_the_run_goes_on(
    dpacct: Any, stop_after: Any, words: str
) -> None:
    stopped(dpacct, stop_after, f"train {words}")
    ran = dpacct("train --resume --json")
    assert ran.code == 0, ran.err
    assert ran.json["rounds"] == 2


def test_a_second_run_is_shown_how_to_continue_the_stopped_one(
    dpacct: Any, stop_after: Any
) -> None:
    stopped(dpacct, stop_after, f"train blur {TINY} --set radius=0.5")
    ran = dpacct(f"train dp-fedavg {TINY}")
    last = ran.err.splitlines()[-1]
    assert ran.code == 1
    found = re.match(
        r"dpacct: To continue the stopped run: dpacct (train blur .* --resume)\.", last
    )
    assert found is not None, last
    assert last.index("--resume") < last.index("--ledger FILE") < last.index("reads epsilon")
    assert dpacct(found[1], "--json").json["method"] == "blur"


def test_of_several_unfinished_runs_one_is_named(dpacct: Any, stop_after: Any) -> None:
    dpacct("ledger init digits.ledger --eps 30 --delta 1e-3")
    hints = [
        stopped(dpacct, stop_after, f"train {words} {TINY} --noise 2").err
        for words in ("dp-fedavg", "blur", "dp-fedavg")
    ]
    ran = dpacct("train --resume")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "3 are unfinished" in ran.err
    assert "blur-digits, dp-fedavg-digits, dp-fedavg-digits-2." in ran.err
    assert "2 are unfinished" in dpacct("train dp-fedavg --resume").err
    assert "3 are unfinished" in dpacct("train --ledger digits.ledger --resume").err
    assert dpacct("train blur --resume --json").json["method"] == "blur"
    # Each hint leads to its own run.
    found = re.search(r"dpacct (train .* --resume) goes on", hints[2])
    assert found is not None
    assert dpacct(found[1], "--json").json["checkpoint"] == "dp-fedavg-digits-2.checkpoint"
    # Now there is one.
    assert dpacct("train --resume --json").json["checkpoint"] == "dp-fedavg-digits.checkpoint"
    shown = dpacct("ledger show digits.ledger --json").json
    assert [run["committed"] for run in shown["runs"]] == [2, 2, 2]


def test_a_run_with_the_ledger_of_another_is_refused(dpacct: Any, stop_after: Any) -> None:
    stopped(dpacct, stop_after, f"train dp-fedavg {TINY} --ledger a.ledger")
    stopped(dpacct, stop_after, f"train dp-fedavg {TINY} --ledger b.ledger")
    for name in ("ledger", "ledger.witness"):
        shutil.copy(f"b.{name}", f"a.{name}")
    ran = dpacct("train --resume --run a")
    assert (ran.code, ran.out) == (1, "")
    assert "the checkpoint a.checkpoint belongs to another ledger" in ran.err
    assert dpacct("train --resume --run b").code == 0


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("--resume --run ''", "--run is missing"),
        ("--resume --run /", "--run is '/'"),
        ("--resume --run loop", "--run is 'loop'"),
        ("--resume --ledger loop", "there is no run to resume"),
        (f"dp-fedavg {TINY} --noise 9 --ledger loop", "loop: no ledger can be opened"),
    ],
)
def test_names_that_lead_nowhere_are_refused_in_one_line(
    dpacct: Any, folder: Path, words: str, part: str
) -> None:
    dpacct(f"train dp-fedavg {TINY} --noise 9")
    (folder / "loop").symlink_to(folder / "other")
    (folder / "other").symlink_to(folder / "loop")
    ran = dpacct(f"train {words}")
    assert ran.code in (1, 2)
    assert part in ran.err.splitlines()[-1]
    assert "Traceback" not in ran.err


def test_damaged_settings_of_others_do_not_stand_in_the_way(
    dpacct: Any, stop_after: Any, folder: Path
) -> None:
    stopped(dpacct, stop_after, f"train dp-fedavg {TINY}")
    (folder / "other.settings.json").write_text("{", encoding="utf-8")
    (folder / "odd.settings.json").write_text(
        '{"method": "blur", "ledger": "../../etc/x"}', encoding="utf-8"
    )
    assert dpacct("train --resume -q").code == 0
    for stem in ("other", "odd"):
        ran = dpacct(f"train --resume --run {stem}")
        assert ran.code == 2
        assert "the settings of the run belong in the folder of its ledger" in ran.err
