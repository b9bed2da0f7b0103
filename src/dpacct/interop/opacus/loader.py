"""Draw the batches of an Opacus loader, and charge them to a run of a ledger.

Rule 1: A batch is reserved before it is drawn. The loader ends without an error if a batch does not
    fit or the whole plan of the run is charged. Batches drawn before that are still delivered.
Rule 2: A step is committed after the noise is drawn and before the model changes.
Rule 3: A step that the reservation may not cover raises before the model changes.
Rule 4: A batch without a step stays spent.
Rule 5: Batches of a private run come from the operating system's randomness. Its noise comes from a
    generator with its whole state from there, regardless of the program's seeds.
Rule 6: Under add-remove the rate, the number of batches and the divisor of a step come from a
    public size. Opacus makes them from the number of examples. Without a public size they reveal
    that number, and the neighboring relation is zero-out.
Rule 7: A pass over a loader of `allocate` is one epoch. It is reserved as a whole before its first
    batch, and committed with its last step. A new pass draws afresh.

Between draw and commit, Opacus computes gradients, norms and float32 noise as it always does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, Sampler

from dpacct import validate
from dpacct.epochs import Epoch
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.account import OpenEpoch, charge
from dpacct.fl.privacy.allocation import Allocation, Allocator
from dpacct.fl.privacy.randomness import Randomness, Seeded, draw_cohort
from dpacct.fl.tensors import numbers
from dpacct.interop.opacus.steps import Batch, Steps, check_precision, generator_of, refuse_adaptive
from dpacct.ledger import Event, Run, Ticket, covers
from dpacct.packages import import_opacus
from dpacct.pairs.dominating import Mechanism
from dpacct.rounds import Adjacency, AdjacencyName, Poisson, Round

_samplers = import_opacus("utils.uniform_sampler")
_optimizers = import_opacus("optimizers")

# The optimizers whose steps are known. A subclass may do something else.
_KNOWN = (
    _optimizers.DPOptimizer,
    _optimizers.DPPerLayerOptimizer,
    _optimizers.DPOptimizerFastGradientClipping,
)


class CheckedSampler(_samplers.UniformWithReplacementSampler):
    """Poisson batches, each charged for its step, and with a ledger reserved before it is drawn.

    ``event`` is the charge of a batch, or of a pass by allocation, to the ``run``. ``inner`` is the
    sampler of Opacus that this one replaces. ``ended`` says why the ledger has no more batches.
    """

    def __init__(
        self,
        inner: Any,
        steps: Steps,
        event: Event | None = None,
        batches: int | None = None,
        run: Run | None = None,
    ) -> None:
        self._rate = getattr(inner, "sample_rate", 1.0 / len(inner))
        if event is not None and isinstance(event.round, Round):
            self._rate = event.round.sampling_rate
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            num_samples=inner.num_samples,
            sample_rate=self._rate,
            generator=generator_of(inner),
            steps=len(inner) if batches is None else batches,
        )
        self.inner, self.event, self._checked, self._run = inner, event, steps, run
        self.ended: str | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return _Pass(self._checked, self.draws())

    def draws(self) -> Iterator[Batch]:
        """Yield the batches of one pass, until the budget or the plan ends."""
        if self.event is not None and not isinstance(self.event.round, Round):
            yield from self._epoch(self.event)
            return
        share = _share_of(self.inner)
        for _ in range(self.steps):
            if self.sample_rate != self._rate:
                raise Unsupported(
                    f"sample_rate of the loader's sampler was set to {self.sample_rate:g}, and "
                    f"each batch is charged for {self._rate:g}. Call make_private again."
                )
            ticket = None
            if self.event is not None and (ticket := self._reserve(self.event)) is None:
                return
            if self._checked.private:
                rows = draw_cohort(Poisson(self._rate), self.num_samples, Randomness())
            else:
                count = self.num_samples
                coins: Any = torch.rand(count, generator=self.generator, dtype=torch.float64)
                rows = (coins < self._rate).nonzero().flatten().tolist()
            yield Batch(ticket, rows if share is None else [share[row] for row in rows], self._rate)

    def _epoch(self, event: Event) -> Iterator[Batch]:
        """Yield the batches of an epoch, which is charged as a whole. Rule 7."""
        if (ticket := self._reserve(event)) is None:
            return
        step = OpenEpoch(ticket, self.steps)
        source = Randomness()
        if not self._checked.private and self.generator is not None:
            source = Seeded(int(torch.randint(2**62, (), generator=self.generator)))
        allocator = Allocator.start(Allocation(self.steps), source)
        for place in range(self.steps):
            yield Batch(step, list(allocator.members(place, self.num_samples)), None)

    def _reserve(self, event: Event) -> Ticket | None:
        """Reserve a batch, or return None at the end of the plan or of the budget."""
        run = self._run
        if self.ended or run is None:
            return None
        try:
            ticket = charge(run, event)
        except BudgetExceeded as refusal:
            self.ended = str(refusal)
            return None
        ticket.draw()
        return ticket


def _share_of(sampler: Any) -> list[int] | None:
    """Return the examples of this process, None for all.

    Opacus deals them out to its processes. Its own sampler leaves empty batches out, so that the
    others are no Poisson samples, and the processes lose step.
    """
    if not isinstance(sampler, _samplers.DistributedUniformWithReplacementSampler):
        return None
    order = torch.arange(sampler.total_size)
    if sampler.shuffle:
        dealt = torch.Generator().manual_seed(sampler.shuffle_seed + sampler.epoch)
        order = torch.randperm(sampler.total_size, generator=dealt)
    return numbers(order[sampler.rank :: sampler.num_replicas])


class AllocatedSampler(Sampler[list[int]]):
    """Batches by random allocation: each example is in one random batch of every pass.

    ``generator`` draws the batches of a run that is not private.
    """

    def __init__(self, num_samples: int, steps: int, generator: Any = None) -> None:
        self.num_samples, self.steps, self.generator = num_samples, steps, generator

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[list[int]]:
        raise Unsupported(
            "batches by random allocation are charged by the epoch: train from the loader that "
            "attach_ledger(loader, optimizer, run) returns"
        )


def allocate(loader: DataLoader[Any], steps: int | None = None) -> DataLoader[Any]:
    """Return a loader of the same data whose batches come from random allocation.

    Each example is in one random batch of every pass. `attach_ledger` charges a pass as an
    `dpacct.epochs.Epoch` at its start.

    Args:
        loader: as `make_private` returned it.
        steps: the number of batches of a pass. Default: that of the given loader, which reveals the
            number of examples.
    Raises:
        InvalidParameter: no whole number. Unsupported: the data cannot be read by number.
    """
    if not hasattr(loader.dataset, "__len__"):
        raise Unsupported("a stream has no examples to allocate. Read the data by number.")
    count = len(loader) if steps is None else steps
    count = validate.count("steps", count, "the number of batches of a pass")
    given = getattr(cast("Any", loader).batch_sampler, "generator", None)
    sampler = AllocatedSampler(len(cast("Any", loader.dataset)), count, given)
    made: Any = DataLoader(batch_sampler=sampler, **_settings_of(loader))
    made.stated_batch_size = getattr(loader, "stated_batch_size", None)
    return made


def _settings_of(loader: Any) -> dict[str, Any]:
    """Return the settings of a loader apart from its batches."""
    names = ("dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn")
    more = ("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers")
    return {name: getattr(loader, name) for name in (*names, *more)}


class _Pass(Iterator[list[int]]):
    """One pass over a sampler. It counts requests, also past its end, as a generator cannot."""

    def __init__(self, steps: Steps, batches: Iterator[Batch]) -> None:
        self._steps, self._batches = steps, batches
        self._number = steps.begin(self)

    def __next__(self) -> list[int]:
        self._steps.requested(self._number)
        batch = next(self._batches, None)
        self._steps.drawn(batch)
        if batch is None:
            raise StopIteration
        return batch.rows


class LedgerLoader(DataLoader[Any]):
    """A loader of Opacus with a `CheckedSampler`, as `attach_ledger` returns it.

    Attributes:
        sample_rate: the probability with which an example is in a batch.
        stated_batch_size: of the loader that `make_private` was given, or None if it had none.
        run, round: the charged run and the charge of each batch, or of each pass by allocation.
            None without a ledger.
    """

    def __init__(self, loader: Any, sampler: CheckedSampler, run: Run | None = None) -> None:
        settings = _settings_of(loader)
        super().__init__(batch_sampler=sampler, **settings)  # pyright: ignore[reportUnknownMemberType]
        self.sample_rate, self.run, self._checked = sampler.sample_rate, run, sampler
        self.round = None if sampler.event is None else sampler.event.round
        self.stated_batch_size: int | None = getattr(loader, "stated_batch_size", None)

    @property
    def ended(self) -> str | None:
        """Why there are no more batches, or None while there are."""
        return self._checked.ended


def check_steps(loader: Any, optimizer: Any, accountant: Any) -> LedgerLoader:
    """Return a loader whose batches an accountant counts, with one step for each.

    Raises:
        Unsupported: the steps of the optimizer are unknown.
    """
    # Without a ledger, each of several processes checks its own steps.
    ranks = (
        _optimizers.DistributedDPOptimizer,
        _optimizers.DistributedDPOptimizerFastGradientClipping,
    )
    _check_optimizer(optimizer, (*_KNOWN, *ranks))
    steps = Steps(optimizer, loader, accountant)
    return LedgerLoader(loader, CheckedSampler(loader.batch_sampler, steps))


def attach_ledger(
    loader: DataLoader[Any],
    optimizer: Any,
    run: Run,
    *,
    public_size: int | None = None,
    batch_size: int | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
    scheduled_clip: bool = False,
) -> LedgerLoader:
    """Charge each step of an optimizer on the batches of a loader to a run of a ledger.

    A pass over a loader of `allocate` is charged as a whole.

    Args:
        loader, optimizer: as `make_private` returned them, or the loader of `allocate`.
        run: of the ledger of this data set. The loader ends with the plan of the run, if any.
        public_size: a public number M that stands for the number of examples. The sampling rate is
            then batch_size / M, a pass has M / batch_size batches, rounded up, and a step divides
            by batch_size. Without it all three reveal the number of examples.
        batch_size: the expected number of examples of a step. Needed with `public_size` only.
            Default: that of the loader that `make_private` was given.
        adjacency: the neighboring relation, by example. Default: that of the plan, else add-remove
            with a public size and zero-out without.
        scheduled_clip: the clip norm changes by a schedule that does not depend on the data.
    Returns:
        The loader to train from instead of the given one. `BatchMemoryManager` also takes it.
    Raises:
        Unsupported: batches that are no Poisson samples at one rate, noise or a clip norm of the
            optimizer that differs from the round's, gradients on several devices, less than
            float32, or several processes that train one model.
        InvalidParameter: noise from a given generator in a private run, a plan without such a
            round, or add-remove without a public size.
        LedgerError: the run is finished.
    """
    if not isinstance(cast("object", run), Run):
        raise InvalidParameter("run", type(run).__name__, "steps are charged to a run of a ledger")
    if run.finished:
        raise LedgerError(f"run {run.id} is finished and takes no more rounds.")
    _check_optimizer(optimizer)
    check_precision(optimizer)
    sampler = _known_sampler(loader)
    plan = run.plan
    allocated = isinstance(sampler, AllocatedSampler)
    rate, batches, divisor = _public_sizes(sampler, loader, public_size, batch_size)
    relation = Adjacency.ZERO_OUT if public_size is None else Adjacency.ADD_REMOVE
    relation = Adjacency.parse(adjacency or (plan.adjacency if plan else relation))
    if relation is Adjacency.ADD_REMOVE and public_size is None:
        rule = "Opacus makes the rate and the divisor of a step from the number of examples"
        hint = (
            "State public_size=, or plan zero-out, whose epsilon is the same: "
            f"Round({optimizer.noise_multiplier:g}, Poisson({rate:g}), 'zero-out')."
        )
        raise InvalidParameter("adjacency", "add-remove", rule, hint)
    noise = optimizer.noise_multiplier
    round_: Round | Mechanism = Round(noise, Poisson(rate), relation)
    if allocated:
        round_ = Epoch(noise, sampler.steps, adjacency=relation)
    if plan is not None and not any(covers(planned, round_) for planned in plan.distinct()):
        rule = f"the plan of the run has no round that covers a step, which is {round_!r}"
        raise InvalidParameter("plan", plan, rule)
    if run.private and not optimizer.secure_mode:
        _check_secrecy(optimizer, sampler)
    _check_empty_batches(loader, relation)
    watched = Steps.of(optimizer)
    if watched is not None:
        watched.detach()
    counting = None if watched is None else watched.accountant
    steps = Steps(
        optimizer,
        loader,
        counting,
        run,
        scheduled_clip=scheduled_clip,
        synthetic=relation is Adjacency.ZERO_OUT,
    )
    details = {"clip_norm": float(optimizer.max_grad_norm), "by": "opacus"}
    if public_size is not None:
        details["public_size"] = public_size
    if divisor is not None:
        optimizer.expected_batch_size = divisor
    event = Event(round_, details=details)
    return LedgerLoader(loader, CheckedSampler(sampler, steps, event, batches, run), run)


def _public_sizes(
    sampler: Any, loader: Any, public_size: int | None, batch_size: int | None
) -> tuple[float, int, float | None]:
    """Return the rate, the batches of a pass, and the divisor of a step if it changes. Rule 6."""
    batches = len(sampler)
    if public_size is None:
        if batch_size is not None:
            rule = "it is given together with public_size"
            raise InvalidParameter("batch_size", batch_size, rule)
        allocated = isinstance(sampler, AllocatedSampler)
        rate = getattr(sampler, "sample_rate", 1.0 / batches)
        return rate, batches, sampler.num_samples / batches if allocated else None
    size = validate.count("public_size", public_size, "the public number of examples")
    if isinstance(sampler, AllocatedSampler):
        if batch_size is not None:
            rule = "allocate(loader, steps) fixes the batches of a pass"
            raise InvalidParameter("batch_size", batch_size, rule, "Leave it out.")
        return 1.0 / batches, batches, size / batches
    stated = getattr(loader, "stated_batch_size", None) if batch_size is None else batch_size
    divisor = validate.count("batch_size", stated, "the expected batch of a public size", size)
    return divisor / size, math.ceil(size / divisor), divisor


def _check_optimizer(optimizer: Any, known: tuple[type, ...] = _KNOWN) -> None:
    """Check that the optimizer adds noise by known steps, and is not attached."""
    refuse_adaptive(optimizer)
    kind = type(optimizer).__name__
    if not isinstance(optimizer, _optimizers.DPOptimizer):
        raise Unsupported(f"{kind} adds no noise; give the optimizer that make_private returned.")
    if type(optimizer) not in known:
        raise Unsupported(
            f"the steps of {kind} cannot be charged: known are flat and per-layer clip norms, "
            "per-example gradients and ghost clipping, in one process. Train on several with "
            "fl.Federation(distributed=True)."
        )
    steps = Steps.of(optimizer)
    if steps is not None and steps.ledger:
        raise Unsupported("the optimizer is attached already; its steps would be charged twice.")


def _known_sampler(loader: Any) -> Any:
    """Return the sampler of a loader: Opacus' own by Poisson, or one by allocation."""
    sampler = getattr(loader, "batch_sampler", None)
    if isinstance(sampler, AllocatedSampler):
        return sampler
    if type(sampler) is BatchSampler and type(sampler.sampler) is RandomSampler:
        raise Unsupported(
            "the loader shuffles, so the bound of Poisson sampling does not hold. Ways out: "
            "allocate(loader) draws batches by random allocation, and "
            "make_private(poisson_sampling=True) by Poisson. What an epoch of shuffled batches "
            "costs: dpacct.epsilon(dpacct.ShuffledEpoch(noise, steps), delta=...)."
        )
    kind = type(sampler).__name__
    if isinstance(sampler, CheckedSampler):
        if sampler.event is not None:
            raise Unsupported(
                "the loader is attached already: a second optimizer would release a second sum of "
                "each batch, which is not charged."
            )
        sampler = sampler.inner
    if isinstance(getattr(sampler, "sampler", None), torch.utils.data.WeightedRandomSampler):
        raise Unsupported(
            "the loader samples by weight: an example of more weight is in more batches than the "
            "rate says."
        )
    if type(sampler) is not _samplers.UniformWithReplacementSampler:
        raise Unsupported(
            f"the loader does not sample by Poisson as its optimizer needs it ({kind}): no "
            "amplification is proven. make_private(poisson_sampling=True) returns both."
        )
    if not getattr(loader, "in_order", True):
        raise Unsupported("the loader delivers batches out of order; give in_order=True.")
    return sampler


def _check_empty_batches(loader: Any, relation: Adjacency) -> None:
    """Reject a synthetic example in an empty batch under add-remove.

    It stands in for the only example of a batch, if that one leaves. The sum moves by 2 C.
    """
    if relation is Adjacency.ADD_REMOVE and getattr(loader.collate_fn, "rand_on_empty", False):
        rule = "an example that joins an empty batch replaces its synthetic one, under add-remove"
        hint = "Leave rand_on_empty out, or plan zero-out without public_size."
        raise InvalidParameter("rand_on_empty", "True", rule, hint)


def _check_secrecy(optimizer: Any, sampler: Any) -> None:
    """Check that noise and batches cannot be repeated. Rule 5."""
    if optimizer.generator is not None or generator_of(sampler) is not None:
        rule = "anyone who knows the state of a given generator can compute what it draws"
        hint = "Give none, or start the run with private=False."
        raise InvalidParameter("generator", "given", rule, hint)
