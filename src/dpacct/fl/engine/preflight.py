"""A short audit of the very run that is about to begin, before its first round is charged.

Rule 1: made-up clients alone; nothing of the run changes. Rule 2: no chance in it, so no false
alarms: randomness comes from a fixed seed. Rule 3: what it costs does not grow with cohort, rounds
or local steps. `dpacct.fl.audit` looks longer, at neighboring sets of clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.reproduction import reproduces
from dpacct.fl.engine.states import Collected, TrainingState
from dpacct.fl.privacy.findings import (
    Audit,
    Draws,
    Finding,
    check_bound,
    check_charge,
    check_joint_charge,
    repeated,
    wrong_mean,
    wrong_shape,
    wrong_std,
)
from dpacct.fl.privacy.noise import drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.surroundings import undisturbed

# Coordinates of a bound's updates in all, and at least so many updates.
_COORDINATES, _LEAST = 1 << 21, 2
# Coordinates of a release, of which so many are drawn.
_SHORT, _DRAWS = 4096, 3
_COUNTS = 256


@undisturbed()
def preflight(engine: Engine, state: TrainingState) -> Audit:
    """Check bound, noise, denominator and charge of a run.

    Args:
        engine: of the run. state: where it stands.
    Returns:
        The findings: ``bound``, ``charge``, ``noise``, ``empty cohort``, ``fresh``,
        ``denominator``; ``joint charge`` and ``indicator`` for an adaptive clip norm. None for a
        method that does what a paper prints, whose epsilon is infinite.
    Raises:
        Whatever the model, the loss or the method raises.
    """
    if reproduces(engine.method):
        return Audit(())
    replayed = replace(engine, source=Seeded(20))
    like = next(iter(state.params.values()))
    tried = max(_LEAST, _COORDINATES // max(engine.layout.size, 1))
    return Audit(
        (
            check_bound(state.bound, engine.layout, engine.plan.contributions, like, tried),
            check_charge(engine.plan, state.bound, engine.noise),
            *check_joint_charge(engine.plan, state.bound, engine.noise),
            *_noise(_Releases(replayed, state)),
        )
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Releases:
    """Releases of sums that are zero, few coordinates long, in units of the sum."""

    engine: Engine
    state: TrainingState

    def std(self, arrived: int) -> float | None:
        """That is charged, for so many contributions; None where nothing may be released."""
        plan = self.engine.plan
        return drawn_std(self.engine.noise, plan.update_std(self.state.bound), arrived)

    def draw(self, arrived: int, size: int, count: int) -> Iterator[tuple[Draws, float]]:
        """Noise on the sum and on the count of the indicators (zero without an adaptive norm)."""
        engine, device = replace(self.engine, source=Seeded(21)), self.engine.device
        for _ in range(count):
            noise = engine.noise
            found = Collected(noise.zeros(size, device), noise.zeros(1, device), None, arrived)
            release = engine.release(self.state, found)
            if release is None:
                yield np.full(size, math.nan), math.nan
            else:
                vector = release.mean.vector.double().cpu() * engine.plan.cohort_size
                yield vector.numpy(), release.indicator_sum or 0.0


def _noise(releases: _Releases) -> Iterator[Finding]:
    """Spread, law and freshness of the noise, whoever comes, over the planned number."""
    planned = math.ceil(releases.engine.plan.cohort_size)
    scaled: list[Draws] = []
    for name, arrived in (("noise", planned), ("empty cohort", 0)):
        std = releases.std(arrived)
        if std is None:
            continue
        draws = np.stack([noise for noise, _ in releases.draw(arrived, _SHORT, _DRAWS)])
        if not np.isfinite(draws).all():
            yield Finding(name, passed=False, detail="nothing was released")
            continue
        wrong = wrong_std(draws, std) or wrong_mean(draws, std) or wrong_shape(draws, std)
        detail = f"standard deviation {std:.6g} over {draws.size} values, as charged"
        yield Finding(name, not wrong, wrong or detail)
        again = repeated(draws)
        yield Finding("fresh", not again, again or "no noise came twice")
        scaled.append(draws / std)
    same = len(scaled) < 2 or bool(np.allclose(*scaled, rtol=1e-4, atol=1e-4))
    detail = "the sum is divided by the planned cohort, whoever comes"
    yield Finding("denominator", same, detail if same else "the release depends on how many came")
    std = releases.engine.plan.indicator_std(releases.state.bound)
    own = None if std is None else drawn_std(releases.engine.noise, std, planned)
    if own is not None:
        counts = np.array([[count] for _, count in releases.draw(planned, 1, _COUNTS)])
        wrong = wrong_std(counts, own) or wrong_mean(counts, own)
        detail = f"its noise has standard deviation {own:.6g}, as charged"
        yield Finding("indicator", not wrong, wrong or detail)
