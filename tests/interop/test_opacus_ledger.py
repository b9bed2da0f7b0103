"""A ledger under a loop of Opacus: what is charged, and what cannot be attached."""

from __future__ import annotations

import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Full, Ledger, Poisson, Round
from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from tests.interop.jobs import (
    DELTA,
    MODES,
    NOISE,
    RATE,
    ROUND,
    BatchSampler,
    DataLoader,
    Job,
    TensorDataset,
    WeightedRandomSampler,
    X,
    Y,
    opacus,
    plug_in,
    torch,
)

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

# Charging.


@pytest.mark.parametrize(
    ("mode", "workers", "batches"),
    [
        ("hooks", 0, "split"),
        ("ghost", 0, "whole"),
        ("ghost", 1, "split"),
        ("hooks", 0, "ahead"),
        ("hooks", 1, "ahead"),
        pytest.param("hooks", 1, "whole", marks=pytest.mark.slow),
    ],
)
def test_each_step_is_charged_and_the_plan_ends_quietly(
    ledger: Ledger, mode: str, workers: int, batches: str
) -> None:
    run = ledger.start_run("opacus", 25 * ROUND, ahead=10 if batches == "ahead" else 1)
    job = Job(mode=mode, workers=workers)
    loader = job.attach(run)
    parts = 0
    for _ in range(4):
        with job.split(2) if batches == "split" else nullcontext(loader) as used:
            parts += len(job.epoch(used))
    assert (run.committed, run.rounds, len(job.engine.accountant)) == (25, 25, 25)
    assert parts > 25 if batches == "split" else parts == 25
    assert run.on_plan
    # A worker draws batches before the one before has its step, so each has its own reservation.
    entries = [entry["kind"] for entry in ledger.export()].count("reserve")
    assert entries == (3 if batches == "ahead" and not workers else 25)
    assert loader.ended.startswith("all 25 rounds of the plan are charged")
    assert run.epsilon().upper == job.engine.get_epsilon(DELTA)


def test_without_a_plan_the_budget_ends_it(tmp_path: Path) -> None:
    with Ledger.open(tmp_path / "small", Budget(4, DELTA), typical=20 * ROUND) as small:
        run = small.start_run("opacus")
        job = Job()
        loader = job.attach(run)
        while job.epoch():
            pass
        assert "does not fit" in loader.ended
        assert run.committed == run.rounds
        assert 0 < run.epsilon().upper <= 4
        assert small.remaining(loader.round) == 0


