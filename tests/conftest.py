"""What is run how thoroughly, and the published figures that some tests compare with."""

from __future__ import annotations

import gc
import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

# A busy machine is not a failure of the code under test.
SLOW = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
# What everybody runs is nearly the same every time (constants of modules that a worker has loaded
# are drawn too, so that it depends a little on which tests came before); exploration is asked for.
settings.register_profile("quick", max_examples=10, derandomize=True, database=None, **SLOW)
settings.register_profile("thorough", max_examples=60, derandomize=True, database=None, **SLOW)
settings.register_profile("explore", max_examples=200, print_blob=True, **SLOW)
PROFILE = os.environ.get("DPACCT_TESTS", "quick")
settings.load_profile(PROFILE)

# A ledger flushes every round to disk. In memory that costs nothing, and nobody pulls a plug here.
MEMORY = Path("/dev/shm")  # noqa: S108 - a folder that the system keeps for this
if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))
# Workers run side by side, so they and what they start have one thread each. Threads of BLAS spin
# while they wait, which took a third of the time. numpy reads this when it is imported.
for _library in ("OPENBLAS", "MKL", "OMP"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")


# What modules hold is not garbage: to look through it again and again took 40 % of a collection.
gc.disable()


def pytest_collection_finish() -> None:
    """Look for garbage among what the tests make, and not among all modules."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if this machine or this environment lacks what its marker `needs` names."""
    for name in (name for mark in item.iter_markers("needs") for name in mark.args):
        there = hasattr(os, "fork") if name == "posix" else find_spec(name) is not None
        if not there:
            pytest.skip(f"needs {name}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is slow, and rarely fails, to `make thorough`; a test that is named runs."""
    if PROFILE != "quick" or any("::" in argument for argument in config.args):
        return
    left = {item for item in items if item.get_closest_marker("slow")}
    families: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sampled"):
            families.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for family in families.values():
        [count] = family[0].get_closest_marker("sampled").args
        # As far from each other as may be.
        taken = {family[place * len(family) // count] for place in range(count)}
        left.update(item for item in family if item not in taken)
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


@pytest.fixture(scope="session")
def published_numbers() -> dict[str, Any]:
    """Every privacy setting that five papers print, with the epsilon they claim."""
    shared = Path(os.environ.get("DPACCT_SHARED") or ROOT.parent / "shared")
    file = shared / "methods" / "published_numbers.json"
    if not file.is_file():
        pytest.skip(f"the published figures are not at {file}; DPACCT_SHARED names their folder")
    return json.loads(file.read_text(encoding="utf-8"))
