"""Local training as the methods of the field describe it: plain SGD with its usual settings."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Params
from dpacct.fl.local.rates import Changing, changes, values_over
from dpacct.fl.tensors import norm

Precision = Literal["float32", "tf32", "bfloat16"]
_PRECISIONS = ("float32", "tf32", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class SGD:
    """Stochastic gradient descent on one client's examples, fresh in every round.

    Nothing here costs privacy: every contribution of a client is bounded afterward.

    Args:
        lr: learning rate of one step, above 0 (with ``total_lr``: of all steps together). It may
            change by round: a function of the round (1, 2, ...), or a learning-rate scheduler.
        steps: number of local steps, instead of ``epochs``. Batches run through the examples in
            as many passes as that takes.
        epochs: passes over the client's examples. The last batch of a pass may be smaller.
            Default: 1 if ``steps`` is not given.
        batch_size: examples in one step. None takes all of them.
        momentum: in [0, 1). The buffer starts at zero in every round.
        weight_decay: L2 weight, added to the gradient as in `torch.optim.SGD`.
        lr_decay: in (0, 1], the learning rate of round t is ``lr * lr_decay**(t - 1)``.
        shuffle: draw a new order of the examples for each pass. False keeps their own order
            (the incremental gradient method).
        total_lr: each step uses ``lr / (number of this client's steps)``.
        max_grad_norm: bound on the norm of each local step's gradient, over all parameters together
            and before weight decay, as `torch.nn.utils.clip_grad_norm_`. None: no bound.
        precision: "float32", or "tf32" or "bfloat16" for the forward and backward pass alone.
            Norms, bounds and sums never use less than float32.

    Raises:
        InvalidParameter: a value out of range, or both of steps and epochs.
    """

    lr: Changing = 0.1
    steps: int | None = None
    epochs: int | None = None
    batch_size: int | None = 10
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_decay: float = 1.0
    shuffle: bool = True
    total_lr: bool = False
    precision: Precision = "float32"
    max_grad_norm: float | None = None

    def __post_init__(self) -> None:
        put = object.__setattr__
        if not changes(self.lr):
            put(self, "lr", _rate(self.lr))
        if self.steps is not None and self.epochs is not None:
            rule = f"epochs is given too ({self.epochs})"
            raise InvalidParameter("steps", self.steps, rule, "Drop one of them.")
        if self.steps is not None:
            put(self, "steps", validate.count("steps", self.steps, "the number of local steps"))
        else:
            epochs = 1 if self.epochs is None else self.epochs
            put(self, "epochs", validate.count("epochs", epochs, "the number of local epochs"))
        if self.batch_size is not None:
            size = validate.count("batch_size", self.batch_size, "a batch size")
            put(self, "batch_size", size)
        put(self, "momentum", validate.below_one("momentum", self.momentum, "momentum"))
        decay = validate.at_least_zero("weight_decay", self.weight_decay, "weight decay")
        put(self, "weight_decay", decay)
        noun = "the decay of the learning rate"
        put(self, "lr_decay", validate.positive_probability("lr_decay", self.lr_decay, noun))
        if self.max_grad_norm is not None:
            noun = "the bound of a local gradient"
            norm = validate.above_zero("max_grad_norm", self.max_grad_norm, noun)
            put(self, "max_grad_norm", norm)
        if self.precision not in _PRECISIONS:
            rule = f"a precision is one of {', '.join(_PRECISIONS)}"
            raise InvalidParameter("precision", self.precision, rule)

    def over(self, rounds: int) -> SGD:
        """Return the same training with the learning rates of this many rounds computed.

        Raises:
            InvalidParameter: a rate is not above 0, or depends on more than the round.
        """
        if not changes(self.lr):
            return self
        return replace(self, lr=values_over("lr", self.lr, rounds, _rate))

    def of_round(self, round_number: int) -> SGD:
        """Return the training of one round, as plain numbers, for clients elsewhere."""
        if not changes(self.lr):
            return self
        return replace(self, lr=self.learning_rate(round_number), lr_decay=1.0)

    def learning_rate(self, round_number: int) -> float:
        """Return the learning rate of round 1, 2, ..."""
        rate = _rate(self.lr(round_number)) if callable(self.lr) else cast("float", self.lr)
        return rate * self.lr_decay ** (round_number - 1)

    def count_steps(self, examples: int) -> int:
        """Return how many local steps a client with this many examples takes."""
        if examples == 0:
            return 0
        if self.steps is not None:
            return self.steps
        size = examples if self.batch_size is None else self.batch_size
        return (self.epochs or 1) * math.ceil(examples / size)


def shortened(grads: Params, limit: float) -> Params:
    """Return a gradient scaled to at most this norm. May run under vmap."""
    length = norm(torch.stack([norm(value) for value in grads.values()]))
    # As torch: min(1, limit / (length + 1e-6)). An infinite gradient stays no number.
    scale = (limit / (length + 1e-6)).clamp(max=1.0)
    return {name: scale * value for name, value in grads.items()}


def _rate(value: object) -> float:
    return validate.above_zero("lr", value, "a learning rate")
