"""Match each step of an Opacus optimizer with one batch of its loader.

Rule 1: A batch is charged when it is drawn: to the ledger, or else to the engine's accountant.
Rule 2: Each batch has one step, in the order in which they are drawn. A batch that is left out ends
    the steps of its pass. Which batches are left out can tell what they hold: a batch that is
    stepped is then no Poisson sample. Of n examples at rate q, one is in a batch that is not empty
    with probability q / (1 - (1 - q)^n).
Rule 3: If a batch is split for memory, each of its parts has one step, in order.
Rule 4: The gradients are of the examples of the batch, all of them, in float32 at least, from one
    backward pass. With ghost clipping it is that of the wrapped loss, and nothing changed its sum.
Rule 5: The noise and the clip norm of a step are the charged ones. The released sum is finite. The
    noise of a private run comes from a new secret generator for each step.
Rule 6: No other optimizer changes the parameters by gradients of these examples. The optimizer that
    Opacus wraps steps after the noise alone.

A step that breaks a rule raises before the model changes. A loader with workers draws ``lead``
batches ahead of the one that it delivers, a loader without workers none.
"""

from __future__ import annotations

import functools
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.account import OpenEpoch
from dpacct.fl.privacy.randomness import secret_generator
from dpacct.ledger import Run, Ticket
from dpacct.packages import import_opacus

_optimizers = import_opacus("optimizers")

# Attributes in which parameters keep gradients of examples, or their norms for ghost clipping.
_PER_EXAMPLE = ("grad_sample", "_norm_sample")
# Functions that change the gradient of a parameter in its backward pass.
_PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_PARTS = (
    "a part of a batch had no step of its own, or two: its gradients would be added to those of "
    "another batch. Call optimizer.step() once for each batch that the loader delivers."
)
_NO_BATCH = (
    "a step without a batch: each batch has one step, of the optimizer that its loader was made "
    "for. Train from the loader that attach_ledger, or else make_private, returned. Put all "
    "parameters into one optimizer, as several groups if need be."
)
_LEFT_OUT = (
    "a batch that the loader delivered had no step. Which batches are left out can tell what they "
    "hold, and no charge covers that. Step on each batch, also on an empty one, whose step is its "
    "noise (for a model that takes none: make_private(rand_on_empty=True)), or begin a new loop. "
    "To read ahead, use num_workers and not a wrapper of the loader."
)
_WRAPPED_LOSS = (
    "with ghost clipping, only the criterion that make_private returns clips, and these gradients "
    "are not those of its backward pass alone. Take model, optimizer, criterion, loader = "
    "make_private(...), and call criterion(outputs, targets).backward() right before the step"
)
_FORWARD = (
    "the model ran forward in training mode without a backward pass, so Opacus cannot match its "
    "gradients to the batch. Evaluate under torch.no_grad() or after model.eval(), and call "
    "make_private anew"
)
_BACKWARD = (
    "Call model.train() before the forward pass of each batch (after an evaluation, too), and "
    "backward once. Add losses up before it."
)


@dataclass(slots=True)
class Batch:
    """One batch: its charge (None without a ledger) and the numbers of its examples.

    ``rate`` is that of Poisson sampling, None by random allocation. ``parts`` holds, for each part
    that `BatchMemoryManager` made of it, whether Opacus skips the update. ``counted`` is the noise
    multiplier that the accountant counts for it.
    """

    ticket: Ticket | OpenEpoch | None
    rows: list[int]
    rate: float | None
    parts: list[bool] = field(default_factory=list[bool])
    counted: float = 0.0


@dataclass(frozen=True, slots=True)
class Clipped:
    """What one backward pass of the wrapped loss left, in ghost clipping.

    ``sums`` holds the gradient of each parameter, and how often it had been changed by then.
    """

    examples: int
    clip_norm: float
    sums: list[tuple[Tensor, int]]


