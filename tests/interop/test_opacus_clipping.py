"""Ghost clipping, and noise and clip norms that change, with Opacus."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from dpacct.errors import InvalidParameter, Unsupported
from tests.interop.jobs import (
    CHARGED,
    DELTA,
    MODES,
    DataLoader,
    Job,
    TensorDataset,
    X,
    Y,
    epsilon,
    job_of,
    schedulers,
    torch,
)

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

# Ghost clipping.


def ghost(run: Any, *, charged: bool, **settings: Any) -> Job:
    return job_of(
        run,
        charged=charged,
        mode="ghost",
        loader=DataLoader(TensorDataset(50 * X, Y), 40),
        **settings,
    )


@CHARGED
@pytest.mark.parametrize("wrapped", [False, True])
def test_ghost_clipping_with_the_own_criterion_is_refused(
    run: Any, *, charged: bool, wrapped: bool
) -> None:
    """Nothing is clipped then."""
    job = ghost(run, charged=charged, wrap_model=wrapped)
    if not wrapped:
        job.model = job.module
    job.loss = torch.nn.CrossEntropyLoss()
    job.refuses(job.epoch, Unsupported, "only the criterion that make_private returns clips")


def penalty(job: Job) -> None:
    (10 * job.module.weight.square().sum()).backward()


def public_loss(job: Job) -> None:
    job.model.disable_hooks()
    torch.nn.functional.cross_entropy(job.module(X), Y).backward()
    job.model.enable_hooks()


def clipped_again(job: Job) -> None:
    torch.nn.utils.clip_grad_norm_(job.model.parameters(), 1e-3)


def zeroed(job: Job) -> None:
    job.optimizer.zero_grad()


def dropped(job: Job) -> None:
    job.model.zero_grad(set_to_none=True)


@CHARGED
@pytest.mark.parametrize("change", [penalty, public_loss, clipped_again, zeroed, dropped])
def test_gradients_of_ghost_clipping_that_something_changed_are_refused(
    run: Any, change: Callable[[Job], None], *, charged: bool
) -> None:
    job = ghost(run, charged=charged)
    job.backward(next(iter(job.loader)))
    change(job)
    job.refuses(job.optimizer.step, Unsupported, "of its backward pass alone")


@CHARGED
@pytest.mark.parametrize("kind", ["register_hook", "register_post_accumulate_grad_hook"])
def test_hooks_behind_ghost_clipping_are_refused(run: Any, kind: str, *, charged: bool) -> None:
    """An example would move the sum by a hundred clip norms."""
    job = ghost(run, charged=charged)

    def change(held: Any) -> Any:
        if kind == "register_hook":
            return 100 * held
        held.grad.mul_(100)
        return None

    for parameter in job.module.parameters():
        getattr(parameter, kind)(change)
    job.refuses(job.epoch, Unsupported, "a hook of a parameter")


@CHARGED
def test_losses_that_are_not_one_for_each_example_are_refused(run: Any, *, charged: bool) -> None:
    """Opacus scales the mean of all losses by the sum of the factors: nothing is clipped."""

    def mean(outputs: Any, targets: Any) -> Any:
        return torch.nn.functional.cross_entropy(outputs, targets)

    job = ghost(run, charged=charged, criterion=mean)
    job.refuses(job.epoch, Unsupported, r"losses of shape \(\) for 40 examples")


def test_a_model_that_is_made_private_again_keeps_its_clip_norm_and_is_refused() -> None:
    """Opacus gives the smaller norm to the noise alone."""
    first = Job(mode="ghost", max_grad_norm=10.0)
    again = Job(mode="ghost", module=first.model, max_grad_norm=1.0, engine=first.engine)
    with pytest.raises(Unsupported, match="clips to 10, and the noise is for 1"):
        again.epoch()


def test_a_wrapped_loss_may_be_scaled_and_taken_again(run: Any) -> None:
    job = ghost(run, charged=True)
    for _ in range(3):
        for x, y in job.loader:
            job.loss(job.model(x), y).backward()
            (1e6 * job.loss(job.model(x), y) / 3).backward()
            job.optimizer.step()
    assert run.committed == len(job.engine.accountant) == 3


# Noise and clip norms that change.


@pytest.mark.parametrize("name", ["noise_multiplier", "max_grad_norm"])
def test_with_a_ledger_less_noise_and_another_clip_norm_are_refused(run: Any, name: str) -> None:
    job = job_of(run, charged=True)
    job.epoch()
    setattr(job.optimizer, name, 0.5)
    job.refuses(job.epoch, Unsupported, "Attach the optimizer with|scheduled_clip=True")


def test_without_a_ledger_each_batch_is_counted_with_its_own_noise() -> None:
    job = Job()
    job.optimizer.noise_multiplier = 0.7
    noises: list[float] = []
    for number, batch in enumerate(job.loader):
        job.optimizer.noise_multiplier = [0.7, 3.0, 0.4][number % 3]
        job.optimizer.max_grad_norm = 1.0 + number
        job.step(batch)
        noises.append(job.optimizer.noise_multiplier)
    assert job.engine.get_epsilon(DELTA) == pytest.approx(epsilon(*noises))
    job.optimizer.noise_multiplier = math.nan
    with pytest.raises((InvalidParameter, Unsupported), match="noise multiplier"):
        job.epoch()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("gamma", [0.9, 1.1])
def test_noise_that_follows_a_scheduler_is_counted(workers: int, gamma: float) -> None:
    """Workers draw batches ahead of the scheduler."""
    job = Job(workers=workers)
    scheduler = schedulers.ExponentialNoise(job.optimizer, gamma=gamma)
    noises: list[float] = []
    for batch in job.loader:
        job.step(batch)
        noises.append(job.optimizer.noise_multiplier)
        scheduler.step()
    assert len(job.engine.accountant) == len(noises) == 10
    assert job.engine.get_epsilon(DELTA) == pytest.approx(epsilon(*noises))


@MODES
def test_a_clip_norm_that_follows_a_scheduler(mode: str) -> None:
    job = Job(mode=mode)
    scheduler = schedulers.ExponentialGradClip(job.optimizer, gamma=0.5)
    job.epoch()
    scheduler.step()
    if mode == "ghost":
        job.refuses(job.epoch, Unsupported, r"clips to 1, and the noise is for 0\.5")
        job.model.max_grad_norm = 0.5
    assert len(job.epoch()) == 10


def test_a_clip_norm_may_not_change_between_the_parts_of_a_batch() -> None:
    job = Job(loader=DataLoader(TensorDataset(X, Y), 20))
    scheduler = schedulers.ExponentialGradClip(job.optimizer, gamma=0.5)

    def loop() -> None:
        with job.split(2) as parts:
            for batch in parts:
                job.step(batch)
                scheduler.step()

    job.refuses(loop, Unsupported, r"was 1 and is 0\.5")


@pytest.mark.parametrize("noise", [-1.0, math.nan, "x"])
def test_noise_multipliers_are_checked_at_once(noise: Any) -> None:
    with pytest.raises(InvalidParameter, match="noise_multiplier"):
        Job(noise_multiplier=noise)
