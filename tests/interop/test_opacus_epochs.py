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

from tests.interop.jobs import Job  # noqa: E402 - needs opacus

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

DELTA, NOISE, COUNT, STEPS = 1e-5, 1.0, 40, 10
X = torch.arange(COUNT, dtype=torch.float32).reshape(COUNT, 1)
EPOCH = Epoch(NOISE, STEPS, adjacency="zero-out")


def numbered(poisson: bool = True, **settings: Any) -> Job:  # noqa: FBT001, FBT002 - of Opacus
    """A job whose examples are their numbers."""
    loader = DataLoader(TensorDataset(X, (X[:, 0] > 20).long()), 4, shuffle=not poisson)
    module = torch.nn.Linear(1, 2)
    given = {"noise_multiplier": NOISE, "poisson_sampling": poisson} | settings
    return Job(loader=loader, module=module, **given)


def allocated(run: Any, job: Job | None = None, *, steps: Any = None, **settings: Any) -> Job:
    """A job that is attached to a run, with its examples allocated to steps."""
    job = job or numbered()
    job.loader = plug_in.allocate(job.loader, **({} if steps is None else {"steps": steps}))
    job.attach(run, **settings)
    return job


def examples(batches: list[Any]) -> list[list[int]]:
    return [batch[:, 0].long().tolist() for batch in batches]


def test_an_epoch_is_charged_at_its_start_and_committed_with_its_last_step(ledger: Ledger) -> None:
    run = ledger.start_run("allocated", plan=3 * EPOCH)
    job = allocated(run)
    assert job.loader.round == EPOCH
    assert len(job.loader) == STEPS
    assert job.optimizer.expected_batch_size == COUNT / STEPS
    iterator = iter(job.loader)
    next(iterator)
    assert (run.rounds, run.committed) == (1, 0)
    assert run.upper_epsilon() == pytest.approx(dpacct.epsilon(EPOCH, delta=DELTA).upper)
    del iterator
    drawn: list[list[list[int]]] = []
    for done in range(2):
        drawn.append(examples(job.epoch()))
        assert len(drawn[-1]) == STEPS
        assert sorted(itertools.chain(*drawn[-1])) == list(range(COUNT))
        assert (run.rounds, run.committed) == (done + 2, done + 1)
    assert drawn[0] != drawn[1]
    # The plan is at its end: the loop is over without an error.
    assert job.epoch() == []
    assert job.loader.ended.startswith("all 3 rounds of the plan are charged")
    assert run.epsilon().upper == pytest.approx(dpacct.epsilon(3 * EPOCH, delta=DELTA).upper)
    assert ledger.verify().sound
    with pytest.raises(Unsupported, match="not Poisson steps"):
        job.engine.get_epsilon(DELTA)


def test_an_epoch_that_is_left_costs_a_whole_one_and_the_next_is_drawn_afresh(
    ledger: Ledger,
) -> None:
    run = ledger.start_run("left")
    job = allocated(run)
    assert len(job.epoch(most=3)) == 3
    assert (run.rounds, run.committed) == (1, 0)
    assert len(job.epoch()) == STEPS
    assert (run.rounds, run.committed) == (2, 1)


def test_the_budget_ends_the_loop_before_an_epoch(tmp_path: Path) -> None:
    one = dpacct.epsilon(EPOCH, delta=DELTA).upper
    with Ledger.open(tmp_path / "x", Budget(one * 1.001, DELTA)) as ledger:
        job = allocated(ledger.start_run("one", plan=EPOCH))
        assert [len(job.epoch()) for _ in range(2)] == [STEPS, 0]


def test_a_public_size_hides_the_number_of_examples(ledger: Ledger) -> None:
    run = ledger.start_run("hidden")
    job = allocated(run, steps=5, public_size=60)
    assert job.loader.round == Epoch(NOISE, 5, adjacency="add-remove")
    assert job.optimizer.expected_batch_size == 12
    assert len(job.epoch()) == 5
    with pytest.raises(InvalidParameter, match="fixes the batches"):
        allocated(run, public_size=60, batch_size=4)


def test_shuffled_batches_are_refused_with_the_ways_out(ledger: Ledger) -> None:
    job = numbered(False, engine=opacus.PrivacyEngine(accountant="rdp"))
    run = ledger.start_run("shuffled", plan=ShuffledEpoch(NOISE, STEPS, adjacency="zero-out"))
    with pytest.raises(Unsupported, match=r"the loader shuffles.*allocate.*ShuffledEpoch"):
        job.attach(run)
    assert run.rounds == 0


def test_what_does_not_fit_is_refused_before_anything_is_charged(ledger: Ledger) -> None:
    job = numbered()
    loader = plug_in.allocate(job.loader)
    poisson = ledger.start_run("poisson", plan=10 * Round(NOISE, dpacct.Poisson(0.1), "zero-out"))
    run = ledger.start_run("run")

    class Stream(IterableDataset[Any]):
        def __iter__(self) -> Any:
            return iter(X)

    def attach(to: Any, **settings: Any) -> Any:
        return plug_in.attach_ledger(loader, job.optimizer, to, **settings)

    for call, error, words in (
        (lambda: next(iter(loader)), Unsupported, "attach_ledger"),
        (lambda: plug_in.allocate(job.loader, steps=0), InvalidParameter, "steps"),
        (lambda: plug_in.allocate(job.loader, steps=2.5), InvalidParameter, "steps"),
        (lambda: plug_in.allocate(DataLoader(Stream())), Unsupported, "stream"),
        (lambda: attach(poisson), InvalidParameter, "no round that covers"),
        (lambda: attach(run, adjacency="add-remove"), InvalidParameter, "public_size"),
        (lambda: attach(run, adjacency="replace-one"), InvalidParameter, "adjacency"),
    ):
        with pytest.raises(error, match=words):
            call()
    assert ledger.rounds == 0
    attached = attach(run)
    with pytest.raises(Unsupported, match="attached already"):
        plug_in.attach_ledger(attached, job.optimizer, run)


def test_a_second_step_on_a_batch_is_refused(ledger: Ledger) -> None:
    job = allocated(ledger.start_run("twice"))
    batch = next(iter(job.loader))
    job.step(batch)
    job.refuses(lambda: job.step(batch), LedgerError, "without a batch")


@pytest.mark.parametrize("seeds", [(7, 7), (7, 8)])
def test_a_given_generator_repeats_the_allocation_of_a_run_that_is_not_private(
    ledger: Ledger, seeds: tuple[int, int]
) -> None:
    drawn: list[list[list[int]]] = []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        engine = opacus.PrivacyEngine(accountant="rdp")
        job = numbered(engine=engine, noise_generator=generator)
        job.loader.batch_sampler.generator = generator
        job = allocated(ledger.start_run("seeded", private=False), job)
        drawn.append(examples(job.epoch()))
    assert (drawn[0] == drawn[1]) is (seeds[0] == seeds[1])
