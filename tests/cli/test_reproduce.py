"""`dpacct reproduce`: the list, a tiny run of each paper, and runs that stop on the way."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing, suppress
from pathlib import Path

import pytest

pytest.importorskip("torch")

from dpacct.errors import InvalidParameter
from dpacct.reproduce import shipped_names
from dpacct_cli.commands import reproduce

pytestmark = pytest.mark.usefixtures("one_thread", "folder")
PAPER = """
title = "t"
source = "s"
seeds = [0]
[printed]
data = "digits"
method = "dp-fedavg"
clients = 30
q = 0.3
rounds = 6
noise = 1.2
[[column]]
name = "c"
[[row]]
name = "r"
printed = [50]
"""


def test_the_list_names_every_table_and_what_it_needs(dpacct):
    assert dpacct("reproduce --json").json["tables"] == shipped_names()
    assert dpacct("reproduce -q").text.split() == shipped_names()
    assert "needs svhn" in dpacct("reproduce").text


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "table",
    ["dp-fed-ls/table-h8", "dp-fedpgn/table-2-cifar10-rounds", "dp-fedsam/table-4",
     "fed-alpha-normec/figure-messages"],
)  # fmt: skip
def test_a_tiny_run_of_each_paper(dpacct, table):
    data = dpacct(f"reproduce {table} --tiny --json").json
    assert data["tiny"]
    assert all(one["verdict"] == "open" for one in data["cells"])
    page, *_ = map(Path, data["files"])
    assert "mean nothing" in page.read_text(encoding="utf-8")
    lines = (page.parent / "tiny.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(data["cells"])
    assert {file.suffix for file in (page.parent / "unfinished").iterdir()} == {".lock"}
    # Nothing is played again.
    dpacct(f"reproduce {table} --tiny -q")
    assert (page.parent / "tiny.jsonl").read_text(encoding="utf-8").splitlines() == lines


def test_a_stopped_run_goes_on_and_loses_no_evaluation(dpacct, monkeypatch):
    Path("mine.toml").write_text(PAPER, encoding="utf-8")
    written = reproduce.write_output

    def stop(content: str, *rest: object, **named: object) -> None:
        written(content, *rest, **named)
        if len(json.loads(content)) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "write_output", stop)
        assert dpacct("reproduce mine.toml").code == 130
    assert not Path("reproduced/runs.jsonl").exists()
    [kept] = (place for place in Path("reproduced/unfinished").iterdir() if place.is_dir())
    assert len(json.loads((kept / "history.json").read_text("utf-8"))) == 3
    dpacct("reproduce mine.toml --quiet")
    row = json.loads(Path("reproduced/runs.jsonl").read_text("utf-8"))
    assert [step["round"] for step in row["result"]["history"]] == [1, 2, 3, 4, 5, 6]
    # 650 weights of 4 bytes for each of 9 clients, there and back, in each round.
    sent = [step["megabytes"] for step in row["result"]["history"]]
    assert sent == pytest.approx([round_ * 9 * 2 * 2600 / 1e6 for round_ in range(1, 7)])
    assert row["result"]["epsilon"] > row["result"]["history"][2]["epsilon"]
    assert 0 <= row["result"]["train_accuracy"] <= 100
    assert not kept.exists()


def test_one_process_plays_a_run(dpacct):
    Path("mine.toml").write_text(PAPER, encoding="utf-8")
    code = (
        "import sys; from pathlib import Path; from dpacct_cli.commands.reproduce import *\n"
        "[(_, setting)] = read_table('mine.toml').settings()\n"
        "with alone_at(Path('reproduced'), setting): print(1, flush=True); sys.stdin.read()"
    )
    Path("reproduced").mkdir()
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"1\n"
        ran = dpacct("reproduce mine.toml")
        assert ran.code == 2
        assert "another process plays one of these runs" in ran.err
        assert dpacct("reproduce mine.toml --page").code == 0
        other.kill()
    assert dpacct("reproduce mine.toml").code == 0


def test_a_lock_that_another_process_waits_for_is_not_replaced():
    setting = {"method": "dp-fedavg"}
    with reproduce.alone_at(Path(), setting):
        file = next(Path("unfinished").glob("*.lock"))
        waiting = sqlite3.connect(file, timeout=0, isolation_level=None)
        with suppress(sqlite3.OperationalError):
            waiting.execute("PRAGMA user_version")  # Opens the file, and finds it locked.
    with closing(waiting):
        waiting.execute("BEGIN EXCLUSIVE")
        with pytest.raises(InvalidParameter, match="another process"):
            reproduce.alone_at(Path(), setting).__enter__()
    with reproduce.alone_at(Path(), setting):
        pass


@pytest.mark.parametrize("history", ["{", "[5]", "{}", '[{"accuracy": 1}]'])
def test_a_damaged_history_is_named(dpacct, monkeypatch, history):
    Path("mine.toml").write_text(PAPER, encoding="utf-8")
    written = reproduce.write_output

    def stop(content: str, *rest: object, **named: object) -> None:
        written(content, *rest, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(reproduce, "write_output", stop)
        assert dpacct("reproduce mine.toml").code == 130
    [file] = Path("reproduced/unfinished").glob("*/history.json")
    file.write_text(history, encoding="utf-8")
    ran = dpacct("reproduce mine.toml")
    assert ran.code == 2
    assert "it is no list of evaluations" in ran.err


def test_another_file_of_parameters_is_another_run(dpacct):
    text = PAPER.replace("rounds = 6", "rounds = 1")
    Path("mine.toml").write_text(text, encoding="utf-8")
    words = "train dp-fedavg --data digits --rounds 1 --clients 30 --q 0.3 --noise 1.2 -q"
    for times in (1, 2):
        dpacct(f"{words} --ledger a{times}.ledger")
        Path(f"a{times}.model.pt").replace("a.pt")
        dpacct("reproduce mine.toml --init a.pt -q")
        lines = Path("reproduced/runs.jsonl").read_text("utf-8").splitlines()
        assert len(lines) == times


def test_more_runs_give_a_verdict(dpacct):
    text = PAPER.replace("rounds = 6", "rounds = 1").replace("seeds", 'cost = "Seconds."\nseeds')
    Path("mine.toml").write_text(text, encoding="utf-8")
    assert dpacct("reproduce mine.toml").err.startswith("1 runs. Seconds.")
    assert dpacct("reproduce mine.toml -q").text.strip() == "open"
    assert dpacct("reproduce mine.toml -q --repeats 3").text.strip() in ("below", "agrees")
    data = dpacct("reproduce mine.toml --page --json --repeats 3").json
    assert len(data["cells"][0]["values"]) == 3


def test_rows_are_chosen_by_their_names(dpacct):
    rows = '[[row]]\nname = "a, b"\n[[row]]\nname = "c"\noptions = { server_lr = 0.5 }\n'
    text = PAPER.replace("rounds = 6", "rounds = 1") + rows
    Path("mine.toml").write_text(text, encoding="utf-8")
    data = dpacct("reproduce mine.toml --only 'a, b; c' --json").json
    # The first row has the options of the second, and so its run.
    assert [len(one["values"]) for one in data["cells"]] == [1, 1, 1]
    assert len(Path("reproduced/runs.jsonl").read_text("utf-8").splitlines()) == 2


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("dp-fed-ls/table-9", "table is 'dp-fed-ls/table-9'"),
        ("nowhere.toml", "nowhere.toml"),
        ("mine.toml --only x", "a row of mine.toml is one of r"),
        ("mine.toml --repeats 0", "a number from 1 to 100"),
    ],
)
def test_bad_input_is_one_line(dpacct, typed, said):
    Path("mine.toml").write_text(PAPER, encoding="utf-8")
    ran = dpacct(f"reproduce {typed}")
    assert ran.code == 2
    assert said in ran.err
    assert not Path("reproduced").exists()


def test_options_of_all_cells_are_checked_before_the_first_run(dpacct):
    text = PAPER + '[[row]]\nname = "bad"\noptions = { clip_norms = 1 }\n'
    Path("mine.toml").write_text(text, encoding="utf-8")
    ran = dpacct("reproduce mine.toml")
    assert ran.code == 2
    assert "row bad, column c: 'clip_norms' is no key of it" in ran.err
    assert not Path("reproduced").exists()


def test_methods_are_compared_with_the_same_options(dpacct, monkeypatch):
    drawn: list[str] = []
    monkeypatch.setattr(
        "dpacct.pictures.Drawing.save", lambda self, *_, **__: drawn.append(self.picture.title)
    )
    words = "train dp-fedavg,scaffold --rounds 2 --clients 30 --q 0.3 --noise 1.2"
    shown = dpacct(f"{words} --repeats 2").text
    assert "Methods on digits" in shown
    assert "digits, noise 1.2" in shown
    means = [float(line) for line in dpacct(f"{words} --repeats 2 -q").text.split()]
    data = dpacct(f"{words} --repeats 2 --json").json
    assert [cell["row"] for cell in data["cells"]] == ["dp-fedavg", "scaffold"]
    assert means == pytest.approx([sum(cell["values"]) / 2 for cell in data["cells"]])
    records = Path("compared/runs.jsonl").read_text(encoding="utf-8").splitlines()
    runs = [json.loads(line) for line in records]
    # Nothing is played again, and runs are paired by their seeds.
    assert len(runs) == 4
    assert sorted(run["setting"]["public_seed"] for run in runs) == [0, 0, 1, 1]
    assert len({run["result"]["epsilon"] for run in runs}) == 1
    assert drawn[-1] == (
        f"Methods on digits: {'scaffold' if means[1] > means[0] else 'dp-fedavg'} ends best, "
        f"with {max(means):.1f} %"
    )
    # Methods are chosen by the validation part, and not by the rest.
    dpacct(f"{words} --repeats 2 --validation 0.4")
    last = Path("compared/runs.jsonl").read_text(encoding="utf-8").splitlines()[-1]
    seen = json.loads(last)["result"]["history"][-1]["accuracy"]
    page = Path("compared/methods.md").read_text(encoding="utf-8")
    assert "validation accuracy at the end" in page
    data = dpacct(f"{words} --repeats 2 --validation 0.4 --json").json
    assert any(
        100 * seen == pytest.approx(v) or seen == pytest.approx(v)
        for cell in data["cells"]
        for v in cell["values"]
    )


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("dp-fedavg,nosuch", "METHOD is 'nosuch'; a method is one of"),
        ("dp-fedavg,own:Method", "METHOD is 'own:Method'"),
        ("dp-fedavg,", "METHOD is ''"),
        (
            "dp-fedavg,scaffold --data own.csv",
            "--data is 'own.csv'; a comparison",
        ),
        ("dp-fedavg,scaffold --ledger a.ledger", "--ledger contradicts"),
        ("dp-fedavg,scaffold --target-accuracy 0.5", "--target-accuracy contradicts"),
        ("dp-fedavg,scaffold --public-seed 1", "--public-seed 1 contradicts"),
        ("dp-fedavg,scaffold --repeats 0", "--repeats is 0"),
    ],
)
def test_what_is_not_of_several_runs_is_refused(dpacct, typed, said):
    ran = dpacct(f"train {typed}")
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not Path("compared").exists()
