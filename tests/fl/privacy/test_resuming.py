"""A checkpoint goes on in the ledger that charged it, nowhere else; what is crafted is refused."""

from __future__ import annotations

import io
import re
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpacct
from dpacct import Budget, fl
from dpacct.errors import DpacctError, InvalidParameter, LedgerError
from dpacct.fl.engine.checkpoint import read_checkpoint
from dpacct.ledger import Ledger
from tests.fl.problems import federation, flat, linear, make_clients, pause, play

CPU = torch.device("cpu")
PLANNED = {
    "noise_multiplier": None, "budget": Budget(6, 1e-5), "sampling": fl.Poisson(0.5), "rounds": 5,
}  # fmt: skip


def planned(model=None, **changes: Any) -> fl.Federation:
    model = linear() if model is None else model
    return federation(model, make_clients([5] * 8), **{**PLANNED, **changes})


def started(path: Path, rounds: int, **changes: Any) -> Path:
    """Leaves a checkpoint after so many rounds, and its ledger beside it."""
    pause(planned(checkpoint=path, **changes), rounds)
    return path


def cost(rounds: int, noise_multiplier: float) -> float:
    plan = rounds * dpacct.Round(noise_multiplier, dpacct.Poisson(0.5))
    return dpacct.epsilon(plan, delta=1e-5).upper


# Ledgers that are not the checkpoint's.


def test_a_checkpoint_goes_on_in_its_own_ledger_without_a_note(tmp_path):
    path = started(tmp_path / "run.pt", 2)
    moved = tmp_path / "moved.ledger"
    shutil.move(f"{path}.ledger", moved)
    with planned(ledger=moved).resume(path) as run:
        assert run.epsilon.upper == pytest.approx(cost(2, run.noise_multiplier), rel=1e-6)
        assert run.run().epsilon.upper == pytest.approx(cost(5, run.noise_multiplier), rel=1e-6)


def test_another_ledger_is_refused_however_alike_its_run_is(tmp_path):
    """A model that has learned from rounds on both would cost more than either ledger says."""
    path = started(tmp_path / "a.pt", 4)
    other = f"{started(tmp_path / 'b.pt', 4)}.ledger"
    before = Path(other).read_bytes()
    with pytest.raises(LedgerError, match="another ledger"), planned(ledger=other) as run:
        run.resume(path)
    with Ledger.open(other) as opened:
        with pytest.raises(LedgerError, match="belongs to another ledger"):
            planned(ledger=opened).resume(path)
        assert len(opened.runs) == 1
    assert Path(other).read_bytes() == before


def test_a_ledger_that_has_lost_rounds_is_refused_and_rounds_beyond_the_checkpoint_stay_spent(
    tmp_path,
):
    path = tmp_path / "run.pt"
    ledger = Path(f"{path}.ledger")
    started(path, 2)
    kept, early = ledger.read_bytes(), path.read_bytes()
    pause(planned(checkpoint=path).resume(), 4)
    newest = ledger.read_bytes()
    ledger.write_bytes(kept)
    with pytest.raises(LedgerError, match="has lost entries"), planned(checkpoint=path) as run:
        run.resume()
    ledger.write_bytes(newest)
    path.write_bytes(early)
    with planned(checkpoint=path).resume() as run:
        assert run.round == 2
        assert run.epsilon.upper == pytest.approx(cost(4, run.noise_multiplier), rel=1e-6)
        assert run.run().round == 3
        assert "all 5 rounds of the plan are charged" in run.stopped_because
        assert run.epsilon.upper == pytest.approx(cost(5, run.noise_multiplier), rel=1e-6)


