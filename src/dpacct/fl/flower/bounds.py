"""Bounds as clients are told them: what kind, and by which numbers."""

from __future__ import annotations

import sys
from typing import Any

from dpacct.errors import Unsupported
from dpacct.fl.privacy.adaptive_clip import AdaptiveClip
from dpacct.fl.privacy.bounds import Bound, Clip, PerLayerClip, SmoothedNormalization


def bound_to_json(bound: Bound) -> dict[str, Any]:
    """A bound as clients are told it.

    Raises:
        Unsupported: it is not one of the package's own.
    """
    # What only resembles one of them may bound by something else.
    own = type(bound) in (Clip, AdaptiveClip, PerLayerClip, SmoothedNormalization)
    match bound if own else None:
        case Clip(clip_norm=norm) | AdaptiveClip(clip_norm=norm):
            return {"kind": "clip", "values": [norm]}
        case PerLayerClip(clip_norms=norms):
            return {"kind": "per layer", "values": list(norms)}
        case SmoothedNormalization(alpha=alpha):
            return {"kind": "smoothed", "values": [alpha]}
        case _:
            raise Unsupported(
                f"clients cannot be told the bound {type(bound).__name__}; take Clip, "
                "PerLayerClip, AdaptiveClip or SmoothedNormalization"
            )


def bound_from_json(found: dict[str, Any]) -> Bound:
    """What `bound_to_json` wrote; of an adaptive norm, that of the round.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    kind, values = found["kind"], [number(value) for value in found["values"]]
    if kind == "per layer":
        return PerLayerClip(tuple(values))
    (value,) = values
    return {"clip": Clip, "smoothed": SmoothedNormalization}[kind](value)


def number(value: object) -> float:
    """A value that travelled, as the finite number that it has to be.

    Raises:
        TypeError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r:.60} is no number")
    if not abs(value) <= sys.float_info.max:
        raise TypeError(f"{value!r:.60} is no finite number")
    return float(value)