class Steps:
    """The steps of one optimizer, checked as soon as this object exists.

    Batches are counted by the ``accountant``, a `TightAccountant`, and charged to the ``run`` of a
    ledger, if they are given. A run without a ledger is private unless a generator was given. With
    a ledger, no other private optimizer may step on the batches of the ``loader``.

    Without a ledger, noise and clip norm may change between batches, and the noise of each is
    counted. With one, the noise is not below the charge, and the clip norm changes if it is
    ``scheduled_clip``. An empty batch may have one ``synthetic`` example.
    """

    def __init__(
        self,
        optimizer: Any,
        loader: Any,
        accountant: Any = None,
        run: Run | None = None,
        *,
        scheduled_clip: bool = False,
        synthetic: bool = True,
    ) -> None:
        self.optimizer, self.ledger, self.accountant = optimizer, run is not None, accountant
        given = optimizer.generator is not None or generator_of(loader.batch_sampler) is not None
        self.private = run.private if run is not None else optimizer.secure_mode or not given
        self._scheduled_clip, self._synthetic = scheduled_clip or run is None, synthetic
        # Batches, or parts of them, that the loader draws ahead.
        self._lead = loader.num_workers * (loader.prefetch_factor or 0)
        self._fresh_noise = self.private and not optimizer.secure_mode
        # Ghost clipping keeps the norms of the gradients and not the gradients.
        self._ghost = isinstance(optimizer, _optimizers.DPOptimizerFastGradientClipping)
        self._clipped: Clipped | None = None
        self._generator = optimizer.generator
        # The least noise multiplier of a step.
        self._noise = 0.0 if run is None else float(optimizer.noise_multiplier)
        self._clip = _clip_norms(optimizer)
        self._exhausted = True
        self._pass = 0
        # The iterator of the current pass. A loop that ends or is left drops it.
        self._iterator: Callable[[], object] = lambda: None
        self._batches: list[Batch] = []
        # Examples of the batch that is being stepped, so far.
        self._requests = self._stepped = self._examples = 0
        self._broken = self._released = False
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
        if len(self._batches) > 1 and not self._stepped:
            warnings.warn(
                f"the last pass drew {len(self._batches)} batches and made no step. They are "
                "charged like the others. Evaluate on a loader of your own.",
                stacklevel=8,  # from the loop, over torch's iterator, to here
            )
        self._pass += 1
        self._exhausted, self._iterator = False, weakref.ref(iterator)
        self._batches, self._requests, self._stepped = [], 0, 0
        self._examples, self._broken = 0, False
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
        """Count a batch, before it is delivered, or note the end of the pass (None)."""
        if batch is None:
            self._exhausted = True
            return
        if self._batches and any(self._batches[-1].parts[-1:]):
            self._broken = True
        self._batches.append(batch)
        if self.accountant is None:
            return
        if batch.rate is None:
            self.accountant.count_epoch()
        else:
            batch.counted = self._counted
            self.accountant.step(noise_multiplier=batch.counted, sample_rate=batch.rate)

    def clipped(self, loss: Any) -> None:
        """Note the gradients that a backward pass of the wrapped loss has left."""
        if any(parameter.grad is None for parameter in self.optimizer.params):
            return
        module, params = loss.module, self.optimizer.params
        if any(getattr(p, name, None) for p in params for name in _PARAMETER_HOOKS):
            raise Unsupported(
                "a hook of a parameter changes the gradients behind ghost clipping. Remove it, or "
                "take grad_sample_mode='hooks'"
            )
        examples = len(module.per_sample_gradient_norms)
        if tuple(loss.loss_per_sample.shape) != (examples,):
            raise Unsupported(
                f"the criterion gave losses of shape {tuple(loss.loss_per_sample.shape)} for "
                f"{examples} examples: ghost clipping scales one loss for each of them. Give "
                "make_private a criterion that follows its attribute reduction='none'"
            )
        clips = {id(parameter) for parameter in module.trainable_parameters}
        if not clips.issuperset(map(id, params)):
            raise Unsupported(
                "a parameter was frozen when make_private was called, and the norms of ghost "
                "clipping leave it out. Call make_private once it is trainable"
            )
        sums = [(parameter.grad, _changes(parameter.grad)) for parameter in params]
        self._clipped = Clipped(examples, float(module.max_grad_norm), sums)

    def allow_update(self) -> bool:
        """Return True once after each release: the wrapped optimizer may then step."""
        released, self._released = self._released, False
        return released

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
            raise LedgerError(_NO_BATCH)
        if index > self._stepped:
            raise LedgerError(_LEFT_OUT)
        batch = self._batches[index]
        if not batch.parts:
            self._examples = 0
        # Until the step is done: the sum of a batch that is split is unusable after an error.
        self._broken = bool(batch.parts)
        device = _device(self.optimizer)
        self._check_settings()
        self._check_examples(batch)
        if self._fresh_noise:
            self._generator = secret_generator(device)
            self.optimizer.generator = self._generator
        stepped = self._stepped
        done = self._kept[0](*args, **kwargs)
        if done and self._stepped == stepped:
            raise LedgerError("the step was not charged, because add_noise was replaced.")
        self._broken, self._released = False, bool(done)
        return done

    def _add_noise(self) -> None:
        """Check the sum of a batch, add its noise, and charge it: before the model can change."""
        batch = self._batches[self._stepped]
        if any(batch.parts[-1:]):
            raise LedgerError(_PARTS)
        finite = [torch.isfinite(p.summed_grad).all() for p in self.optimizer.params]
        if not bool(torch.stack(finite).all()):
            raise LedgerError(
                "the sum of the gradients is not finite: an example, the model or the loss "
                "overflows. Nothing of this batch is released, and it stays spent."
            )
        if self.accountant is not None and batch.rate is not None:
            self.accountant.recount(batch.rate, batch.counted, self._counted)
        self._kept[1]()
        if batch.ticket is not None:
            batch.ticket.commit()
        self._stepped += 1
        self._examples = 0

    @property
    def _counted(self) -> float:
        """The noise multiplier that counts: as it is now, or with a ledger that of the charge."""
        now = self._noise if self.ledger else float(self.optimizer.noise_multiplier)
        return now if self.private else 0.0

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
        """Check generator, clip norm and noise. Rule 5."""
        optimizer = self.optimizer
        if self.private and optimizer.generator is not self._generator:
            rule = "anyone who knows the state of a given generator can compute the noise"
            hint = "A run that repeats is not private: give noise_generator= to make_private."
            raise InvalidParameter("generator", "replaced", rule, hint)
        refuse_adaptive(optimizer)
        clip = _clip_norms(optimizer)
        if clip != self._clip:
            if not self._scheduled_clip or self._examples:
                raise Unsupported(
                    f"the clip norm was {self._clip[0]:g} and is {clip[0]:g}. A clip norm that "
                    "depends on the data has a cost of its own. If it does not, change it between "
                    "batches, and attach a ledger with scheduled_clip=True."
                )
            self._clip = clip
        noise = float(optimizer.noise_multiplier)
        if not noise >= self._noise:
            raise Unsupported(
                f"noise multiplier {noise:g} is less than {self._noise:g}, which is charged. "
                "Attach the optimizer with the least noise that it will have."
            )

    def _check_examples(self, batch: Batch) -> None:
        """Check that the gradients are of one backward pass, on the examples that were drawn."""
        check_precision(self.optimizer)
        if self._ghost:
            rows = self._check_clipped()
        else:
            counts = {len(gradients) for gradients in _gradients(self.optimizer)}
            rows = max(counts)
            if len(counts) > 1:
                raise Unsupported(
                    f"parameters have gradients of {sorted(counts)} examples: the model changes "
                    "the first dimension of a batch, and one example counts for several"
                )
        self._examples += rows
        drawn = len(batch.rows) or min(self._examples, int(self._synthetic))
        # Until the last part of a batch, others follow.
        last = not self.optimizer._check_skip_next_step(pop_next=False)  # noqa: SLF001 - it has no public name
        if self._examples > drawn or (last and self._examples < drawn):
            raise LedgerError(
                f"the gradients are of {self._examples} examples and the batch has "
                f"{len(batch.rows)}: a step is for the batch that the loader delivered, as it is, "
                "with the examples in its first dimension (batch_first)."
            )

    def _check_clipped(self) -> int:
        """Return the number of examples in the sum of ghost clipping, which has to be intact."""
        clipped, self._clipped = self._clipped, None
        held: list[Any] = [parameter.grad for parameter in self.optimizer.params]
        if clipped is None or len(held) != len(clipped.sums):
            raise Unsupported(_WRAPPED_LOSS)
        for now, (was, changes) in zip(held, clipped.sums, strict=True):
            if now is not was or _changes(now) != changes:
                raise Unsupported(_WRAPPED_LOSS)
        if clipped.clip_norm > self._clip[0]:
            raise Unsupported(
                f"the model clips to {clipped.clip_norm:g}, and the noise is for "
                f"{self._clip[0]:g}. Set max_grad_norm of the model that make_private returned, too"
            )
        return clipped.examples


