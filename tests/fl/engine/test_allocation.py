"""Random allocation in training: its law, its charge, crashes in an epoch, and what is refused."""

from __future__ import annotations

import itertools
import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import chi2

import dpacct
from dpacct import Budget, Ledger, Round, fl
from dpacct.epochs import Epoch
from dpacct.errors import DpacctError, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.allocation import Allocator
from dpacct.fl.privacy.randomness import Randomness, Seeded
from dpacct.ledger.disk import store
from tests.fl.problems import (
    KILLED,
    cross_entropy,
    die,
    federation,
    forked,
    goes_on,
    linear,
    make_clients,
)

ROOT = Path(__file__).parents[3]
CLIENTS, STEPS = 40, 4


def test_each_client_is_in_one_step_of_each_epoch_and_in_the_same_one_in_all_its_passes() -> None:
    allocator = Allocator.start(fl.Allocation(STEPS, passes=3), Randomness())
    epochs: list[list[list[int]]] = []
    for epoch in range(5):
        rows = [allocator.members(epoch * STEPS * 3 + row, 101) for row in range(STEPS * 3)]
        assert rows[:STEPS] == rows[STEPS : 2 * STEPS] == rows[2 * STEPS :]
        assert sorted(itertools.chain(*rows[:STEPS])) == list(range(101))
        assert all(row == sorted(row) for row in rows)
        epochs.append(rows[:STEPS])
    assert len({str(epoch) for epoch in epochs}) == 5
    # The order in which rows are asked for makes no difference.
    assert allocator.members(STEPS * 3 + 1, 101) == epochs[1][1]


@pytest.mark.parametrize("steps", [1, 7, 60])
def test_steps_are_uniform_and_independent_between_clients_and_epochs(steps: int) -> None:
    allocator, clients = Allocator.start(fl.Allocation(steps), Seeded(5)), 6000
    places = np.empty((2, clients), dtype=int)
    for epoch in range(2):
        for step in range(steps):
            places[epoch, allocator.members(epoch * steps + step, clients)] = step
    joint = np.zeros((steps, steps))
    np.add.at(joint, (places[0], places[1]), 1)
    neighbors = np.zeros((steps, steps))
    np.add.at(neighbors, (places[0, ::2], places[0, 1::2]), 1)
    for table in (joint.sum(1), joint.sum(0), joint, neighbors):
        expected = table.sum() / table.size
        statistic = ((table - expected) ** 2).sum() / expected
        assert statistic <= chi2.isf(1e-6, max(1, table.size - 1))
        assert statistic >= chi2.ppf(1e-6, max(1, table.size - 1)) or steps == 1


