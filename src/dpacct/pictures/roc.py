"""What an attack found, and the most that any attack finds: curves on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from dpacct.display import chosen
from dpacct.empirical.roc import Roc
from dpacct.pictures.attacks import in_thousands
from dpacct.pictures.picture import Curve, Panel, Picture

POINTS = 121
# How the title says what was found.
_AT = 1e-2


def roc_picture(
    observed: Sequence[tuple[str, Roc]],
    limit: Callable[[float], float | None] | None,
    note: str = "",
) -> Picture:
    """Observed TPR over observed FPR, below what is proven.

    Args:
        observed: attacks, by their names; the title tells of the first.
        limit: the largest TPR at an FPR in (0, 1), proven; None where nothing is.
        note: what holds for all of it.
    """
    least = min(0.1, *(1 / found.nonmembers for _, found in observed))
    decades = math.floor(math.log10(least))
    rates = [10.0 ** (decades * (1 - k / (POINTS - 1))) for k in range(POINTS)]
    curves = [Curve("guessing", rates, rates, plain=True)]
    curves += [_staircase(name, found, rates) for name, found in observed]
    proven = None if limit is None else [limit(rate) for rate in rates[::5]]
    if proven is not None and None not in proven:
        curves.append(Curve("proven limit", rates[::5], [rate or 0.0 for rate in proven]))
    panel = Panel(
        "false positive rate: others taken for members",
        "true positive rate: members who are found",
        tuple(curves),
        log_x=True,
        log_y=True,
        y_max=1.0,
    )
    return Picture(_title(*observed[0], limit), (panel,), note)


def _staircase(name: str, found: Roc, rates: Sequence[float]) -> Curve:
    """The largest TPR at each FPR; only where somebody is found."""
    last = np.searchsorted(found.fpr, np.asarray(rates) * (1 + 1e-12), side="right") - 1
    points = [(rate, float(found.tpr[k])) for rate, k in zip(rates, last, strict=True)]
    shown = [(rate, tpr) for rate, tpr in points if tpr > 0.0]
    return Curve(name, [rate for rate, _ in shown], [tpr for _, tpr in shown], steps=True)


def _title(name: str, found: Roc, limit: Callable[[float], float | None] | None) -> str:
    last = int(np.searchsorted(found.fpr, _AT * (1 + 1e-12), side="right")) - 1
    seen = chosen(1000 * float(found.tpr[last]), 3)
    title = f"{name}: finds {seen} of 1000 members, seen to err on at most 10 of 1000"
    most = None if limit is None else limit(_AT)
    if most is None:
        return f"{title}; no limit is proven"
    return f"{title}; proven: at most {in_thousands(most)}"
