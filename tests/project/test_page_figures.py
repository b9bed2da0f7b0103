"""Figures in the prose of the documentation, computed again. `test_docs_examples` runs examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import binom

import dpacct
from dpacct import Budget, Poisson, Round, Schedule, Uniform, risk
from dpacct.display import down, up
from dpacct.renyi.odometer import Odometer
from website import ROOT
from website.pictures import sampling_figures

pytestmark = pytest.mark.slow
PLAN = 100 * Round(1.0, Poisson(0.1)) + 200 * Round(0.8, Poisson(0.05))
FIXED = 200 * Round(2.4, Uniform(100, 2000))


def upper(schedule: Schedule, delta: float = 1e-5) -> float:
    return dpacct.epsilon(schedule, delta=delta).upper


def without_a_plan() -> float:
    odometer = Odometer(Budget(8, 1e-6))
    odometer.add(Round(1.2, Poisson(0.01)), 100)
    return odometer.epsilon


def of_sizes_alone() -> float:
    """Epsilon of 300 sizes of Poisson cohorts at rate 0.25, of 20 or of 19 clients."""
    sizes, step, half = np.arange(20), 1e-4, 2**20
    p, q = binom.pmf(sizes, 20, 0.25), binom.pmf(sizes, 19, 0.25)
    infinite = 300 * binom.pmf(20, 20, 0.25)
    law = np.zeros(2 * half)
    np.add.at(law, np.rint(np.log(p / q) / step).astype(int), p)
    law = np.fft.irfft(np.fft.rfft(law) ** 300, 2 * half)
    losses = step * np.fft.fftfreq(2 * half, 1 / (2 * half))

    def excess(epsilon: float) -> float:
        more = losses > epsilon
        return float(np.sum(law[more] * -np.expm1(epsilon - losses[more]))) + infinite - 1e-5

    return brentq(excess, 1.0, 40.0)


def of_poisson_instead() -> tuple[float, float, float]:
    fixed = dpacct.epsilon(200 * Round(2.4, Uniform(100, 2000), "add-remove"), delta=1e-5)
    poisson = upper(200 * Round(2.4, Poisson(0.05)))
    return 1 - poisson / fixed.lower, poisson, fixed.lower


def guesses() -> float:
    plan = dpacct.calibrate(epsilon=7.9, delta=1e-5, rounds=300, sampling_rate=0.1).schedule
    return 0.5 + risk.advantage(plan).upper / 2


@pytest.mark.parametrize(
    ("page", "text", "figures"),
    [
        (
            "docs/how-to/custom-loop.md",
            "at noise 1.2 and rate 0.01 spend {:.3f} at delta\n  1e-6 with a plan, and {:.2f}",
            lambda: (upper(100 * Round(1.2, Poisson(0.01)), 1e-6), without_a_plan()),
        ),
        (
            "docs/how-to/schedules.md",
            "The epsilons alone add up to {:.2f}.",
            lambda: (upper(1000 * Round(1.0, Poisson(0.01))) + 20 * 0.1 + 0.5 + 0.2,),
        ),
        (
            "docs/how-to/schedules.md",
            "\n{:.2f}. As two runs, each at half the delta, it would cost {:.2f}.",
            lambda: (
                upper(PLAN),
                sum(upper(count * one, 5e-6) for one, count in PLAN),
            ),
        ),
        (
            "docs/how-to/choose-parameters.md",
            "falls from {:.2f} to {:.3f} clip norms",
            lambda: (
                dpacct.calibrate(
                    epsilon=8, delta=1e-5, rounds=50, sampling=dpacct.Full()
                ).noise_multiplier
                / 12,
                dpacct.calibrate(
                    epsilon=3, delta=1e-6, rounds=1563, sampling_rate=256 / 20_000
                ).noise_multiplier
                / 256,
            ),
        ),
        (
            "docs/explanation/sampling.md",
            "the sizes alone cost epsilon {:.2f} at delta 1e-5",
            lambda: (of_sizes_alone(),),
        ),
        (
            "docs/explanation/sampling.md",
            "it is {:.0%} too low: {:.2f} instead of {:.2f}",
            of_poisson_instead,
        ),
        (
            "docs/how-to/reports-and-charts.md",
            "guesses correctly at most {:.0f} times in 1,000.",
            lambda: (1000 * guesses(),),
        ),
    ],
)
def test_a_figure_of_the_prose(
    page: str, text: str, figures: Callable[[], tuple[Any, ...]]
) -> None:
    shown = text.format(*figures()).replace("%", " %")
    assert shown in (ROOT / page).read_text(encoding="utf-8")


def test_the_chart_of_the_readme() -> None:
    pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
    found = sampling_figures()
    fixed = dpacct.epsilon(FIXED, delta=1e-5)
    assert (found["lower"], found["upper"]) == (fixed.lower, fixed.upper)
    # All of one adjacency, and two of them below what a pair of data sets achieves.
    assert found["poisson"] < found["over_clip_norm"] < fixed.lower
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    high, low, poisson = (found[name] for name in ("over_sensitivity", "over_clip_norm", "poisson"))
    assert (
        f"dp-accounting {high:.2f} with noise 1.2 and {low:.2f} with noise 2.4, "
        f"dpacct {up(fixed.upper, 4)}, the Poisson formula {poisson:.2f}"
    ) in readme
    assert f"a valid bound that is {high / fixed.upper:.1f} times too high" in readme
    assert f"| {up(fixed.upper)} (lower bound {down(fixed.lower)})" in readme
    page = " ".join((ROOT / "docs/explanation/sampling.md").read_text(encoding="utf-8").split())
    assert f"The Poisson formula is {100 * (1 - poisson / fixed.lower):.0f} % too low" in page
