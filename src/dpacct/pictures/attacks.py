"""The trade-off curve: how often an attack succeeds, given how often it errs."""

from __future__ import annotations

from collections.abc import Sequence

from dpacct.accountant import find_accountant
from dpacct.display import chosen, up
from dpacct.pictures.picture import Curve, Mark, Panel, Picture
from dpacct.pictures.spending import Setting
from dpacct.pictures.words import in_words
from dpacct.risk.attacks import Attacks

LEAST, POINTS = 1e-4, 33


def rates() -> list[float]:
    """False positive rates, evenly spaced on a logarithmic scale."""
    return [LEAST ** (1 - k / (POINTS - 1)) for k in range(POINTS)]


def tradeoff_picture(settings: Sequence[Setting], marked: Sequence[float]) -> Picture:
    """The best TPR over the FPR, with attacks at some FPR marked.

    Args:
        settings: what runs.
        marked: false positive rates in (0, 1) to mark on the first curve.
    Raises:
        Unsupported: an accountant knows no bound for such rounds.
    """
    curves = [Curve("guessing", rates(), rates(), plain=True)]
    marks: list[Mark] = []
    for setting in settings:
        attacks = Attacks(setting.schedule, find_accountant(setting.accountant))
        found = [attacks.tpr(rate) for rate in rates()]
        name = "proven" if len(settings) == 1 else setting.name
        uppers, lowers = [tpr.upper for tpr in found], [tpr.lower for tpr in found]
        curves.append(Curve(name, rates(), uppers, lower=lowers))
        if not marks:
            for rate in marked:
                upper = attacks.tpr(rate).upper
                marks.append(Mark(rate, upper, f"{in_thousands(upper)} of 1000"))
    panel = Panel(
        "false positive rate: people accused who were not there",
        "true positive rate: clients who are found",
        tuple(curves),
        marks=tuple(marks),
        log_x=True,
        log_y=True,
        y_max=1.0,
    )
    first = settings[0]
    if marks:
        which = f"{first.name}: an" if len(settings) > 1 else "An"
        title = (
            f"{which} attack that errs on {in_thousands(marks[0].x)} of 1000 finds at most "
            f"{in_thousands(marks[0].y)} of 1000 clients"
        )
    else:
        title = "How often an attack succeeds, given how often it errs"
    note = f"{in_words(first.schedule)}; by {first.accountant}"
    if len(settings) > 1:
        note = f"adjacency {first.schedule.adjacency}; marks are those of {first.name}"
    return Picture(title, (panel,), note)


def in_thousands(rate: float) -> str:
    """People of a thousand, never fewer than there are."""
    return chosen(float(up(1000 * rate, 3)), 3)
