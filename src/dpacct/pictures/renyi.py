"""Renyi curves, with the order that gives the smallest epsilon."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpacct.display import chosen, up
from dpacct.pictures.picture import Curve, Mark, Panel, Picture
from dpacct.pictures.spending import Setting
from dpacct.pictures.words import in_words
from dpacct.renyi.accountant import RenyiAccountant
from dpacct.renyi.curve import rdp

LEAST, MOST, POINTS = 1.05, 512.0, 48


def orders(best: float) -> list[float]:
    """Renyi orders around the best one, evenly spaced by the logarithm of what exceeds 1."""
    low = min(LEAST, 1 + (best - 1) / 4) - 1
    high = min(max(8.0, 6 * best), MOST) - 1
    return [1 + low * (high / low) ** (k / (POINTS - 1)) for k in range(POINTS)]


def rdp_picture(settings: Sequence[Setting], delta: float) -> Picture:
    """The Renyi divergence over its order, the best order at a delta marked."""
    accountant = RenyiAccountant()
    bests = [accountant.best_order(setting.schedule, delta) for setting in settings]
    curves: list[Curve] = []
    marks: list[Mark] = []
    wanted = orders(max(bests))
    for setting, best in zip(settings, bests, strict=True):
        values = rdp(setting.schedule, orders=wanted)
        kept = [value for value in values if math.isfinite(value.upper)]
        curves.append(
            Curve(
                "" if len(settings) == 1 else setting.name,
                [value.order for value in kept],
                [value.upper for value in kept],
                lower=[value.lower for value in kept],
            )
        )
        (at,) = rdp(setting.schedule, orders=[best])
        epsilon = accountant.upper_epsilon(setting.schedule, delta)
        marks.append(Mark(best, at.upper, f"order {best:.3g}: epsilon {up(epsilon, 4)}"))
    title = f"Renyi curves; the best orders at delta {chosen(delta, 3)} are marked"
    if len(settings) == 1:
        title = f"Order {bests[0]:.3g} gives the least epsilon by Renyi at delta {chosen(delta, 3)}"
    panel = Panel(
        "Renyi order",
        "Renyi divergence, proven",
        tuple(curves),
        marks=tuple(marks),
        log_x=True,
        log_y=True,
    )
    note = in_words(settings[0].schedule)
    if len(settings) > 1:
        note = f"adjacency {settings[0].schedule.adjacency}"
    return Picture(title, (panel,), note)
