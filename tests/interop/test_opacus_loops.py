"""Loops as people write them with Opacus: what is right, what is rejected, and what it costs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

import dpacct
from dpacct import Ledger, Poisson, Round
from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from tests.interop.jobs import (
    CHARGED,
    DELTA,
    MODES,
    NOISE,
    DataLoader,
    Job,
    TensorDataset,
    WeightedRandomSampler,
    X,
    Y,
    epsilon,
    job_of,
    opacus,
    plug_in,
    torch,
)

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

# Batches.


def is_empty(job: Job, batch: Any) -> bool:  # noqa: ARG001 - as the others
    return len(batch[0]) == 0


@torch.no_grad()
def has_large_loss(job: Job, batch: Any) -> bool:
    return len(batch[0]) > 0 and float(job.loss(job.model(batch[0]), batch[1])) > 1e-3


@CHARGED
@pytest.mark.parametrize("choose", [is_empty, has_large_loss])
def test_a_loop_that_chooses_among_its_batches_is_refused(
    run: Any, choose: Callable[[Job, Any], bool], *, charged: bool
) -> None:
    """Of 40 examples at rate 1/40, one is in 1.58 of 40 batches that are not empty."""
    job = job_of(run, charged=charged, loader=DataLoader(TensorDataset(X, Y), 1))

    def loop() -> None:
        for _ in range(20):
            for batch in job.loader:
                if choose(job, batch):
                    continue
                job.step(batch)

    with pytest.raises(LedgerError, match="had no step"):
        loop()
    drawn = len(job.engine.accountant)
    assert run.rounds == (drawn if charged else 0)
    # All that was drawn is charged, also what had no step.
    cost = dpacct.epsilon(drawn * Round(NOISE, Poisson(1 / 40)), delta=DELTA).upper
    assert job.engine.get_epsilon(DELTA) == pytest.approx(cost)


def test_without_a_ledger_batches_are_charged_when_they_are_drawn() -> None:
    job = Job()
    for batch in job.loader:
        job.step(batch)
        if len(job.engine.accountant) == 4:
            break
    next(iter(job.loader))
    assert job.engine.get_epsilon(DELTA) == pytest.approx(epsilon(*[NOISE] * 5))
    list(job.loader)
    assert len(job.engine.accountant) == 15


def test_a_pass_without_a_step_is_told() -> None:
    job = Job()
    list(job.loader)
    with pytest.warns(UserWarning, match="drew 10 batches and made no step"):
        assert len(job.epoch()) == 10


def test_seeds_of_the_program_reach_neither_batches_nor_noise_without_a_ledger() -> None:
    found: list[Any] = []
    for _ in range(2):
        torch.manual_seed(7)
        job = Job()
        torch.manual_seed(7)
        found.append((list(job.loader.batch_sampler), job.weights, job.epoch() and job.weights))
    assert found[0][1] == found[1][1]
    assert found[0][0] != found[1][0]
    assert found[0][2] != found[1][2]


@CHARGED
def test_a_generator_that_is_set_later_is_refused(run: Any, *, charged: bool) -> None:
    job = job_of(run, charged=charged)
    job.optimizer.generator = torch.Generator().manual_seed(3)
    job.refuses(job.epoch, InvalidParameter, "give noise_generator= to make_private")


def read_ahead(job: Job) -> None:
    batches = iter(job.loader)
    ahead = next(batches)
    for _ in range(3):
        batch, ahead = ahead, next(batches)
        job.step(batch)


def own_loader(job: Job) -> None:
    job.epoch(DataLoader(TensorDataset(X, Y), 4, shuffle=True))


def managed_own_loader(job: Job) -> None:
    job.loader = DataLoader(TensorDataset(X, Y), 4)
    with job.split(2) as parts:
        job.epoch(parts)


def hard_half(job: Job) -> None:
    for x, y in job.loader:
        job.step((x[: len(x) // 2], y[: len(x) // 2]))


def twice_augmented(job: Job) -> None:
    for x, y in job.loader:
        job.step((x.repeat(2, 1), y.repeat(2)))


def no_batch_after_an_error(job: Job) -> None:
    for number, batch in enumerate(job.loader):
        with contextlib.suppress(RuntimeError):
            if number == 0:
                raise RuntimeError("out of memory")
            job.step(batch)


def all_at_once(job: Job) -> None:
    job.epoch(list(job.loader))


def replayed(job: Job) -> None:
    batches = job.epoch()
    job.step((batches[0], torch.zeros(len(batches[0]), dtype=torch.long)))


@CHARGED
@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (read_ahead, "use num_workers"),
        (no_batch_after_an_error, "had no step"),
        (all_at_once, "had no step"),
        (own_loader, "a step without a batch"),
        (managed_own_loader, "a step without a batch"),
        (replayed, "a step without a batch"),
        (hard_half, "as it is"),
        (twice_augmented, "as it is"),
    ],
)
def test_loops_whose_steps_are_not_of_the_drawn_batches_are_refused(
    run: Any, loop: Callable[[Job], None], words: str, *, charged: bool
) -> None:
    job = job_of(run, charged=charged, loader=DataLoader(TensorDataset(X, Y), 20))
    with pytest.raises(LedgerError, match=words):
        loop(job)


def test_a_loader_that_attach_ledger_replaced_is_refused(run: Any) -> None:
    job = Job()
    plug_in.attach_ledger(job.loader, job.optimizer, run)
    job.refuses(job.epoch, LedgerError, "the loader that attach_ledger, or else")


def test_the_engine_counts_the_rate_of_the_public_size(ledger: Ledger) -> None:
    job = Job()
    run = ledger.start_run("public", 5 * Round(NOISE, Poisson(0.2)))
    job.attach(run, public_size=20)
    assert len(job.epoch()) == 5
    assert job.engine.get_epsilon(DELTA) == run.epsilon().upper
    cost = dpacct.epsilon(5 * Round(NOISE, Poisson(0.2)), delta=DELTA).upper
    assert job.engine.get_epsilon(DELTA) == pytest.approx(cost)


def test_a_synthetic_example_in_an_empty_batch_needs_zero_out(ledger: Ledger) -> None:
    """Under add-remove, an example that joins replaces the synthetic one: the sum moves by 2 C."""
    settings = {"loader": DataLoader(TensorDataset(X, Y), 1), "rand_on_empty": True}
    job = Job(**settings)
    with pytest.raises(InvalidParameter, match="replaces its synthetic one"):
        job.attach(ledger.start_run("joins"), public_size=40)
    job.attach(ledger.start_run("zero-out"))
    found = [len(batch) for batch in job.epoch()]
    assert len(found) == 40
    # Opacus makes one from the first batch that has an example.
    first = next(place for place, size in enumerate(found) if size)
    assert min(found[first:]) == 1


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_keeps_its_empty_batches(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus leaves them out, and its processes lose step."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)
    sampler = opacus.utils.uniform_sampler.DistributedUniformWithReplacementSampler
    job = Job(loader=DataLoader(TensorDataset(X, Y), 1))
    inner = sampler(total_size=40, sample_rate=1 / 40)
    loader = DataLoader(TensorDataset(X, Y), batch_sampler=inner)
    checked = plug_in.loader.check_steps(loader, job.optimizer, job.engine.accountant)
    drawn = list(checked.batch_sampler)
    assert len(drawn) == len(inner)
    assert min(map(len, drawn)) == 0
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0)).tolist()
    assert set().union(*drawn) <= set(order[rank::2])


# Optimizers and models.


def old_optimizer(job: Job) -> Any:
    return job.optimizer.original_optimizer


def new_optimizer(job: Job) -> Any:
    return torch.optim.SGD(job.model.parameters(), lr=0.1)


@MODES
@pytest.mark.parametrize("of", [old_optimizer, new_optimizer])
def test_an_update_without_clipping_and_noise_is_refused(
    of: Callable[[Job], Any], mode: str
) -> None:
    """The optimizer from before make_private, or a new one, steps where the private one should."""
    job = Job(mode=mode)
    other = of(job)

    def loop() -> None:
        for batch in job.loader:
            job.model.zero_grad()
            job.backward(batch)
            other.step()

    words = "without clipping and noise" if of is old_optimizer else "a second optimizer steps"
    job.refuses(loop, Unsupported, words)


def test_after_the_loop_a_model_may_learn_from_public_data() -> None:
    job = Job()
    job.epoch()
    before, model = job.weights, job.model.to_standard_module()
    old_optimizer(job).zero_grad()
    torch.nn.functional.cross_entropy(model(X), Y).backward()
    old_optimizer(job).step()
    assert job.weights != before


def test_two_optimizers_of_one_model_are_told_to_be_one() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    engine = opacus.PrivacyEngine(accountant="dpacct")
    body, head = (torch.optim.SGD(part.parameters(), lr=0.1) for part in module)

    def private(model: Any, optimizer: Any) -> Any:
        loader = DataLoader(TensorDataset(X, Y), 4)
        return engine.make_private(
            module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=1.0,
            max_grad_norm=1.0,
        )  # fmt: skip

    model, first, loader = private(module, body)
    _, second, _ = private(model, head)
    x, y = next(iter(loader))
    torch.nn.functional.cross_entropy(model(x), y).backward()
    first.step()
    with pytest.raises(LedgerError, match="all parameters into one optimizer"):
        second.step()


class TimeFirst(torch.nn.Module):
    """A layer that sees times in its first dimension, and examples in its second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x.T.unsqueeze(2)).mean(0)


