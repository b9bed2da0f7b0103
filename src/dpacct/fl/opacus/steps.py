"""Which step of an optimizer belongs to which batch of its loader.

Rule 1: a step is for one batch, the one that was delivered last, and each batch has at most one.
Rule 2: a batch that is split for memory has all its parts stepped, in their order, and no other's.
Rule 3: noise and clip norm at the step are those of the reservation; the sum that is released is no
longer than the clipped gradients of its examples can make it, and finite.
What breaks a rule raises before noise is drawn, or at the latest before the model changes.

The loader draws ahead of what it delivers: by ``lead`` batches with workers, by none without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from dpacct.errors import LedgerError, Unsupported
from dpacct.fl.opacus.precision import check_precision

_ATTRIBUTE = "_dpacct_steps"


class Charge(Protocol):
    """What the steps need of a `Ticket`."""

    @property
    def state(self) -> str:
        """``committed`` once it is."""
        ...

    def commit(self) -> None:
        """Call before the model changes."""
        ...


@dataclass(slots=True)
class Part:
    """What is delivered at once: a batch, or a part of one.

    Attributes:
        ticket: of the batch.
        rows: numbers of the examples of the batch.
        last: whether the model changes after it.
        signaled: whether Opacus said so itself.
    """

    ticket: Charge
    rows: Sequence[int]
    last: bool = True
    signaled: bool = False


class Steps:
    """The steps of one optimizer; made once, it watches it from then on.

    Args:
        optimizer: of Opacus.
        lead: how many parts a loader draws ahead.
        fresh_noise: makes the generator of a step's noise; None keeps the optimizer's.
        scheduled_clip: the clip norm may change between batches.
    """

    def __init__(
        self,
        optimizer: Any,
        lead: int,
        fresh_noise: Callable[[Any], Any] | None,
        *,
        scheduled_clip: bool,
    ) -> None:
        self.exhausted = False
        self._optimizer = optimizer
        self._lead = lead
        self._fresh_noise = fresh_noise
        self._scheduled_clip = scheduled_clip
        # Ghost clipping clips with what the model was given; each backward pass begins anew there.
        self._ghost = type(optimizer).__name__ == "DPOptimizerFastGradientClipping"
        self._noise = float(optimizer.noise_multiplier)
        self._clip = self._clip_now()
        self._check_layers(self._clip)
        self._passes = 0
        self._parts: list[Part] = []
        self._asked = 0
        self._stepped = -1
        self._current: Part | None = None
        self._examples = 0
        # How long a sum the examples so far can make.
        self._reach = 0.0
        self._mixed = False
        self._pre_step = optimizer.pre_step
        self._signal = optimizer.signal_skip_step
        self._hook = optimizer.step_hook
        optimizer.pre_step = self._watched_pre_step
        optimizer.signal_skip_step = self._watched_signal
        optimizer.attach_step_hook(self._commit)
        setattr(optimizer, _ATTRIBUTE, self)

    @staticmethod
    def of(optimizer: Any) -> Steps | None:
        """The steps of an optimizer that is watched, None for another."""
        return getattr(optimizer, _ATTRIBUTE, None)

    def begin(self) -> int:
        """A new pass over the loader; what was drawn for the one before stays spent."""
        self._passes += 1
        self._parts, self._asked, self._stepped = [], 0, -1
        self.exhausted = False
        optimizer = self._optimizer
        # What Opacus kept of parts that were never stepped would be added to the next batch.
        optimizer._step_skip_queue.clear()  # noqa: SLF001 - it has no other name
        optimizer._is_last_step_skipped = False  # noqa: SLF001 - likewise
        for parameter in optimizer.params:
            parameter.summed_grad = None
        self._examples, self._mixed = 0, False
        return self._passes

    def asked(self, number: int) -> None:
        """The loader asks for the next batch of a pass.

        Raises:
            LedgerError: another pass has begun since.
        """
        if number != self._passes:
            raise LedgerError("another loop over the loader has begun; this one cannot go on.")
        self._asked += 1

    def drawn(self, ticket: Charge, rows: Sequence[int]) -> None:
        """A batch was drawn, of examples of these numbers."""
        self._parts.append(Part(ticket, rows))

    def upcoming(self) -> Sequence[int]:
        """Numbers of the examples of the batch that is to be stepped, from its next part on."""
        delivered = self._delivered()
        following = self._stepped + 1
        index = following if delivered < 0 else delivered - 1
        if not following <= index < len(self._parts):
            return ()
        begun = bool(index) and not self._parts[index - 1].last
        return self._parts[index].rows[self._examples * begun :]

    def _watched_signal(self, do_skip: bool = True) -> None:  # noqa: FBT001, FBT002 - Opacus' own
        self._signal(do_skip)
        if not self._parts:
            return
        part = self._parts[-1]
        if part.signaled:
            part = Part(part.ticket, part.rows)
            self._parts.append(part)
        part.last, part.signaled = not do_skip, True

    def _delivered(self) -> int:
        """How many parts were delivered, at least; -1 where that is not known."""
        if any(part.signaled for part in self._parts[-1:]):
            return -1 if self.exhausted and self._lead else len(self._parts) - self._lead
        return min(self._asked - self._lead, len(self._parts))

    def _watched_pre_step(self, *words: Any, **named: Any) -> Any:
        if self._mixed:
            raise LedgerError(_OTHER_PART)
        part = self._current = self._next_part()
        # Until all went well: what was summed of a batch that is split is then not to be used.
        self._mixed = part.signaled
        self._check_settings()
        self._check_examples(part)
        if self._fresh_noise is not None:
            self._optimizer.generator = self._fresh_noise(self._optimizer)
        done = self._pre_step(*words, **named)
        if done and part.ticket.state != "committed":
            raise LedgerError("the step was not charged: its hook was replaced, nothing is done.")
        if done != part.last:
            self._mixed = True
            raise LedgerError(_OTHER_PART)
        self._mixed = False
        return done

    def _next_part(self) -> Part:
        """The part that a step is for."""
        delivered = self._delivered()
        following = self._stepped + 1
        index = following if delivered < 0 else delivered - 1
        if not following <= index < len(self._parts):
            raise LedgerError(
                "a step without a batch: each batch of the attached loader has one, and no other."
            )
        part = self._parts[index]
        before = self._parts[index - 1] if index else part
        if part.signaled and (
            index > following or not (before.last or before.ticket is part.ticket)
        ):
            self._mixed = True
            raise LedgerError(_OTHER_PART)
        self._stepped = index
        return part

    def _check_examples(self, part: Part) -> None:
        """The gradients are those of one backward pass, on no more examples than were drawn."""
        optimizer = self._optimizer
        if optimizer.accumulated_iterations != 1:
            raise Unsupported(
                f"gradients of {optimizer.accumulated_iterations} batches were added up: an "
                "example may be in several and move the sum by more than the clip norm. Step after "
                "each batch; BatchMemoryManager makes batches larger."
            )
        # Ghost clipping keeps the norms of the gradients and not the gradients.
        kept = "_norm_sample" if self._ghost else "grad_sample"
        check_precision(optimizer, kept)
        found: Any = getattr(optimizer.params[0], kept)
        first = self._stepped == 0 or self._parts[self._stepped - 1].last
        self._examples *= not first
        held = cast("list[Any]", found) if isinstance(found, list) else [found]
        self._examples += sum(map(len, held))
        # Opacus can put one made-up example into an empty batch.
        self._reach = self._reach * (not first) + self._reach_of(held)
        if self._examples > max(len(part.rows), 1):
            raise LedgerError(
                f"the gradients are of {self._examples} examples and the batch has "
                f"{len(part.rows)}: a step is for the batch that the loader delivered, as it is."
            )

    def _reach_of(self, held: list[Any]) -> float:
        if not self._ghost:
            return sum(map(len, held)) * self._clip[0]
        squared: Any = sum(p._norm_sample.double() ** 2 for p in self._optimizer.params)  # noqa: SLF001 - ghost clipping's
        return float(squared.sqrt().clamp(max=self._clip[0]).sum())

    def _check_sum(self) -> None:
        """What the model or the data made of the clip norm, as far as the sum shows it."""
        squared: Any = sum(p.summed_grad.double().square().sum() for p in self._optimizer.params)
        length = float(squared) ** 0.5
        # Opacus rounds to float32 and less.
        if not length <= 1.01 * self._reach + 1e-6 * self._clip[0]:
            raise LedgerError(
                f"the sum of the gradients has norm {length:g}, and its examples make at most "
                f"{self._reach:g} at clip norm {self._clip[0]:g}: gradients that are not finite, "
                "or, with ghost clipping, a model that clips to another norm."
            )

    @staticmethod
    def _check_layers(clip: tuple[float, ...]) -> None:
        whole, *layers = clip
        together = sum(layer**2 for layer in layers) ** 0.5
        if not together <= whole * (1 + 1e-6):
            raise Unsupported(
                f"the clip norms of the layers are {together:g} together, and the noise is for "
                f"{whole:g}."
            )

    def _check_settings(self) -> None:
        if hasattr(self._optimizer, "_adjusted_noise_multiplier"):
            raise Unsupported("the noise is adjusted for an adaptive clip norm, uncharged.")
        noise = float(self._optimizer.noise_multiplier)
        if not noise >= self._noise:
            raise Unsupported(
                f"noise multiplier {noise:g} is less than {self._noise:g}, which is charged; "
                "attach the optimizer with the least noise that it will have."
            )
        clip = self._clip_now()
        if clip == self._clip:
            return
        first = self._stepped == 0 or self._parts[self._stepped - 1].last
        if self._ghost or not self._scheduled_clip or not first:
            raise Unsupported(
                f"the clip norm was {self._clip[0]:g} and is {clip[0]:g}; if it depends on the "
                "data, that has a cost, and if not, attach with scheduled_clip=True (never with "
                "ghost clipping, nor within a batch)."
            )
        self._check_layers(clip)
        self._clip = clip

    def _clip_now(self) -> tuple[float, ...]:
        layers = getattr(self._optimizer, "max_grad_norms", ())
        return (float(self._optimizer.max_grad_norm), *map(float, layers))

    def _commit(self, optimizer: Any) -> None:
        """Behind the noise, before the update."""
        part = self._current
        if part is None or not part.last:
            raise LedgerError(_OTHER_PART)
        self._check_sum()
        part.ticket.commit()
        if self._hook is not None:
            self._hook(optimizer)


_OTHER_PART = (
    "a part of a batch had no step of its own, or two: its gradients would be added to those of "
    "another batch. Call optimizer.step() once for everything that the loader delivers."
)
