"""Match each step of an Opacus optimizer with one batch of its loader.

Rule 1: A step belongs to the batch that was delivered last. A batch has at most one step.
Rule 2: If a batch is split for memory, each of its parts has one step, in order.
Rule 3: The noise and the clip norm of a step are the charged ones. The released sum is finite. It
    is at most as long as the clipped gradients of its examples can make it.

A step that breaks a rule raises before the model changes. A loader with workers draws ``lead``
batches ahead of the one that it delivers, a loader without workers none.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.randomness import secret_generator
from dpacct.ledger import Run

# Attributes in which parameters keep gradients of examples, or their norms for ghost clipping.
_PER_EXAMPLE = ("grad_sample", "_norm_sample")
_PARTS = (
    "a part of a batch had no step of its own, or two: its gradients would be added to those of "
    "another batch. Call optimizer.step() once for each batch that the loader delivers."
)


class Charge(Protocol):
    """A batch that is charged, or a step of a charged epoch."""

    def commit(self) -> object:
        """Allow the release."""
        ...


@dataclass(slots=True)
class Batch:
    """One batch: its charge (None without a ledger) and the numbers of its examples.

    ``parts`` holds, for each part that `BatchMemoryManager` made of it, whether Opacus skips the
    update.
    """

    ticket: Charge | None
    rows: list[int]
    parts: list[bool] = field(default_factory=list[bool])


class Steps:
    """The steps of one optimizer, checked as soon as this object exists.

    With the ``run`` of a ledger the noise may not fall below the charge, and no other optimizer may
    step on the batches of the ``loader``. In a private run each step has a new secret generator for
    its noise, except in Opacus' secure mode, and a replaced generator is rejected. With
    ``scheduled_clip`` the clip norm may change between batches. ``by_epoch`` says that a pass is
    charged as a whole, and not as Poisson steps.
    """

    def __init__(
        self,
        optimizer: Any,
        loader: Any,
        run: Run | None = None,
        *,
        scheduled_clip: bool = True,
        by_epoch: bool = False,
    ) -> None:
        self.optimizer, self.ledger, self.by_epoch = optimizer, run is not None, by_epoch
        self._private = run is not None and run.private
        self._scheduled_clip = scheduled_clip
        # Batches, or parts of them, that the loader draws ahead.
        self._lead = loader.num_workers * (loader.prefetch_factor or 0)
        self._fresh_noise = self._private and not optimizer.secure_mode
        # Ghost clipping keeps the norms of the gradients and not the gradients.
        self._ghost = type(optimizer).__name__ == "DPOptimizerFastGradientClipping"
        self._generator = optimizer.generator
        self._seeded_batches = generator_of(loader.batch_sampler) is not None
        self._noise, self._clip = float(optimizer.noise_multiplier), _clip_norms(optimizer)
        self._exhausted = True
        self._pass = 0
        # The iterator of the current pass. A loop that ends or is left drops it.
        self._iterator: Callable[[], object] = lambda: None
        self._batches: list[Batch] = []
        self._requests = self._stepped = 0
        # Of the batch that is being stepped: examples so far, and the longest sum they can make.
        self._examples, self._longest_sum = 0, 0.0
        self._broken = False
        self._kept = optimizer.pre_step, optimizer.add_noise, optimizer.signal_skip_step
        optimizer.pre_step = self._pre_step
        optimizer.add_noise = self._add_noise
        optimizer.signal_skip_step = self._signal_skip_step
        _WATCHED.add(self)

    @staticmethod
    def of(optimizer: Any) -> Steps | None:
        """Return the steps of a watched optimizer, None for any other."""
        return next((steps for steps in _WATCHED if steps.optimizer is optimizer), None)

    @property
    def seeded(self) -> bool:
        """True if a given generator draws the noise or the batches."""
        given = self.optimizer.generator is not None or self._seeded_batches
        return given and not self._fresh_noise and not self.optimizer.secure_mode

    @property
    def in_loop(self) -> bool:
        """True if a loop over the loader is running."""
        return not self._exhausted and self._iterator() is not None

    def detach(self) -> None:
        """Restore the methods of the optimizer."""
        optimizer = self.optimizer
        optimizer.pre_step, optimizer.add_noise, optimizer.signal_skip_step = self._kept
        _WATCHED.discard(self)

    # The loader calls these methods.

    def begin(self, iterator: object) -> int:
        """Begin a pass over the loader. Batches of the last pass without a step stay spent."""
        self._pass += 1
        self._exhausted, self._iterator = False, weakref.ref(iterator)
        self._batches, self._requests, self._stepped = [], 0, 0
        self._examples, self._longest_sum, self._broken = 0, 0.0, False
        # Otherwise Opacus adds the parts it kept of an unfinished batch to the next one.
        self.optimizer._step_skip_queue.clear()  # noqa: SLF001 - it has no public name
        self.optimizer._is_last_step_skipped = False  # noqa: SLF001 - likewise
        for parameter in self.optimizer.params:
            parameter.summed_grad = None
        return self._pass

    def requested(self, number: int) -> None:
        """Note that the loader asks for a batch of a pass, also past the end."""
        if number != self._pass:
            raise LedgerError("another loop over the loader has begun; this one cannot go on.")
        self._requests += 1

    def drawn(self, batch: Batch | None) -> None:
        """Note a batch, or None at the end of the pass."""
        if batch is None:
            self._exhausted = True
            return
        if self._batches and any(self._batches[-1].parts[-1:]):
            self._broken = True
        self._batches.append(batch)

    # The optimizer calls these methods instead of its own.

    def _signal_skip_step(self, do_skip: bool = True) -> None:  # noqa: FBT001, FBT002 - Opacus' own
        """Note a part of a batch. `BatchMemoryManager` calls this for each part that it draws."""
        self._kept[2](do_skip)
        if self._batches:
            self._batches[-1].parts.append(do_skip)

    def _pre_step(self, *args: Any, **kwargs: Any) -> Any:
        """Check a step, then clip, add noise and charge, unless the step is of a part only."""
        index = self._current()
        if self._broken or (self._split and index < 0):
            self._broken = True
            raise LedgerError(_PARTS)
        if not self._stepped <= index < len(self._batches):
            raise LedgerError(
                "a step without a batch: each batch of the attached loader has one step, of the "
                "optimizer that it was made for."
            )
        batch = self._batches[index]
        if not batch.parts:
            self._stepped, self._examples, self._longest_sum = index, 0, 0.0
        # Until the step is done: the sum of a batch that is split is unusable after an error.
        self._broken = bool(batch.parts)
        self._check_settings()
        self._check_examples(batch)
        if self._fresh_noise:
            self._generator = secret_generator(self.optimizer.params[0].device)
            self.optimizer.generator = self._generator
        stepped = self._stepped
        done = self._kept[0](*args, **kwargs)
        if done and self._stepped == stepped:
            raise LedgerError("the step was not charged, because add_noise was replaced.")
        self._broken = False
        return done

    def _add_noise(self) -> None:
        """Check the sum of a batch, add its noise, and charge it: before the model can change."""
        batch = self._batches[self._stepped]
        if any(batch.parts[-1:]):
            raise LedgerError(_PARTS)
        squared: Any = sum(p.summed_grad.double().square().sum() for p in self.optimizer.params)
        length, longest = float(squared) ** 0.5, self._longest_sum
        # Opacus rounds to float32. The comparison is false for NaN.
        if not length <= 1.01 * longest + 1e-6 * self._clip[0]:
            raise LedgerError(
                f"the sum of the gradients has norm {length:g}, and its examples make at most "
                f"{longest:g} at clip norm {self._clip[0]:g}: gradients that are not finite, "
                "or, with ghost clipping, a model that clips to another norm."
            )
        self._kept[1]()
        if batch.ticket is not None:
            batch.ticket.commit()
        self._stepped += 1
        self._examples, self._longest_sum = 0, 0.0

    @property
    def _split(self) -> bool:
        """True if `BatchMemoryManager` splits the batches of this pass."""
        return bool(self._batches and self._batches[-1].parts)

    def _current(self) -> int:
        """Return the index of the batch that was delivered last, -1 before the first one."""
        if not self._split:
            return min(self._requests - self._lead, len(self._batches)) - 1
        # Opacus' queue holds the parts that were drawn and not yet stepped: the delivered part, and
        # the parts that workers drew ahead of it until the loader's end.
        waiting = len(self.optimizer._step_skip_queue)  # noqa: SLF001 - it has no public name
        known = waiting == self._lead + 1 or (self._exhausted and 0 < waiting <= self._lead)
        return self._stepped if known else -1

    def _check_settings(self) -> None:
        """Check generator, clip norm and noise. Rule 3."""
        optimizer = self.optimizer
        if self._private and optimizer.generator is not self._generator:
            rule = "anyone who knows the state of a given generator can compute the noise"
            hint = "Start the run with private=False to repeat its noise."
            raise InvalidParameter("generator", "replaced", rule, hint)
        if hasattr(optimizer, "_adjusted_noise_multiplier"):
            raise Unsupported("the noise is adjusted for an adaptive clip norm, uncharged.")
        clip = _clip_norms(optimizer)
        if clip != self._clip:
            if self._ghost or not self._scheduled_clip or self._examples:
                raise Unsupported(
                    f"the clip norm was {self._clip[0]:g} and is {clip[0]:g}. A clip norm that "
                    "depends on the data has a cost of its own. If it does not, attach with "
                    "scheduled_clip=True (not with ghost clipping, nor within a batch)."
                )
            self._clip = clip
        noise = float(optimizer.noise_multiplier)
        if self.ledger and not noise >= self._noise:
            raise Unsupported(
                f"noise multiplier {noise:g} is less than {self._noise:g}, which is charged; "
                "attach the optimizer with the least noise that it will have."
            )

    def _check_examples(self, batch: Batch) -> None:
        """Check that the gradients are of one backward pass, on no more examples than drawn."""
        optimizer = self.optimizer
        check_accumulation(optimizer)
        check_precision(optimizer)
        held: Any = getattr(optimizer.params[0], _PER_EXAMPLE[self._ghost])
        rows = sum(map(len, cast("list[Any]", held))) if isinstance(held, list) else len(held)
        self._examples += rows
        longest = rows * self._clip[0]
        if self._ghost:
            norms: Any = sum(getattr(p, _PER_EXAMPLE[1]).double() ** 2 for p in optimizer.params)
            longest = float(norms.sqrt().clamp(max=self._clip[0]).sum())
        self._longest_sum += longest
        # Opacus can put one synthetic example into an empty batch.
        if self._examples > max(len(batch.rows), 1):
            raise LedgerError(
                f"the gradients are of {self._examples} examples and the batch has "
                f"{len(batch.rows)}: a step is for the batch that the loader delivered, as it is."
            )


def check_accumulation(optimizer: Any) -> None:
    """Reject gradients of several batches that were added up before a step."""
    if optimizer.accumulated_iterations != 1:
        raise Unsupported(
            f"gradients of {optimizer.accumulated_iterations} batches were added up: an example "
            "may be in several and move the sum by more than the clip norm. Step after each "
            "batch; BatchMemoryManager makes batches larger."
        )


def check_precision(optimizer: Any) -> None:
    """Reject parameters, gradients or norms of examples, and noise of less than float32.

    With eight bits of a number, rounded norms and factors let an example count for 1.005 clip norms
    and more, and a sum is rounded to steps that may be longer than the clip norm.
    """
    exact = (torch.float32, torch.float64)
    for parameter in optimizer.params:
        values: list[Any] = [parameter]
        for name in _PER_EXAMPLE:
            held: Any = getattr(parameter, name, None)
            values += cast("list[Any]", held) if isinstance(held, list) else [held]
        for value in values:
            if isinstance(value, Tensor) and value.dtype not in exact:
                raise Unsupported(
                    f"parameters or gradients of examples are {value.dtype}: rounded so, an "
                    "example moves the sum by more than the clip norm. Train in float32, without "
                    "autocast"
                )
    if optimizer.secure_mode and torch.get_default_dtype() not in exact:
        raise Unsupported(
            f"the noise of secure_mode has torch's default dtype, {torch.get_default_dtype()}"
        )


def generator_of(sampler: Any) -> Any:
    """Return the generator that draws the batches, or None for torch's own."""
    return getattr(getattr(sampler, "sampler", sampler), "generator", None)


