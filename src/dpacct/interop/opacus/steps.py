"""Match each step of an Opacus optimizer with one batch of its loader.

Rule 1: a step belongs to the batch delivered last, and a batch has at most one step.
Rule 2: a batch split for memory has each of its parts stepped once, in order.
Rule 3: the noise and the clip norm of a step are those that are charged. The released sum is finite
and no longer than the clipped gradients of its examples can make it.

A broken rule raises before the model changes. A loader with workers draws ``lead`` batches ahead of
the one it delivers; without workers it draws none ahead.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpacct.errors import InvalidParameter, LedgerError, Unsupported

_EXACT = (torch.float32, torch.float64)
_PARTS = (
    "a part of a batch had no step of its own, or two: its gradients would be added to those of "
    "another batch. Call optimizer.step() once for everything that the loader delivers."
)


class Charge(Protocol):
    """The part of a ledger's `Ticket` that a step needs."""

    def commit(self) -> object:
        """Record the step. Called after the noise is drawn and before the model changes."""
        ...


@dataclass(slots=True)
class Batch:
    """One batch of the loader.

    Attributes:
        charge: its reservation.
        rows: the numbers of its examples.
        parts: for each part that `BatchMemoryManager` made of it, whether Opacus skips the update.
    """

    charge: Charge
    rows: Sequence[int]
    parts: list[bool] = field(default_factory=list[bool])


