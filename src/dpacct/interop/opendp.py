"""OpenDP measurements as releases of a schedule or a ledger, by what OpenDP proves about them.

```python
from dpacct.interop.opendp import release_of_measurement
ledger.charge(release_of_measurement(measurement, d_in=1, source="notebook 3"), name="ages")
```

OpenDP itself is not imported: a measurement brings its map and the name of its divergence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.mechanisms import ApproximateDP, PureDP, ZeroConcentratedDP
from dpacct.rounds import Adjacency

__all__ = ["release_of_measurement"]


def release_of_measurement(
    measurement: Any,
    d_in: Any,
    *,
    delta: float | None = None,
    adjacency: Adjacency | str = Adjacency.ADD_REMOVE,
    source: str = "OpenDP",
) -> PureDP | ApproximateDP | ZeroConcentratedDP:
    """Return the promise that a measurement of OpenDP makes.

    Args:
        measurement: with a ``map`` and an ``output_measure``: MaxDivergence (epsilon),
            ZeroConcentratedDivergence (rho), Approximate(MaxDivergence) (epsilon and delta), or
            SmoothedMaxDivergence (a privacy profile).
        d_in: the distance between neighboring data sets in OpenDP's input metric.
        delta: of a privacy profile: the one at which its epsilon is taken.
        adjacency: the neighboring relation that ``d_in`` stands for.
        source: where the measurement comes from, for the record.
    Returns:
        A promise with an upper bound only. `ApproximateDP` costs the most in a composition: charge
        the measurement before its conversion where it is pure or zCDP.
    Raises:
        InvalidParameter: there is no map, or a profile has no ``delta``.
        Unsupported: the divergence is another one.
    """
    find = getattr(measurement, "map", None)
    if not callable(find) or not hasattr(measurement, "output_measure"):
        rule = "a measurement of OpenDP has a map and an output measure"
        raise InvalidParameter("measurement", type(measurement).__name__, rule)
    found: Any = cast("Callable[[Any], Any]", find)(d_in)
    match str(measurement.output_measure):
        case "MaxDivergence":
            return PureDP(found, adjacency, source=source)
        case "ZeroConcentratedDivergence":
            return ZeroConcentratedDP(found, adjacency, source=source)
        case "Approximate(MaxDivergence)":
            epsilon, at = found
            return ApproximateDP(epsilon, at, adjacency, source=source)
        case "SmoothedMaxDivergence":
            if delta is None:
                rule = "a privacy profile has an epsilon for each delta"
                raise InvalidParameter("delta", None, rule, "Choose one.")
            at = validate.delta(delta)
            return ApproximateDP(found.epsilon(at), at, adjacency, source=source)
        case other:
            raise Unsupported(f"a measurement with the divergence {other:.60} has no release here")
