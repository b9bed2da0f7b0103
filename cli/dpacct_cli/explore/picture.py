"""A sweep as a picture: epsilon over what varies most, a line for each of the rest.

Rule 1: proven and achieved are the ends of a band; its upper edge is the line.
Rule 2: lines are told apart by their labels and their dashes, not by color alone.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from dpacct.errors import DpacctError
from dpacct_cli.errors import OptionConflict
from dpacct_cli.explore.forms import AXES, constant, shown, varying
from dpacct_cli.explore.grid import Sweep

MOST_LINES, MOST_PANELS = 12, 6
# Okabe and Ito's palette without its yellow: told apart with any kind of color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
LOGARITHMIC = 30.0


def check(sweep: Sweep) -> None:
    """Refuse a sweep that makes no picture, before it is computed.

    Raises:
        OptionConflict: nothing varies, or too much. DpacctError: matplotlib is not installed.
    """
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        raise DpacctError(
            "a picture needs matplotlib, which is not installed: pip install 'dpacct[plot]'."
        ) from None
    kinds = {
        "noise_multiplier": {setting.noise for setting in sweep.settings},
        "rounds": {setting.rounds for setting in sweep.settings},
        "sampling_rate": {(setting.rate, setting.cohort) for setting in sweep.settings},
        "delta": {setting.delta for setting in sweep.settings},
    }
    counts = sorted((len(values) for values in kinds.values()), reverse=True)
    if counts[0] == 1:
        raise OptionConflict("a picture needs something that varies; give a list or a range.")
    if counts[3] > 1 or counts[1] > MOST_LINES or counts[2] > MOST_PANELS:
        raise OptionConflict(
            f"a picture shows three things that vary, with at most {MOST_LINES} and {MOST_PANELS} "
            "values of the second and the third. A .csv or .json takes all."
        )


def axes_of(rows: Sequence[dict[str, Any]]) -> list[str]:
    """What varies, the most values first; a cohort and its rate are one thing."""
    found = varying(rows)
    if "cohort_size" in found:
        found.remove("sampling_rate" if "sampling_rate" in found else "cohort_size")
    return sorted(found, key=lambda key: -len({row[key] for row in rows}))


def draw(rows: Sequence[dict[str, Any]], form: str) -> bytes:
    """The picture as a file of matplotlib's.

    Args:
        rows: as they are told; what could not be computed is left out.
        form: png, svg or pdf.
    """
    import matplotlib as mpl
    from matplotlib.figure import Figure

    known = [row for row in rows if row["epsilon_upper"] is not None]
    across, *rest = axes_of(rows)
    panels = _groups(known, rest[1]) if len(rest) > 1 else [(None, known)]
    with mpl.rc_context({"svg.hashsalt": "dpacct", "font.size": 10}):
        figure = Figure(figsize=(6.8, 0.5 + 3.6 * max(1, len(panels))), layout="constrained")
        figure.suptitle(f"Epsilon over {AXES[across]}: {constant(rows)}", fontsize=11)
        for number, (value, part) in enumerate(panels, start=1):
            panel = figure.add_subplot(max(1, len(panels)), 1, number)
            _panel(panel, part, across, rest[0] if rest else None)
            if value is not None:
                panel.set_title(f"{AXES[rest[1]]} {shown(rest[1], value)}", loc="left", fontsize=10)
        stream = io.BytesIO()
        # No times in the file: the same rows make the same picture.
        metadata = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[form]
        figure.savefig(stream, format=form, dpi=160, metadata=metadata)
    return stream.getvalue()


def _groups(rows: Sequence[dict[str, Any]], key: str) -> list[tuple[Any, list[dict[str, Any]]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row[key], []).append(row)
    return list(found.items())


def _panel(panel: Any, rows: Sequence[dict[str, Any]], across: str, lines: str | None) -> None:
    """One frame; each line is labeled where it ends."""
    groups = _groups(rows, lines) if lines is not None else [(None, list(rows))]
    for number, (value, part) in enumerate(groups):
        part.sort(key=lambda row: row[across])
        x = [row[across] for row in part]
        upper = [row["epsilon_upper"] for row in part]
        lower = [row["epsilon_lower"] for row in part]
        color = COLORS[number % len(COLORS)]
        dashes = DASHES[number // len(COLORS) % len(DASHES)] if len(groups) > 1 else "-"
        panel.fill_between(x, lower, upper, color=color, alpha=0.25, linewidth=0)
        panel.plot(x, upper, dashes, color=color, marker="o", markersize=3)
        if value is not None and lines is not None:
            label = f"{AXES[lines]} {shown(lines, value)}"
            panel.annotate(
                label, (x[-1], upper[-1]), (5, 0), textcoords="offset points", color=color,
                va="center", fontsize=9, annotation_clip=False,
            )  # fmt: skip
    for key, values, set_scale in (
        (across, [row[across] for row in rows], panel.set_xscale),
        ("", [row["epsilon_upper"] for row in rows], panel.set_yscale),
    ):
        if (
            values
            and min(values) > 0
            and (key == "delta" or max(values) > LOGARITHMIC * min(values))
        ):
            set_scale("log")
    panel.set_xlabel(
        "noise multiplier"
        if across == "noise_multiplier"
        else AXES[across].replace("rate", "sampling rate")
    )
    panel.set_ylabel("epsilon, proven (band: to achieved)")
    panel.grid(visible=True, color="#dddddd", linewidth=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
