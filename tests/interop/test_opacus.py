"""The plug-in for Opacus: its accountant, and a ledger under its loop."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, Full, Ledger, Poisson, Round
from dpacct.errors import InvalidParameter, LedgerError, Unsupported

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402 - needs opacus
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler  # noqa: E402

# What Opacus and torch say about themselves.
pytestmark = pytest.mark.filterwarnings("ignore")

DELTA = 1e-5
NOISE = 0.8662
RATE = 1 / 10
ROUND = Round(NOISE, Poisson(RATE), "zero-out")
X = torch.linspace(-1.0, 1.0, 200).reshape(40, 5)
Y = (X.sum(1) > 0).long()


class Job:
    """A model with what `make_private` returns."""

    def __init__(
        self,
        *,
        mode: str = "hooks",
        workers: int = 0,
        loader: Any = None,
        module: Any = None,
        **settings: Any,
    ) -> None:
        self.module = torch.nn.Linear(5, 2) if module is None else module
        given = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "grad_sample_mode": mode}
        self.engine = opacus.PrivacyEngine(accountant="dpacct")
        made = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.1),
            data_loader=loader or DataLoader(TensorDataset(X, Y), 4, num_workers=workers),
            **(given | settings),
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.loss = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()

    def attach(self, run: Any, **settings: Any) -> Any:
        self.loader = plug_in.attach_ledger(self.loader, self.optimizer, run, **settings)
        return self.loader

    def backward(self, batch: Any) -> None:
        x, y = batch
        self.loss(self.model(x), y).backward()

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()

    def epoch(self, loader: Any = None) -> int:
        steps = 0
        for batch in self.loader if loader is None else loader:
            self.step(batch)
            steps += 1
        return steps

    @property
    def weights(self) -> list[float]:
        return self.module.weight.flatten().tolist()


@pytest.fixture
def ledger(tmp_path: Path) -> Any:
    with Ledger.open(tmp_path / "l.ledger", Budget(20, DELTA)) as opened:
        yield opened


def private(epsilon: float, engine: Any, **settings: Any) -> float:
    """The noise that its calibration finds: 160 steps at rate 1/40."""
    module = torch.nn.Linear(5, 2)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(X, Y), 1),
        target_epsilon=epsilon,
        target_delta=DELTA,
        epochs=4,
        max_grad_norm=1.0,
        **settings,
    )
    return optimizer.noise_multiplier


@pytest.mark.slow
def test_the_engine_calibrates_with_the_tight_accountant() -> None:
    ours = dpacct.calibrate(epsilon=3, delta=DELTA, rounds=160, sampling_rate=1 / 40)
    assert ours.noise_multiplier == pytest.approx(0.86619, abs=1e-5)
    # Opacus stops within 0.01 of epsilon unless it is told otherwise.
    engine = opacus.PrivacyEngine(accountant="dpacct")
    assert private(3, engine) == pytest.approx(0.86670, abs=1e-5)
    exact = private(3, engine, epsilon_tolerance=1e-6)
    assert exact == pytest.approx(ours.noise_multiplier, abs=1e-6)


def test_the_accountant_says_what_the_library_says() -> None:
    accountant = plug_in.TightAccountant()
    assert accountant.get_epsilon(DELTA) == len(accountant) == 0
    for noise in (1.0, 1.0, 2.0, 1.0):
        accountant.step(noise_multiplier=noise, sample_rate=RATE)
    assert accountant.history == [(1.0, RATE, 2), (2.0, RATE, 1), (1.0, RATE, 1)]
    plan = 3 * Round(1.0, Poisson(RATE)) + 1 * Round(2.0, Poisson(RATE))
    expected = dpacct.epsilon(plan, delta=DELTA).upper
    assert accountant.get_epsilon(delta=DELTA) == pytest.approx(expected)
    other = plug_in.TightAccountant()
    other.load_state_dict(accountant.state_dict())
    assert (len(other), other.get_epsilon(DELTA)) == (4, accountant.get_epsilon(DELTA))


@pytest.mark.parametrize(
    ("mode", "workers", "batches"),
    [("hooks", 0, "split"), ("ghost", 0, "whole"), ("ghost", 1, "split"), ("hooks", 1, "whole")],
)
def test_each_step_is_charged_and_the_plan_ends_quietly(
    ledger: Ledger, mode: str, workers: int, batches: str
) -> None:
    run = ledger.start_run("opacus", 25 * ROUND)
    job = Job(mode=mode, workers=workers)
    loader = job.attach(run)
    parts = 0
    for _ in range(4):
        if batches == "split":
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=2, optimizer=job.optimizer
            ) as split:
                parts += job.epoch(split)
        else:
            parts += job.epoch()
    assert (run.committed, run.rounds, len(job.engine.accountant)) == (25, 25, 25)
    assert parts > 25 if batches == "split" else parts == 25
    assert run.on_plan
    assert loader.ended == "the plan of the run is at its end"
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
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ledger.start_run("opacus")
    job = Job()
    batch = next(iter(job.attach(run)))
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


def test_what_cannot_be_committed_changes_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise LedgerError("the disk is full")

    run = ledger.start_run("opacus")
    job = Job()
    job.attach(run)
    before = job.weights
    monkeypatch.setattr("dpacct.ledger.writing.Transaction.commit", full)
    with pytest.raises(LedgerError, match="full"):
        job.epoch()
    assert job.weights == before
    assert (run.rounds, run.committed) == (1, 0)


def refused(job: Job, act: Callable[[], Any], error: type[Exception], words: str) -> None:
    before = job.weights
    with pytest.raises(error, match=words):
        act()
    assert job.weights == before


def test_a_second_step_on_a_batch_is_refused(ledger: Ledger) -> None:
    run = ledger.start_run("opacus")
    job = Job(mode="ghost")
    batches = iter(job.attach(run))
    batch = next(batches)
    job.step(batch)
    refused(job, lambda: job.step(batch), LedgerError, "a step without a batch")
    job.step(next(batches))
    assert (run.rounds, run.committed) == (2, 2)


def test_a_step_without_the_loader_is_refused_also_while_workers_draw_ahead(
    ledger: Ledger,
) -> None:
    job = Job(workers=1)
    loader = job.attach(ledger.start_run("opacus"))
    refused(job, lambda: job.step((X, Y)), LedgerError, "a step without a batch")
    batches = iter(loader)
    refused(job, lambda: job.step((X, Y)), LedgerError, "a step without a batch")
    for batch in batches:
        job.step(batch)
        refused(job, lambda found=batch: job.step(found), LedgerError, "a step without a batch")
    assert loader.run.committed == 10


def test_a_batch_whose_step_is_skipped_stays_spent(ledger: Ledger) -> None:
    run = ledger.start_run("opacus")
    job = Job()
    for number, batch in enumerate(job.attach(run)):
        if number % 2:
            job.step(batch)
    assert (run.rounds, run.committed) == (10, 5)


def test_a_loop_that_is_left_and_a_loader_that_is_looked_into(ledger: Ledger) -> None:
    run = ledger.start_run("opacus")
    job = Job()
    loader = job.attach(run)
    old = iter(loader)
    next(old)
    for number, batch in enumerate(loader):
        job.step(batch)
        if number == 2:
            break
    assert (run.rounds, run.committed) == (4, 3)
    with pytest.raises(LedgerError, match="another loop"):
        next(old)
    assert job.epoch() == 10
    assert (run.rounds, run.committed) == (14, 13)


@pytest.mark.parametrize("charged", [False, True], ids=["accountant", "ledger"])
def test_gradients_of_several_batches_are_refused(ledger: Ledger, *, charged: bool) -> None:
    job = Job()
    if charged:
        job.attach(ledger.start_run("opacus"))
    batches = iter(job.loader)
    job.model.allow_grad_accumulation()
    job.backward(next(batches))
    job.backward(next(batches))
    refused(job, job.optimizer.step, Unsupported, "gradients of 2 batches")
    assert len(job.engine.accountant) == 0


@pytest.mark.parametrize(("workers", "skipped"), [(0, 0), (0, 4), (1, 1)])
def test_a_part_of_a_batch_without_its_step_is_refused(
    ledger: Ledger, skipped: int, workers: int
) -> None:
    run = ledger.start_run("opacus")
    job = Job(workers=workers, loader=DataLoader(TensorDataset(X, Y), 20, num_workers=workers))
    loader = job.attach(run)

    def loop() -> None:
        with BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=1, optimizer=job.optimizer
        ) as split:
            for number, batch in enumerate(split):
                if number != skipped:
                    job.step(batch)

    refused(job, loop, LedgerError, "a part of a batch had no step")
    assert run.committed == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_batches_that_the_program_itself_adds_up_are_refused(ledger: Ledger, mode: str) -> None:
    run = ledger.start_run("opacus")
    job = Job(mode=mode)
    batches = iter(job.attach(run))
    for skip in (True, False):
        batch = next(batches)
        job.optimizer.signal_skip_step(skip)
        if skip:
            job.step(batch)
        else:
            refused(job, lambda found=batch: job.step(found), LedgerError, "a part of a batch")
    refused(job, lambda: job.step(next(batches)), LedgerError, "a part of a batch")
    assert run.committed == 0
    # A new loop begins with nothing.
    assert job.epoch() == 10
    assert run.committed == 10


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_of_more_examples_than_were_drawn_are_refused(ledger: Ledger, mode: str) -> None:
    run = ledger.start_run("opacus")
    job = Job(mode=mode)
    batches = iter(job.attach(run))
    next(batches)
    refused(job, lambda: job.step((X, Y)), LedgerError, "the gradients are of 40 examples")
    x, y = next(batches)
    job.step((x[:1], y[:1]))
    assert (run.rounds, run.committed) == (2, 1)


def test_two_optimizers_and_what_is_attached_twice(ledger: Ledger) -> None:
    run = ledger.start_run("opacus")
    job, other = Job(), Job()
    job.attach(run)
    with pytest.raises(Unsupported, match="a second optimizer"):
        plug_in.attach_ledger(job.loader, other.optimizer, run)
    with pytest.raises(Unsupported, match="charged twice"):
        plug_in.attach_ledger(other.loader, job.optimizer, run)
    assert run.rounds == 0


def test_a_step_without_the_noise_of_the_optimizer_is_refused(ledger: Ledger) -> None:
    job = Job()
    job.attach(ledger.start_run("opacus"))
    job.optimizer.attach_step_hook(lambda _: None)
    assert job.epoch() == job.loader.run.committed == 10
    job.optimizer.add_noise = lambda: None
    refused(job, job.epoch, LedgerError, "was not charged")


def test_a_sampling_rate_that_is_set_later_is_refused(ledger: Ledger) -> None:
    jobs = Job(), Job()
    jobs[0].attach(ledger.start_run("opacus"))
    for job in jobs:
        job.loader.batch_sampler.sample_rate = 0.5
        refused(job, job.epoch, Unsupported, "was set to 0.5, and each batch is charged for 0.1")


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_noise_and_clip_norm_are_those_that_are_charged(ledger: Ledger, mode: str) -> None:
    job = Job(mode=mode)
    job.attach(ledger.start_run("opacus"))
    job.optimizer.noise_multiplier = NOISE / 2
    refused(job, job.epoch, Unsupported, "less than 0.8662, which is charged")
    job.optimizer.noise_multiplier = 2 * NOISE
    job.optimizer.max_grad_norm = 0.5
    refused(job, job.epoch, Unsupported, "clip norm was 1 and is 0.5")
    job.optimizer.max_grad_norm = 1.0
    assert job.epoch() == 10


def test_a_clip_norm_may_follow_a_schedule(ledger: Ledger) -> None:
    job = Job()
    job.attach(ledger.start_run("opacus"), scheduled_clip=True)
    for batch in job.loader:
        job.step(batch)
        job.optimizer.max_grad_norm *= 0.9
    assert job.loader.run.committed == 10


@pytest.mark.parametrize("scheduled", [False, True])
def test_clip_norms_of_layers_that_exceed_the_one_of_the_noise_are_refused(
    ledger: Ledger,
    scheduled: bool,  # noqa: FBT001 - a case
) -> None:
    run = ledger.start_run("opacus")
    job = Job(clipping="per_layer", max_grad_norm=[0.5, 0.5])
    if scheduled:
        job.attach(run, scheduled_clip=True)
        job.optimizer.max_grad_norms = [5.0, 5.0]
        refused(job, job.epoch, Unsupported, r"7\.07107 together")
        job.optimizer.max_grad_norms = [0.3, 0.6]
        job.optimizer.max_grad_norm = 0.45**0.5
        assert job.epoch() == 10
    else:
        job.optimizer.max_grad_norms = [5.0, 5.0]
        with pytest.raises(Unsupported, match=r"7\.07107 together"):
            job.attach(run)


def test_a_model_that_clips_to_another_norm_than_its_optimizer_says(ledger: Ledger) -> None:
    job = Job(mode="ghost", loader=DataLoader(TensorDataset(50 * X, Y), 40))
    job.optimizer.max_grad_norm = 0.01
    job.attach(ledger.start_run("opacus"))
    refused(job, job.epoch, LedgerError, "a model that clips to another norm")
    assert job.loader.run.committed == 0


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_that_are_not_finite_are_not_released(ledger: Ledger, mode: str) -> None:
    x = X.clone()
    x[3] = float("nan")
    job = Job(mode=mode, loader=DataLoader(TensorDataset(x, Y), 40))
    job.attach(ledger.start_run("opacus"))
    refused(job, job.epoch, LedgerError, "not finite")
    assert (job.loader.run.rounds, job.loader.run.committed) == (1, 0)


def test_a_loader_that_does_not_sample_by_poisson_is_refused(ledger: Ledger) -> None:
    data = TensorDataset(X, Y)
    weighted = WeightedRandomSampler([1.0] * len(data), len(data))
    run = ledger.start_run("opacus")
    for loader, words in (
        (DataLoader(data, 4, shuffle=True), "does not sample by Poisson"),
        (DataLoader(data, 4), "does not sample by Poisson"),
        (DataLoader(data, 4, sampler=weighted), "samples by weight"),
        (DataLoader(data, None), "does not sample by Poisson"),
    ):
        with pytest.raises(Unsupported, match=words):
            plug_in.attach_ledger(loader, Job().optimizer, run)
    assert run.rounds == 0


ADAPTIVE = {
    "clipping": "adaptive",
    "target_unclipped_quantile": 0.5,
    "clipbound_learning_rate": 0.2,
    "max_clipbound": 10.0,
    "min_clipbound": 0.1,
    "unclipped_num_std": 2.0,
}


def test_an_optimizer_whose_clip_norm_depends_on_the_data_is_refused(ledger: Ledger) -> None:
    """Opacus counts the noise of gradients and count together, at half the sensitivity."""
    job = Job(**ADAPTIVE)
    refused(job, job.epoch, Unsupported, "by a count of the data")
    assert job.engine.get_epsilon(DELTA) == 0.0
    run = ledger.start_run("opacus")
    with pytest.raises(Unsupported, match="by a count of the data"):
        job.attach(run)
    with pytest.raises(Unsupported, match="adds no noise"):
        plug_in.attach_ledger(job.loader, job.optimizer.original_optimizer, run)


def test_a_run_that_does_not_fit_the_loop_is_refused(ledger: Ledger) -> None:
    for plan in (
        10 * Round(2 * NOISE, Poisson(RATE), "zero-out"),
        10 * Round(NOISE, Poisson(RATE / 2), "zero-out"),
        10 * Round(20.0, Full(), "zero-out"),
    ):
        run = ledger.start_run("opacus", plan)
        with pytest.raises(InvalidParameter, match="no round that covers a step"):
            Job().attach(run)
        run.finish()
        with pytest.raises(LedgerError, match="is finished"):
            Job().attach(run)
    assert ledger.rounds == 0


def test_noise_that_somebody_can_repeat_is_not_private(ledger: Ledger) -> None:
    job = Job(noise_generator=torch.Generator().manual_seed(1))
    with pytest.raises(InvalidParameter, match="generator is 'given'"):
        job.attach(ledger.start_run("opacus"))
    run = ledger.start_run("seeded", private=False)
    job.attach(run)
    assert job.epoch() == 10
    assert run.epsilon().upper == float("inf")


def test_seeds_of_the_program_do_not_reach_batches_and_noise(ledger: Ledger) -> None:
    found: list[Any] = []
    for _ in range(2):
        torch.manual_seed(7)
        job = Job()
        torch.manual_seed(7)
        job.attach(ledger.start_run("opacus"))
        indices = list(job.loader.batch_sampler)
        job.epoch()
        found.append((indices, job.weights))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


KILLED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
from test_opacus import Job, ROUND, Ledger, Budget, DELTA
ledger = Ledger.open(sys.argv[1], Budget(20, DELTA))
job = Job(workers=1)
job.attach(ledger.start_run("opacus", 25 * ROUND))
steps = 0
while True:
    for batch in job.loader:
        job.step(batch)
        steps += 1
        if steps == 13:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_a_killed_loop_goes_on_and_pays_for_what_was_drawn(tmp_path: Path) -> None:
    file = tmp_path / "killed.ledger"
    script = KILLED.format(folder=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=False, timeout=300)
    assert done.returncode == -9
    with Ledger.open(file) as ledger:
        run = ledger.resume_run(1)
        # One worker draws two batches ahead.
        assert (run.committed, run.rounds) == (13, 15)
        job = Job()
        job.attach(run)
        while job.epoch():
            pass
        assert (run.committed, run.rounds) == (23, 25)
        assert run.on_plan
        assert not ledger.verify().remarks


RANK = """
import sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
import test_opacus as t
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as Parallel
folder, rank, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
t.torch.distributed.init_process_group("gloo", f"file://{{folder}}/meet", rank=rank, world_size=2)
module = Parallel(t.torch.nn.Linear(5, 2))
job = t.Job(module=module, workers=workers)
job.loss = lambda y, z: t.torch.nn.functional.cross_entropy(y, z) if len(z) else 0.0 * y.sum()
run = None
if rank == 0:
    ledger = t.Ledger.open(f"{{folder}}/l.ledger", t.Budget(20, t.DELTA))
    run = ledger.start_run("ranks", 25 * t.ROUND)
