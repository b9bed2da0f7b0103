"""One round on synthetic clients, before anything is charged.

Rule 1: an error of the model, the loss, the method or a setting is raised here, and costs nothing.
Rule 2: a client's update must not depend on the clients before it, nor the next state on anything
but the release. Both are compared between populations that differ in the other clients. This also
finds state that `dpacct.fl.training.tasks` misses. Rule 3: no example of a client is used.

The cost does not grow with cohort, rounds or local steps. `dpacct.fl.audit` looks longer, and tests
the noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.engine import Engine, for_rehearsal
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import copies
from dpacct.fl.local.sgd import SHORT_BATCH, Batch
from dpacct.fl.methods.protocol import check_client, check_server, moves_plainly, overrides
from dpacct.fl.privacy.bounds import PerLayerClip
from dpacct.fl.privacy.findings import Audit, check_bound
from dpacct.fl.privacy.masks import Dense
from dpacct.fl.privacy.sums import scales_rows
from dpacct.fl.tensors import (
    forked_generators,
    near_numbers,
    same_numbers,
    seed_generators,
    undisturbed,
)
from dpacct.fl.training.choose import Choice, TrainerChooser, TrainingMode
from dpacct.fl.training.synthetic import Kind, synthetic_clients, usual_kind
from dpacct.fl.training.tasks import Isolation, Trainer
from dpacct.rounds import Full, Uniform

# Examples of the two synthetic clients: two batches, of which one is not full, and one batch. None
# holds a single example, which not every model takes.
_SIZES = (5, 2)
# Coordinates of all updates of the bound's check, and the least number of updates.
_COORDINATES, _LEAST = 1 << 21, 2
# Coordinates of a tensor on which a bound of this package is tried. Others are tried on all.
_LARGEST = 1 << 10
_NOTE = (
    "This was raised while the settings were tried on synthetic clients. Nothing is charged. If "
    "synthetic values are the reason, give Federation(example=...) a synthetic client that will do."
)


class Rehearsal:
    """Every part of a round on synthetic clients.

    ``example`` is a synthetic client with the examples to use. None takes random values in the
    dtypes and shapes of most clients. ``before`` is how clients were trained before a resume.
    """

    def __init__(
        self,
        engine: Engine,
        chooser: TrainerChooser,
        state: TrainingState,
        example: ClientData | None,
        before: TrainingMode | None = None,
    ) -> None:
        self._engine, self._chooser, self._before = engine, chooser, before
        self._state = replace(state, client_states={}, noise=None)
        with _Noted():
            kind = usual_kind(engine.clients) if example is None else Kind.of(example)
            self._synthetic = synthetic_clients(kind, example, chooser.loss, state.params)
        make = self._synthetic.make
        first, second = (make(size, seed) for seed, size in enumerate(_SIZES, start=1))
        other, last = make(_SIZES[0], 3), make(_SIZES[1], 4)
        # The first two populations share their second client. In the third another client is last
        # as well: a method may keep something of the last client alone.
        self._worlds = [
            replace(for_rehearsal(engine), clients=clients, local=engine.local.short())
            for clients in ([first, second], [other, second], [other, last])
        ]

    def run(self) -> Choice:
        """Try a round, and choose how clients are trained. Errors of all parts surface. Rule 1."""
        chooser = self._chooser
        with _Noted():
            self._try_model()
            require_bound(self._engine, self._state)
            # The last client alone, and then behind another one.
            self._check_alone(chooser.alone, [1])
            engine = self._engine
            everyone = engine.method.everyone_computes
            workers = engine.plan.public.size if everyone else engine.plan.cohort_size
            choice = chooser.choose(
                self._synthetic,
                engine.broadcast(self._state),
                max(1, round(workers)),
                # Only these cohorts have one size.
                varies=not (everyone or isinstance(engine.plan.sampling, Full | Uniform)),
                timed=engine.source.private,
                before=self._before,
            )
            trainer = chooser.vectorized if choice.plan.vectorized else chooser.alone
            if choice.plan.vectorized:
                self._check_alone(trainer, [0, 1])
            self._check_rounds(trainer)
        return choice

    def _try_model(self) -> None:
        """Compute a gradient without the method, whose errors are those of model or loss.

        Then the method's own members answer.
        """
        engine, loss = self._engine, self._chooser.loss
        size = min(_SIZES[-1], engine.local.batch_size or SHORT_BATCH)
        data = self._synthetic.make(size, 0).map(lambda values: values.to(engine.device))
        batch = Batch(data.inputs, data.targets, None)
        broadcast = engine.broadcast(self._state)
        # A layer that prepares something when it is first called, like a table of positions, has
        # done so for `synthetic_clients`.
        with Isolation(loss).around(broadcast) as shown:
            loss.gradient(shown.anchor, batch)
            task = self._worlds[0].task(0, self._state, 0)
            check_client(engine.method, loss, batch, shown.context_of(task))

    def _check_alone(self, trainer: Trainer, clients: Sequence[int]) -> None:
        """Refuse training in which the update of the last client depends on another one. Rule 2."""
        before, beside = self._rows(0, trainer, clients)[-1], self._rows(1, trainer, [0, 1])[-1]
        if same_numbers(before, beside):
            # Trained again, and behind another client, it has sent the same bits.
            return
        again = self._rows(0, trainer, clients)[-1]
        if not near_numbers(before, again):
            raise Unsupported(
                "the same client sends another update when it is trained again: the model, the "
                "loss or the method keeps something between clients, or has random numbers of its "
                "own. Draw them from the global generators, which are seeded for each client"
            )
        same = same_numbers if same_numbers(before, again) else near_numbers
        if not same(before, beside):
            raise Unsupported(
                "a client sends another update when the client before it is another one: the "
                "model, the loss or the method keeps something between clients, or mixes them, and "
                "no bound on one client's update covers that"
            )

    def _check_rounds(self, trainer: Trainer) -> None:
        """Run two rounds, and refuse a new state that depends on more than the release. Rule 2."""
        (engine, _, other), state = self._worlds, self._state
        # If the release alone moves the model, all clients are alike: the smaller one will do.
        everyone = [len(_SIZES) - 1] if moves_alone(engine) else range(len(_SIZES))
        for _ in range(2):
            with forked_generators():
                collected = engine.collect(state, engine.draw_for(everyone), trainer, len(_SIZES))
            # The planned number, so that shares of the noise suffice.
            collected.arrived = max(collected.arrived, math.ceil(engine.plan.cohort_size))
            release = engine.release(state, collected)
            if release is None:
                return
            public = copies(engine.broadcast(state).server_state)
            mean = release.mean.map(torch.clone)
            check_server(engine.method, copies(state.params), mean, public)
            seed_generators(0, engine.device)
            after = engine.apply(state, release)
            if moves_alone(engine):
                check_kind(after, state)
                return
            with forked_generators():
                other.collect(state, other.draw_for(everyone), trainer, len(_SIZES))
            seed_generators(0, engine.device)
            strange = other.apply(state, release)
            for what, ours, theirs in (
                ("the new parameters", after.params, strange.params),
                ("the new server state", after.server_state, strange.server_state),
            ):
                same = ours.keys() == theirs.keys()
                if not same or not all(same_numbers(ours[name], theirs[name]) for name in ours):
                    raise Unsupported(
                        f"{what} differ between clients whose release is the same: the method "
                        "keeps something of their data"
                    )
            check_kind(after, state)
            after.client_states = state.client_states | collected.memories
            state = after

    def _rows(self, world: int, trainer: Trainer, clients: Sequence[int]) -> Tensor:
        engine, state = self._worlds[world], self._state
        tasks = [engine.task(client, state, 0) for client in clients]
        return trainer.train(tasks, engine.broadcast(state))


def moves_alone(engine: Engine) -> bool:
    """Return whether the release alone moves the parameters, and rounds are alike."""
    method, parts = engine.method, (engine.server, engine.average)
    own = ("gradient", "after_step", "local_update", "init_client", "client_state")
    plain = moves_plainly(method) and type(method.mask) is Dense
    return plain and parts == (None, None) and not any(overrides(method, name) for name in own)


@undisturbed()
def require_bound(engine: Engine, state: TrainingState) -> None:
    """Refuse a bound that lets updates be too long, or looks at more than one at a time."""
    like, layout, bound = next(iter(state.params.values())), engine.layout, state.bound
    if scales_rows(bound) or type(bound) is PerLayerClip:
        # They read of a layout the number of its tensors, and treat coordinates of a tensor alike.
        layout = replace(layout, sizes=tuple(min(size, _LARGEST) for size in layout.sizes))
    tried = max(_LEAST, _COORDINATES // max(layout.size, 1))
    finding = check_bound(bound, layout, engine.plan.contributions, like, tried)
    Audit((finding,)).require()


def check_kind(after: TrainingState, before: TrainingState) -> None:
    """Refuse parameters after a round that do not fit the model."""
    for name, value in after.params.items():
        was = before.params[name]
        if value.shape != was.shape or value.dtype != was.dtype:
            rule = f"{name} is {was.dtype} of shape {tuple(was.shape)}"
            raise InvalidParameter("server", (value.dtype, tuple(value.shape)), rule)


class _Noted:
    """Adds a note to an error: it was raised on synthetic clients."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            error.add_note(_NOTE)
