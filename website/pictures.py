"""Rebuild the pictures of the documentation: `python -m website.pictures`, or `make pictures`.

A page that shows `../pictures/NAME.png` makes NAME.png in one of its examples. So the examples of
the page are run in an empty folder, and the file is copied. The chart of the README is drawn here,
and the page of `dpacct app` is photographed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dpacct
from dpacct import Poisson, Round, Uniform
from dpacct.display import down, up
from dpacct.interop import DpAccountingRdp
from website import ROOT

FOLDER = ROOT / "docs" / "pictures"
SAMPLING_CHART = "epsilon-by-sampling.png"
SCREENS = ("app-calculator.png", "app-ledgers.png")
SHOWN = re.compile(r"\]\(\.\./pictures/([\w-]+\.png)\)")


def sampling_figures() -> dict[str, float]:
    """Return epsilon of one schedule of fixed-size cohorts under replace-one, by several tools."""
    schedule, at = 200 * Round(2.4, Uniform(100, 2000)), 1e-5
    poisson = 200 * Round(2.4, Poisson(0.05), schedule.adjacency)
    tight, renyi = dpacct.epsilon(schedule, delta=at), DpAccountingRdp()
    return {
        "upper": tight.upper,
        "lower": tight.lower,
        # Its noise is over the sensitivity, and replacing a client moves the sum by 2 C.
        "over_sensitivity": renyi.epsilon(schedule, at),
        "over_clip_norm": renyi.epsilon(schedule.scale_noise(2.0), at),
        "poisson": dpacct.epsilon(poisson, delta=at).upper,
    }


def sampling_chart(file: Path) -> None:
    """Draw these figures: valid but loose, tight, and too low."""
    found = sampling_figures()
    lower, upper = found["lower"], found["upper"]
    high = found["over_sensitivity"] / upper

    def short(value: float) -> str:
        return f"{value:.2f}, {1 - value / lower:.0%} too low"

    call = "dp-accounting\nRdpAccountant(REPLACE_ONE)\nGaussianDpEvent"
    bounds = f"{up(upper, 4)} proven, {down(lower, 4)} achieved"
    bars = [
        (f"{call}(1.2)", found["over_sensitivity"], f"{found['over_sensitivity']:.2f}", "#8a8a8a"),
        ("dpacct", upper, bounds, "#0072B2"),
        (f"{call}(2.4)", found["over_clip_norm"], short(found["over_clip_norm"]), "#C44E00"),
        ("the Poisson formula\nat rate 0.05", found["poisson"], short(found["poisson"]), "#C44E00"),
    ]
    figure_module: Any = import_module("matplotlib.figure")
    figure: Any = figure_module.Figure(figsize=(7.6, 3.7), dpi=150, layout="constrained")
    axes: Any = figure.subplots()
    # The truth lies in this band, which is hardly wider than a line.
    axes.axvspan(lower, upper, color="#0072B2", alpha=0.35, linewidth=1.5)
    for place, (_, value, words, color) in enumerate(bars):
        axes.barh(-place, value, 0.62, color=color)
        # Not on the band, in which a short bar's text would end.
        axes.text(max(value, upper) + 0.1, -place, words, va="center", fontweight="bold")
    axes.set_yticks([0, -1, -2, -3], [name for name, *_ in bars])
    axes.set_xlabel(
        "epsilon at delta 1e-5: 200 rounds of 100 of 2,000 clients,\n"
        "noise 2.4 x clip norm, one client replaced"
    )
    figure.suptitle(
        f"The usual bound is {high:.1f} times too high. Called with noise 2.4, it is too low.",
        x=0.012, ha="left", fontsize=11, fontweight="bold",
    )  # fmt: skip
    axes.set_xlim(0, found["over_sensitivity"] * 1.1)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.tick_params(left=False)
    figure.savefig(file)


def app_screens(folder: Path) -> bool:
    """Photograph the page of `dpacct app`. Return False without Chromium and playwright."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None or find_spec("playwright") is None:
        return False
    sync_api: Any = import_module("playwright.sync_api")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "registry.ledger"
        with dpacct.Ledger.open(file, dpacct.Budget(8, 1e-5), unit="patient") as ledger:
            for project, rounds in (("cardiology", 60), ("imaging", 40), ("cardiology", 50)):
                ledger.charge(
                    f"{rounds} rounds", rounds * Round(1.3, Poisson(0.05)), project=project
                )
        command = [sys.executable, "-m", "dpacct_cli", "app", "--no-open", str(file)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, text=True) as server:  # noqa: S603 - our own
            output: Any = server.stdout
            address = output.readline().split()[2]
            with sync_api.sync_playwright() as playwright:
                flags = ["--headless", "--no-sandbox", "--disable-gpu"]
                browser = playwright.chromium.launch(executable_path=chromium, args=flags)
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(address)
                page.get_by_text("The smallest epsilon is").wait_for(timeout=120_000)
                page.screenshot(path=folder / SCREENS[0], full_page=True)
                page.get_by_role("tab", name="Ledgers").click()
                page.wait_for_selector("#timeline .wide")
                page.screenshot(path=folder / SCREENS[1], full_page=True)
            server.terminate()
    return True


def main() -> None:
    """Rebuild every picture, or the pictures of the named pages."""
    run = import_module("tests.project.test_docs_examples").complaints_about
    FOLDER.mkdir(exist_ok=True)
    named = [Path(word).resolve() for word in sys.argv[1:]]
    if not named:
        sampling_chart(FOLDER / SAMPLING_CHART)
        if not app_screens(FOLDER):
            sys.stdout.write("the pictures of dpacct app need Chromium and playwright\n")
    for page in named or sorted((ROOT / "docs").rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        wanted = set(SHOWN.findall(text)) - {SAMPLING_CHART, *SCREENS}
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