def _clip_norms(optimizer: Any) -> tuple[float, ...]:
    """Return the clip norm of the noise, and the clip norms of layers, which it has to cover."""
    whole, layers = float(optimizer.max_grad_norm), getattr(optimizer, "max_grad_norms", ())
    together = sum(float(layer) ** 2 for layer in layers) ** 0.5
    if not together <= whole * (1 + 1e-6):
        raise Unsupported(
            f"the clip norms of the layers are {together:g} together, and the noise is for "
            f"{whole:g}."
        )
    return (whole, *map(float, layers))


_WATCHED: weakref.WeakSet[Steps] = weakref.WeakSet()


def _check_other_optimizer(optimizer: Any, *_: Any) -> None:
    """Reject a second release of a charged batch. Torch calls this before any optimizer's step."""
    watched = list(_WATCHED)
    if not any(steps.ledger and steps.in_loop for steps in watched) or any(
        steps.optimizer.original_optimizer is optimizer for steps in watched
    ):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if any(getattr(p, name, None) is not None for p in parameters for name in _PER_EXAMPLE):
        raise Unsupported(
            "a second private optimizer steps while a loop over an attached loader runs. What it "
            "learns from those batches is not charged. Put its parameters into the attached "
            "optimizer, or train it after the loop, from a loader of its own."
        )


register_optimizer_step_pre_hook(_check_other_optimizer)
