"""One round on synthetic clients and a short audit, before anything is charged.

Rule 1: an error of the model, the loss, the method or a setting is raised here, and costs nothing.
Rule 2: a client's update must not depend on the clients before it, nor the next state on anything
but the release: both are compared between populations that differ in the other clients. This also
finds what `dpacct.fl.training.isolation` cannot see. Rule 3: no example of a client is used.
Rule 4: the audit draws from a fixed seed, so it raises no false alarms, and its cost does not grow
with cohort, rounds or local steps. `dpacct.fl.audit` looks longer, at neighboring populations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType

import numpy as np
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.engine import Engine, reproduces
from dpacct.fl.engine.states import Collected, Draw, TrainingState
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.sgd import SGD
from dpacct.fl.privacy.findings import (
    Audit,
    Draws,
    Finding,
    check_bound,
    check_charge,
    repeated,
    wrong_mean,
    wrong_shape,
    wrong_std,
)
from dpacct.fl.privacy.noise import drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.tensors import forked_generators, norm, same_numbers, seed_generators
from dpacct.fl.training.choose import Choice, TrainerChooser, TrainingPlan
from dpacct.fl.training.isolation import Isolation
from dpacct.fl.training.synthetic import Kind, Maker, synthetic_clients, usual_kind
from dpacct.fl.training.tasks import Trainer

# Examples of the two synthetic clients: two batches and one, of which one is not full. None holds a
# single example, which not every model takes.
_SIZES = (5, 3)
_BATCH = 3
# Where a machine does not repeat its own sums, as much of the norm may differ.
_NOISE = 1e-3
_NOTE = (
    "This was raised while the settings were tried on synthetic clients; nothing is charged. Where "
    "synthetic values are the reason, give Federation(example=...) a synthetic client that will do."
)


class Rehearsal:
    """Every part of a round on synthetic clients.

    Args:
        engine: of the run. chooser: of its trainers. state: where it stands; unchanged.
        example: a synthetic client whose examples are used; None for random values in the dtypes
            and shapes of most clients.
        before: how clients were trained before the run was resumed, None if unknown.

    Attributes:
        make: makes clients of (number of examples, seed).

    Raises:
        Anything that the model or the loss raises.
    """

    def __init__(
        self,
        engine: Engine,
        chooser: TrainerChooser,
        state: TrainingState,
        example: ClientData | None,
        before: TrainingPlan | None = None,
    ) -> None:
        self._engine, self._chooser, self._state = engine, chooser, state
        self._before = before
        with _Noted():
            self._kind = usual_kind(engine.clients) if example is None else Kind.of(example)
            self.make, self._labels = synthetic_clients(
                self._kind, example, chooser.loss, state.params
            )

    def run(self) -> Choice:
        """Try a round, and choose how clients are trained.

        Raises:
            Unsupported: something would reach a release beside the bounded updates.
            InvalidParameter: a method returns something else than it was given.
            Anything that the model, the loss, the method, the bound or the noise raises.
        """
        engine, chooser = self._engine, self._chooser
        with _Noted():
            self._try_model()
            worlds = _Worlds(engine, self._state, self.make)
            worlds.check_alone(chooser.alone)
            choice = self._choice()
            if not choice.plan.vectorized:
                worlds.check_rounds(chooser.alone)
            else:
                worlds.check_alone(chooser.vectorized)
                worlds.check_rounds(chooser.vectorized)
        return choice

    def _choice(self) -> Choice:
        """Choose as before the run was resumed if that is possible, else anew."""
        note = ""
        if self._before is not None:
            try:
                return self.retake(self._before)
            except Unsupported as refusal:
                note = f"not as before the run was resumed ({self._before.reason}): {refusal}"
        engine = self._engine
        everyone = engine.method.everyone_computes
        workers = engine.plan.public.size if everyone else engine.plan.cohort_size
        choice = self._chooser.choose(
            self.make,
            self._kind,
            self._labels,
            engine.broadcast(self._state),
            max(1, round(workers)),
            timed=engine.source.private,
        )
        return replace(choice, note=note)

    def retake(self, plan: TrainingPlan) -> Choice:
        """Choose as another process, or an earlier one, did.

        Raises:
            Unsupported: it is not possible here, or gives other updates.
        """
        broadcast = self._engine.broadcast(self._state)
        return self._chooser.retake(plan, self.make, self._kind, self._labels, broadcast)

    def _try_model(self) -> None:
        """Compute a gradient without the method, so that its errors are those of model or loss."""
        engine, loss = self._engine, self._chooser.loss
        data = self.make(_BATCH, 0)
        batch = Batch(data.inputs.to(engine.device), data.targets.to(engine.device), None)
        broadcast = engine.broadcast(self._state)
        # What a layer prepares when it is first called (a table of positions) is there after it.
        loss.gradient(dict(broadcast.anchor), batch)
        with Isolation(loss, None).around(broadcast) as shown:
            loss.gradient(shown.anchor, batch)


class _Worlds:
    """Three populations of two synthetic clients; the first two share their second client."""

    def __init__(self, engine: Engine, state: TrainingState, make: Maker) -> None:
        first, second = (make(size, seed) for seed, size in enumerate(_SIZES, start=1))
        other, last = make(_SIZES[0], 3), make(_SIZES[1], 4)
        self._state = replace(state, client_states={})
        self._engines = [
            replace(engine, clients=clients, local=_short(engine.local), source=Seeded(0))
            # Somebody else is last as well: what is kept may be of the last one alone.
            for clients in ([first, second], [other, second], [other, last])
        ]

    def check_alone(self, trainer: Trainer) -> None:
        """Refuse training in which one client's update depends on another client.

        Raises:
            Unsupported: it does, or does not send the same twice.
        """
        before = self._rows(0, trainer)
        again = self._rows(0, trainer)
        if not _near(before, again):
            raise Unsupported(
                "the same client sends another update when it is trained again: the model, the "
                "loss or the method keeps something between clients, or has random numbers of its "
                "own. Draw them from the global generators, which are seeded for each client"
            )
        beside = self._rows(1, trainer)[1]
        exact = same_numbers(before, again)
        if not (same_numbers if exact else _near)(before[1], beside):
            raise Unsupported(
                "a client sends another update when the client before it is another one: the "
                "model, the loss or the method keeps something between clients, or mixes them, and "
                "no bound on one client's update covers that"
            )

    def check_rounds(self, trainer: Trainer) -> None:
        """Play two rounds, up to the new model and server state.

        Raises:
            Unsupported: they depend on more than the release.
            InvalidParameter: they are no parameters of this model.
        """
        engine, state = self._engines[0], self._state
        for _ in range(2):
            with forked_generators():
                found = engine.collect(state, self._draw(engine), trainer, len(_SIZES))
            # As many as are planned, so that shares of the noise suffice.
            found.arrived = max(found.arrived, math.ceil(engine.plan.cohort_size))
            release = engine.release(state, found)
            if release is None:
                return
            seed_generators(0, engine.device)
            after = engine.apply(state, release)
            other = self._engines[2]
            with forked_generators():
                other.collect(state, self._draw(other), trainer, len(_SIZES))
            seed_generators(0, engine.device)
            strange = other.apply(state, release)
            _check_same(after, strange)
            check_kind(after, state)
            after.client_states = state.client_states | found.memories
            state = after

    def _draw(self, engine: Engine) -> Draw:
        return engine.draw_for(engine.noise.arrivals(range(len(_SIZES)), engine.source))

    def _rows(self, world: int, trainer: Trainer) -> Tensor:
        engine = self._engines[world]
        tasks = [engine.task(client, self._state, 0) for client in range(len(_SIZES))]
        return trainer.train(tasks, engine.broadcast(self._state))


def _short(local: SGD) -> SGD:
    """Return the same training in few and small steps."""
    size = local.batch_size and min(local.batch_size, _BATCH)
    if local.steps is None:
        return replace(local, epochs=1, batch_size=size)
    return replace(local, steps=min(local.steps, 2), batch_size=size)


def _check_same(state: TrainingState, other: TrainingState) -> None:
    for what, ours, theirs in (
        ("the new parameters", state.params, other.params),
        ("the new server state", state.server_state, other.server_state),
    ):
        same = ours.keys() == theirs.keys()
        if not same or not all(same_numbers(ours[name], theirs[name]) for name in ours):
            raise Unsupported(
                f"{what} differ between clients whose release is the same: the method keeps "
                "something of their data beside it"
            )


def check_kind(after: TrainingState, before: TrainingState) -> None:
    """Check that the parameters after a round fit the model.

    Raises:
        InvalidParameter: they are not.
    """
    for name, value in after.params.items():
        was = before.params[name]
        if value.shape != was.shape or value.dtype != was.dtype:
            rule = f"{name} is {was.dtype} of shape {tuple(was.shape)}"
            raise InvalidParameter("server", (value.dtype, tuple(value.shape)), rule)


def _near(ours: Tensor, theirs: Tensor) -> bool:
    if same_numbers(ours, theirs):
        return True
    return bool(norm(ours - theirs) <= _NOISE * norm(ours))


class _Noted:
    """Adds a note to an error: it was raised on synthetic clients."""

    def __enter__(self) -> None:
        return

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(_NOTE)


# Coordinates of a bound's updates in all, and at least so many updates.
_COORDINATES, _LEAST = 1 << 21, 2
# Coordinates of a release, of which so many are drawn.
_SHORT, _DRAWS = 4096, 3
_COUNTS = 256


@undisturbed()
def preflight(engine: Engine, state: TrainingState) -> Audit:
    """Check bound, noise, denominator and charge of a run.

    Args:
        engine: of the run. state: where it stands.
    Returns:
        The findings: ``bound``, ``charge``, ``noise``, ``empty cohort``, ``fresh``,
        ``denominator``; ``joint charge`` and ``indicator`` for an adaptive clip norm. None for a
        method that does what a paper prints, whose epsilon is infinite.
    Raises:
        Whatever the model, the loss or the method raises.
    """
    if reproduces(engine.method):
        return Audit(())
    replayed = replace(engine, source=Seeded(20))
    like = next(iter(state.params.values()))
    tried = max(_LEAST, _COORDINATES // max(engine.layout.size, 1))
    return Audit(
        (
            check_bound(state.bound, engine.layout, engine.plan.contributions, like, tried),
            *check_charge(engine.plan, state.bound, engine.noise),
            *_noise(_Releases(replayed, state)),
        )
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Releases:
    """Releases of sums that are zero, few coordinates long, in units of the sum."""

    engine: Engine
    state: TrainingState

    def std(self, arrived: int) -> float | None:
        """Return the charged std for so many contributions; None if nothing may be released."""
        plan = self.engine.plan
        return drawn_std(self.engine.noise, plan.update_std(self.state.bound), arrived)

    def draw(self, arrived: int, size: int, count: int) -> Iterator[tuple[Draws, float]]:
        """Draw noise on the sum, and on the sum of the indicators (zero without any)."""
        engine, device = replace(self.engine, source=Seeded(21)), self.engine.device
        for _ in range(count):
            noise = engine.noise
            found = Collected(noise.zeros(size, device), noise.zeros(1, device), None, arrived)
            release = engine.release(self.state, found)
            if release is None:
                yield np.full(size, math.nan), math.nan
            else:
                vector = release.mean.vector.double().cpu() * engine.plan.cohort_size
                yield vector.numpy(), release.indicator_sum or 0.0


def _noise(releases: _Releases) -> Iterator[Finding]:
    """Check spread, law and freshness of the noise, and the divisor."""
    planned = math.ceil(releases.engine.plan.cohort_size)
    scaled: list[Draws] = []
    for name, arrived in (("noise", planned), ("empty cohort", 0)):
        std = releases.std(arrived)
        if std is None:
            continue
        draws = np.stack([noise for noise, _ in releases.draw(arrived, _SHORT, _DRAWS)])
        if not np.isfinite(draws).all():
            yield Finding(name, passed=False, detail="nothing was released")
            continue
        wrong = wrong_std(draws, std) or wrong_mean(draws, std) or wrong_shape(draws, std)
        detail = f"standard deviation {std:.6g} over {draws.size} values, as charged"
        yield Finding(name, not wrong, wrong or detail)
        again = repeated(draws)
        yield Finding("fresh", not again, again or "no noise came twice")
        scaled.append(draws / std)
    same = len(scaled) < 2 or bool(np.allclose(*scaled, rtol=1e-4, atol=1e-4))
    detail = "the sum is divided by the planned cohort, whoever comes"
    yield Finding("denominator", same, detail if same else "the release depends on how many came")
    std = releases.engine.plan.indicator_std(releases.state.bound)
    own = None if std is None else drawn_std(releases.engine.noise, std, planned)
    if own is not None:
        counts = np.array([[count] for _, count in releases.draw(planned, 1, _COUNTS)])
        wrong = wrong_std(counts, own) or wrong_mean(counts, own)
        detail = f"its noise has standard deviation {own:.6g}, as charged"
        yield Finding("indicator", not wrong, wrong or detail)
