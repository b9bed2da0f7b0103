"""`dpacct train --examples` and `--server`: what they train, charge and say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

import torch

import dpacct as library
from dpacct.ledger import Ledger
from dpacct_cli.train.options import SERVERS

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

SINGLE = "train dp-fedavg --examples --rounds 4 --batch 60"
CLIENTS = "train dp-fedavg --rounds 3 --clients 20 --q 0.5 --local-epochs 1"


def weights(data):
    return torch.load(data["model_file"], weights_only=True)["linear.weight"]


def test_batches_and_epochs_are_charged_as_they_run(dpacct):
    data = dpacct("train --examples --batch 60 --epochs 0.2 --eps 3 --json").json
    assert (data["unit"], data["examples"], data["partition"]) == ("example", 1437, None)
    assert data["rounds"] == 5
    assert data["sampling_rate"] == 60 / 1437
    assert data["delta"] == 1e-5
    plan = 5 * library.Round(data["noise_multiplier"], library.Poisson(60 / 1437))
    spent = library.epsilon(plan, delta=data["delta"])
    assert data["epsilon"]["upper"] == pytest.approx(spent.upper, rel=1e-6)
    assert 2.99 < spent.upper <= 3
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        [run] = ledger.runs
        assert (ledger.unit, run.committed, run.finished) == ("example", 5, True)
        assert run.epsilon().upper == data["epsilon"]["upper"]
    rows = [json.loads(line) for line in Path(data["report"]).read_text().splitlines()]
    assert {row["unit"] for row in rows} == {"example"}


def test_a_person_reads_of_examples(dpacct, folder):
    text = dpacct(SINGLE).text
    for part in ("zero out one example", "on digits, 1,437 examples,", "at delta 1e-05"):
        assert part in text
    assert "client" not in text.replace("dp-fedavg", "")
    (folder / "run.toml").write_text("examples = true\nrounds = 2\nq = 0.05\n")
    # Nothing that is typed says so.
    again = dpacct("train dp-fedavg --config run.toml --ledger second.ledger")
    assert "zero out one example" in again.text
    assert "for the same examples" in again.err


@pytest.mark.slow
def test_defaults_learn(dpacct):
    # Guessing gives 0.1.
    assert dpacct("train --examples --json").json["test_accuracy"] > 0.8


@pytest.mark.parametrize(("first", "then"), [(CLIENTS, SINGLE), (SINGLE, CLIENTS)])
def test_the_ledger_of_another_unit_is_refused(dpacct, first, then):
    assert dpacct(first).code == 0
    before = Path("digits.ledger").read_bytes()
    failed = dpacct(then)
    assert (failed.code, failed.out) == (2, "")
    assert "--ledger is 'digits.ledger'; the ledger digits.ledger protects one" in failed.err
    assert Path("digits.ledger").read_bytes() == before


def test_methods_with_memories_have_no_examples(dpacct, folder):
    failed = dpacct("train scaffold --examples")
    assert (failed.code, failed.out) == (1, "")
    assert "gives each client a memory, and examples have none" in failed.err
    assert not list(folder.glob("*.ledger"))


def test_every_name_of_a_server_is_known():
    from dpacct_cli.train.job import SERVERS as BUILT

    assert list(SERVERS) == list(BUILT)


@pytest.mark.parametrize("start", [CLIENTS, SINGLE], ids=["clients", "examples"])
def test_a_servers_optimizer_trains_is_named_and_resumed(dpacct, stop_after, start):
    words = f"{start} --seed 3 --server adam --server-set lr=0.02"
    whole = dpacct(words, "--ledger whole.ledger --json").json
    plain = dpacct(f"{start} --seed 3 --ledger plain.ledger --json").json
    assert (whole["server"], plain["server"]) == ("adam", None)
    # Adam's first step moves every weight by its rate, whatever the noise.
    assert not torch.equal(weights(whole), weights(plain))
    with stop_after(1):
        assert dpacct(words, "--ledger parts.ledger").code == 130
    failed = dpacct("train --ledger parts.ledger --resume --server adam --server-set lr=0.3")
    assert "--server-set lr=0.3 contradicts --resume" in failed.err
    resumed = dpacct("train --ledger parts.ledger --resume --json").json
    assert torch.equal(weights(whole), weights(resumed))
    assert resumed["unit"] == whole["unit"]
    with Ledger.open(resumed["ledger"], read_only=True) as ledger:
        assert "server=Adam(lr=0.02, beta1=0.9" in ledger.runs[0].details["setting"]


def test_a_person_reads_the_servers_optimizer(dpacct):
    text = dpacct(CLIENTS, "--server momentum --server-set beta=0.5").text
    assert "server             Momentum(beta=0.5, nesterov=False)" in text
