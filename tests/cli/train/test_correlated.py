"""`dpacct train --correlated`: what it trains, charges and refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import dpacct as library
from dpacct.correlated import Correlated, optimized, square_root
from dpacct.ledger import Ledger
from dpacct.rounds import Poisson

pytestmark = pytest.mark.usefixtures("one_thread", "folder")

RUN = "train dp-fedavg --clients 20 --local-epochs 1 --correlated optimized --separation 4"


@pytest.mark.parametrize("rate", [None, 0.5])
def test_the_whole_run_is_charged_once(dpacct, rate):
    drawn = "" if rate is None else f" --q {rate}"
    data = dpacct(f"{RUN} --rounds 8 --eps 3 --json{drawn}").json
    plan = 1 * Correlated(
        data["noise_multiplier"],
        optimized(8, 4, 4),
        min_separation=4,
        sampling=None if rate is None else Poisson(rate),
        adjacency="zero-out",
    )
    assert (data["rounds"], data["adjacency"]) == (8, "zero-out")
    assert data["epsilon"]["upper"] == pytest.approx(library.epsilon(plan, delta=1e-5).upper, 1e-6)
    assert 2.999 < data["epsilon"]["upper"] <= 3
    with Ledger.open(data["ledger"], read_only=True) as ledger:
        assert ledger.runs[0].latest_row == 8
        assert ledger.rounds == (1 if rate is None else 2)


def test_examples_take_turns(dpacct):
    batches = "train --examples --correlated square-root --bands 3 --separation 4 --rounds 8"
    data = dpacct(f"{batches} --noise 3 --json").json
    item = Correlated(3.0, square_root(8, 3), min_separation=4, adjacency="zero-out")
    upper = library.epsilon(1 * item, delta=1e-5).upper
    assert data["epsilon"]["upper"] == pytest.approx(upper, 1e-6)
    assert data["unit"] == "example"


def test_a_run_goes_on_with_its_next_row(dpacct, stop_after):
    with stop_after(3, error=ZeroDivisionError), pytest.raises(ZeroDivisionError):
        dpacct(f"{RUN} --rounds 8 --noise 3 --delta 1e-5")
    [ledger] = Path().glob("*.ledger")
    with Ledger.open(ledger, read_only=True) as opened:
        row, time = opened.runs[0].latest_row + 1, opened.last_written
    told = dpacct(f"train --ledger {ledger} --resume")
    assert f"goes on with round 4 of 8 and row {row} of the noise" in told.err
    assert f"The last entry of {ledger} is of {time[:10]} {time[11:19]} UTC" in told.err
    with Ledger.open(ledger, read_only=True) as opened:
        assert opened.runs[0].latest_row == 8
