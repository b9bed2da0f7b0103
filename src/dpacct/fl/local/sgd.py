"""Local training as the methods of the field describe it: SGD with its usual settings, and Adam.

The state of an optimizer begins anew at each client in every round, and is forgotten afterward.

Learning rates and clip norms may change from round to round. They are given as numbers, as
functions of the round (1, 2, ...), or as learning-rate schedulers like those of
`torch.optim.lr_scheduler`. All values are computed before the first round: they are part of the
plan, so they are public and cannot follow the data.

Batches of a client are drawn before training, so that all trainers use the same.
"""

from __future__ import annotations

import copy
import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.fl.clients import Inputs
from dpacct.fl.layout import Params, State
from dpacct.fl.tensors import norm

Precision = Literal["float32", "tf32", "bfloat16"]
_PRECISIONS = ("float32", "tf32", "bfloat16")
# Examples in a step of a trial.
SHORT_BATCH = 3


class Scheduler(Protocol):
    """The part of a learning-rate scheduler of torch that is used."""

    def get_last_lr(self) -> list[float]:
        """Return the rate of each group of parameters. The first one counts."""
        ...

    def step(self) -> None:
        """Go on to the next round."""
        ...


Changing = float | Callable[[int], float] | Scheduler


@dataclass(frozen=True, slots=True, repr=False)
class RoundValues:
    """One number for each round of a plan. Rounds behind the last number use that number."""

    values: tuple[float, ...]

    def __call__(self, round_number: int) -> float:
        """Return the value of round 1, 2, ..."""
        return self.values[min(round_number, len(self.values)) - 1]

    def __repr__(self) -> str:
        # Checkpoints compare settings as text, which must not grow with the number of rounds.
        digest = hashlib.sha256(repr(self.values).encode()).hexdigest()[:16]
        first, last = self.values[0], self.values[-1]
        return f"{first!r} to {last!r} in {len(self.values)} rounds, {digest}"


def changes(value: object) -> bool:
    """Return whether a value is given round by round."""
    return callable(value) or _is_scheduler(value)


def _is_scheduler(value: object) -> bool:
    return callable(getattr(value, "get_last_lr", None)) and callable(getattr(value, "step", None))


def values_over(
    name: str, given: Changing, rounds: int, check: Callable[[object], float]
) -> float | RoundValues:
    """Return a number as it is, or the values of all rounds of a plan, each checked.

    A given scheduler stays as it is.
    """
    if isinstance(given, RoundValues):
        return given
    if _is_scheduler(given):
        return RoundValues(tuple(_played(name, cast("Scheduler", given), rounds, check)))
    if not callable(given):
        return check(given)
    try:
        return RoundValues(tuple(check(given(number)) for number in range(1, rounds + 1)))
    except (AttributeError, TypeError) as error:
        rule = f"it is a function of the round's number alone, which is public ({error})"
        raise InvalidParameter(name, getattr(given, "__name__", "a function"), rule) from None


def _played(
    name: str, scheduler: Scheduler, rounds: int, check: Callable[[object], float]
) -> list[float]:
    # A copy is stepped, so that the caller's scheduler and its optimizer stay where they are.
    scheduler = copy.deepcopy(scheduler)
    rates: list[float] = []
    with warnings.catch_warnings():
        # Torch warns if a scheduler steps before its optimizer, which never steps here.
        warnings.filterwarnings("ignore", "(?s).*optimizer.step", UserWarning)
        for _ in range(rounds):
            rates.append(check(scheduler.get_last_lr()[0]))
            try:
                scheduler.step()
            except TypeError:
                rule = "its values depend on a metric, and all values are fixed before the run"
                raise InvalidParameter(name, type(scheduler).__name__, rule) from None
    return rates


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
        validate.one_of("precision", self.precision, "a precision", _PRECISIONS)

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

    def short(self) -> SGD:
        """Return the same training in few and small steps, for trials on synthetic clients."""
        size = self.batch_size and min(self.batch_size, SHORT_BATCH)
        if self.steps is None:
            return replace(self, epochs=1, batch_size=size)
        return replace(self, steps=min(self.steps, 2), batch_size=size)

    @property
    def keeps_state(self) -> bool:
        """Whether a step depends on more than its gradient and the parameters."""
        return self.momentum > 0

    def direction(self, grads: Params, params: Params, state: State) -> tuple[Params, State]:
        """Return the direction of a step, and the next state of the optimizer.

        Coordinates do not mix, so tensors may hold one client or many stacked clients that have
        taken equally many steps.

        Args:
            grads, params: at the current point. state: of the optimizer, empty before step 1.
        """
        if self.weight_decay:
            grads = {n: g.add(params[n], alpha=self.weight_decay) for n, g in grads.items()}
        if not self.momentum:
            return grads, state
        if state:
            grads = {n: g.add(state[n], alpha=self.momentum) for n, g in grads.items()}
        return grads, grads


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalAdam(SGD):
    """Adam on one client's examples, with moments that are zero at the start of every round.

    Its steps have about the size ``lr`` whatever the scale of the gradients, so the norm of an
    update hardly depends on the client. Methods that read gradients off displacements reject it.

    Args:
        lr: learning rate of one step. May change by round, as for `SGD`.
        beta1, beta2: decay of the moments, in [0, 1).
        floor: above 0, added to the denominator (``eps`` of `torch.optim.Adam`).
        Others: as for `SGD`. Momentum and ``total_lr`` are not among them.

    Raises:
        InvalidParameter: a value out of range, or both of steps and epochs.
    Source: Kingma, Ba 2015, arXiv:1412.6980.
    """

    lr: Changing = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    floor: float = 1e-8
    momentum: float = field(init=False, repr=False, default=0.0)
    total_lr: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        # The zero-argument super() does not work in a dataclass with slots.
        SGD.__post_init__(self)
        put = object.__setattr__
        put(self, "beta1", validate.below_one("beta1", self.beta1, "a decay"))
        put(self, "beta2", validate.below_one("beta2", self.beta2, "a decay"))
        put(self, "floor", validate.above_zero("floor", self.floor, "the floor of the denominator"))

    @property
    def keeps_state(self) -> bool:
        """True: a step depends on the moments of earlier ones."""
        return True

    def direction(self, grads: Params, params: Params, state: State) -> tuple[Params, State]:
        """Return the direction of a step, and the moments (see `SGD.direction`)."""
        grads, _ = SGD.direction(self, grads, params, state)
        return adam_direction(grads, state, self.beta1, self.beta2, self.floor)


