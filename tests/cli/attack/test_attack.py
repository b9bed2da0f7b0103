"""`dpacct attack`: what was found stands beside what was proven, and nonsense is told in words."""

from __future__ import annotations

import json
import shlex
import shutil
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import dpacct as library
from dpacct import risk
from dpacct_cli.app import ENTRIES, load
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


def test_help_explains_every_option(dpacct: Any) -> None:
    text = dpacct("attack --help-all").text
    for param in load("attack", ENTRIES["attack"]).params:
        assert param.help
        assert all(option in text for option in param.opts if option.startswith("-"))


def test_what_was_found_stands_beside_what_is_proven(dpacct: Any, trained: Any) -> None:
    assert (trained["clients"], trained["private"]) == (25, True)
    data = dpacct(f"attack {CHECKPOINT} --json").json
    assert (data["private"], data["held_out_at_random"], data["rounds"]) == (True, True, 3)
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
    assert "of clients whom --hold-out kept out of the run" in text
    assert "TPR at FPR 0.1" in text
    assert "on average over trainings" in text
    value = data["attacks"][0]["auc"]["value"]
    assert dpacct(f"attack {CHECKPOINT} -q").text.strip() == repr(value)


def test_a_picture_shows_both_curves(dpacct: Any, trained: Any, folder: Path) -> None:
    del trained
    pytest.importorskip("matplotlib")
    assert dpacct(f"attack {CHECKPOINT} --dark -o roc.svg").code == 0
    assert "proven limit" in (folder / "roc.svg").read_text(encoding="utf-8")
    again = dpacct(f"attack {CHECKPOINT} -o roc.svg")
    assert (again.code, "--force" in again.err) == (2, True)


def test_shadow_models_give_a_second_opinion(dpacct: Any, trained: Any) -> None:
    del trained
    data = dpacct(f"attack {CHECKPOINT} --shadows 2 --examples 300 --json").json
    names = [(found["attack"], found["unit"]) for found in data["attacks"]]
    assert names == [
        ("loss threshold", "client"),
        ("loss threshold", "example"),
        ("likelihood ratio", "client"),
        ("likelihood ratio", "example"),
    ]
    assert data["attacks"][3]["members"] <= 340


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


def test_the_test_set_has_to_do_where_nobody_was_held_out(dpacct: Any) -> None:
    words = "train dp-fedavg --rounds 1 --clients 40 --local-epochs 1 --sampling full"
    assert dpacct(words).code == 0
    ran = dpacct(f"attack {CHECKPOINT}")
    assert "--hold-out" in ran.text
    data = dpacct(f"attack {CHECKPOINT} --json").json
    assert data["held_out_at_random"] is False
    assert data["attacks"][1]["nonmembers"] == 360


def table(rows: int, *, same: bool, owners: bool) -> str:
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(2 * rows, 3, generator=generator).round(decimals=3).tolist()
    lines = ["a,b,c,label,split" + ",owner" * owners]
    for place in range(2 * rows):
        held = place >= rows
        a, b, c = values[place - rows if same and held else place]
        split = "test" if held else "train"
        lines.append(f"{a},{b},{c},{place % 2},{split}" + f",{place % 5}" * owners)
    return "\n".join(lines) + "\n"


def test_held_out_data_that_was_trained_on_are_refused(dpacct: Any, folder: Path) -> None:
    (folder / "people.csv").write_text(table(30, same=True, owners=False), encoding="utf-8")
    assert dpacct("train dp-fedavg --data people.csv --clients 10 --rounds 1").code == 0
    ran = dpacct("attack dp-fedavg-people.checkpoint")
    assert ran.code == 2
    assert "30 of these 30 held-out examples are among those the model was trained on" in ran.err


def test_examples_of_members_are_compared_under_the_limit_of_a_replacement(
    dpacct: Any, folder: Path
) -> None:
    (folder / "people.csv").write_text(table(60, same=False, owners=True), encoding="utf-8")
    config = 'partition = "natural"\nclients = ""\n[data_options]\nowner = "owner"\n'
    (folder / "run.toml").write_text(config, encoding="utf-8")
    words = "train dp-fedavg --data people.csv --config run.toml --rounds 2 --sampling full"
    done = dpacct(words, "--json").json
    data = dpacct("attack dp-fedavg-people.checkpoint --json").json
    assert data["held_out_are_strangers"] is False
    [found] = data["attacks"]
    replaced = library.Round(done["noise_multiplier"], library.Full(), "replace-one")
    assert found["unit"] == "example"
    assert found["auc"]["limit"] == pytest.approx(risk.largest_auc(2 * replaced), rel=1e-6)
    assert "of clients who took part" in dpacct("attack dp-fedavg-people.checkpoint").text


@pytest.mark.slow
def test_writers_without_training_images_are_held_out(dpacct: Any, folder: Path) -> None:
    generator = np.random.default_rng(0)
    writer = np.repeat(np.arange(9, dtype=np.uint8), 6)
    # Writers 0 to 4 train, and 5 to 8 have test images alone.
    split = ((np.arange(54) % 6 == 5) | (writer > 4)).astype(np.uint8)
    np.savez(
        folder / "femnist_writers.npz",
        x=generator.integers(0, 256, (54, 28, 28), dtype=np.uint8),
        y=generator.integers(0, 62, 54, dtype=np.uint8),
        writer=writer,
        split=split,
    )
    words = "train dp-fedavg --data femnist --data-dir . --rounds 1 --sampling full --eps 1"
    assert dpacct(words).code == 0
    data = dpacct("attack dp-fedavg-femnist.checkpoint --json").json
    assert (data["held_out_are_strangers"], data["held_out_at_random"]) == (True, False)
    by_client, by_example = data["attacks"]
    assert (by_client["members"], by_client["nonmembers"]) == (5, 4)
    assert (by_example["members"], by_example["nonmembers"]) == (25, 24)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (f"attack {CHECKPOINT} --data mnist", "its model was trained on digits"),
        (f"attack {CHECKPOINT} --method gradient", "an attack is one of loss, lira"),
        (f"attack {CHECKPOINT} --method loss --shadows 4", "it trains no shadow models"),
        (f"attack {CHECKPOINT} --shadows 1", "at least two shadow models"),
        (f"attack {CHECKPOINT} --confidence 2", "a confidence lies in (0, 1)"),
        (f"attack {CHECKPOINT} --fpr 0", "a false positive rate lies in (0, 1)"),
        (f"attack {CHECKPOINT} --examples 0", "the number of examples"),
        (f"attack {CHECKPOINT} -o roc.txt", "ends in .png, .svg, .pdf"),
        ("attack missing.checkpoint", "there is no such file"),
        ("attack", "CHECKPOINT is missing"),
        ("attack ''", "CHECKPOINT is missing"),
        ("attack digits.ledger", "ends in .checkpoint"),
        ("attack dp-fedavg-digits.model.pt", "ends in .checkpoint"),
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
        ({"model": "cnn-small"}, "650 parameters"),
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
