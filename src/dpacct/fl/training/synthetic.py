"""Synthetic clients: of the public dtypes and shapes of examples, with values of no client.

Rule 1: dtypes and shapes are declared by an example client, or are those of most of the first few
clients. One client cannot change such a vote unless it is close. Rule 2: nothing else of the
clients is read before a round is charged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData, Population, checked, each, parts_of
from dpacct.fl.layout import Params, copies
from dpacct.fl.local.losses import Labels, LocalLoss
from dpacct.fl.local.sgd import Batch, Batches, plan_batches
from dpacct.fl.methods.protocol import Method
from dpacct.fl.training.tasks import Broadcast, Task, Trial

_VOTERS, _ASKED = 5, 32
_TRIED = 2
_STEPS = 3
# If a model holds no embedding, whole numbers are most likely flags or bytes.
_FEW = 2


@dataclass(frozen=True, slots=True)
class Kind:
    """dtype and shape of an example's inputs, by name, and target. ``none`` has no examples."""

    forms: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    none: ClientData = field(compare=False, repr=False)

    @classmethod
    def of(cls, data: ClientData) -> Kind:
        """Return the kind of a client's examples."""
        return cls(_forms(data), data.map(lambda values: values[:0].detach()))

    def fits(self, data: ClientData) -> bool:
        """Return True if a client's examples are of this kind."""
        return _forms(data) == self.forms

    def zeros(self, count: int) -> ClientData:
        """Return ``count`` examples of zeros."""
        return self.none.map(
            lambda values: torch.zeros((count, *values.shape[1:]), dtype=values.dtype)
        )


def _forms(data: ClientData) -> tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]:
    tensors = [*parts_of(data.inputs), (type(data.inputs).__name__, data.targets)]
    return tuple((name, value.dtype, value.shape[1:]) for name, value in tensors)


def usual_kind(clients: Population) -> Kind:
    """Return the most frequent kind of the first few readable clients, the first in a tie.

    If none can be read, the error of the first one is raised: it is no matter of a client.
    """
    votes: Counter[Kind] = Counter()
    first: Exception | None = None
    for client in range(min(len(clients), _ASKED)):
        with Trial() as trial:
            votes[Kind.of(checked(clients[client]))] += 1
        first = first or trial.error
        if votes.total() == _VOTERS:
            break
    if not votes and first is not None:
        raise first
    return votes.most_common(1)[0][0]


@dataclass(frozen=True, slots=True)
class Synthetic:
    """Synthetic clients of one kind, which ``make`` makes from (number of examples, seed).

    ``labels`` are those of the targets of real clients, None for any.
    """

    make: Callable[[int, int], ClientData]
    kind: Kind
    labels: Labels | None


def synthetic_clients(
    kind: Kind, example: ClientData | None, loss: LocalLoss, params: Params
) -> Synthetic:
    """Return synthetic clients, or raise an error of the model or the loss.

    With an ``example`` they hold its examples. Otherwise values are random if the model and the
    loss take them, else zero. They are reals in [0, 1), whole numbers below the smallest embedding,
    and labels below the number of outputs.
    """
    device = next(iter(params.values())).device

    def tried(make: Callable[[int, int], ClientData], outputs: Tensor | None = None) -> Synthetic:
        data = make(_TRIED, 0).map(lambda values: values.to(device))
        outputs = loss.outputs(copies(params), data.inputs) if outputs is None else outputs
        loss.of_outputs(outputs, Batch(data.inputs, data.targets, None))
        return Synthetic(make, kind, Labels.of(loss, outputs, data.targets))

    if example is not None:
        if not len(example):
            raise InvalidParameter("example", 0, "an example client has at least one example")

        def resampled(count: int, seed: int) -> ClientData:
            generator = torch.Generator().manual_seed(seed)
            rows = torch.randint(len(example), (count,), generator=generator)
            return example.map(lambda values: values.cpu()[rows])

        return tried(resampled)
    embeddings = (nn.Embedding, nn.EmbeddingBag)
    layers = [layer for layer in loss.model.modules() if isinstance(layer, embeddings)]
    tokens = min((layer.num_embeddings for layer in layers), default=_FEW)

    def random(count: int, seed: int, classes: int = 1) -> ClientData:
        generator = torch.Generator().manual_seed(seed)

        def drawn(like: Tensor, below: int) -> Tensor:
            return _random((count, *like.shape[1:]), like.dtype, below, generator)

        inputs = each(kind.none.inputs, lambda like: drawn(like, tokens))
        return ClientData(inputs, drawn(kind.none.targets, classes))

    with Trial():
        tried_inputs = each(random(_TRIED, 0).inputs, lambda values: values.to(device))
        outputs = loss.outputs(copies(params), tried_inputs)
        many = outputs.ndim == kind.none.targets.ndim + 1
        classes = outputs.shape[1] if many else 1
        return tried(lambda count, seed: random(count, seed, classes), outputs)

    def zeros(count: int, seed: int) -> ClientData:
        del seed
        return kind.zeros(count)

    return tried(zeros)


def synthetic_task(data: ClientData, method: Method, broadcast: Broadcast) -> Task:
    """Return the task of a synthetic client, with a few steps of its local training."""
    device, seed = broadcast.device, len(data)
    plan = plan_batches(len(data), broadcast.local, torch.Generator().manual_seed(seed))
    # The step with the smallest batch is among them: its padding may go wrong.
    chosen = sorted({*range(min(_STEPS - 1, plan.steps)), int(plan.counts.argmin())})
    state = method.init_client(copies(broadcast.anchor))
    return Task(
        data.map(lambda values: values.to(device)),
        Batches(plan.indices[chosen], plan.counts[chosen]),
        None if state is None else copies(state),
        seed,
    )


def _random(
    shape: tuple[int, ...], dtype: torch.dtype, below: int, generator: torch.Generator
) -> Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.rand(shape, generator=generator).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    return torch.randint(below, shape, generator=generator).to(dtype)
