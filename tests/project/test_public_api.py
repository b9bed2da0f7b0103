"""The public names, and their types: pyright reads this file too, so that a change is seen."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import assert_type

import pytest

import dpacct
from dpacct import Adjacency, Budget, Calibration, Full, Interval, Poisson, Round, Schedule, Uniform
from dpacct.renyi.curve import RenyiValue

NAMES = {
    "calibrate", "epsilon", "delta", "rdp", "tradeoff",
    "Round", "Schedule", "Poisson", "Uniform", "Full", "Adjacency", "Budget", "Interval", "Spent",
    "Calibration",
    "ApproximateDP", "DiscreteGaussian", "DiscreteLaplace", "ExponentialMechanism", "Laplace",
    "PureDP", "RandomizedResponse", "ZeroConcentratedDP",
    "Epoch", "ShuffledEpoch",
    "DpacctError", "InvalidParameter", "Unsupported", "NotConverged", "BudgetExceeded",
    "LedgerError", "Ledger",
    "best_of", "Sampled", "Certificate", "certify", "GaussianDP", "gdp", "__version__",
}  # fmt: skip


def test_the_public_names_are_these() -> None:
    assert set(dpacct.__all__) == NAMES
    # No function hides behind its module.
    assert not any(isinstance(getattr(dpacct, name), ModuleType) for name in NAMES)


def test_completion_finds_the_public_names_and_nothing_else() -> None:
    rooms = {"claims", "correlated", "fl", "interop", "ledger", "pictures", "report", "risk"}
    rooms |= {"schedules"}
    # Training is offered where PyTorch is.
    rooms -= set() if find_spec("torch") else {"fl"}
    assert set(dir(dpacct)) == NAMES | rooms
    # Training takes PyTorch, which its own tests import.
    code = "from dpacct import *\nimport dpacct\n"
    code += "for name in dir(dpacct): name == 'fl' or getattr(dpacct, name)"
    words = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=3600)
    assert done.stdout + done.stderr == ""


WITHOUT_TORCH = """
import importlib.util, pydoc, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find(name, *rest)
sys.modules["torch"] = None
import pytest

import dpacct
from dpacct.packages import install_command
assert "fl" not in dir(dpacct) and "ledger" in dir(dpacct)
pydoc.render_doc(dpacct)
try:
    import dpacct.fl
except ImportError as error:
    assert (error.name, error.msg) == (
        "torch",
        f"dpacct.fl trains with PyTorch, which is not installed: {install_command('fl')}",
    )
else:
    raise AssertionError("dpacct.fl was imported without PyTorch")
"""


OLD_TORCH = """
import importlib.metadata as metadata
found = metadata.version
metadata.version = lambda name: "2.9.1" if name == "torch" else found(name)
try:
    import dpacct.fl
except Exception as error:
    print(error)
"""


@pytest.mark.needs("torch")
def test_a_version_of_torch_that_reads_files_unsafely_is_refused() -> None:
    words = [sys.executable, "-c", OLD_TORCH]
    done = subprocess.run(words, check=True, capture_output=True, text=True, timeout=3600)
    assert done.stdout.startswith("torch 2.9.1 is too old, version 2.10 or later is needed")


def test_without_torch_the_accountant_works_and_training_says_what_to_install() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True, timeout=3600)


def test_the_public_types_are_these() -> None:
    plan = assert_type(3 * Round(2.0, Poisson(0.1)) + Round(1.5), Schedule)
    other = assert_type(2 * (plan + plan), Schedule)
    assert_type(plan.adjacency, Adjacency)
    assert_type(Round(2.0, Uniform(1, 20)).sampling, Poisson | Uniform | Full)

    spent = assert_type(dpacct.epsilon(plan, delta=1e-5), Interval)
    assert_type(
        dpacct.epsilon(noise_multiplier=1, rounds=3, sampling_rate=0.1, delta=1e-5), Interval
    )
    assert_type(spent.upper, float)
    assert_type(dpacct.delta(other, epsilon=1), Interval)
    assert_type(dpacct.rdp(plan, orders=[2, 3.5]), tuple[RenyiValue, ...])

    budget = Budget(8, 1e-5)
    found = assert_type(
        dpacct.calibrate(epsilon=budget.epsilon, delta=budget.delta, rounds=3, sampling_rate=0.1),
        Calibration,
    )
    assert_type(found.noise_multiplier, float)
    assert_type(found.rounds, int)
    assert_type(found.epsilon, Interval)
    assert_type(found.schedule, Schedule)


@pytest.mark.parametrize("name", ["Ledger", "ledger"])
def test_a_room_that_cannot_be_imported_says_why(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: str) -> ModuleType:
        raise AttributeError("module 'numpy' has no attribute 'trapz'")

    monkeypatch.delitem(vars(dpacct), name, raising=False)
    monkeypatch.setattr(dpacct, "import_module", broken)
    with pytest.raises(ImportError, match="'numpy' has no attribute 'trapz'") as raised:
        exec(f"from dpacct import {name}")  # noqa: S102 - as a user writes it
    assert isinstance(raised.value.__cause__, AttributeError)


def test_checkers_know_every_room() -> None:
    text = Path(dpacct.__file__).read_text(encoding="utf-8")
    known = re.findall(r"^    from dpacct import (\w+) as \1$", text, flags=re.MULTILINE)
    assert set(known) == {name for name in dir(dpacct) if name not in dpacct.__all__} | {"fl"}