job.attach(run)
steps = sum(job.epoch() for _ in range(4))
t.torch.save((steps, job.loader.ended, module.module.weight), f"{{folder}}/{{rank}}.pt")
t.torch.distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_share_one_run(tmp_path: Path) -> None:
    script = RANK.format(folder=str(Path(__file__).parent))
    words = [sys.executable, "-c", script, str(tmp_path)]
    ranks = [subprocess.Popen([*words, str(rank), "1"]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    found = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    assert [steps for steps, _, _ in found] == [25, 25]
    assert found[0][1] == "the plan of the run is at its end"
    assert torch.equal(found[0][2], found[1][2])
    with Ledger.open(tmp_path / "l.ledger") as ledger:
        assert (ledger.runs[0].committed, ledger.runs[0].rounds) == (25, 25)


BARE = """
import sys
from importlib import metadata
found = metadata.version
def version(name):
    if name == "opacus":
        raise metadata.PackageNotFoundError
    return found(name)
metadata.version = version
sys.modules["torch"] = None
from dpacct.errors import Unsupported
try:
    import dpacct.interop.opacus
except Unsupported as error:
    print(error)
"""


def test_without_opacus_and_torch_the_import_says_what_to_install() -> None:
    words = [sys.executable, "-c", BARE]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    said = "opacus is not installed; pip install -e '.[opacus]' brings it."
    assert said in done.stdout, done.stderr


def test_a_rank_without_a_ledger_needs_others(ledger: Ledger) -> None:
    job = Job()
    with pytest.raises(InvalidParameter, match="rank 0 charges the run"):
        job.attach(None)
    job.attach(ledger.start_run("opacus"))


@pytest.mark.parametrize(("mode", "dtype"), [("hooks", torch.bfloat16), ("ghost", torch.float16)])
def test_parameters_of_less_than_float32_are_refused(ledger: Any, mode: str, dtype: Any) -> None:
    """In bfloat16 one example more moves a sum of 256 of them by two clip norms."""
    loader = DataLoader(TensorDataset(X.to(dtype), Y), 4)
    job = Job(mode=mode, module=torch.nn.Linear(5, 2).to(dtype), loader=loader)
    with pytest.raises(Unsupported, match="moves the sum by more than the clip norm"):
        job.attach(ledger.start_run("half"))


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_gradients_of_less_than_float32_are_refused_before_noise_is_drawn(
    ledger: Any, mode: str
) -> None:
    job = Job(mode=mode)
    run = ledger.start_run("autocast")
    before = job.weights
    x, y = next(iter(job.attach(run)))
    job.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = job.loss(job.model(x), y)
    loss.backward()
    with pytest.raises(Unsupported, match="without autocast"):
        job.optimizer.step()
    assert job.weights == before
    assert (run.rounds, run.committed) == (1, 0)


def test_noise_of_less_than_float32_is_refused() -> None:
    job = Job()
    precision = importlib.import_module("dpacct.interop.opacus.steps")
    job.optimizer.secure_mode = True
    precision.check_precision(job.optimizer)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with pytest.raises(Unsupported, match=r"default dtype, torch\.bfloat16"):
            precision.check_precision(job.optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