class Flattened(torch.nn.Module):
    """A second layer that takes each number of an example for an example."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(5, 5), torch.nn.Linear(1, 2)

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x).reshape(-1, 1)).reshape(len(x), 5, 2).mean(1)


@CHARGED
def test_a_model_that_has_no_example_in_each_row_is_refused(run: Any, *, charged: bool) -> None:
    job = job_of(
        run, charged=charged, module=TimeFirst(), loader=DataLoader(TensorDataset(X, Y), 20)
    )
    with pytest.raises(LedgerError, match=r"gradients are of 5 examples.*batch_first"):
        job.epoch()
    layers = {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}
    job = Job(module=Flattened(), loader=DataLoader(TensorDataset(X, Y), 20), **layers)
    with pytest.raises(Unsupported, match="one example counts for several"):
        job.epoch()


@MODES
def test_a_forward_pass_in_training_mode_is_named(mode: str) -> None:
    """Without it, Opacus speaks of NoneType, or of parameter tying."""
    job = Job(mode=mode)
    with torch.no_grad():
        job.model(X)
    job.step(next(iter(job.loader)))
    job.model(X)
    with pytest.raises((Unsupported, NotImplementedError)) as caught:
        job.epoch()
    assert (
        "ran forward in training mode" in f"{caught.value}{getattr(caught.value, '__notes__', '')}"
    )


@MODES
@pytest.mark.parametrize("twice", [False, True])
def test_training_in_evaluation_mode_and_a_second_backward_pass_are_named(
    mode: str, *, twice: bool
) -> None:
    job = Job(mode=mode)
    job.epoch()
    job.model.train(mode=twice)
    job.optimizer.zero_grad()
    x, y = next(iter(job.loader))
    loss = (torch.nn.functional.cross_entropy if twice else job.loss)(job.model(x), y)
    if twice:
        loss.backward(retain_graph=True)
    with pytest.raises((IndexError, ValueError)) as caught:
        loss.backward()
    assert "Call model.train()" in "".join(caught.value.__notes__)


@MODES
def test_parameters_that_are_frozen_or_not_later(mode: str) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 2))
    module[0].requires_grad_(False)
    job = Job(mode=mode, module=module)
    job.epoch()
    module[0].requires_grad_(True)
    with pytest.raises(Unsupported, match="was frozen when make_private was called"):
        job.epoch()
    module[0].requires_grad_(False)
    assert len(job.epoch()) == 10
    module[1].requires_grad_(False)
    next(iter(job.loader))
    with pytest.raises(Unsupported, match="no parameter of the optimizer is trainable"):
        job.optimizer.step()


# Loops that are right.


def with_closure(job: Job) -> None:
    for x, y in job.loader:

        def closure(x: Any = x, y: Any = y) -> Any:
            job.optimizer.zero_grad()
            loss = job.loss(job.model(x), y)
            loss.backward()
            return loss

        job.optimizer.step(closure)


def with_scaler(job: Job) -> None:
    scaler = torch.amp.GradScaler("cpu")
    for x, y in job.loader:
        job.optimizer.zero_grad()
        scaler.scale(job.loss(job.model(x), y)).backward()
        scaler.step(job.optimizer)
        scaler.update()


def with_scheduled_rate(job: Job) -> None:
    scheduler = torch.optim.lr_scheduler.StepLR(job.optimizer, 1)
    for batch in job.loader:
        job.step(batch)
        scheduler.step()


def evaluating_between(job: Job) -> None:
    for batch in job.loader:
        job.step(batch)
        job.model.eval()
        job.model(X)
        job.model.train()


def made_again(job: Job) -> None:
    again = Job(module=job.model, engine=job.engine, loader=job.loader)
    again.module = job.module
    again.epoch()


def weighted() -> Any:
    data = TensorDataset(X, Y)
    return DataLoader(data, 20, sampler=WeightedRandomSampler([100.0] + [1.0] * 39, 40))


@pytest.mark.parametrize(
    ("loop", "settings"),
    [
        (with_closure, {}),
        (with_scaler, {}),
        (with_scheduled_rate, {}),
        (evaluating_between, {}),
        (made_again, {}),
        (Job.epoch, {"mode": "functorch"}),
        (Job.epoch, {"loader": weighted}),
    ],
)
def test_loops_that_are_right_cost_what_they_should(
    loop: Callable[[Job], Any], settings: dict[str, Any]
) -> None:
    loader = settings.pop("loader", lambda: DataLoader(TensorDataset(X, Y), 20))
    job = Job(loader=loader(), **settings)
    before = job.weights
    loop(job)
    assert job.weights != before
    plan = 2 * Round(NOISE, Poisson(0.5))
    assert job.engine.get_epsilon(DELTA) == dpacct.epsilon(plan, delta=DELTA).upper