def test_a_round_is_on_disk_before_the_model_changes(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    batches = iter(job.attach(run))
    batch = next(batches)
    assert (run.rounds, run.committed) == (1, 0)
    before = job.weights
    seen: list[Any] = []
    update = job.optimizer.original_optimizer.step

    def watched() -> None:
        seen.append((run.committed, job.weights == before))
        update()

    monkeypatch.setattr(job.optimizer.original_optimizer, "step", watched)
    job.step(batch)
    assert seen == [(1, True)]
    assert job.weights != before

    def full(*_: Any) -> None:
        raise LedgerError("the disk is full")

    batch = next(batches)
    monkeypatch.setattr(type(run.reserve(ROUND)), "commit", full)
    job.refuses(lambda: job.step(batch), LedgerError, "full")


def test_a_loop_that_was_left_is_over_and_its_batches_stay_spent(run: Any) -> None:
    job = Job()
    loader = job.attach(run)
    old = iter(loader)
    next(old)
    for number, batch in enumerate(loader):
        if number == 3:
            break
        job.step(batch)
    assert (run.rounds, run.committed) == (5, 3)
    with pytest.raises(LedgerError, match="another loop"):
        next(old)
    assert len(job.epoch()) == 10
    assert (run.rounds, run.committed, len(job.engine.accountant)) == (15, 13, 15)


@pytest.mark.parametrize(("workers", "charged"), [(0, False), (0, True), (1, True)])
def test_a_step_without_a_batch_of_its_own_is_refused(
    run: Any, workers: int, *, charged: bool
) -> None:
    job = Job(workers=workers)
    if charged:
        job.attach(run)
    job.refuses(lambda: job.step((X, Y)), LedgerError, "a step without a batch")
    for batch in job.loader:
        job.step(batch)
        job.refuses(lambda found=batch: job.step(found), LedgerError, "a step without a batch")
    assert len(job.engine.accountant) == 10
    assert run.committed == (10 if charged else 0)


@pytest.mark.parametrize("charged", [False, True], ids=["accountant", "ledger"])
def test_gradients_of_several_batches_are_refused(run: Any, *, charged: bool) -> None:
    job = Job()
    if charged:
        job.attach(run)
    batches = iter(job.loader)
    job.model.allow_grad_accumulation()
    job.backward(next(batches))
    job.backward(next(batches))
    job.refuses(job.optimizer.step, LedgerError, "had no step")
    job.optimizer.zero_grad()
    batches = iter(job.loader)
    batch = next(batches)
    job.backward(batch)
    job.backward(batch)
    job.refuses(job.optimizer.step, Unsupported, "gradients of 2 batches")


@pytest.mark.parametrize(("workers", "skipped"), [(0, 0), (0, 4), (1, 1)])
def test_a_part_of_a_batch_without_its_step_is_refused(
    run: Any, skipped: int, workers: int
) -> None:
    job = Job(loader=DataLoader(TensorDataset(X, Y), 20, num_workers=workers))
    job.attach(run)

    def loop() -> None:
        with job.split(1) as split:
            for number, batch in enumerate(split):
                if number != skipped:
                    job.step(batch)

    job.refuses(loop, LedgerError, "a part of a batch had no step")
    assert run.committed == 0


@MODES
def test_batches_that_the_program_itself_adds_up_are_refused(run: Any, mode: str) -> None:
    job = Job(mode=mode)
    batches = iter(job.attach(run))
    batch = next(batches)
    job.optimizer.signal_skip_step(do_skip=True)
    job.step(batch)
    batch = next(batches)
    job.optimizer.signal_skip_step(do_skip=False)
    for found in (batch, next(batches)):
        job.refuses(lambda late=found: job.step(late), LedgerError, "a part of a batch")
    assert run.committed == 0
    # A new loop begins with nothing.
    assert len(job.epoch()) == run.committed == 10


@MODES
def test_one_example_more_than_was_drawn_and_a_little_less_noise_are_refused(
    run: Any, mode: str
) -> None:
    job = Job(mode=mode)
    batches = iter(job.attach(run))
    count = max(len(next(batches)[0]), 1) + 1
    words = f"the gradients are of {count} examples"
    job.refuses(lambda: job.step((X[:count], Y[:count])), LedgerError, words)
    job.optimizer.noise_multiplier = NOISE * (1 - 1e-6)
    batch = next(iter(job.loader))
    job.refuses(lambda: job.step(batch), Unsupported, "is less than")
    job.optimizer.noise_multiplier = NOISE
    job.step(batch)
    assert (run.rounds, run.committed) == (2, 1)


@pytest.mark.parametrize("accountant", ["prv", "dpacct"])
def test_an_optimizer_beside_the_attached_one_is_refused(run: Any, accountant: str) -> None:
    job, other = Job(), Job(engine=opacus.PrivacyEngine(accountant=accountant))
    for batch in job.attach(run):
        job.step(batch)
        other.refuses(lambda found=batch: other.step(found), (Unsupported, LedgerError), "a s")
    # A public model trains as it likes, and the other one once the loop is over.
    torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1).step()
    other.optimizer.zero_grad()
    assert len(other.epoch()) == 10


def test_a_second_attachment_is_refused(ledger: Ledger, run: Any) -> None:
    job, other = Job(), Job()
    job.attach(run)
    with pytest.raises(Unsupported, match="a second optimizer"):
        plug_in.attach_ledger(job.loader, other.optimizer, run)
    with pytest.raises(Unsupported, match="charged twice"):
        plug_in.attach_ledger(other.loader, job.optimizer, run)
    assert ledger.rounds == 0


# Settings that change after they were attached.


def test_a_step_without_the_noise_of_the_optimizer_is_refused(run: Any) -> None:
    job = Job()
    job.attach(run)
    job.optimizer.attach_step_hook(lambda _: None)
    assert len(job.epoch()) == run.committed == 10
    job.optimizer.add_noise = lambda: None
    job.refuses(job.epoch, LedgerError, "was not charged")


def test_a_sampling_rate_that_is_set_later_is_refused(run: Any) -> None:
    jobs = Job(), Job()
    jobs[0].attach(run)
    for job in jobs:
        job.loader.batch_sampler.sample_rate = 0.5
        job.refuses(job.epoch, Unsupported, "was set to 0.5, and each batch is charged for 0.1")


@MODES
def test_noise_clip_norm_and_generator_are_those_that_are_charged(run: Any, mode: str) -> None:
    job = Job(mode=mode)
    job.attach(run)
    optimizer = job.optimizer
    optimizer.noise_multiplier = NOISE / 2
    job.refuses(job.epoch, Unsupported, "less than 0.8662, which is charged")
    optimizer.noise_multiplier, optimizer.max_grad_norm = 2 * NOISE, 0.5
    job.refuses(job.epoch, Unsupported, "clip norm was 1 and is 0.5")
    optimizer.max_grad_norm = 1.0
    assert len(job.epoch()) == run.committed == 10
    optimizer.generator = torch.Generator().manual_seed(3)
    job.refuses(job.epoch, InvalidParameter, "generator is 'replaced'")


