"""Random mixtures of mechanisms and rounds against plain grids of probability ratios."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dpacct
from dpacct import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    Laplace,
    Poisson,
    PureDP,
    RandomizedResponse,
    Round,
    Schedule,
)
from dpacct.pairs.dominating import Direction, proven_pairs
from tests.oracles import mechanisms as oracle

_POINTS = 2**15


def _two_atoms(epsilon: float, delta: float, grid: np.ndarray) -> oracle.Masses:
    top = 1 / (1 + math.exp(-epsilon))
    masses = np.array([top, 1 - top]) * (1 - delta)
    return oracle.of_atoms(np.array([epsilon, -epsilon]), masses, grid, delta)


def _item(rng: np.random.Generator, delta: float):  # noqa: PLR0911 - one return a mechanism
    """A random release, and the cells of its proven pair on a grid, by direction."""
    size = float(np.exp(rng.uniform(math.log(0.02), math.log(1.5))))
    match rng.integers(7):
        case 0:
            return Laplace(epsilon=size), lambda g, _: oracle.laplace(1 / (1 / size), g)
        case 1:
            return RandomizedResponse(size), lambda g, _: _two_atoms(size, 0.0, g)
        case 2:
            lost = delta * 10.0 ** rng.uniform(-9, -3)
            return ApproximateDP(size, lost), lambda g, _: _two_atoms(size, lost, g)
        case 3:
            scale, shift = 1 / size, int(rng.integers(1, 4))
            found = DiscreteGaussian(scale, shift=shift)
            reach = math.ceil(40 * scale + 40)
            return found, lambda g, _: oracle.integers(
                lambda x: -x * x / (2 * scale**2), shift, g, reach
            )
        case 4:
            scale, shift = 1 / size, int(rng.integers(1, 5))
            found = DiscreteLaplace(scale, shift=shift)
            reach = math.ceil(720 * scale)
            return found, lambda g, _: oracle.integers(lambda x: -abs(x) / scale, shift, g, reach)
        case 5:
            return PureDP(size), lambda g, _: _two_atoms(size, 0.0, g)
        case _:
            q, z = float(rng.uniform(0.005, 0.3)), float(rng.uniform(0.8, 4.0))
            return Round(z, Poisson(q)), lambda g, removed: oracle.sampled_gaussian(
                q, z, g, removed=removed
            )


def _pairs_of(release) -> list:
    return list(proven_pairs(release, Direction.REMOVE))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seed", [*range(12), *range(100, 300)])
def test_the_truth_of_random_mixtures_lies_inside_and_the_bracket_is_narrow(seed):
    rng = np.random.default_rng(seed)
    delta = 10.0 ** rng.uniform(-12, -2)
    items = [(*_item(rng, delta), int(rng.integers(1, 25))) for _ in range(rng.integers(1, 5))]
    plan = Schedule()
    for release, _, count in items:
        plan = plan + count * release
    found = dpacct.epsilon(plan, delta=delta)
    # Losses far above epsilon do not matter, and those that only one direction has wrap round.
    reach = 2.5 * found.upper + 6.0
    answers: list[float] = []
    for points in (_POINTS, 2 * _POINTS):
        step = reach / points
        grid = step * np.arange(-points, points + 1.0)
        sides = [[(cells(grid, removed), n) for _, cells, n in items] for removed in (True, False)]
        tilt = -math.log(delta) / max(found.upper, 0.1) / 2
        answers.append(max(oracle.composed(p, grid, "dots", tilt).epsilon(delta) for p in sides))
    above = answers[1]
    least = max(oracle.composed(p, grid, "floor", tilt).epsilon(delta) for p in sides)
    assert found.lower <= above + 1e-9, (seed, plan, delta, found, answers)
    assert found.upper >= least - 1e-9, (seed, plan, delta, found, least)
    off = max(answers[0] - above, 0.0) + 1e-7 * (1 + above)
    smooth = any(isinstance(release, Round) for release, _, _ in items)
    most = sum(n * max(p.largest_loss for p in _pairs_of(r)) for r, _, n in items if not smooth)
    if smooth or (any(isinstance(r, Laplace) for r, _, _ in items) and found.upper < 0.9 * most):
        # The grid's excess falls by four with each halving of its step, and atoms are no exception.
        assert found.upper >= above - 1.1 * off, (seed, plan, delta, found, answers)
    assert found.upper <= above * (1 + 3e-6) + off, (seed, plan, delta, found, answers)
    if not any(isinstance(release, ApproximateDP | PureDP) for release, _, _ in items):
        assert found.lower >= found.upper * (1 - 3e-6), (seed, plan, delta, found)
