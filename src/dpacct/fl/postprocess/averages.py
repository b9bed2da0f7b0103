"""Averages of the released iterates of a run, which often beat the last, noisiest one.

They follow from releases alone (post-processing), so they cost nothing. Training goes on from the
iterates themselves. The state of an average is a part of the run's public state, and so of its
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpacct import validate
from dpacct.fl.layout import Params, State

# The number of rounds in an exponential average. Names of parameters hold no colon.
_COUNT = "count:"


@dataclass(frozen=True, slots=True)
class Average:
    """The exponential average sum_s b^{t-s} x_s / sum_s b^{t-s} of the released x_1, ..., x_t.

    Args:
        decay: b, in [0, 1).

    Source: De et al. 2022, arXiv:2204.13650, section 3.
    """

    decay: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "decay", validate.below_one("decay", self.decay, "a decay"))

    def step(self, params: Params, state: State) -> State:
        """Return the next state, with the released parameters of one more round.

        Args:
            params: x_t. state: of the average, empty before the first round.
        """
        count = state.get(_COUNT, torch.zeros((), dtype=torch.float64)) + 1
        weight = (1 - self.decay) / (1 - self.decay ** float(count))
        moved = {n: state[n].lerp(v, weight) if state else v for n, v in params.items()}
        return {_COUNT: count, **moved}

    def value(self, state: State) -> Params:
        """Return the average of a state."""
        return {name: value for name, value in state.items() if name != _COUNT}