@pytest.mark.slow
def test_a_run_without_a_ledger_of_its_own_goes_on_in_its_process_alone(tmp_path):
    path = tmp_path / "saved.pt"
    with planned() as run:
        play(run, 2)
        run.save(path)
        play(run, 3)
        run.resume(path)
        assert run.round == 2
        assert run.epsilon.upper == pytest.approx(cost(3, run.noise_multiplier), rel=1e-6)
    # Saved once more when the run was closed: it still says what was charged.
    run.save(path)
    assert read_checkpoint(path, CPU)["charged"] == 3
    for again in (planned(), planned(ledger=tmp_path / "new.ledger")):
        with pytest.raises(DpacctError, match=r"not kept|no such ledger"), again:
            again.resume(path)
    beside = started(tmp_path / "beside.pt", 3)
    with pytest.raises(LedgerError, match="another ledger"), planned(checkpoint=beside) as run:
        run.resume(path)


class TooFew(fl.NoiseShares):
    """Shares of which too few arrive."""

    def actual_std(self, std, arrived):
        return None


def test_rounds_that_released_nothing_are_no_lost_rounds(tmp_path):
    """Too few noise shares: the round is charged and over, and there are fewer released ones."""
    path = tmp_path / "run.pt"
    options = {
        "noise_multiplier": 2.0, "budget": None, "sampling": fl.Full(), "noise": TooFew(8),
        "adjacency": "replace-one", "checkpoint": path,
    }  # fmt: skip
    with planned(**options) as run:
        assert not play(run, 3).released
    content = read_checkpoint(path, CPU)
    assert (content["round"], content["charged"], content["committed"]) == (3, 3, 0)
    with planned(**options).resume() as run:
        assert run.round == 3
        assert run.run().round == 5
        plan = 5 * dpacct.Round(2.0, fl.Full(), "replace-one")
        assert run.epsilon.upper == pytest.approx(dpacct.epsilon(plan, delta=1e-5).upper, rel=1e-6)


# Files of another kind.


@pytest.mark.parametrize("saved", [{"bound": fl.AdaptiveClip(0.3, indicator_noise=3.0)}])
def test_a_checkpoint_of_another_run_or_version_is_refused_and_changes_nothing(tmp_path, saved):
    path = started(tmp_path / "run.pt", 2, **saved)
    content, model = read_checkpoint(path, CPU), linear(seed=4)
    before = flat(model)
    for change in (
        {"setting": "another"},
        {"params": {}},
        {"params": {"kernel": torch.zeros(3, 6), "bias": torch.zeros(3)}},
        {"clip_norm": -1.0},
        {"run": 2},
        {"version": 2},
    ):
        torch.save(content | change, path)
        with planned(model, checkpoint=path, **saved) as run:
            with pytest.raises(DpacctError) as refused:
                run.resume()
            assert "\n" not in str(refused.value)
            assert (run.round, run.epsilon.upper) == (0, 0)
        assert torch.equal(flat(model), before)


def legacy() -> bytes:
    """The format before zip files, with the name of a storage changed in one of two places."""
    stream = io.BytesIO()
    torch.save({"version": 1, "a": torch.zeros(3)}, stream, _use_new_zipfile_serialization=False)
    return re.sub(rb"\d{9,}", lambda found: b"7" * len(found[0]), stream.getvalue(), count=1)


def test_a_foreign_file_is_refused_in_one_line(tmp_path):
    path = tmp_path / "run.pt"
    with planned(checkpoint=path) as run:
        archive = b"PK\x03\x04 no archive"
        for content in (legacy(), b"", archive, b"\x80\x04]K\x01a.", b"text", bytes(1000)):
            path.write_bytes(content)
            with pytest.raises(InvalidParameter, match=r"checkpoint is '.*run\.pt'; it") as refused:
                run.resume()
            assert "\n" not in str(refused.value)


def test_a_byte_that_was_changed_is_no_traceback(tmp_path):
    path = started(tmp_path / "run.pt", 1)
    whole = path.read_bytes()
    generator = np.random.default_rng(5)
    for place in generator.integers(len(whole), size=15):
        changed = bytearray(whole)
        changed[place] ^= int(generator.integers(1, 256))
        path.write_bytes(changed)
        # A changed weight is none of its business; whatever else it raises fails the test.
        with suppress(InvalidParameter):
            read_checkpoint(path, CPU)