@pytest.mark.parametrize("population", ["clients", "examples"])
def test_a_run_is_charged_as_its_epochs_are(population: str, tmp_path: Path) -> None:
    clients = make_clients([1] * CLIENTS)
    if population == "examples":
        clients = fl.Examples(make_clients([CLIENTS])[0])
    path, cohorts = tmp_path / "run.ledger", list[int]()
    with federation(
        linear(), clients, sampling=fl.Allocation(STEPS), rounds=3 * STEPS, ledger=path,
        noise_multiplier=1.5, delta=1e-5, clip_norm=0.5,
    ) as run:  # fmt: skip
        epoch = Epoch(1.5, STEPS, adjacency="zero-out")
        # A whole epoch from its first round on; its lower end when it is over.
        costs = [dpacct.epsilon(count * epoch, delta=1e-5) for count in (1, 2, 3)]
        for report in run:
            cohorts.append(report.diagnostics.cohort_size)
            begun, over = -(-report.round // STEPS), report.round // STEPS
            assert report.epsilon.upper == pytest.approx(costs[begun - 1].upper, rel=1e-9)
            least = costs[over - 1].lower if over else 0.0
            assert report.epsilon.lower <= least * (1 + 1e-9)
            assert report.noise_multiplier == 1.5
            assert report.noise_std == pytest.approx(0.75)
        assert run.engine.plan.cohort_size == CLIENTS / STEPS
        assert run.schedule == 3 * epoch
        assert run.planned_epsilon.upper == pytest.approx(costs[2].upper, rel=1e-9)
    for first in range(0, 3 * STEPS, STEPS):
        assert sum(cohorts[first : first + STEPS]) == CLIENTS
    with Ledger.open(path) as ledger:
        assert ledger.verify().sound
        assert ledger.rounds == ledger.runs[0].committed == 3
        spent = ledger.epsilon()
        assert (spent.lower, spent.upper) == pytest.approx(
            (costs[2].lower, costs[2].upper), rel=1e-9
        )


def test_an_epoch_whose_charge_failed_behind_the_disk_is_committed_with_its_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, options = tmp_path / "run.ledger", {"sampling": fl.Allocation(STEPS), "rounds": 2 * STEPS}
    with federation(linear(), make_clients([1] * CLIENTS), ledger=path, **options) as run:
        for _ in range(STEPS):
            run.begin()
            run.play()

        def full(*_: object) -> None:
            raise LedgerError("the witness cannot be written")

        with monkeypatch.context() as patch:
            patch.setattr(store, "update_witness", full)
            with pytest.raises(LedgerError, match="witness"):
                run.play()
        run.run()
    with Ledger.open(path) as ledger:
        assert ledger.runs[0].committed == ledger.rounds == 2


def test_a_schedule_of_epochs_is_calibrated_as_a_whole() -> None:
    budget = Budget(4.0, 1e-5)
    schedule = 3 * Epoch(1.0, STEPS, passes=2, adjacency="zero-out")
    found = dpacct.calibrate(epsilon=4.0, delta=1e-5, schedule=schedule).schedule
    clients = make_clients([3] * CLIENTS)
    with federation(
        linear(), clients, schedule=schedule, budget=budget, rounds=None, sampling=None,
        noise_multiplier=None,
    ) as run:  # fmt: skip
        assert run.rounds == 24
        assert run.schedule == found
        assert 4 * (1 - 1e-5) <= run.planned_epsilon.upper <= 4
        assert run.engine.plan.sampling == fl.Allocation(STEPS, passes=2)


def test_a_budget_allows_whole_epochs() -> None:
    two = dpacct.epsilon(2 * Epoch(1.0, STEPS, adjacency="zero-out"), delta=1e-5).upper
    settings = {"sampling": fl.Allocation(STEPS), "rounds": 5 * STEPS}
    budget = Budget(two * 1.01, 1e-5)
    with federation(linear(), make_clients([3] * CLIENTS), budget=budget, **settings) as run:
        run.run()
        assert run.round == run.rounds == 2 * STEPS
        assert run.epsilon.upper == pytest.approx(two, rel=1e-6)


def test_under_add_remove_the_divisor_follows_the_public_size() -> None:
    with federation(
        linear(), make_clients([3] * CLIENTS), sampling=fl.Allocation(STEPS), rounds=STEPS,
        public_size=100, adjacency="add-remove",
    ) as run:  # fmt: skip
        assert run.engine.plan.cohort_size == 25
        assert next(iter(run)).adjacency == "add-remove"


@pytest.mark.parametrize("after", [STEPS, STEPS + 2])
def test_a_seeded_run_that_is_resumed_equals_one_that_never_stopped(
    after: int, tmp_path: Path
) -> None:
    settings = {"sampling": fl.Allocation(STEPS), "rounds": 3 * STEPS, "seed": 11}
    clients, path = make_clients([3] * CLIENTS), tmp_path / "run.pt"
    goes_on(lambda path: federation(linear(), clients, checkpoint=path, **settings), path, after)
    with Ledger.open(f"{path}.ledger") as ledger:
        assert ledger.runs[0].committed == 3
        assert ledger.verify().sound


def served(path: Path | None = None, clients: int = CLIENTS) -> fl.Server:
    return fl.Server(
        linear(), clients, clip_norm=1.0, sampling=fl.Allocation(STEPS), rounds=3 * STEPS,
        noise_multiplier=1.0, checkpoint=path, checkpoint_every=STEPS,
    )  # fmt: skip


@pytest.mark.needs("posix")
def test_after_kill_9_in_an_epoch_its_rest_has_the_same_allocation(tmp_path: Path) -> None:
    path, log = tmp_path / "run.pt", tmp_path / "log"

    def six_rounds() -> None:
        for opened in served(path):
            with log.open("a") as file:
                file.write(f"{list(opened.cohort)}\n")
            if opened.number == 6:
                die()
            opened.release()

    assert forked(six_rounds) == KILLED
    seen = [set(json.loads(line)) for line in log.read_text().splitlines()]
    # The checkpoint is four rounds old, and hides the cohorts from others.
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with Ledger.open(f"{path}.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        # The second epoch is charged, and not released as a whole.
        assert (run.rounds, run.committed, run.latest_row) == (2, 1, 6)
    with served(path).resume() as server:
        for opened in server:
            seen.append(set(opened.cohort))
            opened.release()
        # Rounds 5 and 6 are lost, the latter unreleased: their steps are never given out again.
        assert server.round == 3 * STEPS - 2
        assert "a crash lost" in str(server.stopped_because)
    for epoch in range(3):
        steps = seen[epoch * STEPS : (epoch + 1) * STEPS]
        assert sum(map(len, steps)) == len(set.union(*steps)) == CLIENTS
    with Ledger.open(f"{path}.ledger") as ledger:
        [run] = ledger.runs
        assert (run.rounds, run.latest_row) == (3, 3 * STEPS)
        whole = dpacct.epsilon(3 * Epoch(1.0, STEPS, adjacency="zero-out"), delta=1e-5)
        assert run.epsilon().upper == pytest.approx(whole.upper, rel=1e-9)
        # An epoch with a lost round is not counted as achieved.
        assert run.committed == 2
        assert ledger.verify().sound


def test_two_processes_never_release_the_same_step(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    with served(path) as one:
        opened = next(iter(one))
        with served(path).resume() as other:
            again = next(iter(other))
            assert set(again.cohort).isdisjoint(opened.cohort)
            with pytest.raises(DpacctError, match="another process goes on"):
                opened.release()
            again.release()
            other.save()
    # A checkpoint without the allocation is refused.
    torch.save(torch.load(path, weights_only=True) | {"allocation": None}, path)
    with served(path) as server, pytest.raises(InvalidParameter, match="seed of its alloc"):
        server.resume()


SCHEDULE = {"sampling": None, "rounds": None, "noise_multiplier": None}
FOUR, FIVE = (Epoch(1.0, steps, adjacency="zero-out") for steps in (4, 5))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"rounds": STEPS + 1}, "an epoch has 4 rounds.*For example 4"),
        ({"rounds": STEPS - 1}, "an epoch has 4 rounds"),
        ({"adjacency": "replace-one"}, "replace-one"),
        ({"adjacency": "add-remove"}, "public_size"),
        ({"noise": fl.NoiseShares(2)}, "noise shares under Allocation"),
        ({"sampling": fl.Allocation}, "a list, a cycle, a seed"),
        ({"schedule": FOUR + FIVE, **SCHEDULE}, "equal epochs"),
        ({"schedule": FOUR + Round(1.0, adjacency="zero-out"), **SCHEDULE}, "equal epochs"),
    ],
)
def test_what_is_not_proven_is_refused_before_anything_is_charged(
    settings: dict[str, object], words: str, tmp_path: Path
) -> None:
    whole = {"sampling": fl.Allocation(STEPS), "rounds": STEPS, "ledger": tmp_path / "x.ledger"}
    with pytest.raises((InvalidParameter, Unsupported), match=words):
        federation(linear(), make_clients([3] * CLIENTS), **whole | settings).run()
    assert not (tmp_path / "x.ledger").exists()