def _gradients(optimizer: Any) -> list[Tensor]:
    """Return the gradients of examples of each parameter, from one backward pass."""
    gradients: list[Tensor] = []
    for parameter in optimizer.params:
        held = getattr(parameter, "grad_sample", None)
        if isinstance(held, list):
            raise Unsupported(
                f"gradients of {len(cast('list[Any]', held))} batches were added up: an example "
                "may be in several and move the sum by more than the clip norm. Step after each "
                "batch; BatchMemoryManager makes batches larger."
            )
        if held is None:
            raise Unsupported(_without_gradients(parameter))
        gradients.append(held)
    return gradients


def _without_gradients(parameter: Any) -> str:
    """Return why a parameter has no gradients of examples, and the way out."""
    if not hasattr(parameter, "_forward_counter"):
        return (
            "a parameter was frozen when make_private was called, and has no gradients of "
            "examples. Call make_private once it is trainable"
        )
    if parameter._forward_counter:  # noqa: SLF001 - Opacus' count has no public name
        return _FORWARD
    return (
        "a parameter has no gradients of examples. Call zero_grad, then backward, then step, and "
        "freeze parameters that take no part in the loss"
    )


def _changes(values: Any) -> int:
    """Return how often a tensor was changed in place."""
    return values._version  # noqa: SLF001 - it has no public name


