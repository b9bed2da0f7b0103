"""Epochs under Opacus' loop: random allocation, and what shuffled batches cost."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, Ledger, Round
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import InvalidParameter, LedgerError, Unsupported

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from torch.utils.data import (  # noqa: E402 - needs torch
    DataLoader,
    IterableDataset,
    TensorDataset,
)

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

DELTA, NOISE, COUNT, STEPS = 1e-5, 1.0, 40, 10
X = torch.arange(COUNT, dtype=torch.float32).reshape(COUNT, 1)
EPOCH = Epoch(NOISE, STEPS, adjacency="zero-out")


class Job:
    """A model with what `make_private` returns."""

    def __init__(self, *, accountant: str = "dpacct", batch: int = 4, **settings: Any) -> None:
        self.module = torch.nn.Linear(1, 2)
        self.engine = opacus.PrivacyEngine(accountant=accountant)
        data = TensorDataset(X, (X[:, 0] > 20).long())
        loader = DataLoader(data, batch, shuffle="poisson_sampling" in settings)
        self.model, self.optimizer, self.loader = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.1),
            data_loader=loader,
            **({"noise_multiplier": NOISE, "max_grad_norm": 1.0} | settings),
        )

    def epoch(self, loader: Any, most: int = 1000) -> list[list[int]]:
        """Train on a pass, and return the examples of each batch."""
        batches: list[list[int]] = []
        for x, y in loader:
            batches.append([int(value) for value in x[:, 0]])
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(x), y).backward()
            self.optimizer.step()
            if len(batches) == most:
                break
        return batches


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "l.ledger", Budget(50, DELTA)) as opened:
        yield opened


def test_an_epoch_is_charged_at_its_start_and_committed_with_its_last_step(ledger: Ledger) -> None:
    job, run = Job(), ledger.start_run("allocated", plan=3 * EPOCH)
    loader = plug_in.attach_ledger(plug_in.allocate(job.loader), job.optimizer, run)
    assert loader.round == EPOCH
    assert len(loader) == STEPS
    assert job.optimizer.expected_batch_size == COUNT / STEPS
    iterator = iter(loader)
    next(iterator)
    assert (run.rounds, run.committed) == (1, 0)
    assert run.upper_epsilon() == pytest.approx(dpacct.epsilon(EPOCH, delta=DELTA).upper)
    del iterator
    drawn: list[list[list[int]]] = []
    for done in range(2):
        drawn.append(job.epoch(loader))
        assert len(drawn[-1]) == STEPS
        assert sorted(itertools.chain(*drawn[-1])) == list(range(COUNT))
        assert (run.rounds, run.committed) == (done + 2, done + 1)
    assert drawn[0] != drawn[1]
    # The plan is at its end: the loop is over without an error.
    assert job.epoch(loader) == []
    assert loader.ended == "the plan of the run is at its end"
    assert run.epsilon().upper == pytest.approx(dpacct.epsilon(3 * EPOCH, delta=DELTA).upper)
    assert ledger.verify().sound
    with pytest.raises(Unsupported, match="no Poisson steps"):
        job.engine.get_epsilon(DELTA)


def test_an_epoch_that_is_left_costs_a_whole_one_and_the_next_is_drawn_afresh(
    ledger: Ledger,
) -> None:
    job, run = Job(), ledger.start_run("left")
    loader = plug_in.attach_ledger(plug_in.allocate(job.loader), job.optimizer, run)
    assert len(job.epoch(loader, most=3)) == 3
    assert (run.rounds, run.committed) == (1, 0)
    assert len(job.epoch(loader)) == STEPS
    assert (run.rounds, run.committed) == (2, 1)


def test_the_budget_ends_the_loop_before_an_epoch(tmp_path: Path) -> None:
    one = dpacct.epsilon(EPOCH, delta=DELTA).upper
    with Ledger.open(tmp_path / "x", Budget(one * 1.001, DELTA)) as ledger:
        job, run = Job(), ledger.start_run("one", plan=EPOCH)
        loader = plug_in.attach_ledger(plug_in.allocate(job.loader), job.optimizer, run)
        assert [len(job.epoch(loader)) for _ in range(2)] == [STEPS, 0]


def test_a_public_size_hides_the_number_of_examples(ledger: Ledger) -> None:
    job, run = Job(), ledger.start_run("hidden")
    loader = plug_in.attach_ledger(
        plug_in.allocate(job.loader, steps=5), job.optimizer, run, public_size=60
    )
    assert loader.round == Epoch(NOISE, 5, adjacency="add-remove")
    assert job.optimizer.expected_batch_size == 12
    assert len(job.epoch(loader)) == 5
    again = plug_in.allocate(Job().loader)
    with pytest.raises(InvalidParameter, match="fixes the batches"):
        plug_in.attach_ledger(again, Job().optimizer, run, public_size=60, batch_size=4)


def test_shuffled_batches_are_refused_with_the_ways_out(ledger: Ledger) -> None:
    job = Job(poisson_sampling=False, accountant="rdp")
    run = ledger.start_run("shuffled", plan=ShuffledEpoch(NOISE, STEPS, adjacency="zero-out"))
    with pytest.raises(Unsupported, match=r"the loader shuffles.*allocate.*ShuffledEpoch"):
        plug_in.attach_ledger(job.loader, job.optimizer, run)
    assert run.rounds == 0


def test_what_does_not_fit_is_refused_before_anything_is_charged(ledger: Ledger) -> None:
    job = Job()
    loader = plug_in.allocate(job.loader)
    with pytest.raises(Unsupported, match="attach_ledger"):
        next(iter(loader))
    for steps in (0, 2.5):
        with pytest.raises(InvalidParameter, match="steps"):
            plug_in.allocate(job.loader, steps=steps)
    poisson = ledger.start_run("poisson", plan=10 * Round(NOISE, dpacct.Poisson(0.1), "zero-out"))
    with pytest.raises(InvalidParameter, match="no round that covers"):
        plug_in.attach_ledger(loader, job.optimizer, poisson)
    run = ledger.start_run("run")
    with pytest.raises(InvalidParameter, match="public_size"):
        plug_in.attach_ledger(loader, job.optimizer, run, adjacency="add-remove")
    with pytest.raises(InvalidParameter, match="adjacency"):
        plug_in.attach_ledger(loader, job.optimizer, run, adjacency="replace-one")

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(X)

    with pytest.raises(Unsupported, match="stream"):
        plug_in.allocate(DataLoader(Stream()))
    assert ledger.rounds == 0
    attached = plug_in.attach_ledger(loader, job.optimizer, run)
    with pytest.raises(Unsupported, match="attached already"):
        plug_in.attach_ledger(attached, job.optimizer, run)


def test_a_second_step_on_a_batch_is_refused(ledger: Ledger) -> None:
    job, run = Job(), ledger.start_run("twice")
    loader = plug_in.attach_ledger(plug_in.allocate(job.loader), job.optimizer, run)
    for x, y in loader:
        torch.nn.functional.cross_entropy(job.model(x), y).backward()
        job.optimizer.step()
        with pytest.raises(LedgerError, match="without a batch"):
            job.optimizer.step()
        break


@pytest.mark.parametrize("seeds", [(7, 7), (7, 8)])
def test_a_given_generator_repeats_the_allocation_of_a_run_that_is_not_private(
    tmp_path: Path, seeds: tuple[int, int]
) -> None:
    drawn: list[list[list[int]]] = []
    for place, seed in enumerate(seeds):
        generator = torch.Generator().manual_seed(seed)
        with Ledger.open(tmp_path / str(place), Budget(50, DELTA)) as ledger:
            run = ledger.start_run("seeded", private=False)
            job = Job(accountant="rdp", noise_generator=generator)
            inner = job.loader.batch_sampler
            inner.generator = generator
            loader = plug_in.attach_ledger(plug_in.allocate(job.loader), job.optimizer, run)
            drawn.append(job.epoch(loader))
    assert (drawn[0] == drawn[1]) is (seeds[0] == seeds[1])
