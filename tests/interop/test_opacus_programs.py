"""Programs of Opacus at random: what is counted covers what was drawn and released."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from tests.interop.jobs import DELTA, DataLoader, Job, TensorDataset, X, Y, opacus, schedulers
from tests.strategies import FEWER

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

# A loop does these in any order, with the batch that it holds.
ACTS = (
    "draw", "step", "draw and step", "step again", "new pass", "look", "less noise", "more noise",
    "draw, less noise, step", "by hand", "smaller clip", "no clip",
)  # fmt: skip


class Program:
    """A loop that goes on after each refusal, and what it has drawn and released."""

    def __init__(self, mode: str) -> None:
        self.job = Job(mode=mode, loader=DataLoader(TensorDataset(X, Y), 10))
        self.drawn, self.released = 0, list[float]()
        self.schedule = [schedulers.ExponentialNoise(self.job.optimizer, gamma=g) for g in (0.8, 2)]
        optimizer = self.job.optimizer
        update, sampler = optimizer.original_optimizer.step, self.job.loader.batch_sampler
        draws = sampler.draws

        def updated() -> None:
            # Each release is followed by one update.
            self.released.append(optimizer.noise_multiplier)
            update()

        def watched() -> object:
            for batch in draws():
                self.drawn += 1
                yield batch

        optimizer.original_optimizer.step, sampler.draws = updated, watched
        self.batch, self.batches = None, iter(self.job.loader)

    def act(self, name: str) -> None:
        if "," in name:
            for part in name.split(", "):
                self.act(part)
            return
        optimizer = self.job.optimizer
        if name.startswith("draw"):
            self.batch = next(self.batches, None) or self.batch
        if name == "new pass":
            self.batches = iter(self.job.loader)
        if name.endswith(("step", "again")) and self.batch is not None:
            self.job.step(self.batch)
        if name == "look":
            self.job.model.eval()(X)
            self.job.model.train()
        if name.endswith("noise"):
            self.schedule[name == "more noise"].step()
        if name == "by hand":
            optimizer.noise_multiplier = 0.9
        if name.endswith("clip"):
            optimizer.max_grad_norm = 0.5 if name == "smaller clip" else 1.0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@FEWER
@example(acts=["draw, less noise, step"] * 3)
@given(acts=st.lists(st.sampled_from(ACTS), min_size=5, max_size=30))
def test_what_is_counted_covers_what_ran(mode: str, acts: list[str]) -> None:
    program = Program(mode)
    for name in acts:
        try:
            program.act(name)
        except (LedgerError, Unsupported, InvalidParameter):
            program.batches = iter(program.job.loader)
    accountant = program.job.engine.accountant
    assert len(accountant) == program.drawn >= len(program.released)
    counted = sorted(noise for noise, _, batches in accountant.history for _ in range(batches))
    # One by one, a release has at least the noise that is counted.
    assert all(a <= b for a, b in zip(counted, sorted(program.released), strict=False))
    theirs = opacus.accountants.RDPAccountant()
    theirs.history = list(accountant.history)
    if theirs.history:
        assert accountant.get_epsilon(DELTA) <= theirs.get_epsilon(DELTA)