def test_a_clip_norm_may_follow_a_schedule(run: Any) -> None:
    job = Job()
    for batch in job.attach(run, scheduled_clip=True):
        job.step(batch)
        job.optimizer.max_grad_norm *= 0.9
    assert run.committed == 10


def test_clip_norms_of_layers_that_exceed_the_one_of_the_noise_are_refused(run: Any) -> None:
    job = Job(clipping="per_layer", max_grad_norm=[0.5, 0.5])
    job.optimizer.max_grad_norms = [5.0, 5.0]
    with pytest.raises(Unsupported, match=r"7\.07107 together"):
        job.attach(run)
    job.optimizer.max_grad_norms = [0.5, 0.5]
    job.attach(run, scheduled_clip=True)
    job.optimizer.max_grad_norms = [5.0, 5.0]
    job.refuses(job.epoch, Unsupported, r"7\.07107 together")
    job.optimizer.max_grad_norms, job.optimizer.max_grad_norm = [0.3, 0.6], 0.45**0.5
    assert len(job.epoch()) == 10


def test_a_model_that_clips_to_another_norm_than_its_optimizer_says(run: Any) -> None:
    job = Job(mode="ghost", loader=DataLoader(TensorDataset(50 * X, Y), 40))
    job.optimizer.max_grad_norm = 0.01
    job.attach(run)
    job.refuses(job.epoch, Unsupported, r"clips to 1, and the noise is for 0\.01")
    assert run.committed == 0


@MODES
def test_gradients_that_are_not_finite_are_not_released(run: Any, mode: str) -> None:
    x = X.clone()
    x[3] = float("nan")
    job = Job(mode=mode, loader=DataLoader(TensorDataset(x, Y), 40))
    job.attach(run)
    job.refuses(job.epoch, LedgerError, "not finite")
    assert (run.rounds, run.committed) == (1, 0)


@MODES
@pytest.mark.parametrize("charged", [False, True], ids=["accountant", "ledger"])
def test_autocast_is_refused_before_noise_is_drawn(run: Any, mode: str, *, charged: bool) -> None:
    job = Job(mode=mode)
    if charged:
        job.attach(run)
    batch = next(iter(job.loader))
    job.optimizer.zero_grad()
    job.backward(batch, autocast=True)
    job.refuses(job.optimizer.step, Unsupported, "without autocast")
    assert run.committed == 0


def test_parameters_and_noise_of_less_than_float32_are_refused(run: Any) -> None:
    """In bfloat16 one example more moves a sum of 256 of them by two clip norms."""
    for mode, dtype in (("hooks", torch.bfloat16), ("ghost", torch.float16)):
        loader = DataLoader(TensorDataset(X.to(dtype), Y), 4)
        job = Job(mode=mode, module=torch.nn.Linear(5, 2).to(dtype), loader=loader)
        with pytest.raises(Unsupported, match="moves the sum by more than the clip norm"):
            job.attach(run)
    job = Job()
    job.optimizer.secure_mode = True
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(Unsupported, match=r"default dtype, torch\.bfloat16"):
            job.attach(run)
    finally:
        torch.set_default_dtype(torch.float32)


# What cannot be attached.

ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


def test_a_loader_that_does_not_sample_by_poisson_is_refused(ledger: Ledger, run: Any) -> None:
    data = TensorDataset(X, Y)
    weighted = WeightedRandomSampler([1.0] * len(data), len(data))
    for loader, words in (
        (DataLoader(data, 4, shuffle=True), "the loader shuffles"),
        (DataLoader(data, 4), "does not sample by Poisson"),
        (DataLoader(data, 4, sampler=weighted), "samples by weight"),
        (DataLoader(data, None), "does not sample by Poisson"),
    ):
        with pytest.raises(Unsupported, match=words):
            plug_in.attach_ledger(loader, Job().optimizer, run)
    assert ledger.rounds == 0


def test_several_processes_are_refused(run: Any) -> None:
    job = Job()
    job.optimizer.__class__ = opacus.optimizers.DistributedDPOptimizer
    with pytest.raises(Unsupported, match="in one process"):
        job.attach(run)


def test_an_optimizer_whose_clip_norm_depends_on_the_data_is_refused(run: Any) -> None:
    """Opacus counts the noise of gradients and count together, at half the sensitivity."""
    with pytest.raises(Unsupported, match="by a count of the data"):
        Job(**ADAPTIVE)
    job = Job(**ADAPTIVE, engine=opacus.PrivacyEngine())
    with pytest.raises(Unsupported, match="by a count of the data"):
        job.attach(run)
    with pytest.raises(Unsupported, match="adds no noise"):
        plug_in.attach_ledger(job.loader, job.optimizer.original_optimizer, run)


