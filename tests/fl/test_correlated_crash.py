"""Kill -9 at every stage of a run with correlated noise: no row is used twice, and none is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dpacct import Budget, fl
from dpacct.correlated import Strategy, buffered_toeplitz, square_root
from dpacct.errors import InvalidParameter
from dpacct.fl.engine import run as run_module
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.rounds import Rounds
from dpacct.fl.federation import Federation
from dpacct.fl.privacy import account
from dpacct.fl.privacy.correlated import NoiseStream
from dpacct.ledger import Ledger, Run, Ticket
from tests.fl.problems import KILLED, federation, flat, forked, killer, linear, make_clients

ROUNDS, GROUPS = 8, 4
CLIENTS = make_clients((3,) * GROUPS)
STRATEGIES = {
    "banded": square_root(ROUNDS, 3),
    "buffers": buffered_toeplitz(ROUNDS, [(0.3, 0.9), (0.1, 0.5)]),
}


def run_of(folder: Path, strategy: Strategy) -> fl.Federation:
    return federation(
        linear(), CLIENTS, noise=fl.CorrelatedNoise(strategy), sampling=fl.Cyclic(GROUPS),
        rounds=ROUNDS, checkpoint=folder / "run",
    )  # fmt: skip


def in_a_process(folder: Path, strategy: Strategy, prepare: Callable[[], None]) -> int:
    """Start or resume the run in a process of its own. Each release is logged before it leaves."""

    def act() -> None:
        add = Engine.release

        def logged(engine: Engine, state: Any, found: Any, row: int | None = None) -> Any:
            total = found.total.clone()
            released = add(engine, state, found, row)
            if row is not None:
                noise = released.mean.vector.double() * engine.plan.cohort_size - total
                line = {"row": row, "noise": noise.tolist(), "clients": found.clients}
                with (folder / "log").open("a") as file:
                    file.write(json.dumps(line) + "\n")
            return released

        Engine.release = logged
        prepare()
        run = run_of(folder, strategy)
        if (folder / "run").exists():
            run.resume()
        run.run()
        run.close()

    return forked(act)


STAGES = {
    "before the charge": (Run, "reserve", 1, False),
    "charge reserved": (Run, "reserve", 1, True),
    "charge committed": (Ticket, "commit", 1, True),
    "before the row": (Run, "take_row", 3, False),
    "row taken": (Run, "take_row", 3, True),
    "training": (Federation, "collect", 3, False),
    "summed": (Federation, "collect", 3, True),
    "noise added": (Engine, "release", 3, True),
    "before its commit": (account.RowTicket, "commit", 3, False),
    "committed": (account.RowTicket, "commit", 3, True),
    "model moved": (Rounds, "write_model", 3, True),
    "before the checkpoint": (run_module, "write_checkpoint", 4, False),
    "in the checkpoint": (torch, "save", 4, True),
    "behind the checkpoint": (run_module, "write_checkpoint", 4, True),
}
# Before these stages of round 3 its row is not taken, or its round has ended.
KEEPS_ALL = [*list(STAGES)[:4], "behind the checkpoint"]


@pytest.mark.needs("posix")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", STRATEGIES)
def test_a_killed_run_goes_on_with_its_next_row(name: str, stage: str, tmp_path: Path):
    strategy, (owner, method, calls, after) = STRATEGIES[name], STAGES[stage]
    assert in_a_process(tmp_path, strategy, killer(owner, method, calls, after=after)) == KILLED
    seed = bytes.fromhex(torch.load(tmp_path / "run", weights_only=True)["noise"]["seed"])
    assert in_a_process(tmp_path, strategy, lambda: None) == 0
    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    # No row has noised two sums.
    rows = [entry["row"] for entry in log]
    assert rows == sorted(set(rows))
    lost = set(range(ROUNDS)) - set(rows)
    assert len(lost) <= (stage not in KEEPS_ALL)
    # Every release has the row of the one sequence that the seed gives, across the crash.
    stream = NoiseStream(strategy, seed, flat(linear()).numel(), torch.device("cpu"))
    expected = [stream.take(t).numpy() for t in range(ROUNDS)]
    for entry in log:
        assert np.allclose(entry["noise"], expected[entry["row"]], atol=1e-5)
        # The turns of clients follow the rows, so nobody is back too early.
        assert entry["clients"] == [entry["row"] % GROUPS]
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        assert ledger.verify().sound
        [run] = ledger.runs
        assert (run.latest_row, run.rounds) == (ROUNDS, 1)


@pytest.mark.needs("posix")
def test_a_run_killed_before_its_first_checkpoint_has_charged_nothing(tmp_path: Path):
    strategy = STRATEGIES["banded"]
    in_a_process(tmp_path, strategy, killer(run_module, "write_checkpoint", 1, after=False))
    with pytest.raises(InvalidParameter, match="no such file"):
        run_of(tmp_path, strategy).resume()
    with Ledger.open(tmp_path / "run.ledger") as ledger:
        assert ledger.rounds == 0
        ledger.runs[0].finish()
        assert ledger.upper_epsilon() == 0


@pytest.mark.parametrize(
    "options",
    [
        {"noise": fl.CorrelatedNoise(STRATEGIES["banded"]), "sampling": fl.Cyclic(GROUPS)},
        {"sampling": fl.Allocation(ROUNDS)},
    ],
    ids=["noise", "allocation"],
)
def test_two_runs_from_one_early_checkpoint_share_no_secret(tmp_path: Path, options: Any) -> None:
    """A run that was saved before its first round may be resumed twice, as two runs."""

    def run() -> fl.Federation:
        ledger = Ledger.open(tmp_path / "a.ledger", Budget(1000, 1e-5))
        return federation(linear(), CLIENTS, rounds=ROUNDS, ledger=ledger, **options)

    with run() as early:
        early.save(tmp_path / "start")
    secrets: list[Any] = []
    for _ in range(2):
        with run().resume(tmp_path / "start") as again:
            next(iter(again))
            kept = torch.load(again.save(tmp_path / "kept"), weights_only=True)
            secrets.append(kept["allocation"] or kept["noise"]["seed"])
    assert secrets[0] != secrets[1]
    with Ledger.open(tmp_path / "a.ledger", read_only=True) as ledger:
        assert len(ledger.runs) == 2