class Steps:
    """The steps of one optimizer, checked from the moment this is made.

    Args:
        optimizer: of Opacus.
        lead: the number of batches or parts that the loader draws ahead.
        fresh_noise: makes the generator for the noise of a step; None keeps the optimizer's own.
        private: whether a generator that was put into the optimizer later is rejected.
        seeded_batches: whether the loader draws from a generator that was given.
        ledger: whether a ledger is charged. Then noise and clip norm may not fall below the charge,
            and other optimizers may not step on the batches.
        scheduled_clip: whether the clip norm may change between batches.
    """

    def __init__(
        self,
        optimizer: Any,
        lead: int,
        fresh_noise: Callable[[Any], Any] | None = None,
        *,
        private: bool = False,
        seeded_batches: bool = False,
        ledger: bool = False,
        scheduled_clip: bool = True,
    ) -> None:
        self.optimizer, self.ledger = optimizer, ledger
        self._lead, self._fresh_noise, self._private = lead, fresh_noise, private
        self._scheduled_clip = scheduled_clip
        # Ghost clipping keeps the norms of the gradients and not the gradients.
        self._ghost = type(optimizer).__name__ == "DPOptimizerFastGradientClipping"
        self._generator, self._seeded_batches = optimizer.generator, seeded_batches
        self._noise, self._clip = float(optimizer.noise_multiplier), _clip_norms(optimizer)
        self.exhausted = True
        self.passes = 0
        # The iterator of the pass that runs. A loop that ends or is left drops it.
        self._iterator: Callable[[], object] = lambda: None
        self._batches: list[Batch] = []
        self._requests = self._stepped = 0
        self._examples, self._longest_sum = 0, 0.0
        self._broken = self._committed = False
        self._kept = optimizer.pre_step, optimizer.signal_skip_step, optimizer.step_hook
        optimizer.pre_step = self._checked_pre_step
        optimizer.signal_skip_step = self._noted_signal
        optimizer.attach_step_hook(self._commit)
        _WATCHED.add(self)

    @staticmethod
    def of(optimizer: Any) -> Steps | None:
        """Return the steps of a watched optimizer, None for any other."""
        return next((steps for steps in _WATCHED if steps.optimizer is optimizer), None)

    @property
    def seeded(self) -> bool:
        """Whether the noise or the batches come from a generator that was given."""
        given = self.optimizer.generator is not None or self._seeded_batches
        return given and self._fresh_noise is None and not self.optimizer.secure_mode

    def detach(self) -> None:
        """Leave the optimizer as it was before."""
        optimizer = self.optimizer
        optimizer.pre_step, optimizer.signal_skip_step, optimizer.step_hook = self._kept
        _WATCHED.discard(self)

    @property
    def in_loop(self) -> bool:
        """Whether a loop over the loader runs."""
        return not self.exhausted and self._iterator() is not None

    def begin(self, iterator: object) -> int:
        """Begin a new pass over the loader. Batches of the last pass without a step stay spent."""
        self.passes += 1
        self.exhausted, self._iterator = False, weakref.ref(iterator)
        self._batches, self._requests, self._stepped = [], 0, 0
        self._examples, self._longest_sum, self._broken = 0, 0.0, False
        # Otherwise Opacus adds the parts it kept of an unfinished batch to the next one.
        self.optimizer._step_skip_queue.clear()  # noqa: SLF001 - it has no public name
        self.optimizer._is_last_step_skipped = False  # noqa: SLF001 - likewise
        for parameter in self.optimizer.params:
            parameter.summed_grad = None
        return self.passes

    def requested(self, number: int) -> None:
        """Note that the loader asks for the next batch of a pass, also past the end.

        Raises:
            LedgerError: another pass has begun since.
        """
        if number != self.passes:
            raise LedgerError("another loop over the loader has begun; this one cannot go on.")
        self._requests += 1

    def drawn(self, charge: Charge, rows: Sequence[int]) -> None:
        """Note a batch of examples with these numbers."""
        if self._batches and any(self._batches[-1].parts[-1:]):
            self._broken = True
        self._batches.append(Batch(charge, rows))

    def upcoming(self) -> Sequence[int]:
        """Return the numbers of the examples of the next step, from its next part on."""
        index = self._current()
        if index < self._stepped or index >= len(self._batches):
            return ()
        return self._batches[index].rows[self._examples if self._batches[index].parts else 0 :]

    def _noted_signal(self, do_skip: bool = True) -> None:  # noqa: FBT001, FBT002 - Opacus' own
        """`BatchMemoryManager` calls it once for each part that it draws."""
        self._kept[1](do_skip)
        if self._batches:
            self._batches[-1].parts.append(do_skip)

    @property
    def _split(self) -> bool:
        """Whether `BatchMemoryManager` splits the batches of this pass."""
        return bool(self._batches and self._batches[-1].parts)

    def _current(self) -> int:
        """The index of the batch that was delivered last; -1 before the first one."""
        if not self._split:
            return min(self._requests - self._lead, len(self._batches)) - 1
        # Opacus' queue holds the parts that were drawn and not yet stepped: the delivered one, and
        # those that workers drew ahead of it until the loader's end.
        waiting = len(self.optimizer._step_skip_queue)  # noqa: SLF001 - it has no public name
        known = waiting == self._lead + 1 or (self.exhausted and 0 < waiting <= self._lead)
        return self._stepped if known else -1

    def _checked_pre_step(self, *words: Any, **named: Any) -> Any:
        index = self._current()
        parts = self._batches[index].parts if 0 <= index < len(self._batches) else []
        if self._broken or (self._split and index < 0):
            self._broken = True
            raise LedgerError(_PARTS)
        if not self._stepped <= index < len(self._batches):
            raise LedgerError(
                "a step without a batch: each batch of the attached loader has one step, of the "
                "optimizer that it was made for."
            )
        if not parts:
            self._stepped, self._examples, self._longest_sum = index, 0, 0.0
        # Until the step is done: the sum of a batch that is split is unusable after an error.
        self._broken = bool(parts)
        self._check_settings()
        self._check_examples(self._batches[index])
        if self._fresh_noise is not None:
            self._generator = self.optimizer.generator = self._fresh_noise(self.optimizer)
        self._committed = False
        done = self._kept[0](*words, **named)
        if done and not self._committed:
            raise LedgerError("the step was not charged: its hook was replaced, nothing is done.")
        self._broken = False
        return done

    def _check_settings(self) -> None:
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
        if not self.ledger:
            return
        noise = float(optimizer.noise_multiplier)
        if not noise >= self._noise:
            raise Unsupported(
                f"noise multiplier {noise:g} is less than {self._noise:g}, which is charged; "
                "attach the optimizer with the least noise that it will have."
            )

    def _check_examples(self, batch: Batch) -> None:
        """Check that the gradients are of one backward pass, on no more examples than drawn."""
        optimizer = self.optimizer
        check_accumulation(optimizer)
        kept = "_norm_sample" if self._ghost else "grad_sample"
        check_precision(optimizer, kept)
        held: Any = getattr(optimizer.params[0], kept)
        rows = sum(map(len, cast("list[Any]", held))) if isinstance(held, list) else len(held)
        self._examples += rows
        longest = rows * self._clip[0]
        if self._ghost:
            norms: Any = sum(p._norm_sample.double() ** 2 for p in optimizer.params)  # noqa: SLF001 - ghost clipping's
            longest = float(norms.sqrt().clamp(max=self._clip[0]).sum())
        self._longest_sum += longest
        # Opacus can put one synthetic example into an empty batch.
        if self._examples > max(len(batch.rows), 1):
            raise LedgerError(
                f"the gradients are of {self._examples} examples and the batch has "
                f"{len(batch.rows)}: a step is for the batch that the loader delivered, as it is."
            )

    def _commit(self, optimizer: Any) -> None:
        """Opacus calls it once for each batch, after the noise and before the update."""
        batch = self._batches[self._stepped]
        if any(batch.parts[-1:]):
            raise LedgerError(_PARTS)
        squared: Any = sum(p.summed_grad.double().square().sum() for p in optimizer.params)
        length, longest = float(squared) ** 0.5, self._longest_sum
        # Opacus rounds to float32.
        if not length <= 1.01 * longest + 1e-6 * self._clip[0]:
            raise LedgerError(
                f"the sum of the gradients has norm {length:g}, and its examples make at most "
                f"{longest:g} at clip norm {self._clip[0]:g}: gradients that are not finite, "
                "or, with ghost clipping, a model that clips to another norm."
            )
        batch.charge.commit()
        if self._kept[2] is not None:
            self._kept[2](optimizer)
        self._stepped += 1
        self._examples, self._longest_sum = 0, 0.0
        self._committed = True


