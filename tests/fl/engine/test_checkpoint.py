"""Checkpoints: what resumes is what would have run, and a crash leaves whole files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from dpacct import Budget, fl
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.fl.engine.checkpoint import read_checkpoint, write_checkpoint
from dpacct.fl.methods.protocol import Method
from dpacct.ledger import Ledger
from dpacct.rounds import Poisson
from tests.fl.problems import (
    KILLED,
    die,
    federation,
    flat,
    forked,
    goes_on,
    linear,
    make_clients,
    pause,
)

ROOT = Path(__file__).resolve().parents[3]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Remembering(Method):
    """Server and client state that influence what follows."""

    mask: fl.Mask = field(default_factory=lambda: fl.PublicTopK(0.5))

    def init(self, params):
        return {"velocity": torch.zeros(sum(value.numel() for value in params.values()))}

    def init_client(self, params):
        return {"v": torch.zeros(sum(value.numel() for value in params.values()))}

    def local_update(self, delta, client_state, context):
        return delta - 0.3 * client_state["v"]

    def client_state(self, client_state, bounded, context):
        return {"v": client_state["v"] + 0.5 * bounded}

    def server(self, params, noised, server_state):
        velocity = 0.5 * server_state["velocity"] + noised.vector
        moved = noised.layout.unflatten(velocity)
        return {n: v + moved[n] for n, v in params.items()}, {"velocity": velocity}


def options(path=None, **changes):
    settings = {
        "method": Remembering(), "bound": fl.AdaptiveClip(0.3, indicator_noise=3.0),
        "sampling": Poisson(0.6), "rounds": 6, "seed": 12, "checkpoint": path,
        "local": fl.SGD(lr=0.2, epochs=1, batch_size=3, lr_decay=0.9),
    }  # fmt: skip
    return settings | changes


def test_memories_do_not_go_to_other_clients(tmp_path):
    """The public size is the same; one client more would move all memories after its place."""
    more, given = make_clients([5, 3, 8, 6, 2]), options(tmp_path / "run.pt", public_size=5)
    pause(federation(linear(), more[:4], **given), 1)
    with (
        federation(linear(), more, **given) as other,
        pytest.raises(InvalidParameter, match=r"memories of 4 clients, and here are 5"),
    ):
        other.resume()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"secure_noise": True},
        {"vectorize": True},
        {"method": Remembering(mask=fl.Dense())},
        {"method": Remembering(mask=fl.RandomK(0.5))},
    ],
)
def test_a_resumed_seeded_run_ends_where_the_uninterrupted_one_does(tmp_path, changes):
    clients, path = make_clients([5, 3, 8, 6, 2, 7]), tmp_path / "run.pt"
    _, run = goes_on(
        lambda path: federation(linear(), clients, **options(path, **changes)), path, 3
    )
    with Ledger.open(run.ledger_path, read_only=True) as book:
        assert [(entry.committed, entry.on_plan) for entry in book.runs] == [(6, True)]
    # The latest release is kept for masks that read it.
    reads = isinstance(changes.get("method", Remembering()).mask, fl.PublicTopK)
    assert (read_checkpoint(path, CPU)["released"] is not None) is reads


def test_a_resumed_private_run_is_charged_once_for_each_round_and_never_repeats_noise(tmp_path):
    path, clients = tmp_path / "run.pt", make_clients([5] * 6)
    settings = options(path, seed=None, rounds=4, noise_multiplier=None, budget=Budget(6, 1e-5))
    pause(federation(linear(), clients, **settings), 2)
    finals = []
    # All three: a ledger behind its witness is refused.
    files = [path, Path(f"{path}.ledger"), Path(f"{path}.ledger.witness")]
    kept = [file.read_bytes() for file in files]
    for _ in range(2):
        for file, held in zip(files, kept, strict=True):
            file.write_bytes(held)
        with federation(linear(), clients, **settings).resume() as run:
            last = run.run()
            assert last.round == 4
            assert last.epsilon.upper <= 6
            assert last.epsilon.upper == pytest.approx(6, rel=1e-4)
        finals.append(flat(run.model))
    assert not torch.equal(*finals)
    assert read_checkpoint(path, CPU)["randomness"] is None


def test_the_checkpoint_of_another_setting_is_refused(tmp_path):
    path, clients = tmp_path / "run.pt", make_clients([5] * 6)
    pause(federation(linear(), clients, **options(path)), 1)
    for changes, people, words in (
        ({"local": fl.SGD(lr=0.3)}, clients, "another setting"),
        ({"noise_multiplier": 2.0}, clients, "another setting"),
        ({"sampling": Poisson(0.5)}, clients, "another setting"),
        ({"method": fl.DPFedAvg()}, clients, "another setting"),
        ({}, clients[:5], "another setting"),
        ({"seed": None}, clients, "with a seed"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            federation(linear(), people, **options(path, **changes)).resume()
    with federation(linear(), clients, **options(path)).resume() as run:
        run.run()
    with pytest.raises(LedgerError, match="finished"):
        federation(linear(), clients, **options(path)).resume()


@pytest.mark.parametrize(
    ("begun", "other"),
    [
        (fl.AdaptiveClip(1.0, quantile=0.5), fl.AdaptiveClip(1.0, quantile=0.9)),
        (fl.AdaptiveClip(1.0), fl.AdaptiveClip(2.0)),
        (fl.PerLayerClip((0.3, 0.4)), fl.PerLayerClip((0.4, 0.3))),
        (fl.SmoothedNormalization(0.1), fl.SmoothedNormalization(1.0)),
        (fl.Clip(1.0), fl.Clip(0.6)),
    ],
)
def test_the_checkpoint_of_another_bound_is_refused(tmp_path, begun, other):
    def build(bound):
        path, given = tmp_path / "run.pt", {"noise_multiplier": 0.2, "method": fl.DPFedAvg()}
        return federation(linear(), make_clients([5] * 6), **options(path, bound=bound, **given))

    pause(build(begun), 1)
    with pytest.raises(InvalidParameter, match="another setting"):
        build(other).resume()


def test_a_checkpoint_cannot_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.system, ("true",)

    path = tmp_path / "run.pt"
    torch.save({"version": 1, "evil": Evil()}, path)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        read_checkpoint(path, CPU)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "run.pt"
    with federation(linear(), make_clients([5]), checkpoint=path) as run:
        run.save()
    before = path.read_bytes()
    with pytest.raises((AttributeError, TypeError, RuntimeError, Exception), match=r".+"):
        write_checkpoint(path, {"a": lambda: None})
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["run.pt"]
    assert read_checkpoint(path, CPU)["round"] == 0


def test_a_run_is_saved_where_it_is_asked_for_or_nowhere(tmp_path):
    with federation(linear(), make_clients([5] * 3), rounds=2) as run:
        for call in (run.save, run.resume):
            with pytest.raises(InvalidParameter, match="no checkpoint file"):
                call()
        next(iter(run))
        content = read_checkpoint(run.save(tmp_path / "here.pt"), CPU)
    assert content["round"] == 1
    assert torch.equal(content["params"]["weight"], run.model.weight.detach())


@pytest.mark.needs("posix")
def test_kill_9_loses_no_charge(tmp_path):
    path = tmp_path / "run.pt"

    def build():
        return federation(
            linear(), make_clients([5] * 8), sampling=fl.Poisson(0.5), rounds=6, checkpoint=path,
            noise_multiplier=None, budget=Budget(6, 1e-5), checkpoint_every=2,
        )  # fmt: skip

    def three_rounds():
        for report in build():
            if report.round == 3:
                die()

    assert forked(three_rounds) == KILLED
    with Ledger.open(f"{path}.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.committed == 3
        spent = run.epsilon().upper
    assert read_checkpoint(path, CPU)["round"] == 2
    with build().resume() as run:
        run.run()
        # Round 3 ran before the crash and runs again: of six planned rounds five reach the model.
        assert run.round == 5
        assert "all 6 rounds of the plan are charged" in run.stopped_because
        assert run.epsilon.upper == pytest.approx(6, rel=1e-4)
    with Ledger.open(f"{path}.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.committed == 6
        assert spent < run.epsilon().upper <= 6
