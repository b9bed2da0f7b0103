"""`dpacct attack`: what was found stands beside what was proven, and nonsense is told in words."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

import dpacct as library
from dpacct import risk
from tests.cli.conftest import Ran

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

TRAIN = "train dp-fedavg --clients 40 --sampling full --local-epochs 1 --hold-out 0.4 --delta 1e-3"
CHECKPOINT = "dp-fedavg-digits.checkpoint"


@pytest.fixture(scope="module")
def run_of_three_rounds(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    home = tmp_path_factory.mktemp("run")
    with chdir(home):
        return home, Ran(shlex.split(f"{TRAIN} --rounds 3 --json")).json


@pytest.fixture
def trained(folder: Path, run_of_three_rounds: tuple[Path, dict[str, Any]]) -> dict[str, Any]:
    home, summary = run_of_three_rounds
    shutil.copytree(home, folder, dirs_exist_ok=True)
    return summary


def test_what_was_found_stands_beside_what_is_proven(dpacct: Any, trained: Any) -> None:
    assert (trained["clients"], trained["private"]) == (25, True)
    data = dpacct(f"attack {CHECKPOINT} --json").json
    assert (data["private"], data["rounds"]) == (True, 3)
    plan = 3 * library.Round(trained["noise_multiplier"], library.Full())
    by_client, by_example = data["attacks"]
    assert (by_client["unit"], by_example["unit"]) == ("client", "example")
    assert (by_client["members"], by_client["nonmembers"]) == (25, 15)
    assert by_example["members"] + by_example["nonmembers"] == 1437
    for found in data["attacks"]:
        assert found["attack"] == "loss threshold"
        assert found["auc"]["limit"] == pytest.approx(risk.largest_auc(plan), rel=1e-6)
        assert found["advantage"]["limit"] == pytest.approx(risk.advantage(plan).upper, rel=1e-6)
        for rate in found["rates"]:
            most = risk.true_positive_rate(plan, fpr=rate["fpr"]).upper
            assert most * (1 - 1e-9) <= rate["tpr"]["limit"] <= 1.05 * most
        assert found["auc"]["lower"] <= found["auc"]["value"] <= found["auc"]["upper"]
        assert found["above_limit"] is False


def test_people_read_the_same(dpacct: Any, trained: Any) -> None:
    del trained
    text = dpacct(f"attack {CHECKPOINT} --fpr 0.1").text
    data = dpacct(f"attack {CHECKPOINT} --fpr 0.1 --json").json
    assert text.split()[0] == "AUC"
    assert "25 members, 15 others" in text
    assert "TPR at FPR 0.1" in text
    assert "on average over trainings" in text
    value = data["attacks"][0]["auc"]["value"]
    assert dpacct(f"attack {CHECKPOINT} -q").text.strip() == repr(value)


def test_a_picture_shows_both_curves(dpacct: Any, trained: Any, folder: Path) -> None:
    del trained
    pytest.importorskip("matplotlib")
    assert dpacct(f"attack {CHECKPOINT} -o roc.svg").code == 0
    assert "proven limit" in (folder / "roc.svg").read_text(encoding="utf-8")
    again = dpacct(f"attack {CHECKPOINT} -o roc.svg")
    assert (again.code, "--force" in again.err) == (2, True)


def test_a_model_without_training_is_an_answer(dpacct: Any, trained: Any) -> None:
    del trained
    content = torch.load(CHECKPOINT, weights_only=True)
    blank = {name: torch.zeros_like(value) for name, value in content["params"].items()}
    torch.save(content | {"round": 0, "params": blank}, CHECKPOINT)
    data = dpacct(f"attack {CHECKPOINT} --json").json
    for found in data["attacks"]:
        assert found["auc"]["value"] == 0.5
        assert found["auc"]["limit"] == pytest.approx(0.5, abs=1e-9)
        assert found["above_limit"] is False


def test_without_a_guarantee_there_is_no_limit(dpacct: Any, folder: Path) -> None:
    assert dpacct(TRAIN, "--rounds 1 --seed 3").code == 0
    data = dpacct(f"attack {CHECKPOINT} --json").json
    assert data["private"] is False
    assert "a seed was given" in data["not_private_because"]
    assert data["attacks"][0]["auc"]["limit"] is None
    assert "a seed was given" in dpacct(f"attack {CHECKPOINT}").text
    (folder / "digits.ledger").unlink()
    data = dpacct(f"attack {CHECKPOINT} --json").json
    assert "digits.ledger is not there" in data["not_private_because"]


def test_non_members_are_held_out_at_random(dpacct: Any, folder: Path) -> None:
    for more in ("--clients 40", "--examples --ledger second.ledger"):
        assert dpacct(f"train dp-fedavg --rounds 1 --sampling full {more}").code == 0
    for name in (CHECKPOINT, "second.checkpoint"):
        ran = dpacct(f"attack {name}")
        assert (ran.code, "train --hold-out 0.2" in ran.err) == (1, True)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(30, 2, generator=generator).round(decimals=3).tolist()
    # Every row five times: most held-out examples are a member's, too.
    rows = [f"{a},{b},{place % 2}" for place, (a, b) in enumerate(values)] * 5
    (folder / "people.csv").write_text("\n".join(["a,b,label", *rows]), encoding="utf-8")
    words = "train dp-fedavg --data people.csv --clients 30 --rounds 1 --hold-out 0.5"
    assert dpacct(words).code == 0
    ran = dpacct("attack dp-fedavg-people.checkpoint")
    assert (ran.code, "held-out examples are" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"attack {CHECKPOINT} --confidence 2", "a confidence lies in (0, 1)"),
        (f"attack {CHECKPOINT} --fpr 0", "a false positive rate lies in (0, 1)"),
        (f"attack {CHECKPOINT} -o roc.txt", "ends in .png, .svg, .pdf"),
        ("attack missing.checkpoint", "there is no such file"),
        ("attack", "CHECKPOINT is missing"),
        ("attack ''", "CHECKPOINT is missing"),
        ("attack digits.ledger", "ends in .checkpoint"),
        ("attack dp-fedavg-digits.model.pt", "Did you mean dp-fedavg-digits.checkpoint?"),
    ],
)
def test_nonsense_is_told_in_words(dpacct: Any, trained: Any, words: str, told: str) -> None:
    del trained
    ran = dpacct(words)
    assert ran.code == 2, ran.err
    assert told in ran.err
    assert ran.err.count("\n") == 1


def test_checkpoints_of_other_models_are_refused(dpacct: Any, trained: Any, folder: Path) -> None:
    del trained
    shutil.copy(CHECKPOINT, "alone.checkpoint")
    ran = dpacct("attack alone.checkpoint")
    assert (ran.code, "settings of its run belong in the same folder" in ran.err) == (2, True)
    settings = folder / "dp-fedavg-digits.settings.json"
    content = json.loads(settings.read_text(encoding="utf-8"))
    for change, told in (
        ({"model": "cnn-small"}, "params"),
        ({"clients": "50"}, "25 clients"),
    ):
        settings.write_text(json.dumps(content | change), encoding="utf-8")
        ran = dpacct(f"attack {CHECKPOINT}")
        assert (ran.code, told in ran.err) == (2, True), ran.err
        assert "CHECKPOINT" in ran.err


def test_held_out_clients_take_no_part(dpacct: Any) -> None:
    for share in ("0", "1", "0.001", "x"):
        ran = dpacct(f"train dp-fedavg --clients 20 --hold-out {share}")
        assert (ran.code, "--hold-out" in ran.err) == (2, True)
