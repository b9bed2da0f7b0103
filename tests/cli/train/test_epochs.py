"""`dpacct train --sampling allocation` and `--records`: what they train, charge and refuse."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

pytest.importorskip("torch")

import dpacct as library
from dpacct.epochs import Epoch
from dpacct.ledger import Ledger

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

ALLOCATED = "train --examples --sampling allocation"
EPOCHS = f"{ALLOCATED} --steps 4"


def test_epochs_by_allocation_are_charged_whole(dpacct):
    data = dpacct(f"{EPOCHS} --epochs 2 --eps 3 --json").json
    assert (data["rounds"], data["steps"], data["sampling"]) == (8, 4, "allocation")
    assert (data["sampling_rate"], data["adjacency"], data["unit"]) == (0.25, "zero-out", "example")
    plan = 2 * Epoch(data["noise_multiplier"], 4)
    spent = library.epsilon(plan, delta=1e-5)
    assert data["epsilon"]["upper"] == pytest.approx(spent.upper, rel=1e-9)
    assert data["epsilon"]["lower"] == pytest.approx(spent.lower, rel=1e-9)
    assert 2.999 < spent.upper <= 3
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        assert ledger.runs[0].plan == plan
        assert ledger.verify().sound


def test_the_steps_follow_from_the_batch(dpacct):
    assert dpacct(f"{ALLOCATED} --batch 479 --rounds 3 --noise 2 --json").json["steps"] == 3
    clients = (
        "train dp-fedavg --sampling allocation --clients 20 --local-epochs 1 --ledger b.ledger"
    )
    data = dpacct(f"{clients} --cohort 5 --epochs 1 --noise 2 --json").json
    assert (data["steps"], data["rounds"], data["unit"]) == (4, 4, "client")


def test_a_run_goes_on_within_its_epoch(dpacct, stop_after):
    with stop_after(6, error=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        dpacct(f"{EPOCHS} --epochs 2 --noise 1 --delta 1e-5")
    [checkpoint] = Path().glob("*.checkpoint")
    assert stat.S_IMODE(checkpoint.stat().st_mode) == 0o600
    [ledger] = Path().glob("*.ledger")
    data = dpacct(f"train --ledger {ledger} --resume --json").json
    with Ledger.open(ledger, read_only=True) as opened:
        [run] = opened.runs
        assert (run.rounds, run.latest_row) == (2, 8)
    upper = library.epsilon(2 * Epoch(1.0, 4), delta=1e-5).upper
    assert data["epsilon"]["upper"] == pytest.approx(upper, rel=1e-9)


def test_owners_of_several_rows_are_charged_as_owners(dpacct, folder):
    rows = [f"{k % 7},{k % 3},{k % 2},p{k % 10}" for k in range(80)]
    (folder / "visits.csv").write_text("\n".join(["a,b,label,who", *rows, ""]))
    schema = "[numeric]\na = [0, 6]\nb = [0, 2]\n"
    (folder / "schema.toml").write_text(schema)
    line = "train --examples --data visits.csv --schema schema.toml --owner who --classes 0,1"
    data = dpacct(f"{line} --records 3 --q 0.2 --rounds 4 --noise 3 --delta 1e-5 --json").json
    assert data["unit"] == "client"
    plan = 4 * library.Round(3.0, library.Poisson(0.2, records=3), "zero-out")
    wanted = library.epsilon(plan, delta=1e-5)
    assert data["epsilon"]["upper"] == pytest.approx(wanted.upper, rel=1e-9)
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        assert (ledger.unit, ledger.runs[0].plan) == ("client", plan)
    text = dpacct(f"{line} --records 3 --q 0.2 --rounds 2 --noise 3 --ledger second.ledger").text
    assert "zero out one client" in text
    assert "Epsilon holds for a single example" not in text
