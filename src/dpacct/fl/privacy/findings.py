"""Checks of a run on synthetic updates: does the bound bound, the charge cover, the noise fit?

`Audit` collects their findings. A statistical check raises a false alarm with a probability below
1e-6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from dpacct.empirical.confidence import NoiseEvidence
from dpacct.errors import DpacctError, InvalidParameter
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.bounds import INDICATOR_NORM, MARGIN, Bound, check_limits, row_norms
from dpacct.fl.privacy.noise import Noise
from dpacct.fl.privacy.sums import add_clipped, contribute, scales_rows
from dpacct.fl.tensors import near_numbers, numbers, same_numbers
from dpacct.ledger import noise_of
from dpacct.rounds import Adjacency


class AuditFailed(DpacctError):
    """An audit found a fault."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: its name, whether it passed, and the measured figures."""

    check: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Audit:
    """All checks of one audit."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Return whether every check passed."""
        return all(finding.passed for finding in self.findings)

    def require(self) -> None:
        """Raise if a check failed.

        Raises:
            AuditFailed: names all that failed.
        """
        if not self.passed:
            faults = (f"{f.check}: {f.detail}" for f in self.findings if not f.passed)
            raise AuditFailed("; ".join(faults))

    def __str__(self) -> str:
        return "\n".join(
            f"{'ok  ' if f.passed else 'FAIL'} {f.check}: {f.detail}" for f in self.findings
        )


# Float32 rounding. Every checked value is off by more than this when it is wrong.
SLACK = 1e-5
# Norms, as shares of the clip norm, of updates that are bounded together.
_SHARES = (0.9, 0.01, 5.0)


