"""Averages of the released iterates of a run, which often beat the last, noisiest one.

They follow from releases alone (post-processing), so they cost nothing. Training goes on from the
iterates themselves. The state of an average is a part of the run's public state, and so of its
checkpoints.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Params, State

# The number of rounds in an exponential average. Names of parameters hold no colon.
_COUNT = "count:"


@dataclass(frozen=True, slots=True)
class Average:
    """An average of the released parameters x_1, ..., x_t: of the last ones, or exponential.

    ``Average(last=k)`` is the mean of x_{t-k+1}, ..., x_t (of all if t < k). It holds k copies of
    the parameters. ``Average(decay=b)`` is sum_s b^{t-s} x_s / sum_s b^{t-s}, in one copy.

    Args:
        last: k, at least 1. decay: b, in [0, 1). One of both is given.

    Raises:
        InvalidParameter: a value out of range, none, or both.
    Source: exponential averages of DP-SGD's iterates: De et al. 2022, arXiv:2204.13650, section 3.
    """

    last: int | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        if (self.last is None) == (self.decay is None):
            rule = "an average is Average(last=10) or Average(decay=0.9)"
            raise InvalidParameter("average", (self.last, self.decay), rule)
        if self.last is not None:
            count = validate.count("last", self.last, "the number of averaged iterates")
            object.__setattr__(self, "last", count)
        else:
            object.__setattr__(self, "decay", validate.below_one("decay", self.decay, "a decay"))

    def step(self, params: Params, state: State) -> State:
        """Return the next state, with the released parameters of one more round.

        Args:
            params: x_t. state: of the average, empty before the first round.
        """
        if self.last is not None:
            latest = {n: value.unsqueeze(0) for n, value in params.items()}
            if state:
                latest = {n: torch.cat([state[n], value]) for n, value in latest.items()}
            return {n: rows[-self.last :] for n, rows in latest.items()}
        decay = self.decay or 0.0
        count = state.get(_COUNT, torch.zeros((), dtype=torch.float64)) + 1
        weight = (1 - decay) / (1 - decay ** float(count))
        moved = {n: state[n].lerp(v, weight) if state else v for n, v in params.items()}
        return {_COUNT: count, **moved}

    def value(self, state: State) -> Params:
        """Return the average of a state."""
        if self.last is None:
            return {name: value for name, value in state.items() if name != _COUNT}
        return {name: rows.mean(dim=0) for name, rows in state.items()}