# Local training by the name of its class, as messages to clients have it.
LOCAL_TRAINING: dict[str, type[SGD]] = {kind.__name__: kind for kind in (SGD, LocalAdam)}


def adam_direction(
    values: Params, state: State, beta1: float, beta2: float, floor: float
) -> tuple[Params, State]:
    """Return Adam's direction for gradients (or displacements), and the next moments.

    ::

        m <- beta1 m + (1 - beta1) g,  v <- beta2 v + (1 - beta2) g^2
        direction = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + floor)
    """
    steps = state.get("steps", torch.zeros((), dtype=torch.float64)) + 1
    count = float(steps)
    after: State = {"steps": steps}
    direction: Params = {}
    for name, value in values.items():
        zero = torch.zeros_like(value)
        mean, square = state.get(f"m {name}", zero), state.get(f"v {name}", zero)
        mean = beta1 * mean + (1 - beta1) * value
        square = beta2 * square + (1 - beta2) * value.square()
        after |= {f"m {name}": mean, f"v {name}": square}
        width = (square / (1 - beta2**count)).sqrt() + floor
        direction[name] = (mean / (1 - beta1**count)) / width
    return direction, after


def shortened(grads: Params, limit: float) -> Params:
    """Return a gradient scaled to at most this norm. May run under vmap."""
    length = norm(torch.stack([norm(value) for value in grads.values()]))
    # As torch: min(1, limit / (length + 1e-6)). An infinite gradient stays no number.
    scale = (limit / (length + 1e-6)).clamp(max=1.0)
    return {name: scale * value for name, value in grads.items()}


def _rate(value: object) -> float:
    return validate.above_zero("lr", value, "a learning rate")


# Narrower batches cost no less, since their time is not arithmetic.
_NARROW = 16


class Batch(NamedTuple):
    """The examples of one local step of one client.

    Attributes:
        inputs: [b, ...], in each of their tensors. targets: [b, ...].
        weights: [b], summing to one, zero for padding. None if all rows are examples of equal
            weight.
    """

    inputs: Inputs
    targets: Tensor
    weights: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Batches:
    """The batches of one client in one round.

    Attributes:
        indices: int64 [steps, width], rows of the client's data. Columns from ``counts`` on pad.
        counts: int64 [steps], examples in each step's batch.
    """

    indices: Tensor
    counts: Tensor

    @property
    def steps(self) -> int:
        """Number of local steps."""
        return self.counts.shape[0]


def plan_batches(examples: int, local: SGD, generator: torch.Generator) -> Batches:
    """Draw the batches of a client with this many examples."""
    steps = local.count_steps(examples)
    if steps == 0:
        return Batches(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
    width = examples if local.batch_size is None else min(local.batch_size, examples)
    per_pass = -(-examples // width)
    passes = -(-steps // per_pass)
    if local.shuffle and width < examples:
        order = torch.rand(passes, examples, generator=generator, dtype=torch.float32).argsort(
            dim=1
        )
    else:
        order = torch.arange(examples).expand(passes, examples)
    counts = torch.full((passes, per_pass), width)
    missing = per_pass * width - examples
    padded = order
    if missing:
        padded = torch.nn.functional.pad(order, (0, missing))
        counts[:, -1] = width - missing
    return Batches(padded.reshape(-1, width)[:steps], counts.flatten()[:steps])


def chunks(workers: Sequence[int], size: int) -> list[Sequence[int]]:
    """Return workers in order, in as few parts of nearly equal length as ``size`` allows."""
    parts = -(-len(workers) // size)
    ends = [len(workers) * part // max(parts, 1) for part in range(parts + 1)]
    return [workers[start:stop] for start, stop in pairwise(ends)]


def padded_width(examples: int, local: SGD) -> int:
    """Return the columns to which the batches of a client with this many examples are padded.

    A power of two, at least 16 and at most the batch size: a function of that client alone.
    """
    width = max(_NARROW, 1 << max(examples - 1, 0).bit_length())
    return width if local.batch_size is None else min(width, local.batch_size)
