"""`dpacct train`: runs that are charged, files that hold what they say, stops that can go on."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import dpacct as library
from dpacct.fl import ClientData, Diagnostics, RoundReport, evaluate
from dpacct.fl.data import load_digits
from dpacct.fl.models import build_model
from dpacct.fl.report import RELEASED, UNPROTECTED
from dpacct.ledger import Ledger
from dpacct.packages import install_command
from dpacct_cli.train import command, job
from dpacct_cli.train.run import describe
from dpacct_cli.train.settings import RunSettings
from hostile import in_time

pytestmark = pytest.mark.usefixtures("one_thread", "folder")


def small(rounds: int) -> str:
    return f"train dp-fedavg --rounds {rounds} --clients 20 --q 0.5 --local-epochs 1"


SMALL = small(rounds=3)


def report(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(name).read_text(encoding="utf-8").splitlines()]


def test_what_is_printed_is_what_was_charged(dpacct: Any) -> None:
    data = dpacct(SMALL, "--eps 5 --delta 1e-3 --json").json
    plan = 3 * library.Round(data["noise_multiplier"], library.Poisson(0.5))
    spent = library.epsilon(plan, delta=1e-3, accountant="tight")
    assert data["epsilon"]["target"] == 5
    assert data["epsilon"]["upper"] <= 5
    assert data["epsilon"]["upper"] == pytest.approx(spent.upper, rel=1e-6)
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        (run,) = ledger.runs
        assert (run.committed, run.private, run.finished) == (3, True, True)
        assert run.epsilon().upper == data["epsilon"]["upper"]


def test_a_schedule_is_played_and_charged_as_it_stands_in_its_file(dpacct: Any) -> None:
    Path("plan.csv").write_text("rounds,noise_multiplier,sampling_rate\n2,2,0.5\n1,1.5,0.25\n")
    usual = "train dp-fedavg --clients 20 --local-epochs 1 --delta 1e-3 --schedule plan.csv"
    plan = 2 * library.Round(2.0, library.Poisson(0.5)) + library.Round(1.5, library.Poisson(0.25))
    data = dpacct(usual, "--json").json
    assert (data["rounds"], data["noise_multiplier"], data["epsilon"]["target"]) == (3, None, None)
    assert data["epsilon"]["upper"] == pytest.approx(library.epsilon(plan, delta=1e-3).upper)
    assert [phase["noise_multiplier"] for phase in data["phases"]] == [2.0, 1.5]
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        assert [(r.noise_multiplier, n) for r, n in ledger.runs[0].plan] == [(2.0, 2), (1.5, 1)]
    scaled = dpacct(usual, "--eps 2 --json --ledger second.ledger").json
    assert 1.99 < scaled["epsilon"]["upper"] <= 2
    assert "contradicts --rounds" in dpacct(usual, "--rounds 3").err
    assert "public_size" in dpacct(usual, "--adjacency add-remove").err


def test_files_hold_what_the_summary_says(dpacct: Any) -> None:
    data = dpacct(SMALL, "--json").json
    digits = load_digits()
    model = build_model("logistic", digits)
    model.load_state_dict(torch.load(data["model_file"], weights_only=True))
    tested = ClientData(*digits.test.batch(slice(None)))
    found = evaluate(model, torch.nn.functional.cross_entropy, tested).accuracy
    assert found == data["test_accuracy"]
    rows = report(data["report"])
    assert [row["round"] for row in rows] == [1, 2, 3]
    assert rows[2]["test_accuracy"] == data["test_accuracy"]
    assert rows[1]["epsilon_upper"] < rows[2]["epsilon_upper"]
    spent = dpacct("epsilon --json --from", data["report"]).json["epsilon"]
    assert spent["upper"] == data["epsilon"]["upper"]
    assert all(name in RELEASED or name.startswith(UNPROTECTED) for row in rows for name in row)


@pytest.mark.slow
def test_a_run_without_typed_options_learns(dpacct: Any) -> None:
    data = dpacct("train dp-fedavg --json").json
    assert data["epsilon"]["upper"] <= data["epsilon"]["target"] == 8
    assert data["clients"] == 100
    # Guessing gives 0.1; twenty runs of these defaults gave 0.84 to 0.90.
    assert data["test_accuracy"] > 0.75


def test_a_person_reads_accuracy_budget_and_files(dpacct: Any) -> None:
    ran = dpacct(SMALL)
    lines = [line for line in ran.text.splitlines() if line.strip()]
    assert re.match(r"  test accuracy +0\.\d+ +on 360 public test examples$", lines[0])
    assert re.match(r"  epsilon .*proven .*achieved +at delta 1e-05$", lines[1])
    assert "3 rounds, Poisson sampling at rate 0.5, zero out one client" in lines[2]
    for name in ("  digits.ledger", "dp-fedavg-digits.model.pt", ".report.jsonl"):
        assert name in ran.text
    assert "round 3" not in ran.err
    planned, *_ = ran.err.splitlines()
    assert planned.startswith("plan: 3 rounds, Poisson sampling at rate 0.5, zero out one client, ")
    assert planned.endswith(", epsilon 8.00 at the end")


def test_without_a_bar_a_line_says_how_long_the_rest_takes(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct_cli.waiting.PATIENCE", 0.0)
    _, estimate = dpacct(SMALL).err.splitlines()
    assert re.fullmatch(r"about \d+ s for 1 more round", estimate)
    assert dpacct(SMALL, "--ledger quiet.ledger -q").err == ""


def test_a_seed_repeats_the_run_and_takes_its_privacy(dpacct: Any) -> None:
    one, two = (dpacct(SMALL, f"--seed 5 --ledger {n}.ledger --json").json for n in (1, 2))
    assert one["test_accuracy"] == two["test_accuracy"]
    weights = [torch.load(run["model_file"], weights_only=True) for run in (one, two)]
    assert torch.equal(weights[0]["linear.weight"], weights[1]["linear.weight"])
    assert one["private"] is False
    assert "seed" in one["not_private_because"]
    assert one["epsilon"]["upper"] is None
    assert dpacct("epsilon -q --from", one["report"]).text == "inf\n"
    text = dpacct(SMALL, "--seed 5 --ledger second.ledger").text
    assert re.search(r"epsilon +infinite +a seed was given", text)
    with Ledger.open(one["ledger"], read_only=True) as ledger:
        assert ledger.runs[0].private is False
    assert dpacct(SMALL, "--public-seed 3 --ledger public.ledger --json").json["private"] is True


def test_a_method_as_printed_says_that_its_epsilon_is_infinite(dpacct: Any) -> None:
    ran = dpacct("train dp-fed-ls --as-printed --clients 20 --rounds 2 --ledger printed.ledger")
    assert re.search(r"epsilon +infinite +the sum is divided by the number of clients", ran.out)
    shown = dpacct("ledger show printed.ledger").out
    assert "(as printed), so no guarantee holds." in shown
    data = dpacct("train dp-fed-ls --as-printed --clients 20 --rounds 2 --json").json
    assert (data["private"], data["epsilon"]["upper"]) == (False, None)
    assert "(as printed)" in data["not_private_because"]


def test_a_run_without_noise_says_that_its_epsilon_is_infinite(dpacct: Any) -> None:
    words = f"{SMALL} --noise 0 --ledger bare.ledger"
    ran = dpacct(words)
    assert re.search(r"epsilon +infinite +no noise is added", ran.out)
    assert re.search(r"noise multiplier +0 ", ran.out)
    assert "noise multiplier 0, epsilon inf at the end" in ran.err
    data = dpacct(words, "--json").json
    assert (data["private"], data["not_private_because"]) == (False, "no noise is added")
    assert (data["noise_multiplier"], data["epsilon"]["upper"]) == (0, None)
    shown = dpacct("ledger show bare.ledger").out
    assert "No noise is added, so no guarantee holds." in shown
    assert "no noise is added" in dpacct("ledger report bare.ledger").out.lower()
    assert dpacct("ledger verify bare.ledger").code == 0
    # Another ledger keeps its budget.
    dpacct(SMALL, "--ledger kept.ledger --eps 4")
    refused = dpacct(f"{SMALL} --noise 0 --ledger kept.ledger").err
    assert "a run without noise exceeds any budget, and kept.ledger has one" in refused
    assert refused.endswith("Give --noise above 0, or the name of a new ledger by --ledger.\n")


@pytest.mark.parametrize(
    ("words", "sampling", "rate", "adjacency"),
    [
        ("--sampling uniform", "uniform", 0.3, "replace-one"),
        ("--sampling full", "full", 1.0, "zero-out"),
        ("--cohort 4", "poisson", 0.2, "zero-out"),
        ("--cohort 4 --public-size 16", "poisson", 0.25, "add-remove"),
        ("--q 0.25 --adjacency replace-one", "poisson", 0.25, "replace-one"),
    ],
)
def test_who_takes_part(
    dpacct: Any, words: str, sampling: str, rate: float, adjacency: str
) -> None:
    data = dpacct("train dp-fedavg --rounds 1 --clients 20 --noise 3 --json", words).json
    assert (data["sampling"], data["sampling_rate"]) == (sampling, rate)
    assert data["adjacency"] == adjacency


@pytest.mark.parametrize("words", ["--cohort 4", "--examples --batch 5 --epochs 0.6"])
def test_neighbors_of_a_declared_size_print_and_store_the_same(
    dpacct: Any, words: str, folder: Path
) -> None:
    found = []
    for size in (20, 19):
        shared = f"--public-size 25 --noise 3 {words} --json --ledger n{size}.ledger"
        one = f"--clients {size} --rounds 2" if "examples" not in words else ""
        (folder / "run.toml").write_text(f"[data_options]\nnum_train = {5 * size}\n")
        data = dpacct(f"train dp-fedavg --config run.toml {one}", shared).json
        for key in ("test_accuracy", "seconds", "ledger", "model_file", "report", "checkpoint"):
            del data[key]
        rows = [
            {key: value for key, value in row.items() if key in RELEASED - {"test_accuracy"}}
            for row in map(json.loads, Path(f"n{size}.report.jsonl").read_text().splitlines())
        ]
        settings = torch.load(f"n{size}.checkpoint", weights_only=True)["setting"]
        with Ledger.open(f"n{size}.ledger", read_only=True) as ledger:
            [run] = ledger.runs
            found.append((data, rows, settings, run.plan, run.details, ledger.adjacency))
    assert found[0] == found[1]
    assert found[0][0]["adjacency"] == "add-remove"


def test_a_file_says_what_to_do(dpacct: Any, folder: Path) -> None:
    text = 'clients = 20\nrounds = 2\nnoise = 3\npartition = "dirichlet:0.5"\n'
    (folder / "run.toml").write_text(f"{text}[data_options]\nnum_train = 100\n", encoding="utf-8")
    data = dpacct("train dp-fedavg --config run.toml --rounds 1 --json").json
    assert (data["rounds"], data["clients"], data["noise_multiplier"]) == (1, 20, 3)
    assert data["partition"] == "dirichlet:0.5"


def write_people(folder: Path) -> None:
    rows = [f"{k % 7},{k % 3 / 2},{'yes' if k % 7 > 3 else 'no'},p{k % 9}" for k in range(120)]
    text = "\n".join(["a,b,answer,who", *rows]) + "\n"
    (folder / "people.csv").write_text(text, encoding="utf-8")
    (folder / "people.toml").write_text(
        '[data_options]\nowner = "who"\nnumeric = {a = [0, 6], b = [0, 1]}\n', encoding="utf-8"
    )


def test_a_table_of_ones_own_by_owner(dpacct: Any, folder: Path) -> None:
    write_people(folder)
    words = "train dp-fedavg --data people.csv --label answer --config people.toml --json"
    data = dpacct(words, "--rounds 2 --noise 2").json
    # The other two of nine people are test data.
    assert (data["data"], data["clients"], data["partition"]) == ("people", 7, "natural")
    assert (data["simulated_clients"], data["test_data"]) == (False, "unprotected")
    assert data["label_set"] == "unprotected"
    assert {row["test_data"] for row in report(data["report"])} == {"unprotected"}
    assert data["ledger"] == "people.ledger"
    with Ledger.open("people.ledger", read_only=True) as ledger:
        assert ledger.runs[0].details["simulated_clients"] is False
    dealt = "--partition iid --clients 5 --rounds 1 --noise 9 --ledger second.ledger"
    data = dpacct(words, dealt).json
    assert (data["clients"], data["simulated_clients"]) == (5, True)
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        assert ledger.runs[0].details["simulated_clients"] is True


def test_owner_and_classes_can_be_typed(dpacct: Any, folder: Path) -> None:
    write_people(folder)
    words = "train dp-fedavg --data people.csv --label answer --owner who --rounds 1 --noise 9"
    shown = dpacct(words, "--classes no,yes --target-accuracy 0.01").text
    assert "private examples, without noise: epsilon does not cover it" in shown
    assert "with accuracy 0.01; from private examples: not covered" in shown
    assert "7 clients (natural)" in shown
    assert "label set" not in shown
    assert "simulat" not in shown
    shown = dpacct(words, "--partition iid --clients 4").text
    assert "4 simulated clients (iid)" in shown
    assert "not for the person behind an example" in shown
    assert "say --classes" in shown
    shown = dpacct(
        "train --data people.csv --label answer --owner who --examples --rounds 1 --ledger b.ledger"
    ).text
    assert "an owner of several examples is protected less" in " ".join(shown.split())
    ran = dpacct(words, "--classes no,maybe")
    assert (ran.code, "labels are no, maybe, and row" in ran.err) == (2, True)
    for option in ("--owner who", "--classes 1,2", "--label y"):
        ran = dpacct("train dp-fedavg --data digits", option)
        assert (ran.code, f"{option.split()[0]} contradicts --data digits" in ran.err) == (2, True)


def test_arrays_of_ones_own(dpacct: Any, folder: Path) -> None:
    images = np.arange(40 * 16, dtype=np.uint8).reshape(40, 1, 4, 4)
    np.savez(folder / "own.npz", inputs=images, answer=np.arange(40) % 2, who=np.arange(40) // 4)
    words = "train dp-fedavg --data own.npz --label answer --owner who --classes 0,1 --rounds 1"
    data = dpacct(words, "--noise 9 --json").json
    assert (data["partition"], data["label_set"]) == ("natural", "public")
    assert data["ledger"] == "own.ledger"
    ran = dpacct("train fedavg")
    assert (ran.code, "Did you mean dp-fedavg?" in ran.err) == (2, True)
    ran = dpacct("train dp-fedavg --data own.npz")
    assert (ran.code, "--label names" in ran.err) == (2, True)


def test_natural_owners_are_as_many_as_there_are(dpacct: Any, folder: Path) -> None:
    write_people(folder)
    words = "train dp-fedavg --data people.csv --label answer --config people.toml"
    ran = dpacct(words, "--partition natural --clients 5")
    assert ran.code == 2
    assert "--clients 5 contradicts --partition natural (people has 7 owners)" in ran.err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[data_options]\ncolor = 1\n", "color"),
        ("[data_options]\nnumeric = 3\n", "numeric"),
        ("[data_options]\nnumeric = {a = 3}\n", "[low, high]"),
        ("[data_options]\nunused = ['who']\nnum_train = 97\n", "num_train"),
        ("", "no schema says what they stand for"),
    ],
)
def test_bad_options_of_the_data(dpacct: Any, folder: Path, text: str, words: str) -> None:
    write_people(folder)
    (folder / "run.toml").write_text(text, encoding="utf-8")
    ran = dpacct("train dp-fedavg --data people.csv --label answer --config run.toml")
    assert ran.code == 2
    assert words in ran.err


def test_without_pytorch_one_line_says_what_to_install(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct_cli.errors.find_spec", lambda _: None)
    ran = dpacct("train dp-fedavg")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        f"dpacct: training needs PyTorch, which is not installed: {install_command('fl')}\n"
    )


@pytest.mark.parametrize("words", [["--help"], ["dp-fedavg", "--eps", "8", "--noise", "1"]])
def test_help_and_refusals_do_not_import_pytorch(words: list[str]) -> None:
    code = (
        "import sys\n"
        "from dpacct_cli.app import app\n"
        "try:\n    app(sys.argv[1:])\n"
        "except SystemExit: print('torch' in sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, "train", *words], capture_output=True, text=True, check=True
    )
    assert ran.stderr.splitlines()[-1] == "False"


def test_examples_of_the_help_mean_something(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    text = dpacct("train --help").text
    found = re.findall(r"^ +dpacct (train .*\S) *$", text, flags=re.MULTILINE)
    assert len(found) >= 4
    seen: list[RunSettings] = []
    monkeypatch.setattr(command, "_run", lambda settings, *_, **__: seen.append(settings))
    several = "dpacct_cli.commands.reproduce.compare_methods"
    monkeypatch.setattr(several, lambda _, settings, *__: seen.append(settings))
    (folder / "run.toml").write_text("rounds = 3\n", encoding="utf-8")
    saved = RunSettings("dp-fedavg", {"data": "mnist", "model": "linear"}, ledger="mnist.ledger")
    (folder / "mnist.settings.json").write_text(saved.dump(), encoding="utf-8")
    for example in found:
        assert dpacct(example).code == 0
    assert len(seen) == len(found)


# Stopping and going on.


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_saves_and_says_how_to_go_on(dpacct: Any, stop_after: Any, times: int) -> None:
    with stop_after(2, times):
        ran = dpacct(small(rounds=5), "--ledger run.ledger")
    assert (ran.code, ran.out) == (130, "")
    *_, said = ran.err.splitlines()
    assert said.startswith("dpacct: stopped after round 2 of 5; saved in run.checkpoint. ")
    found = re.search(r"dpacct (train .* --resume) goes on\.$", ran.err)
    assert found is not None
    data = dpacct(found[1], "--json").json
    assert (data["rounds"], data["clients"]) == (5, 20)
    assert [row["round"] for row in report("run.report.jsonl")] == [1, 2, 3, 4, 5]
    with Ledger.open("run.ledger", read_only=True) as ledger:
        (run,) = ledger.runs
        assert (run.rounds, run.committed, run.finished) == (5, 5, True)


@pytest.mark.slow
def test_a_stopped_seeded_run_ends_where_an_unstopped_one_does(
    dpacct: Any, stop_after: Any
) -> None:
    words = f"{small(rounds=4)} --seed 3"
    whole = dpacct(words, "--ledger whole.ledger --json").json
    with stop_after(1):
        assert dpacct(words, "--ledger parts.ledger").code == 130
    resumed = dpacct("train dp-fedavg --ledger parts.ledger --resume --json").json
    assert resumed["test_accuracy"] == whole["test_accuracy"]
    weights = [torch.load(run["model_file"], weights_only=True) for run in (whole, resumed)]
    assert torch.equal(weights[0]["linear.weight"], weights[1]["linear.weight"])


def test_ctrl_c_in_the_last_round_is_just_the_end(dpacct: Any, stop_after: Any) -> None:
    with stop_after(3):
        ran = dpacct(SMALL, "--json")
    assert ran.code == 0
    with Ledger.open(ran.json["ledger"], read_only=True) as ledger:
        assert ledger.runs[0].finished


def test_a_run_goes_on_only_as_it_was(dpacct: Any, stop_after: Any) -> None:
    with stop_after(1):
        assert dpacct(SMALL, "--ledger run.ledger").code == 130
    ran = dpacct("train dp-fedavg --ledger run.ledger --resume --rounds 9")
    assert ran.code == 2
    assert "--rounds 9 contradicts --resume (the run has 3)" in ran.err
    assert dpacct("train dp-fedavg --ledger run.ledger --resume").code == 0


# The bar.


SHOWN = RoundReport(
    round=2,
    rounds=3,
    spent=lambda: library.Spent(4.7, 4.7101, 1e-5),
    not_private_because=None,
    noise_multiplier=1.0,
    noise_std=1.0,
    clip_norm=1.0,
    released=True,
    bytes_down=8,
    bytes_up=8,
    unit="client",
    adjacency="add-remove",
    diagnostics=Diagnostics(10, 0.625, 1.0, 1.0, 1.0, 0, 1.0),
    seconds=0.4,
)


def test_the_bar_shows_budget_and_accuracy_and_nothing_private() -> None:
    # Epsilon is never below what is proven.
    text = "round 2/3   epsilon 4.72 of 8   accuracy 0.840"
    assert describe(SHOWN, 8.0, 0.84) == text
    hidden = Diagnostics(99, 0.1, 7.0, 7.0, 9.0, 3, 5.0)
    assert describe(replace(SHOWN, diagnostics=hidden, seconds=4.0), 8.0, 0.84) == text


@pytest.mark.parametrize(("style", "bars"), [("", 1), ("--json", 0), ("-q", 0)])
def test_text_output_alone_has_a_bar(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch, style: str, bars: int
) -> None:
    shown: list[str] = []

    def watched(what: str) -> Any:
        shown.append(what)
        return nullcontext()

    monkeypatch.setattr("dpacct_cli.waiting.waiting", watched)
    assert dpacct(f"train dp-fedavg --rounds 1 --clients 10 {style}").code == 0
    assert shown == ["dpacct train"] * bars


def test_a_model_is_looked_at_by_its_settings(dpacct):
    pytest.importorskip("plotext")
    dpacct("train dp-fedavg --rounds 1 --clients 20 --local-epochs 1 --ledger x.ledger -q")
    for kind in ("landscape", "spectrum", "norms"):
        [panel] = dpacct(f"plot {kind} x.model.pt --json").json["panels"]
        [curve] = panel["curves"]
        assert len(curve["x"]) == len(curve["y"]) > 8
        assert "unprotected" not in panel["y"]
    assert sum(curve["y"]) == pytest.approx(1)
    assert "norms" in dpacct("plot norms --help").text
    for file in ("x.ledger", "nowhere.model.pt", "/dev/zero"):
        ran = dpacct(f"plot norms {file}")
        assert ran.code == 2
        assert "NAME.model.pt" in ran.err


@pytest.mark.parametrize(("test_data", "guard"), [("public", ""), ("unprotected", "unprotected_")])
def test_what_is_computed_from_private_examples_is_called_unprotected(
    dpacct, monkeypatch, test_data, guard
):
    monkeypatch.setattr(job, "load", lambda *_: replace(load_digits(), test_data=test_data))
    words = "--validation 0.5 --evaluate-every 1 --target-accuracy 0.2"
    data = dpacct(f"{SMALL} {words} --json").json
    rows = [json.loads(line) for line in Path(data["report"]).read_text("utf-8").splitlines()]
    seen = f"{guard}validation_accuracy"
    assert rows[-1][seen] == data[seen]
    for name in ("validation_accuracy", "rounds_to_target"):
        assert {key for key in (*data, *rows[-1]) if name in key} <= {f"{guard}{name}"}
    [panel] = dpacct(f"plot train {data['report']} --json").json["panels"]
    assert panel["y"] == f"accuracy on the {guard.replace('_', ' ')}validation set"


def test_a_run_is_looked_at_as_asked(dpacct, folder):
    words = "--validation 0.5 --evaluate-every 1 --target-accuracy 0.2 --train-accuracy"
    data = dpacct(f"{SMALL} {words} --json").json
    rows = [json.loads(line) for line in Path(data["report"]).read_text("utf-8").splitlines()]
    looked = [row["validation_accuracy"] for row in rows]
    assert (len(looked), looked[-1]) == (3, data["validation_accuracy"])
    reached = [row["round"] for row in rows if row["validation_accuracy"] >= 0.2]
    assert data["rounds_to_target"] == (reached[0] if reached else None)
    # Both sides come from the 360 test examples, and the model sees none of them.
    model, digits = build_model("logistic", load_digits()), load_digits()
    model.load_state_dict(torch.load(data["model_file"], weights_only=True))
    sides = digits.validated(0.5, seed=0)
    for part, accuracy in (
        (sides.test, "test_accuracy"),
        (sides.validation, "validation_accuracy"),
    ):
        assert len(part) == 180
        found = evaluate(
            model, torch.nn.functional.cross_entropy, ClientData(*part.batch(slice(None)))
        )
        assert found.accuracy == data[accuracy]
    assert not {*map(bytes, sides.test.inputs.numpy())} & {
        *map(bytes, sides.validation.inputs.numpy())
    }
    seen = digits.train.batch(slice(None))
    found = evaluate(model, torch.nn.functional.cross_entropy, ClientData(*seen)).accuracy
    assert data["unprotected_train_accuracy"] == found
    assert data["unprotected_gap"] == found - data["test_accuracy"]
    # 650 weights of four bytes, there and back.
    assert data["bytes_per_client"] == 3 * 2 * 4 * 650
    assert [row["bytes_up"] for row in rows] == [2600] * 3
    text = dpacct(f"{SMALL} --ledger b.ledger {words}").text
    assert "epsilon does not cover it" in text
    assert "0.0156 MB" in text
    bad = {"--validation 0": "(0, 1)", "--validation 0.001": "each side has at least one",
           "--target-accuracy 80": "(0, 1)", "--evaluate-every 0": "from 1"}  # fmt: skip
    for typed, told in bad.items():
        ran = dpacct(f"{SMALL} {typed} --ledger c.ledger")
        assert (ran.code, told in ran.err) == (2, True), ran.err
    assert not (folder / "c.ledger").exists()


def test_repeats_are_the_runs_of_a_table_on_public_data(dpacct, folder):
    (folder / "several.toml").write_text("repeats = 3\nrounds = 1\n", encoding="utf-8")
    words = "--clients 20 --q 0.5 --local-epochs 1 --eps 2 --json"
    for typed in ("--rounds 1 --repeats 3", "--config several.toml"):
        data = dpacct(f"train dp-fedavg {words} {typed}").json
        assert [len(cell["values"]) for cell in data["cells"]] == [3]
    # The runs of the file are those that were typed, so they are played once.
    runs = Path("compared/runs.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(run)["setting"]["public_seed"] for run in runs] == [0, 1, 2]
    (folder / "a.csv").write_text("x,label\n1,0\n2,1\n" * 20, encoding="utf-8")
    for typed, told in {
        "--repeats 0": "from 1 to 100",
        "--repeats 2 --data a.csv": "each run costs budget",
        "--repeats 2 --ledger x.ledger": "it belongs to a single run",
        "--repeats 2 --ledger x.ledger --resume": "a stopped run goes on alone",
    }.items():
        ran = dpacct(f"{SMALL} {typed}")
        assert (ran.code, told in ran.err) == (2, True), ran.err


FOREIGN = [
    ("data", "/dev/zero.npz"), ("data", "../people.csv"), ("data", "link.csv"), ("data", ".."),
    ("data", "adult:/../people.csv"), ("data", "x" * 5000), ("data", "a\0.csv"), ("data", ""),
    ("schedule", "/dev/zero"), ("init", "../secret.pt"), ("ledger", "postgresql://evil.example/x"),
]  # fmt: skip


@pytest.mark.needs("posix")
def test_settings_of_others_open_no_path_of_this_machine(dpacct, folder):
    pytest.importorskip("plotext")
    dpacct("train dp-fedavg --rounds 1 --clients 20 --hold-out 0.3 --ledger x.ledger -q")
    (folder / "sub").mkdir()
    for file in folder.glob("x.*"):
        file.rename(folder / "sub" / file.name)
    for name in ("people.csv", "secret.pt"):
        (folder / name).write_text("no table", encoding="utf-8")
    (folder / "sub/link.csv").symlink_to(folder / "people.csv")
    settings = folder / "sub/x.settings.json"
    content = json.loads(settings.read_text("utf-8")) | {"data_dir": "/nowhere"}
    # An attack begins with no parameters, and a plot asks for no ledger.
    looks = ("plot spectrum sub/x.model.pt", "attack sub/x.checkpoint")
    unused = [("ledger", looks[0]), ("init", looks[1])]
    for key, value in FOREIGN:
        settings.write_text(json.dumps(content | {key: value}), encoding="utf-8")
        for look in looks:
            with in_time():
                ran = dpacct(look)
            assert ran.code == (0 if (key, look) in unused else 2), (key, value, ran.err)
            assert ran.code == 0 or (key in ran.err and "no table" not in ran.err)


def test_a_table_is_looked_at_beside_its_settings_or_where_it_is_typed(dpacct, folder):
    rows = "".join(f"{n % 7},{n % 2}\n" for n in range(200))
    (folder / "sub").mkdir()
    (folder / "sub/people.csv").write_text(f"x,label\n{rows}", encoding="utf-8")
    words = "train dp-fedavg --data sub/people.csv --clients 20 --rounds 1 --local-epochs 1 -q"
    assert dpacct(words).code == 0
    [model] = (folder / "sub").glob("*.model.pt")
    assert dpacct(f"plot norms {model} --json").code == 0
    (folder / "sub/people.csv").rename(folder / "moved.csv")
    ran = dpacct(f"plot norms {model} --json")
    assert (ran.code, "Type --data FILE" in ran.err) == (2, True)
    assert dpacct(f"plot norms {model} --data moved.csv --json").code == 0


def test_rounds_reserved_ahead_save_entries_and_a_stopped_run_loses_none(
    dpacct: Any, stop_after: Any
) -> None:
    Path("ahead.toml").write_text("ahead = 4\n")
    with stop_after(2):
        assert dpacct(small(rounds=6), "--config ahead.toml --ledger run.ledger").code == 130
    with Ledger.open("run.ledger", read_only=True) as ledger:
        entries = [entry["kind"] for entry in ledger.export()]
        assert (ledger.rounds, entries.count("abandon"), ledger.verify().sound) == (2, 2, True)
    assert "ahead is 0" in dpacct("train dp-fedavg --ledger run.ledger --resume --ahead 0").err
    assert dpacct("train --ledger run.ledger --resume --ahead 3").code == 0
    with Ledger.open("run.ledger", read_only=True) as ledger:
        entries = [entry["kind"] for entry in ledger.export()]
        assert (ledger.rounds, ledger.runs[0].committed, entries.count("reserve")) == (6, 6, 3)
    refused = dpacct(small(rounds=6), "--adaptive-clip 0.5 --ahead 4 --ledger b.ledger")
    assert (refused.code, "--ahead is 4" in refused.err) == (2, True)
