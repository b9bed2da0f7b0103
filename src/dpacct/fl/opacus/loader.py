"""A loader of Opacus whose batches are charged to a run of a ledger, and the optimizer beside it.

Rule 1: a batch is reserved before it is drawn. Where it does not fit, or the plan of the run is at
its end, the loader ends quietly; batches that were drawn before are still delivered.
Rule 2: a step is committed after the noise is drawn and before the model changes.
Rule 3: whatever is not known to be covered by the reservation raises before the model changes.
Rule 4: a batch without a step stays spent. Nothing is given back: choosing among drawn batches
would change how they are sampled.
Rule 5: batches of a private run are drawn by the operating system's randomness, and its noise by a
generator whose whole state comes from there, whatever seeds the program sets.

What Opacus computes between the two (per-example gradients, their norms, the noise in float32) is
its own, and so is that one optimizer alone learns from the loader.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError, Unsupported
from dpacct.fl.opacus.canaries import Audited
from dpacct.fl.opacus.noise import fresh_generator
from dpacct.fl.opacus.precision import check_precision
from dpacct.fl.opacus.ranks import Ranks
from dpacct.fl.opacus.steps import Steps
from dpacct.fl.privacy.randomness import OperatingSystem, draw_cohort
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


class LedgerSampler(_samplers.UniformWithReplacementSampler):
    """Poisson batches, each reserved before it is drawn.

    Attributes:
        ended: why there are no more batches; None while there are.
    """

    def __init__(self, sampler: Any, ranks: Ranks, event: Event, steps: Steps) -> None:
        together = isinstance(sampler, _samplers.DistributedUniformWithReplacementSampler)
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            num_samples=sampler.total_size if together else sampler.num_samples,
            sample_rate=sampler.sample_rate,
            generator=sampler.generator,
            steps=len(sampler),
        )
        self.ended: str | None = None
        self._ranks = ranks
        self._event = event
        self._steps = steps

    def __iter__(self) -> Iterator[list[int]]:
        return _Batches(self, self._steps)

    def draw(self) -> list[int] | None:
        """The indices of the next batch; None at the end of the budget or of the plan."""
        if self.ended is not None:
            return None
        ticket = self._ranks.reserve(self._reserve)
        if ticket is None:
            self.ended = self.ended or "rank 0 has no more batches"
            return None
        share = self._ranks.share(self.num_samples)
        batch = [share[index] for index in self._sample(self._event.round.sampling, len(share))]
        self._steps.drawn(ticket, batch)
        return batch

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

    def _sample(self, scheme: Any, examples: int) -> list[int]:
        if self._ranks.private:
            return draw_cohort(scheme, examples, OperatingSystem())
        # At most the rate, which the same comparison in float32 exceeds.
        coins = torch.rand(examples, generator=self.generator, dtype=torch.float64)
        threshold = int(scheme.sampling_rate * 2**53) / 2**53
        joined: Any = (coins < threshold).nonzero().reshape(-1)
        return joined.tolist()


class _Batches:
    """One pass over the sampler; it counts how often it is asked, also behind its end."""

    def __init__(self, sampler: LedgerSampler, steps: Steps) -> None:
        self._sampler = sampler
        self._steps = steps
        self._number = steps.begin()
        self._left = sampler.steps

    def __iter__(self) -> Iterator[list[int]]:
        return self

    def __next__(self) -> list[int]:
        self._steps.asked(self._number)
        found = self._sampler.draw() if self._left else None
        if found is None:
            self._steps.exhausted = True
            raise StopIteration
        self._left -= 1
        return found


class LedgerLoader(DataLoader[Any]):
    """The loader that `attach_ledger` returns.

    Attributes:
        run: what its batches are charged to; None on ranks that keep no ledger.
        round: as which each of them is.
    """

    def __init__(self, loader: Any, sampler: LedgerSampler, run: Run | None, event: Event) -> None:
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
        self.run = run
        self.round = event.round
        self.sample_rate = sampler.sample_rate
        self._ledger_sampler = sampler

    @property
    def ended(self) -> str | None:
        """Why there are no more batches, in words; None while there are."""
        return self._ledger_sampler.ended


def attach_ledger(
    loader: DataLoader[Any],
    optimizer: Any,
    run: Run | None,
    *,
    adjacency: Adjacency | str | None = None,
    scheduled_clip: bool = False,
    criterion: Any = None,
) -> LedgerLoader:
    """Charge each step of an optimizer on the batches of a loader to a run of a ledger.

    Args:
        loader, optimizer: as `make_private` returned them.
        run: of the ledger of this data set. A run with a plan ends where the plan does. Where
            several processes train one model, rank 0 gives the run and the others None.
        adjacency: the neighboring relation, by example; default that of the plan, else add-remove.
        scheduled_clip: the clip norm changes by a schedule that does not depend on the data.
        criterion: that `make_private` returned; an audit of ghost clipping needs it.
    Returns:
        The loader to train from, in place of the one given; `BatchMemoryManager` takes it too.
    Raises:
        Unsupported: batches that are no Poisson samples at one rate, an optimizer whose noise or
            clip norm is not that of the round, gradients that several devices hold, or less
            than float32.
        InvalidParameter: noise from a generator that was given, in a private run; or a plan in
            which there is no such round. LedgerError: the run is finished.
    """
    if run is not None and run.finished:
        raise LedgerError(f"run {run.id} is finished and takes no more rounds.")
    _check_optimizer(optimizer)
    check_precision(optimizer)
    together = isinstance(optimizer, _optimizers.DistributedDPOptimizer)
    sampler = _check_loader(loader, together=together)
    plan = None if run is None else run.plan
    relation = Adjacency.parse(adjacency or (plan.adjacency if plan else Adjacency.ADD_REMOVE))
    round_ = Round(optimizer.noise_multiplier, Poisson(sampler.sample_rate), relation)
    _check_plan(plan, round_)
    ranks = Ranks.of(run, together, (round_.noise_multiplier, round_.sampling_rate))
    if ranks.private:
        _check_secrecy(optimizer, sampler)
    lead = loader.num_workers * (loader.prefetch_factor or 0)
    fresh = fresh_generator if ranks.private and not optimizer.secure_mode else None
    steps = Steps(optimizer, lead, fresh, scheduled_clip=scheduled_clip)
    event = Event(round_, details={"clip_norm": float(optimizer.max_grad_norm), "by": "opacus"})
    charged = LedgerSampler(sampler, ranks, event, steps)
    if isinstance(loader.dataset, Audited):
        loader.dataset.attach(optimizer, steps, run, event, criterion)
    return LedgerLoader(loader, charged, run, event)


def refuse_adaptive(optimizer: Any) -> None:
    """Refuse an optimizer whose clip norm follows a count of the data.

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
    kind = type(optimizer).__name__
    refuse_adaptive(optimizer)
    if not isinstance(optimizer, _optimizers.DPOptimizer):
        raise Unsupported(f"{kind} adds no noise; give the optimizer that make_private returned.")
    if type(optimizer) not in _KNOWN:
        raise Unsupported(
            f"the steps of {kind} cannot be charged: known are flat and per-layer clip norms, "
            "per-example gradients and ghost clipping, in several processes the first of each."
        )
    if Steps.of(optimizer) is not None:
        raise Unsupported("the optimizer is attached already; its steps would be charged twice.")