def is_seeded(optimizer: Any) -> bool:
    """Return whether the noise or the batches of an optimizer can be repeated from a generator."""
    steps = Steps.of(optimizer)
    if steps is not None:
        return steps.seeded
    return optimizer.generator is not None and not optimizer.secure_mode


def check_accumulation(optimizer: Any) -> None:
    """Reject gradients of several batches that were added up before a step.

    Raises:
        Unsupported: there are several.
    """
    if optimizer.accumulated_iterations != 1:
        raise Unsupported(
            f"gradients of {optimizer.accumulated_iterations} batches were added up: an example "
            "may be in several and move the sum by more than the clip norm. Step after each "
            "batch; BatchMemoryManager makes batches larger."
        )


def check_precision(optimizer: Any, kept: str | None = None) -> None:
    """Reject parameters, gradients or norms of examples, and noise of less than float32.

    With eight bits of a number, rounded norms and factors let an example count for 1.005 clip norms
    and more, and a sum is rounded to steps that may be longer than the clip norm.

    Args:
        optimizer: of Opacus.
        kept: the attribute by which its parameters keep what belongs to single examples.
    Raises:
        Unsupported: there are some.
    """
    for parameter in optimizer.params:
        found: Any = None if kept is None else getattr(parameter, kept, None)
        values = cast("list[Any]", found) if isinstance(found, list) else [found]
        for value in (parameter, *values):
            if isinstance(value, Tensor) and value.dtype not in _EXACT:
                raise Unsupported(
                    f"parameters or gradients of examples are {value.dtype}: rounded so, an "
                    "example moves the sum by more than the clip norm. Train in float32, without "
                    "autocast"
                )
    if optimizer.secure_mode and torch.get_default_dtype() not in _EXACT:
        raise Unsupported(
            f"the noise of secure_mode has torch's default dtype, {torch.get_default_dtype()}"
        )


def _clip_norms(optimizer: Any) -> tuple[float, ...]:
    """Return the clip norm of the noise, and those of the layers if there are some.

    Raises:
        Unsupported: the layers together exceed the norm that the noise is for.
    """
    whole, layers = float(optimizer.max_grad_norm), getattr(optimizer, "max_grad_norms", ())
    together = sum(float(layer) ** 2 for layer in layers) ** 0.5
    if not together <= whole * (1 + 1e-6):
        raise Unsupported(
            f"the clip norms of the layers are {together:g} together, and the noise is for "
            f"{whole:g}."
        )
    return (whole, *map(float, layers))


_WATCHED: weakref.WeakSet[Steps] = weakref.WeakSet()


def _check_stranger(optimizer: Any, *_: Any) -> None:
    """Called by torch before any optimizer's step: reject a second release of a charged batch."""
    watched = list(_WATCHED)
    if not any(steps.ledger and steps.in_loop for steps in watched) or any(
        steps.optimizer.original_optimizer is optimizer for steps in watched
    ):
        return
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    kept = [getattr(p, name, None) for p in parameters for name in ("grad_sample", "_norm_sample")]
    if any(value is not None for value in kept):
        raise Unsupported(
            "a second private optimizer steps while a loop over an attached loader runs. What it "
            "learns from those batches is not charged. Put its parameters into the attached "
            "optimizer, or train it after the loop, from a loader of its own."
        )


register_optimizer_step_pre_hook(_check_stranger)