@pytest.mark.parametrize(
    "round_",
    [
        Round(2 * NOISE, Poisson(RATE), "zero-out"),
        Round(NOISE, Poisson(RATE / 2), "zero-out"),
        Round(20.0, Full(), "zero-out"),
    ],
)
def test_a_run_that_does_not_fit_the_loop_is_refused(ledger: Ledger, round_: Round) -> None:
    run = ledger.start_run("opacus", 10 * round_)
    with pytest.raises(InvalidParameter, match="no round that covers a step"):
        Job().attach(run)
    run.finish()
    with pytest.raises(LedgerError, match="is finished"):
        Job().attach(run)
    assert ledger.rounds == 0


def test_repeatable_noise_is_not_private(ledger: Ledger, run: Any) -> None:
    job = Job(noise_generator=torch.Generator().manual_seed(1))
    with pytest.raises(InvalidParameter, match="generator is 'given'"):
        job.attach(run)
    seeded = ledger.start_run("seeded", private=False)
    job.attach(seeded)
    assert len(job.epoch()) == 10
    assert seeded.epsilon().upper == float("inf")


def test_seeds_of_the_program_do_not_reach_batches_and_noise(ledger: Ledger) -> None:
    found: list[Any] = []
    for _ in range(2):
        torch.manual_seed(7)
        job = Job()
        torch.manual_seed(7)
        job.attach(ledger.start_run("opacus"))
        found.append((list(job.loader.batch_sampler), job.epoch(), job.weights))
    assert found[0][0] != found[1][0]
    assert found[0][2] != found[1][2]


# A public size.


@pytest.mark.parametrize(("examples", "batch"), [(2000, 50), (2001, 64), (41, 40)])
def test_a_public_size_hides_the_number_of_examples(
    ledger: Ledger, examples: int, batch: int
) -> None:
    """Neighbors have one noise on the mean, one divisor, one rate and one number of batches."""
    seen: list[Any] = []
    for number in (examples, examples - 1):
        data = TensorDataset(torch.ones(number, 5), torch.zeros(number, dtype=torch.long))
        module = torch.nn.Linear(5, 2000)
        job = Job(module=module, loader=DataLoader(data, batch), noise_multiplier=3.0)
        loader = job.attach(ledger.start_run("neighbors"), public_size=2000)
        assert loader.round == Round(3.0, Poisson(batch / 2000), "add-remove")
        inputs, targets = next(iter(loader))
        before = [p.detach().clone() for p in job.optimizer.params]
        # Without gradients, the step is its noise.
        (0 * job.loss(job.model(inputs), targets)).backward()
        job.optimizer.step()
        moved = [(p - b).flatten() for p, b in zip(job.optimizer.params, before, strict=True)]
        std = float(torch.cat(moved).double().square().mean().sqrt()) / 0.1
        # 12,000 draws: six standard errors.
        assert std == pytest.approx(3.0 / batch, rel=0.04)
        seen.append((job.optimizer.expected_batch_size, loader.sample_rate, len(loader)))
    assert seen[0] == seen[1] == (batch, batch / 2000, math.ceil(2000 / batch))


def test_without_a_public_size_the_relation_is_zero_out(ledger: Ledger) -> None:
    job = Job()
    for asked in ({"adjacency": "add-remove"}, {}):
        run = ledger.start_run("hidden", None if asked else 10 * Round(NOISE, Poisson(RATE)))
        with pytest.raises(InvalidParameter, match="from the number of examples"):
            job.attach(run, **asked)
        run.finish()
    with pytest.raises(InvalidParameter, match="together with public_size"):
        job.attach(ledger.start_run("public number"), batch_size=4)


def test_zero_out_is_charged_without_a_public_size(ledger: Ledger, run: Any) -> None:
    job = Job()
    next(iter(job.attach(run)))
    assert str(ledger.adjacency) == "zero-out"
    assert (job.loader.sample_rate, job.optimizer.expected_batch_size) == (RATE, 4)


def test_a_public_size_needs_a_batch_size(run: Any) -> None:
    sampler = BatchSampler(range(40), 4, drop_last=False)
    job = Job(loader=DataLoader(TensorDataset(X, Y), batch_sampler=sampler))
    job.loader.stated_batch_size = None
    with pytest.raises(InvalidParameter, match="batch_size"):
        job.attach(run, public_size=40)
    assert job.attach(run, public_size=40, batch_size=8).sample_rate == 0.2
