"""Checkpoints: what resumes is what would have run, and a crash leaves whole files."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

import dpacct
from dpacct import Budget, fl
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.fl.engine.checkpoint import read_checkpoint, write_checkpoint
from dpacct.fl.methods.protocol import Method
from dpacct.ledger import Ledger
from dpacct.rounds import Poisson
from tests.fl.problems import federation, flat, linear, make_clients

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
        "method": Remembering(),
        "bound": fl.AdaptiveClip(0.3, indicator_noise=3.0),
        "clip_norm": None,
        "sampling": Poisson(0.6),
        "rounds": 6,
        "seed": 12,
        "checkpoint": path,
        "local": fl.SGD(lr=0.2, epochs=1, batch_size=3, lr_decay=0.9),
    }
    return settings | changes


def test_memories_do_not_go_to_other_clients(tmp_path):
    """The public size is the same; one client more would move all memories after its place."""
    more, path = make_clients([5, 3, 8, 6, 2]), tmp_path / "run.pt"
    with federation(linear(), more[:4], **options(path, public_size=5, rounds=2)) as run:
        next(iter(run))
    with (
        federation(linear(), more, **options(path, public_size=5, rounds=2)) as other,
        pytest.raises(InvalidParameter, match=r"memories of 4 clients, and here are 5"),
    ):
        other.resume()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("changes", [{}, {"secure_noise": True}, {"vectorize": True}])
def test_a_resumed_seeded_run_ends_where_the_uninterrupted_one_does(tmp_path, changes):
    clients = make_clients([5, 3, 8, 6, 2, 7])
    whole = linear()
    with federation(whole, clients, **options(**changes)) as run:
        expected = list(run)
    path = tmp_path / "run.pt"
    with federation(linear(), clients, **options(path, **changes)) as run:
        for report in run:
            if report.round == 3:
                break
    torch.manual_seed(99)
    resumed = linear(seed=77)
    with federation(resumed, clients, **options(path, **changes)).resume() as run:
        assert run.round == 3
        late = list(run)
        ledger = run.ledger_path
    assert torch.equal(flat(whole), flat(resumed))
    assert [r.clip_norm for r in late] == [r.clip_norm for r in expected[3:]]
    assert [r.diagnostics.norm_mean for r in late] == [
        r.diagnostics.norm_mean for r in expected[3:]
    ]
    with Ledger.open(ledger, read_only=True) as book:
        assert book.runs[0].committed == 6
        assert len(book.runs) == 1
        assert book.runs[0].on_plan


def test_a_resumed_private_run_is_charged_once_for_each_round_and_never_repeats_noise(tmp_path):
    path = tmp_path / "run.pt"
    clients = make_clients([5] * 6)
    settings = options(path, seed=None, rounds=4, noise_multiplier=None, budget=Budget(6, 1e-5))
    with federation(linear(), clients, **settings) as run:
        for report in run:
            if report.round == 2:
                break
    finals = []
    # All three: a ledger behind its witness is refused.
    files = [path, Path(f"{path}.ledger"), Path(f"{path}.ledger.witness")]
    kept = [file.read_bytes() for file in files]
    for _ in range(2):
        for file, held in zip(files, kept, strict=True):
            file.write_bytes(held)
        model = linear()
        with federation(model, clients, **settings).resume() as run:
            last = run.run()
            assert last.round == 4
            assert last.epsilon.upper <= 6
            assert last.epsilon.upper == pytest.approx(6, rel=1e-4)
        finals.append(flat(model))
    assert not torch.equal(*finals)
    assert read_checkpoint(path, CPU)["randomness"] is None


def test_the_checkpoint_of_another_setting_is_refused(tmp_path):
    path = tmp_path / "run.pt"
    clients = make_clients([5] * 6)
    with federation(linear(), clients, **options(path)) as run:
        next(iter(run))
    for changes in (
        {"local": fl.SGD(lr=0.3)},
        {"noise_multiplier": 2.0},
        {"sampling": Poisson(0.5)},
        {"method": fl.DPFedAvg()},
    ):
        with pytest.raises(InvalidParameter, match="another setting"):
            federation(linear(), clients, **options(path, **changes)).resume()
    with pytest.raises(InvalidParameter, match="another setting"):
        federation(linear(), clients[:5], **options(path)).resume()
    with pytest.raises(InvalidParameter, match="with a seed"):
        federation(linear(), clients, **options(path, seed=None)).resume()


@pytest.mark.parametrize(
    ("begun", "other"),
    [
        (fl.AdaptiveClip(1.0, quantile=0.5), fl.AdaptiveClip(1.0, quantile=0.9)),
        (fl.AdaptiveClip(1.0), fl.AdaptiveClip(2.0)),
        (fl.PerLayerClip((0.3, 0.4)), fl.PerLayerClip((0.4, 0.3))),
        (fl.SmoothedNormalization(0.1), fl.SmoothedNormalization(1.0)),
    ],
)
def test_the_checkpoint_of_another_bound_is_refused(tmp_path, begun, other):
    path = tmp_path / "run.pt"
    given = {"clip_norm": None, "noise_multiplier": 0.2, "method": fl.DPFedAvg()}
    with federation(linear(), make_clients([5] * 6), **options(path, bound=begun, **given)) as run:
        next(iter(run))
    again = federation(linear(), make_clients([5] * 6), **options(path, bound=other, **given))
    with pytest.raises(InvalidParameter, match="another setting"):
        again.resume()


def test_a_finished_run_has_no_round_left(tmp_path):
    path = tmp_path / "run.pt"
    clients = make_clients([5] * 6)
    with federation(linear(), clients, **options(path)) as run:
        run.run()
    with pytest.raises(LedgerError, match="finished"):
        federation(linear(), clients, **options(path)).resume()


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


def test_without_a_file_there_is_nothing_to_save():
    with federation(linear(), make_clients([5])) as run:
        with pytest.raises(InvalidParameter, match="no checkpoint file"):
            run.save()
        with pytest.raises(InvalidParameter, match="no checkpoint file"):
            run.resume()


def test_saving_on_request_goes_anywhere(tmp_path):
    model = linear()
    with federation(model, make_clients([5] * 3), rounds=2) as run:
        next(iter(run))
        path = run.save(tmp_path / "here.pt")
    content = read_checkpoint(path, CPU)
    assert content["round"] == 1
    assert torch.equal(content["params"]["weight"], model.weight.detach())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("mask", "read"),
    [(fl.Dense(), False), (fl.RandomK(0.5), False), (fl.PublicTopK(0.5), True)],
)
def test_the_latest_release_is_kept_for_masks_that_read_it(tmp_path, mask, read):
    path = tmp_path / "run.pt"
    settings = options(path, method=Remembering(mask=mask), rounds=3)
    clients = make_clients([5] * 4)
    with federation(linear(), clients, **settings) as run:
        next(iter(run))
        assert run.player.state.released is not None
    assert (read_checkpoint(path, CPU)["released"] is not None) is read
    resumed, whole = linear(), linear()
    with federation(resumed, clients, **settings).resume() as run:
        run.run()
    with federation(whole, clients, **settings | {"checkpoint": None}) as run:
        run.run()
    assert torch.equal(flat(resumed), flat(whole))


KILLED = """
    import sys, time
    from tests.fl.engine.test_checkpoint import killed_run
    for report in killed_run(sys.argv[1]):
        print(report.round, flush=True)
        if report.round == 3:
            time.sleep(60)
