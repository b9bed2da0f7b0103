"""The plug-in for Opacus: its accountant, its calibration, and processes of its own."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Ledger, Poisson, Round
from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from dpacct.packages import install_command
from tests.interop.jobs import (
    DELTA,
    RATE,
    ROUND,
    DataLoader,
    Job,
    TensorDataset,
    X,
    Y,
    opacus,
    plug_in,
    torch,
)

# Opacus and torch warn about unrelated things.
pytestmark = pytest.mark.filterwarnings("ignore")

# The accountant.


@pytest.mark.slow
def test_the_engine_calibrates_with_the_tight_accountant() -> None:
    ours = dpacct.calibrate(epsilon=3, delta=DELTA, rounds=160, sampling_rate=1 / 40)
    assert ours.noise_multiplier == pytest.approx(0.86619, abs=1e-5)

    def private(**settings: Any) -> float:
        """Return the noise of 160 steps at rate 1/40."""
        module = torch.nn.Linear(5, 2)
        _, optimizer, _ = opacus.PrivacyEngine(accountant="dpacct").make_private_with_epsilon(
            module=module,
            optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
            data_loader=DataLoader(TensorDataset(X, Y), 1),
            target_epsilon=3,
            target_delta=DELTA,
            epochs=4,
            max_grad_norm=1.0,
            **settings,
        )
        return optimizer.noise_multiplier

    assert private() == private(epsilon_tolerance=0.01) == ours.noise_multiplier


def test_the_accountant_agrees_with_the_library() -> None:
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


def test_what_is_no_delta_history_or_run_is_refused_in_a_sentence() -> None:
    accountant = plug_in.TightAccountant()
    accountant.step(noise_multiplier=1.0, sample_rate=RATE)
    for delta in (None, 0, 1, -1, math.nan, "x", []):
        with pytest.raises(InvalidParameter, match="delta"):
            accountant.get_epsilon(delta)
    rows = [1.0], [1.0, RATE, 1.5], [-1.0, RATE, 2], [math.nan, RATE, 2], [1.0, 2, 2]
    states: list[Any] = ["x", 3, *({"mechanism": "dpacct", "history": [row]} for row in rows)]
    for state in (*states, {"mechanism": "rdp", "history": None}):
        with pytest.raises(InvalidParameter, match="a history of"):
            accountant.load_state_dict(state)
    assert len(accountant) == 1
    for value in ("run", None):
        with pytest.raises(InvalidParameter, match="a run of a ledger"):
            Job().attach(value)


@pytest.mark.parametrize("name", ["prv", pytest.param("rdp", marks=pytest.mark.slow)])
def test_checkpoints_of_opacus_own_accountants_are_loaded(tmp_path: Path, name: str) -> None:
    job = Job(engine=opacus.PrivacyEngine(accountant=name))
    job.epoch()
    job.engine.save_checkpoint(path=tmp_path / "c.pt", module=job.model)
    later = Job()
    later.engine.load_checkpoint(path=tmp_path / "c.pt", module=later.model)
    later.epoch()
    expected = dpacct.epsilon(20 * ROUND, delta=DELTA).upper
    assert later.engine.get_epsilon(DELTA) == expected
    with pytest.raises(ValueError, match="cannot be loaded"):
        plug_in.TightAccountant().load_state_dict({"history": [], "mechanism": "other"})


@pytest.mark.parametrize("engines", [1, 2])
def test_two_optimizers_on_the_same_batches_are_refused(engines: int) -> None:
    """On one batch both are one Gaussian of noise multiplier 1 / sqrt(2): 3.42, not 1.64."""
    first = Job()
    second = Job(engine=first.engine if engines == 1 else None)
    batch = next(iter(first.loader))
    first.step(batch)
    second.refuses(lambda: second.step(batch), LedgerError, "a step without a batch")


def test_two_optimizers_with_batches_of_their_own_add_up() -> None:
    first = Job()
    second = Job(engine=first.engine)
    for mine, theirs in zip(first.loader, second.loader, strict=True):
        first.step(mine)
        second.step(theirs)
    assert first.engine.get_epsilon(DELTA) == dpacct.epsilon(20 * ROUND, delta=DELTA).upper


def test_an_optimizer_with_unknown_batches_is_refused() -> None:
    accountant = plug_in.TightAccountant()
    job = Job(engine=opacus.PrivacyEngine())
    job.optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(RATE))
    job.refuses(job.epoch, Unsupported, "batches and the noise of this optimizer are not known")
    assert len(accountant) == 0


def test_fixed_batches_are_refused() -> None:
    with pytest.raises(Unsupported, match="ShuffledEpoch"):
        Job(poisson_sampling=False)


@pytest.mark.parametrize("where", ["noise", "loader", "none"])
def test_without_secret_noise_epsilon_is_infinite(where: str) -> None:
    known = torch.Generator().manual_seed(1)
    settings = {
        "noise": {"noise_generator": known},
        "loader": {"loader": DataLoader(TensorDataset(X, Y), 4, generator=known)},
        "none": {"noise_multiplier": 0.0},
    }[where]
    job = Job(**settings)
    job.epoch()
    assert job.engine.get_epsilon(DELTA) == math.inf
    other = plug_in.TightAccountant()
    other.load_state_dict(job.engine.accountant.state_dict())
    assert other.get_epsilon(DELTA) == math.inf


# Calibration and checkpoints.


def test_no_step_of_an_epoch_is_lost_in_calibration() -> None:
    """3 epochs of 75 batches are 225 steps: 3 / (1 / 75) is a little less."""
    data = TensorDataset(torch.zeros(75, 5), torch.zeros(75, dtype=torch.long))
    module = torch.nn.Linear(5, 2)
    engine = opacus.PrivacyEngine(accountant="dpacct")
    _, optimizer, loader = engine.make_private_with_epsilon(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, 1), target_epsilon=3, target_delta=DELTA, epochs=3,
        max_grad_norm=1.0,
    )  # fmt: skip
    plan = 3 * len(loader) * Round(optimizer.noise_multiplier, Poisson(1 / 75))
    assert plan.rounds == 225
    assert 2.999 < dpacct.epsilon(plan, delta=DELTA).upper <= 3


def test_a_checkpoint_does_not_take_steps_back(tmp_path: Path) -> None:
    job = Job()
    job.epoch()
    weights = job.weights
    job.engine.save_checkpoint(path=tmp_path / "c.pt", module=job.model)
    job.epoch()
    with pytest.raises(Unsupported, match="20 batches are counted already"):
        job.engine.load_checkpoint(path=tmp_path / "c.pt", module=job.model)
    # The weights are those of the checkpoint, and its accountant is not.
    assert job.weights == weights
    assert len(job.engine.accountant) == 20


# Processes.

KILLED = """
import os, signal, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, {folder!r})
from dpacct import Budget, Ledger
from tests.interop.jobs import DELTA, ROUND, Job
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


@pytest.mark.needs("posix")
@pytest.mark.slow
def test_a_killed_loop_goes_on_and_pays_for_what_was_drawn(tmp_path: Path) -> None:
    file = tmp_path / "killed.ledger"
    script = KILLED.format(folder=str(Path(__file__).parents[2]))
    done = subprocess.run([sys.executable, "-c", script, str(file)], check=False, timeout=3600)
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


def test_the_lines_of_the_readme_find_the_accountant() -> None:
    readme = Path(__file__).parents[2] / "README.md"
    (lines,) = re.findall(
        r"```python skip=.*\n(import dpacct\.interop\.opacus\n[^`]*)```", readme.read_text()
    )
    names: dict[str, Any] = {}
    exec(lines, names)  # noqa: S102 - the lines are to be copied
    assert type(names["engine"].accountant).__module__ == "dpacct.interop.opacus"


def test_without_opacus_and_torch_the_import_says_what_to_install() -> None:
    words = [sys.executable, "-c", BARE]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=3600)
    said = f"opacus is not installed: {install_command('opacus')}"
    assert said in done.stdout, done.stderr
