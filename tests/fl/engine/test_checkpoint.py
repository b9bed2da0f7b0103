"""Checkpoints: what resumes is what would have run, and a crash leaves whole files."""

from __future__ import annotations

import copy
import os
from dataclasses import dataclass, field
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch

from dpacct import Budget, fl
from dpacct.correlated import square_root
from dpacct.errors import DpacctError, InvalidParameter, LedgerError
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


# What somebody else may have put into a checkpoint, in the place of any value.
ODD = [
    None, True, -1, 10**30, 1.5, float("nan"), "x", "\x1b]0;a\x07", b"x", [], [1], (1, 2), {},
    {"a": 1}, {1: 2}, set(), torch.Size([1]), torch.float32, torch.ones(3), torch.ones(()),
    torch.ones(3).to_sparse(), torch.empty(3, device="meta"), torch.ones(1).expand(10**13),
]  # fmt: skip


def places(content, before=()):
    """The keys of each value of nested dictionaries, from outside in."""
    for key, value in content.items():
        yield (*before, key)
        if isinstance(value, dict):
            yield from places(value, (*before, key))


@pytest.mark.parametrize("kind", ["memories", "correlated", "allocation"])
def test_any_value_of_a_checkpoint_is_of_its_kind_or_an_error_of_one_line(tmp_path, kind):
    path, clients = tmp_path / "run.pt", make_clients([5, 3, 8, 6])
    settings = {
        "memories": options(path),
        "correlated": {
            "noise": fl.CorrelatedNoise(square_root(6, 2)), "sampling": fl.Cyclic(2), "rounds": 6,
            "noise_multiplier": 4.0, "delta": 1e-5, "checkpoint": path,
        },
        "allocation": {"sampling": fl.Allocation(3), "rounds": 6, "checkpoint": path},
    }[kind]  # fmt: skip
    pause(federation(linear(), clients, **settings), 2)
    step = 4 if os.environ.get("DPACCT_TESTS") == "thorough" else 12
    whole = torch.load(path, weights_only=True)
    files = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for number, keys in enumerate(places(whole)):
        # Each place gets some of the values, and each value some of the places.
        for value in ODD[number % step :: step]:
            content = copy.deepcopy(whole)
            held = content
            for key in keys[:-1]:
                held = held[key]
            held[keys[-1]] = value
            for file, data in files.items():
                file.write_bytes(data)
            torch.save(content, path)
            said = ""
            try:
                federation(linear(), clients, **settings).resume().close()
            except DpacctError as error:
                said = str(error)
            assert said.isprintable()
            assert len(said) < 5000


def test_an_archive_that_unpacks_to_far_more_than_it_holds_is_not_read(tmp_path):
    path = tmp_path / "run.pt"
    torch.save({"version": 3, "zeros": torch.zeros(2**25)}, path)
    with ZipFile(path) as stored, ZipFile(tmp_path / "small.pt", "w", ZIP_DEFLATED) as small:
        for name in stored.namelist():
            small.writestr(name, stored.read(name))
    assert (tmp_path / "small.pt").stat().st_size < 2**20
    with pytest.raises(InvalidParameter, match="would take 134,"):
        read_checkpoint(tmp_path / "small.pt", CPU)
