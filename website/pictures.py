"""Rebuild the pictures of the documentation: `python -m website.pictures`, or `make pictures`.

A page that shows `../pictures/NAME.png` makes NAME.png in one of its examples. So the examples of
the page are run in an empty folder, and the file is copied. The chart of the README is drawn here.
"""

from __future__ import annotations

import math
import re
import shutil
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import dpacct
from dpacct import Poisson, Round, Uniform
from website.pages import ROOT

FOLDER = ROOT / "docs" / "pictures"
SAMPLING_CHART = "epsilon-by-sampling.png"
SHOWN = re.compile(r"\]\(\.\./pictures/([\w-]+\.png)\)")


def sampling_chart(file: Path) -> None:
    """Draw epsilon of one fixed-size schedule: valid but loose, tight, and too low."""
    schedule = 200 * Round(2.4, Uniform(100, 2000))
    tight = dpacct.epsilon(schedule, delta=1e-5)
    renyi = min(
        dict(value.routes)["Wang et al. 2019"] + _conversion(value.order, 1e-5)
        for value in dpacct.rdp(schedule, orders=[1 + k / 10 for k in range(1, 640)])
    )
    poisson = dpacct.epsilon(200 * Round(2.4, Poisson(0.05)), delta=1e-5)
    bars = [
        ("Renyi bound of other tools:\nvalid, but loose", renyi, "#8a8a8a"),
        ("dpacct, proven upper bound", tight.upper, "#0072B2"),
        ("Poisson formula:\nbelow the truth", poisson.upper, "#C44E00"),
    ]
    figure_module: Any = import_module("matplotlib.figure")
    figure: Any = figure_module.Figure(figsize=(7.2, 2.8), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    for place, (_, value, color) in enumerate(bars):
        axes.barh(-place, value, 0.62, color=color)
        axes.text(value + 0.08, -place, f"{value:.2f}", va="center", fontweight="bold")
    axes.axvline(tight.lower, color="#1c1c1c", linestyle=(0, (4, 3)), linewidth=1.2)
    axes.text(tight.lower + 0.08, -2, f"{tight.lower:.3f}: achieved by two data sets", va="center")
    axes.set_yticks([0, -1, -2], [name for name, _, _ in bars])
    axes.set_xlabel("epsilon at delta 1e-5")
    figure.suptitle(
        "200 rounds of 100 of 2,000 clients, noise multiplier 2.4", x=0.012, ha="left",
        fontsize=11, fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(0, renyi * 1.1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    figure.savefig(file)


def _conversion(order: float, delta: float) -> float:
    """Return the additional term of the conversion from RDP (Balle et al. 2020, theorem 21)."""
    return math.log((order - 1) / order) - math.log(delta * order) / (order - 1)


def main() -> None:
    """Rebuild every picture, or the pictures of the named pages."""
    run = import_module("tests.project.test_docs_examples").complaints_about
    FOLDER.mkdir(exist_ok=True)
    named = [Path(word).resolve() for word in sys.argv[1:]]
    if not named:
        sampling_chart(FOLDER / SAMPLING_CHART)
    for page in named or sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = set(SHOWN.findall(text)) - {SAMPLING_CHART}
        if not wanted:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            if complaints := run(text, Path(scratch)):
                sys.exit(f"{page}: " + "\n".join(complaints))
            for name in sorted(wanted):
                shutil.copyfile(Path(scratch) / name, FOLDER / name)
                sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    main()