"""


def killed_run(path):
    return federation(
        linear(), make_clients([5] * 8), sampling=fl.Poisson(0.5), rounds=6, checkpoint=path,
        noise_multiplier=None, budget=Budget(6, 1e-5), checkpoint_every=2,
    )  # fmt: skip


def test_kill_9_loses_no_charge(tmp_path):
    path = tmp_path / "run.pt"
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(path)]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    with first:
        for line in first.stdout:
            if line.strip() == "3":
                break
        first.send_signal(signal.SIGKILL)
    assert first.returncode == -signal.SIGKILL
    with Ledger.open(f"{path}.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.committed == 3
        spent = run.epsilon().upper
    assert read_checkpoint(path, CPU)["round"] == 2
    with killed_run(path).resume() as run:
        run.run()
        # Round 3 ran before the crash and runs again: of six planned rounds five reach the model.
        assert run.round == 5
        assert "all 6 rounds of the plan are charged" in run.stopped_because
    with Ledger.open(f"{path}.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.committed == 6
        assert spent < run.epsilon().upper <= 6
        z = run.plan.phases[0].round.noise_multiplier
    planned = dpacct.epsilon(noise_multiplier=z, rounds=6, sampling_rate=0.5, delta=1e-5)
    assert math.isclose(planned.upper, 6, rel_tol=1e-4)