def extreme_updates(layout: Layout, claimed: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Yield updates [1, d] that try a bound, those that find most faults first."""
    size, kind = layout.size, torch.finfo(dtype)
    generator = torch.Generator().manual_seed(0)

    def drawn(scale: float) -> Tensor:
        return (scale * torch.randn(1, size, generator=generator)).to(dtype)

    # Every tensor equally long: an update clipped tensor by tensor stays long as a whole.
    level = torch.cat([torch.full((n,), n**-0.5, dtype=dtype) for n in layout.sizes if n])
    yield (1e4 * level).unsqueeze(0)
    yield drawn(100 * claimed)
    yield drawn(1e12)
    yield (level * claimed / len(layout.sizes) ** 0.5).unsqueeze(0)
    yield drawn(0.01 * claimed / size**0.5)
    yield torch.zeros(1, size, dtype=dtype)
    spike = torch.zeros(1, size, dtype=dtype)
    spike[0, 0] = -1e9
    yield spike
    yield drawn(1.0).sign() * kind.max
    yield drawn(kind.smallest_normal)
    mixed = drawn(1e30)
    mixed[0, ::3] = 1e-30
    yield mixed
    broken = drawn(1.0)
    broken[0, -1] = torch.nan
    yield broken


def check_bound(
    bound: Bound, layout: Layout, contributions: int, like: Tensor, most: int = 99
) -> Finding:
    """Check that a bound limits each of some extreme updates, as a round sums them.

    ``like`` is a parameter with the updates' dtype and device. ``most`` of them are tried.
    """
    claimed = bound.sensitivity(Adjacency.ADD_REMOVE)
    try:
        check_limits(bound, layout)
    except InvalidParameter as error:
        return Finding("bound", passed=False, detail=str(error))

    def applied(rows: Tensor) -> Tensor:
        return bound.apply(rows.clone(), row_norms(rows), layout, MARGIN)

    worst = 0.0
    for row in itertools.islice(extreme_updates(layout, claimed, like.dtype), most):
        raw = row.to(like.device)
        if bool(torch.isfinite(raw).all()):
            inside = applied(raw)
            if float((raw.double() * inside.double()).sum()) < 0:
                detail = "an update comes out of it turned around"
                return Finding("bound", passed=False, detail=detail)
            worst = max(worst, float(row_norms(inside)[0]) / (1 + SLACK))
        # The summed rows are held to the bound, whatever the bound did.
        total = torch.zeros(layout.size, dtype=torch.float64, device=like.device)
        if scales_rows(bound):
            add_clipped(total, [raw], bound, contributions, coarsest=math.inf)
        inside, *_ = contribute(raw, bound, layout, contributions)
        worst = max(worst, *numbers(row_norms(torch.stack([inside[0].double(), total]))))
    level = torch.ones(layout.size, dtype=like.dtype, device=like.device)
    level *= bound.clip_norm / layout.size**0.5
    # Reductions on a GPU may add up a row of two in another order than a row alone, which rounds
    # otherwise. On a CPU, each row is added up alike.
    same = same_numbers if like.device.type == "cpu" else near_numbers
    for one, other in itertools.permutations(_SHARES, 2):
        pair = torch.stack([one * level, other * level])
        alone, paired, again = applied(pair[:1]), applied(pair), applied(pair[:1])
        if not (same(alone[0], paired[0]) and same(alone, again)):
            detail = "an update comes out of it changed by another update: it looks at both"
            return Finding("bound", passed=False, detail=detail)
    detail = f"contributions have norm up to {worst:.6g}, and {claimed:.6g} is claimed"
    return Finding("bound", worst <= claimed, detail)


def check_charge(plan: RoundNoise, bound: Bound, noise: Noise) -> tuple[Finding, ...]:
    """Check that the charge follows from noise and sensitivity.

    For an `AdaptiveClip` also against the multiplier of update and indicators together.
    """
    charged = noise_of(plan.event(bound, noise, {}).charged)
    moved = bound.sensitivity(plan.adjacency)
    if plan.adjacency is Adjacency.REPLACE_ONE:
        moved /= 2
    real = plan.update_std(bound) / moved
    detail = f"noise multiplier {charged:.6g} is charged, and the sum gets {real:.6g}"
    findings = [Finding("charge", charged <= real, detail)]
    std = plan.indicator_std(bound)
    if std is not None:
        update = plan.update_std(bound) / bound.clip_norm
        both = 1 / math.hypot(1 / update, INDICATOR_NORM / std)
        detail = f"multiplier {charged:.6g} is charged, and update and count together have "
        findings.append(Finding("joint charge", charged <= both, f"{detail}{both:.6g}"))
    return tuple(findings)


# Releases of float32 models are rounded to a relative error of half of it.
_SINGLE = 2.0**-23
# Standard normal quantile of a two-sided test with a false alarm in 1e-6.
_SIGMAS = float(-ndtri(1e-6 / 2))
_BINS = 32

Draws = NDArray[np.float64]


def wrong_std(draws: Draws, std: float) -> str:
    """Return the fault in the spread of residuals [rounds, k], or nothing."""
    count = draws.size
    std_seen = math.sqrt(float(np.square(draws).mean()))
    # The square of the sample std has relative standard deviation sqrt(2 / n).
    if abs((std_seen / std) ** 2 - 1) <= _SIGMAS * math.sqrt(2 / count) + 1e-6:
        return ""
    return f"its standard deviation is {std_seen:.4g}, and {std:.4g} is charged"


def wrong_mean(draws: Draws, std: float) -> str:
    """Return the fault in the mean, or nothing."""
    mean = float(draws.mean())
    if abs(mean) <= _SIGMAS * std / math.sqrt(draws.size) * (1 + 1e-6) + 1e-9 * std:
        return ""
    return f"its mean is {mean:.3g}, not zero"


def wrong_scale(draws: Draws, exact: NDArray[np.float64], std: float) -> str:
    """Return whether residuals [rounds, k] hold a part of the sum [k], which then counts twice."""
    length = float(np.linalg.norm(exact))
    if length == 0.0:
        return ""
    part = float((draws @ exact).mean()) / length**2
    if abs(part) <= _SIGMAS * std / (length * math.sqrt(len(draws))) * (1 + 1e-6) + 1e-6:
        return ""
    return f"a contribution counts {1 + part:.3g} times"


def wrong_shape(draws: Draws, std: float) -> str:
    """Return the fault in the distribution, or nothing: chi-square test on equal bins."""
    scaled = draws.ravel() / std
    counts = np.bincount(
        np.minimum((ndtr(scaled) * _BINS).astype(np.int64), _BINS - 1), minlength=_BINS
    )
    expected = scaled.size / _BINS
    statistic = float(np.square(counts - expected).sum() / expected)
    # Wilson and Hilferty: the cube root of a chi-square variate is nearly normal.
    free = _BINS - 1
    score = ((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free))
    if score <= _SIGMAS:
        return ""
    return f"it is not Gaussian (chi-square {statistic:.0f} with {free} degrees of freedom)"


def missing_noise(draws: Draws, std: float, rounding: Draws | float) -> str:
    """Return the part of residuals [rounds, k] that is quieter than charged, or nothing."""
    evidence, carried = NoiseEvidence([draws.shape[1]]), np.ones(draws.shape[1], dtype=np.bool_)
    for row in draws:
        evidence.see(row / std, (rounding + 4 * _SINGLE * np.abs(row)) / std, carried)
    value, place = evidence.conclude()
    return f"noise is missing (most clearly: {place})" if value >= -math.log(1e-6) else ""


def check_noise(
    name: str, draws: Draws, std: float, exact: Draws | None = None, grid: float = 0.0
) -> Finding:
    """Check residuals [rounds, k] of releases: spread, mean, distribution, and every part's noise.

    ``exact`` is the sum [k] of which no part may be left in them. ``grid`` is the distance of
    values that the noise can have. One number a round has no distribution.
    """
    if not np.isfinite(draws).all():
        return Finding(name, passed=False, detail="nothing was released")
    wrong = "" if exact is None else wrong_scale(draws, exact, std)
    rounding = grid + 4 * _SINGLE * np.abs(0.0 if exact is None else exact)
    wrong = wrong or wrong_std(draws, std) or wrong_mean(draws, std)
    wrong = wrong or missing_noise(draws, std, rounding)
    if draws.shape[1] > 1:
        wrong = wrong or wrong_shape(draws, std)
    detail = f"standard deviation {std:.6g} over {draws.size} values, as charged"
    return Finding(name, not wrong, wrong or detail)


def repeated(draws: Draws) -> str:
    """Return how noise of one round recurs in another, or along a round, or nothing."""
    rounds, size = draws.shape
    centered = draws / np.maximum(np.sqrt(np.square(draws).mean(axis=1, keepdims=True)), 1e-300)
    limit = (_SIGMAS + 2) / math.sqrt(size)
    between = centered @ centered.T / size
    worst = float(np.abs(between - np.diag(np.diag(between))).max()) if rounds > 1 else 0.0
    if worst > limit:
        return f"two rounds have the same noise (correlation {worst:.2f})"
    for lag in (1, 2, 3, 7):
        if size > lag:
            along = float((centered[:, :-lag] * centered[:, lag:]).mean())
            if abs(along) > _SIGMAS / math.sqrt(rounds * (size - lag)):
                return f"its coordinates are correlated at lag {lag} ({along:.3f})"
    return ""