def _check_loader(loader: Any, *, together: bool) -> Any:
    sampler = getattr(loader, "batch_sampler", None)
    kind = type(sampler).__name__
    if isinstance(sampler, LedgerSampler):
        raise Unsupported(
            "the loader is attached already: a second optimizer would release a second sum of each "
            "batch, which is not charged."
        )
    if isinstance(getattr(sampler, "sampler", None), torch.utils.data.WeightedRandomSampler):
        raise Unsupported(
            "the loader samples by weight: an example of more weight is in more batches than the "
            "rate says."
        )
    known = (
        _samplers.DistributedUniformWithReplacementSampler
        if together
        else _samplers.UniformWithReplacementSampler
    )
    if type(sampler) is not known:
        raise Unsupported(
            f"the loader does not sample by Poisson as its optimizer needs it ({kind}): no "
            "amplification is proven. make_private(poisson_sampling=True) returns both."
        )
    if not getattr(loader, "in_order", True):
        raise Unsupported("the loader delivers batches out of order; give in_order=True.")
    return sampler


def _check_plan(plan: Schedule | None, round_: Round) -> None:
    if plan is None:
        return
    planned = [r for r in plan.distinct() if isinstance(r.sampling, Poisson)]
    if not any(
        r.adjacency is round_.adjacency
        and r.noise_multiplier <= round_.noise_multiplier
        and r.sampling_rate >= round_.sampling_rate
        for r in planned
    ):
        rule = f"the plan of the run has no round that covers a step, which is {round_!r}"
        raise InvalidParameter("plan", plan, rule)


def _check_secrecy(optimizer: Any, sampler: Any) -> None:
    given = (optimizer.generator, sampler.generator)
    if optimizer.secure_mode:
        return
    if any(generator is not None for generator in given):
        rule = "whoever knows the state of a generator that was given can compute what it draws"
        hint = "Give none, or start the run with private=False."
        raise InvalidParameter("generator", "given", rule, hint)
    if len({parameter.device for parameter in optimizer.params}) > 1:
        raise Unsupported("the parameters lie on several devices, and one generator draws on one.")
