"""Hypothesis profiles, and the published figures that some tests compare with."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parents[1]

settings.register_profile("dev", max_examples=25, deadline=None)
settings.register_profile(
    "ci",
    max_examples=100,
    derandomize=True,
    deadline=None,
    database=None,
    print_blob=True,
    # A busy machine is not a failure of the code under test.
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.fixture(scope="session")
def published_numbers() -> dict[str, Any]:
    """Every privacy setting that five papers print, with the epsilon they claim."""
    shared = Path(os.environ.get("DPACCT_SHARED") or ROOT.parent / "shared")
    file = shared / "methods" / "published_numbers.json"
    if not file.is_file():
        pytest.skip(f"the published figures are not at {file}; DPACCT_SHARED names their folder")
    return json.loads(file.read_text(encoding="utf-8"))