def _device(optimizer: Any) -> torch.device:
    """Return the device of all parameters, on which the noise is drawn."""
    devices = {parameter.device for parameter in optimizer.params}
    if len(devices) == 1:
        return devices.pop()
    if devices:
        raise Unsupported("the parameters lie on several devices, and one generator draws on one.")
    raise Unsupported("no parameter of the optimizer is trainable, and a step has no noise.")


def refuse_adaptive(optimizer: Any) -> None:
    """Reject an optimizer with a clip norm that follows a count of the data."""
    if isinstance(optimizer, _optimizers.AdaClipDPOptimizer) or hasattr(
        optimizer, "_adjusted_noise_multiplier"
    ):
        raise Unsupported(
            f"{type(optimizer).__name__} chooses its clip norm by a count of the data. Opacus "
            "charges the count at half its sensitivity, and divides it by the size of the batch "
            "without a charge. Use clipping='flat'."
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
    """Reject an update that skips the noise, or a second release. Torch calls this for each step.

    An update of a watched optimizer follows its release. Others may not train on gradients of
    examples of a batch that is charged, nor change parameters that a watched optimizer trains.
    """
    watched = list(_WATCHED)
    ours = [steps for steps in watched if steps.optimizer.original_optimizer is optimizer]
    if sum(steps.allow_update() for steps in ours):
        return
    parameters: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    if all(getattr(p, name, None) is None for p in parameters for name in _PER_EXAMPLE):
        return
    if ours:
        raise Unsupported(
            "the optimizer that make_private was given steps without clipping and noise. Call "
            "step() of the optimizer that it returned. To train the model on public data, take "
            "model.to_standard_module()"
        )
    trained = set(map(id, parameters))
    for steps in watched:
        if steps.in_loop and (steps.ledger or trained & set(map(id, steps.optimizer.params))):
            raise Unsupported(
                "a second optimizer steps on gradients of examples while a loop over a charged "
                "loader runs, and what it learns from them is not charged. Put its parameters into "
                "the optimizer of the loader, or train it after the loop, from a loader of its own."
            )


register_optimizer_step_pre_hook(_check_other_optimizer)


def _watch_opacus() -> None:
    """Let the wrapped loss of Opacus tell `Steps` what it clipped.

    Errors of its hooks that do not name the mistake get a note that does.
    """
    loss = import_opacus("utils.fast_gradient_clipping_utils").DPTensorFastGradientClipping
    models, backward = import_opacus("grad_sample"), loss.backward

    @functools.wraps(backward)
    def clipping(owner: Any) -> None:
        backward(owner)
        steps = Steps.of(owner.optimizer)
        if steps is not None:
            steps.clipped(owner)

    def noted(kind: Any, name: str, note: str) -> None:
        method = getattr(kind, name)

        @functools.wraps(method)
        def called(*args: Any, **settings: Any) -> Any:
            try:
                return method(*args, **settings)
            except (IndexError, NotImplementedError, ValueError) as error:
                error.add_note(f"dpacct: {note}")
                raise

        setattr(kind, name, called)

    loss.backward = clipping
    for kind in (models.GradSampleHooks, models.GradSampleHooksFastGradientClipping):
        noted(kind, "capture_activations_hook", _FORWARD)
        noted(kind, "capture_backprops_hook", _BACKWARD)


_watch_opacus()
