"""Measurements of OpenDP as promises: by stand-ins, and by OpenDP itself where it is installed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.interop.opendp import release_of_measurement
from dpacct.mechanisms import ApproximateDP, PureDP, ZeroConcentratedDP


@dataclass
class Measurement:
    output_measure: str
    found: Any

    def map(self, d_in: float) -> Any:
        assert d_in == 1.0
        return self.found


class Profile:
    def epsilon(self, delta: float) -> float:
        return 1.0 if delta >= 1e-6 else 2.0


def test_each_divergence_is_its_promise() -> None:
    def release(measure: str, found: Any, **more: Any) -> Any:
        return release_of_measurement(Measurement(measure, found), 1.0, **more)

    assert release("MaxDivergence", 0.5) == PureDP(0.5)
    assert release("MaxDivergence", 0.5).source == "OpenDP"
    assert release("ZeroConcentratedDivergence", 0.1) == ZeroConcentratedDP(0.1)
    assert release("Approximate(MaxDivergence)", (0.5, 1e-7)) == ApproximateDP(0.5, 1e-7)
    profile = release("SmoothedMaxDivergence", Profile(), delta=1e-7, adjacency="zero-out")
    assert profile == ApproximateDP(2.0, 1e-7, "zero-out")
    with pytest.raises(InvalidParameter, match="for each delta"):
        release("SmoothedMaxDivergence", Profile())
    with pytest.raises(Unsupported, match="RenyiDivergence"):
        release("RenyiDivergence", None)
    with pytest.raises(InvalidParameter, match="a map and an output measure"):
        release_of_measurement(3, 1.0)


def test_opendp_itself(tmp_path: Path) -> None:
    opendp: Any = pytest.importorskip("opendp.prelude")
    opendp.enable_features("contrib")
    numbers = opendp.atom_domain(T=float, nan=False), opendp.absolute_distance(T=float)
    laplace = opendp.m.make_laplace(*numbers, scale=10.0)
    gaussian = opendp.m.make_gaussian(*numbers, scale=10.0)
    both = opendp.c.make_zCDP_to_approxDP(gaussian)
    fixed = opendp.c.make_fix_delta(both, 1e-7)
    with Ledger.open(tmp_path / "x", Budget(3.0, 1e-5), promised_delta=1e-6) as ledger:
        for measurement in (laplace, gaussian, both, fixed):
            promise = release_of_measurement(measurement, 1.0, delta=1e-7)
            ledger.charge(promise, name=type(promise).__name__)
        assert ledger.rounds == 4
        assert ledger.verify().sound
