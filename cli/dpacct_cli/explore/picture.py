"""A sweep as a picture: epsilon over what varies most, a line for each of the rest.

What cannot be computed is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from dpacct.display import up
from dpacct.errors import Unsupported
from dpacct.pictures.picture import Curve, Panel, Picture
from dpacct_cli.errors import OptionConflict
from dpacct_cli.explore.forms import AXES, constant, shown, varying
from dpacct_cli.explore.grid import Sweep

# As many lines look different.
MOST_LINES, MOST_PANELS = 6, 5
# Ratios above which a scale is logarithmic.
_WIDE = 30.0
_LABELS = {
    "noise_multiplier": "noise multiplier",
    "rounds": "rounds",
    "sampling_rate": "sampling rate",
    "delta": "delta",
}


def check(sweep: Sweep) -> None:
    """Refuse a sweep that makes no picture, before it is computed.

    Raises:
        OptionConflict: nothing varies, or too much. Unsupported: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise Unsupported(
            "pictures are drawn by matplotlib, which is missing: pip install -e '.[plot]'"
        )
    kinds = (
        {setting.noise for setting in sweep.settings},
        {setting.rounds for setting in sweep.settings},
        {(setting.rate, setting.cohort) for setting in sweep.settings},
        {setting.delta for setting in sweep.settings},
    )
    counts = sorted(map(len, kinds), reverse=True)
    if counts[0] == 1:
        raise OptionConflict("a picture needs something that varies: give a list or a range.")
    if counts[1] > MOST_LINES or counts[2] > MOST_PANELS or counts[3] > 1:
        raise OptionConflict(
            f"a picture shows at most three things that vary, the second with {MOST_LINES} values "
            f"and the third with {MOST_PANELS}. A .csv or .json file takes all."
        )


def picture_of(rows: Sequence[dict[str, Any]]) -> Picture:
    """The picture of all rows, in their order."""
    axes = sorted(
        (key for key in varying(rows) if key != "cohort_size"),
        key=lambda key: -len({row[key] for row in rows}),
    )
    across, (lines, panels) = axes[0], (*axes[1:], None, None)[:2]
    known = [row for row in rows if row["epsilon_upper"] is not None]
    groups = _groups(known, panels) or [(None, [])]
    return Picture(
        _title(known, across),
        tuple(_panel(part, across, lines, panels, value) for value, part in groups),
        f"{constant(rows)}; a band reaches down to what is achieved",
    )


def _title(rows: Sequence[dict[str, Any]], across: str) -> str:
    if not rows:
        return "No epsilon could be computed"
    least, most = (f(row["epsilon_upper"] for row in rows) for f in (min, max))
    return f"Epsilon is {up(least, 3)} to {up(most, 3)} over {_LABELS[across]}"


def _groups(
    rows: Sequence[dict[str, Any]], key: str | None
) -> list[tuple[Any, list[dict[str, Any]]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(None if key is None else row[key], []).append(row)
    return list(found.items())


def _panel(
    rows: Sequence[dict[str, Any]], across: str, lines: str | None, panels: str | None, value: Any
) -> Panel:
    curves: list[Curve] = []
    for name, part in _groups(rows, lines):
        ordered = sorted(part, key=lambda row: row[across])
        curves.append(
            Curve(
                "" if lines is None else f"{AXES[lines]} {shown(lines, name)}",
                [row[across] for row in ordered],
                [row["epsilon_upper"] for row in ordered],
                [row["epsilon_lower"] for row in ordered],
                points=len(ordered) == 1,
            )
        )
    which = "" if panels is None else f", {AXES[panels]} {shown(panels, value)}"
    wide_x = across == "delta" or _wide([row[across] for row in rows])
    wide_y = _wide([row["epsilon_upper"] for row in rows])
    return Panel(
        _LABELS[across], f"epsilon{which}", tuple(curves), log_x=wide_x, log_y=wide_y,
        from_zero=not wide_y,
    )  # fmt: skip


def _wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > _WIDE * min(values)
