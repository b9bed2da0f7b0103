"""Charge the batches of an Opacus loader to a run of a ledger, and check the optimizer's steps.

Rule 1: a batch is reserved before it is drawn. The loader ends quietly when a batch does not fit or
the plan of the run is at its end. Batches drawn before that are still delivered.
Rule 2: a step is committed after the noise is drawn and before the model changes.
Rule 3: a step that the reservation may not cover raises before the model changes.
Rule 4: a batch without a step stays spent. Choosing among drawn batches would change how they are
sampled.
Rule 5: batches of a private run come from the operating system's randomness, and its noise from a
generator whose whole state comes from there, whatever seeds the program sets.
Rule 6: of several processes that train one model, rank 0 reserves a batch and tells all ranks
before any of them draws its share, and commits before it gives its gradients to the common sum.
Without it no rank has a sum with which its model could change. Every rank draws from its own
examples, and all draw as often, empty batches included.
Rule 7: under add-remove the rate, the number of batches and the divisor of a step come from a
public size. Opacus makes them from the number of examples, so without one they reveal that number,
and the neighboring relation is zero-out.

What Opacus computes between the two (gradients of examples, their norms, the noise in float32) is
its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import distributed
from torch.utils.data import DataLoader

from dpacct import validate
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.privacy.randomness import OperatingSystem, draw_cohort, secret_generator
from dpacct.interop.opacus.audit import Audited
from dpacct.interop.opacus.steps import Charge, Steps, check_precision
from dpacct.ledger import Event, Run, Ticket
from dpacct.packages import import_opacus
from dpacct.rounds import Adjacency, Poisson, Round, Schedule

_samplers = import_opacus("utils.uniform_sampler")
_optimizers = import_opacus("optimizers")

_KNOWN = (
    _optimizers.DPOptimizer,
    _optimizers.DPPerLayerOptimizer,
    _optimizers.DPOptimizerFastGradientClipping,
    _optimizers.DistributedDPOptimizer,
)


class Uncharged:
    """The reservation of a batch that this process does not charge: there is nothing to record."""

    def commit(self) -> None:
        """Do nothing."""


class CheckedSampler(_samplers.UniformWithReplacementSampler):
    """The Poisson batches of a sampler of Opacus, each noted for the step that belongs to it.

    Attributes:
        inner: the sampler of Opacus.
        ended: why a ledger has no more batches; None while there are.
    """

    def __init__(self, inner: Any, steps: Steps) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            num_samples=getattr(inner, "total_size", inner.num_samples),
            sample_rate=inner.sample_rate,
            generator=inner.generator,
            steps=len(inner),
        )
        self.inner, self._steps = inner, steps
        self.ended: str | None = None

    def __iter__(self) -> Iterator[list[int]]:
        return _Batches(self._steps, self.draws())

    def draws(self) -> Iterator[tuple[Charge, list[int]]]:
        """Yield the batches of one pass, each with its reservation."""
        for rows in self.inner:
            yield Uncharged(), rows


class _Batches:
    """One pass over a sampler. It counts requests, also those past its end."""

    def __init__(self, steps: Steps, draws: Iterator[tuple[Charge, list[int]]]) -> None:
        self._steps, self._draws = steps, draws
        self._number = steps.begin(self)

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        self._steps.requested(self._number)
        drawn = next(self._draws, None)
        if drawn is None:
            self._steps.exhausted = True
            raise StopIteration
        self._steps.drawn(*drawn)
        return drawn[1]


class LedgerSampler(CheckedSampler):
    """Poisson batches, each reserved in a ledger before it is drawn.

    Args:
        inner: the sampler of Opacus. steps: of the optimizer.
        run: the run that is charged; None on every rank but 0. private: whether that run is.
        together: whether several processes train one model.
        event: the charge of one batch. batches: their number in a pass.
    """

    def __init__(
        self,
        inner: Any,
        steps: Steps,
        run: Run | None,
        event: Event,
        batches: int,
        *,
        private: bool,
        together: bool,
    ) -> None:
        super().__init__(inner, steps)
        self.steps, self.sample_rate = batches, event.round.sampling_rate
        self._run, self._event, self._private, self._together = run, event, private, together

    def draws(self) -> Iterator[tuple[Charge, list[int]]]:
        """Yield the batches of one pass, until the budget or the plan ends."""
        rank, size = _ranks(together=self._together)
        own = range(rank, self.num_samples, size)
        for _ in range(self.steps):
            charge = None if self.ended else self._reserve_together()
            if charge is None:
                self.ended = self.ended or "rank 0 has no more batches"
                return
            yield charge, [own[index] for index in self._sample(len(own))]

    def _reserve_together(self) -> Charge | None:
        """Reserve a batch on rank 0, and tell all ranks whether there is one. Rule 6."""
        ticket: Ticket | None = None
        try:
            if self._run is not None:
                ticket = self._reserve(self._run)
        finally:
            # Also after an error: the other ranks end their loops then.
            told: list[Any] = [ticket is not None]
            if self._together:
                distributed.broadcast_object_list(told, src=0)
        return Uncharged() if self._run is None and told[0] else ticket

    def _reserve(self, run: Run) -> Ticket | None:
        if run.plan is not None and run.on_plan and not run.held:
            self.ended = "the plan of the run is at its end"
            return None
        try:
            ticket = run.reserve(self._event)
        except BudgetExceeded as refusal:
            self.ended = str(refusal)
            return None
        ticket.draw()
        return ticket

    def _sample(self, examples: int) -> list[int]:
        scheme: Any = self._event.round.sampling
        if self._private:
            return draw_cohort(scheme, examples, OperatingSystem())
        # At most the rate, which the same comparison in float32 exceeds.
        coins = torch.rand(examples, generator=self.generator, dtype=torch.float64)
        threshold = int(scheme.sampling_rate * 2**53) / 2**53
        joined: Any = (coins < threshold).nonzero().reshape(-1)
        return joined.tolist()


class LedgerLoader(DataLoader[Any]):
    """A loader of Opacus with a `CheckedSampler`, as `attach_ledger` returns it.

    Attributes:
        sample_rate: at which each example is in a batch.
        stated_batch_size: of the loader that `make_private` was given; None if it had none.
        run: the run that is charged; None without a ledger, and on ranks that keep none.
        round: the charge of each batch; None without a ledger.
    """

    def __init__(
        self,
        loader: Any,
        sampler: CheckedSampler,
        run: Run | None = None,
        round_: Round | None = None,
    ) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            dataset=loader.dataset,
            batch_sampler=sampler,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )
        self.sample_rate, self.run, self.round = sampler.sample_rate, run, round_
        self.stated_batch_size: int | None = getattr(loader, "stated_batch_size", None)
        self._checked = sampler

    @property
    def ended(self) -> str | None:
        """Why there are no more batches; None while there are."""
        return self._checked.ended


def check_steps(loader: Any, optimizer: Any) -> Any:
    """Check from now on that each step of an optimizer has a batch of its own, without a ledger.

    Args:
        loader, optimizer: as `make_private` returned them.
    Returns:
        The loader to train from. For optimizers of other kinds than `attach_ledger` knows, the same
        loader, unchecked.
    """
    sampler = loader.batch_sampler
    if type(optimizer) not in _KNOWN:
        return loader
    lead = loader.num_workers * (loader.prefetch_factor or 0)
    steps = Steps(optimizer, lead, seeded_batches=sampler.generator is not None)
    return LedgerLoader(loader, CheckedSampler(sampler, steps))


def attach_ledger(
    loader: DataLoader[Any],
    optimizer: Any,
    run: Run | None,
    *,
    public_size: int | None = None,
    batch_size: int | None = None,
    adjacency: Adjacency | str | None = None,
    scheduled_clip: bool = False,
) -> LedgerLoader:
    """Charge each step of an optimizer on the batches of a loader to a run of a ledger.

    Args:
        loader, optimizer: as `make_private` returned them.
        run: of the ledger of this data set. The loader ends with the plan of the run, if it has
            one. If several processes train one model, rank 0 gives the run and the others None.
        public_size: a public number M that stands for the number of examples. The sampling rate is
            then batch_size / M, a pass has M / batch_size batches, rounded up, and a step divides
            by batch_size. Without it all three reveal the number of examples.
        batch_size: the expected number of examples of a step. Needed with `public_size` only;
            default that of the loader that `make_private` was given.
        adjacency: the neighboring relation, by example; default that of the plan, else add-remove
            with a public size and zero-out without.
        scheduled_clip: the clip norm changes by a schedule that does not depend on the data.
    Returns:
        The loader to train from, in place of the one given; `BatchMemoryManager` takes it too.
    Raises:
        Unsupported: batches that are no Poisson samples at one rate, an optimizer whose noise or
            clip norm is not that of the round, gradients that several devices hold, or less
            than float32.
        InvalidParameter: noise from a generator that was given, in a private run; a plan in which
            there is no such round; or add-remove without a public size.
            LedgerError: the run is finished.
    """
    if run is not None and run.finished:
        raise LedgerError(f"run {run.id} is finished and takes no more rounds.")
    _check_optimizer(optimizer)
    check_precision(optimizer)
    together = isinstance(optimizer, _optimizers.DistributedDPOptimizer)
    sampler = _check_loader(loader, together=together)
    plan = None if run is None else run.plan
    rate, batches, divisor = sampler.sample_rate, len(sampler), 0
    relation = Adjacency.ZERO_OUT
    if public_size is not None:  # Rule 7.
        stated = getattr(loader, "stated_batch_size", None) if batch_size is None else batch_size
        size = validate.count("public_size", public_size, "the public number of examples")
        divisor = validate.count("batch_size", stated, "the expected batch of a public size", size)
        rate, batches = divisor / size, math.ceil(size / divisor)
        relation = Adjacency.ADD_REMOVE
    elif batch_size is not None:
        raise InvalidParameter("batch_size", batch_size, "it is given together with public_size")
    relation = Adjacency.parse(adjacency or (plan.adjacency if plan else relation))
    if relation is Adjacency.ADD_REMOVE and public_size is None:
        rule = "Opacus makes the rate and the divisor of a step from the number of examples"
        hint = (
            "State public_size=, or plan zero-out, whose epsilon is the same: "
            f"Round({optimizer.noise_multiplier:g}, Poisson({rate:g}), 'zero-out')."
        )
        raise InvalidParameter("adjacency", "add-remove", rule, hint)
    round_ = Round(optimizer.noise_multiplier, Poisson(rate), relation)
    _check_plan(plan, round_)
    private = _agree(run, round_, together=together)
    if private:
        _check_secrecy(optimizer, sampler)
    watched = Steps.of(optimizer)
    if watched is not None:
        watched.detach()
    steps = Steps(
        optimizer,
        loader.num_workers * (loader.prefetch_factor or 0),
        _fresh_generator if private and not optimizer.secure_mode else None,
        private=private,
        seeded_batches=sampler.generator is not None,
        ledger=True,
        scheduled_clip=scheduled_clip,
    )
    details = {"clip_norm": float(optimizer.max_grad_norm), "by": "opacus"}
    if public_size is not None:
        details["public_size"] = public_size
        optimizer.expected_batch_size = divisor / _ranks(together=together)[1]
    event = Event(round_, details=details)
    charged = LedgerSampler(sampler, steps, run, event, batches, private=private, together=together)
    if isinstance(loader.dataset, Audited):
        loader.dataset.attach(optimizer, steps, run, event)
    return LedgerLoader(loader, charged, run, round_)


def _ranks(*, together: bool) -> tuple[int, int]:
    """Return the number of this process, and how many processes train one model."""
    return (distributed.get_rank(), distributed.get_world_size()) if together else (0, 1)


def _agree(run: Run | None, round_: Round, *, together: bool) -> bool:
    """Have all ranks agree on a step, and return whether the run is private. Rule 6.

    Raises:
        InvalidParameter: rank 0 has no run, another rank has one, or their rounds differ.
    """
    if (run is None) is (_ranks(together=together)[0] == 0):
        rule = "rank 0 charges the run of its ledger, and every other rank gives None"
        raise InvalidParameter("run", run, rule)
    private = run is not None and run.private
    if together:
        terms = round_.noise_multiplier, round_.sampling_rate
        told: list[Any] = [(private, terms)]
        distributed.broadcast_object_list(told, src=0)
        private, agreed = told[0]
        if agreed != terms:
            raise InvalidParameter("round", terms, f"rank 0 has {agreed!r}")
    return private


def _fresh_generator(optimizer: Any) -> torch.Generator:
    """Return a generator for one step's noise, on the device of the optimizer's parameters."""
    return secret_generator(optimizer.params[0].device)


def refuse_adaptive(optimizer: Any) -> None:
    """Reject an optimizer whose clip norm follows a count of the data.

    Raises:
        Unsupported: it is one.
    """
    kind = type(optimizer).__name__
    if isinstance(optimizer, _optimizers.AdaClipDPOptimizer) or hasattr(
        optimizer, "_adjusted_noise_multiplier"
    ):
        raise Unsupported(
            f"{kind} chooses its clip norm by a count of the data: Opacus charges the count at "
            "half its sensitivity, and divides it by the size of the batch, which nothing charges."
        )


def _check_optimizer(optimizer: Any) -> None:
    """Check that the optimizer adds noise by steps that are known, and is not attached."""
    kind = type(optimizer).__name__
    refuse_adaptive(optimizer)
    if not isinstance(optimizer, _optimizers.DPOptimizer):
        raise Unsupported(f"{kind} adds no noise; give the optimizer that make_private returned.")
    if type(optimizer) not in _KNOWN:
        raise Unsupported(
            f"the steps of {kind} cannot be charged: known are flat and per-layer clip norms, "
            "per-example gradients and ghost clipping, in several processes the first of each."
        )
    steps = Steps.of(optimizer)
    if steps is not None and steps.ledger:
        raise Unsupported("the optimizer is attached already; its steps would be charged twice.")


def _check_loader(loader: Any, *, together: bool) -> Any:
    """Return Opacus' own sampler of a loader, if it samples by Poisson."""
    sampler = getattr(loader, "batch_sampler", None)
    kind = type(sampler).__name__
    if isinstance(sampler, LedgerSampler):
        raise Unsupported(
            "the loader is attached already: a second optimizer would release a second sum of each "
            "batch, which is not charged."
        )
    sampler = getattr(sampler, "inner", sampler)
    if isinstance(getattr(sampler, "sampler", None), torch.utils.data.WeightedRandomSampler):
        raise Unsupported(
            "the loader samples by weight: an example of more weight is in more batches than the "
            "rate says."
        )
    word = "Distributed" if together else ""
    if type(sampler) is not getattr(_samplers, f"{word}UniformWithReplacementSampler"):
        raise Unsupported(
            f"the loader does not sample by Poisson as its optimizer needs it ({kind}): no "
            "amplification is proven. make_private(poisson_sampling=True) returns both."
        )
    if not getattr(loader, "in_order", True):
        raise Unsupported("the loader delivers batches out of order; give in_order=True.")
    return sampler


def _check_plan(plan: Schedule | None, round_: Round) -> None:
    """Check that some round of the plan covers a step."""
    if plan is not None and not any(
        isinstance(planned.sampling, Poisson)
        and planned.adjacency is round_.adjacency
        and planned.noise_multiplier <= round_.noise_multiplier
        and planned.sampling_rate >= round_.sampling_rate
        for planned in plan.distinct()
    ):
        rule = f"the plan of the run has no round that covers a step, which is {round_!r}"
        raise InvalidParameter("plan", plan, rule)


def _check_secrecy(optimizer: Any, sampler: Any) -> None:
    """Check that noise and batches cannot be repeated. Rule 5."""
    if optimizer.secure_mode:
        return
    if optimizer.generator is not None or sampler.generator is not None:
        rule = "anyone who knows the state of a given generator can compute what it draws"
        hint = "Give none, or start the run with private=False."
        raise InvalidParameter("generator", "given", rule, hint)
    if len({parameter.device for parameter in optimizer.params}) > 1:
        raise Unsupported("the parameters lie on several devices, and one generator draws on one.")