def test_steps_are_counted_and_plans_and_audits_refuse_an_allocation() -> None:
    for steps in (0, 1.5, "4"):
        with pytest.raises(InvalidParameter, match="steps"):
            fl.Allocation(steps)  # type: ignore[arg-type]
    people, rule = make_clients([3] * 8), fl.Allocation(STEPS)
    whole = {"sampling": rule, "rounds": STEPS}
    for call, words in (
        (lambda: fl.AggregationPlan(1.0, sampling=rule, num_clients=9), "Without amplification"),
        (lambda: fl.audit(sampling=rule), "Without amplification"),
        (
            lambda: fl.audit_run(
                lambda clients: federation(linear(), clients, **whole), people, canaries=30
            ),
            "random allocation",
        ),
        (
            lambda: fl.audit_server(
                lambda count: served(clients=count), lambda *_: None, people, canaries=30
            ),
            "random allocation",
        ),
    ):
        with pytest.raises(Unsupported, match=words):
            call()


@pytest.mark.usefixtures("uncounted")
def test_the_loss_is_trained() -> None:
    clients = make_clients([8] * 100)
    model = linear()
    with federation(
        model, clients, sampling=fl.Allocation(5), rounds=20, noise_multiplier=0.3, seed=1,
        local=fl.SGD(lr=1.0, steps=2),
    ) as run:  # fmt: skip
        run.run()
    inputs = torch.cat([c.inputs for c in clients])
    targets = torch.cat([c.targets for c in clients])
    assert cross_entropy(model(inputs), targets) < cross_entropy(linear()(inputs), targets) - 0.3
