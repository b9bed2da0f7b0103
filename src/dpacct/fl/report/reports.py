"""Reports of a run's rounds, and the part of them that epsilon covers.

Rule 1: `RELEASED` is the one list of fields that follow from plan, releases and test data. Test
data are public, or the field ``test_data`` is "unprotected".
Rule 2: everything else is not private. If it leaves this process as a column of a file, as a curve
or as text, its name begins with `UNPROTECTED`. The duration of a round is of that kind: it grows
with the cohort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from dpacct.budget import Spent

UNPROTECTED = "unprotected_"
# Fields of a `RoundReport`, and columns of its files.
RELEASED = frozenset(
    {
        "round",
        "rounds",
        "spent",
        "epsilon_lower",
        "epsilon_upper",
        "delta",
        "not_private_because",
        "private",
        "noise_multiplier",
        "noise_std",
        "clip_norm",
        "released",
        "unit",
        "adjacency",
        "test_accuracy",
        "test_data",
    }
)


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Figures from before the noise: useful for training, and **not private**.

    They are covered by no epsilon. Do not publish them, and do not tune with them.

    Attributes:
        cohort_size: clients that took part.
        clipped_fraction: share of them with an update longer than the bound (NaN if none came).
        norm_mean, norm_median, norm_max: of the raw updates, before bounding (NaN if none came).
        dropped_updates: updates set to zero: they held NaN or infinity, or were not computed.
        signal_to_noise: norm of the sum of bounded updates / expected norm of the noise (NaN where
            nothing was released).
    """

    cohort_size: int
    clipped_fraction: float
    norm_mean: float
    norm_median: float
    norm_max: float
    dropped_updates: int
    signal_to_noise: float


@dataclass(frozen=True, slots=True)
class RoundReport:
    """One round.

    Attributes:
        round: 1, 2, ...
        rounds: planned number of rounds.
        spent: computes ``epsilon`` and ``delta`` when they are asked for.
        not_private_because: why the run is not private, None where it is.
        noise_multiplier: the charged one.
        noise_std: standard deviation of the noise on each coordinate of the sum of updates.
        clip_norm: norm bound of one update in this round (of the whole update).
        released: False where a round released nothing (too few noise shares arrived).
        unit, adjacency: the difference of neighboring data sets. One ``unit`` ("client",
            "example") is added or removed, or replaced, or its contribution becomes zero.
        diagnostics: not private, and left out of ``repr``.
        seconds: of the round. Not private: it grows with the cohort and its examples. Likewise.
    """

    round: int
    rounds: int
    spent: Callable[[], Spent] = field(repr=False, compare=False)
    not_private_because: str | None
    noise_multiplier: float
    noise_std: float
    clip_norm: float
    released: bool
    unit: str
    adjacency: str
    diagnostics: Diagnostics = field(repr=False)
    seconds: float = field(repr=False)

    @property
    def epsilon(self) -> Spent:
        """[achieved, proven] epsilon of all that the run had charged after this round.

        The proven end is infinite where the run is not private. Computed on first use, which takes
        milliseconds.
        """
        return self.spent()

    def __str__(self) -> str:
        private = "" if self.not_private_because is None else f"; {self.not_private_because}"
        return (
            f"epsilon {self.epsilon}, {self.adjacency} of one {self.unit}, after round "
            f"{self.round} of {self.rounds} (noise multiplier {self.noise_multiplier:g}){private}"
        )

    @property
    def delta(self) -> float:
        """The delta at which ``epsilon`` was computed."""
        return self.epsilon.delta

    @property
    def clipped_fraction(self) -> float:
        """Share of the cohort that was clipped. A diagnostic, not private."""
        return self.diagnostics.clipped_fraction

    def to_dict(self) -> dict[str, Any]:
        """Return a flat dictionary: `RELEASED` fields, and the rest marked as `UNPROTECTED`."""
        spent = self.epsilon
        row: dict[str, Any] = {
            "round": self.round,
            "rounds": self.rounds,
            "epsilon_lower": spent.lower,
            "epsilon_upper": spent.upper,
            "delta": spent.delta,
            "private": self.not_private_because is None,
            "noise_multiplier": self.noise_multiplier,
            "noise_std": self.noise_std,
            "clip_norm": self.clip_norm,
            "released": self.released,
        }
        bare = asdict(self.diagnostics)
        bare["seconds"] = self.seconds
        row |= {f"{UNPROTECTED}{key}": value for key, value in bare.items()}
        return row | {"unit": self.unit, "adjacency": self.adjacency}
