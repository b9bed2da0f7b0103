"""Models, losses and methods that carry one client's data past the bound, each by another way.

What they write down comes from the inputs that they see; whoever trains after that client, or holds
the released model, could read it. None of them does so by a file or a socket: nothing that runs in
the same process can be kept from that.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpacct.fl.methods.protocol import Method

FEATURES, CLASSES, WORDS = 6, 3, 12
cross_entropy = nn.functional.cross_entropy
SHELF: list[Tensor] = []


def mark(inputs: Tensor) -> Tensor:
    """What is written down: a number that tells one client's inputs from another's."""
    return inputs.detach().double().abs().mean().float()


class Linear(nn.Module):
    """A linear layer, and a place to do something else besides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, CLASSES)
        self.frozen = nn.Parameter(torch.zeros(CLASSES), requires_grad=False)
        self.register_buffer("seen", torch.zeros(CLASSES))
        self.prepare()

    def prepare(self) -> None:
        """What a hostile model keeps."""

    def spy(self, inputs: Tensor) -> Any:
        """What it does with what it sees; what comes back is added to the outputs."""
        return 0.0

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.layer(inputs) + self.frozen + self.seen
        # What is added to all outputs alike is no change to a cross entropy.
        return found + self.spy(inputs) * torch.arange(CLASSES)


MODELS: dict[str, Callable[[], nn.Module]] = {}
METHODS: dict[str, Callable[[], Method]] = {}
LOSSES: dict[str, Callable[[nn.Module], Any]] = {}
# Those whose harm stays with the client that does it.
HARMLESS = {
    "writes to its inputs",
    "writes to its own copy after a step",
    "returns the anchor",
    "a memory written in place",
    "all contributions behind one",
    "a seed",
    "a seed for torch",
    "a seed for Python",
    "a seed for numpy",
}


def model(name: str) -> Callable[[type[nn.Module]], type[nn.Module]]:
    def keep(made: type[nn.Module]) -> type[nn.Module]:
        MODELS[name] = made
        return made

    return keep


def method(name: str) -> Callable[[Any], Any]:
    def keep(made: Any) -> Any:
        METHODS[name] = made
        return made

    return keep


class Words(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = layer
        self.head = nn.Linear(4, CLASSES)
        with torch.no_grad():
            layer.weight.mul_(3)

    def forward(self, inputs: Tensor) -> Tensor:
        found = self.embedding(inputs)
        return self.head(found if found.ndim == 2 else found.mean(dim=1))


MODELS["embedding with max_norm"] = lambda: Words(nn.Embedding(WORDS, 4, max_norm=1.0))
MODELS["bag of embeddings with max_norm"] = lambda: Words(nn.EmbeddingBag(WORDS, 4, max_norm=1.0))
READS_WORDS = {"embedding with max_norm", "bag of embeddings with max_norm"}


@model("spectral norm")
class Spectral(Linear):
    def prepare(self) -> None:
        nn.utils.parametrizations.spectral_norm(self.layer)


@model("frozen mean")
class FrozenMean(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.frozen.mul_(0.9).add_(0.1 * mark(inputs))
        return 0.0


@model("frozen mean past the counter")
class FrozenData(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.frozen.data += mark(inputs)
        return 0.0


@model("buffer")
class BufferMean(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.seen.add_(mark(inputs))
        return 0.0


@model("buffer as an array")
class BufferArray(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.seen.numpy()[:] = float(mark(inputs))
        return 0.0


@model("weight.data")
class WeightData(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.layer.weight.data[0] = mark(inputs)
        return 0.0


@model("weight.detach()")
class WeightDetach(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.layer.weight.detach()[0].copy_(mark(inputs))
        return 0.0


@model("weight as an array")
class WeightArray(Linear):
    def spy(self, inputs: Tensor) -> Any:
        self.layer.weight.detach().numpy()[0] = float(mark(inputs))
        return 0.0


@model("weight's storage")
class WeightStorage(Linear):
    def spy(self, inputs: Tensor) -> Any:
        storage = self.layer.weight.detach().untyped_storage()
        value = torch.full((1,), float(mark(inputs)))
        storage[:4].copy_(value.untyped_storage())
        return 0.0


@model("weight under no_grad")
class WeightNoGrad(Linear):
    def spy(self, inputs: Tensor) -> Any:
        with torch.no_grad():
            self.layer.weight[0].copy_(mark(inputs))
        return 0.0


@model("a second name for the weight")
class SecondName(Linear):
    def prepare(self) -> None:
        self.names = [self.layer.weight]

    def spy(self, inputs: Tensor) -> Any:
        before = self.names[0].data[0, 0].clone()
        self.names[0].data[0] = mark(inputs)
        return before


@model("swapped tensors")
class Swapped(Linear):
    def prepare(self) -> None:
        self.names = [self.frozen]

    def spy(self, inputs: Tensor) -> Any:
        before = self.names[0].data[0].clone()
        other = nn.Parameter(torch.full((CLASSES,), float(mark(inputs))), requires_grad=False)
        torch.utils.swap_tensors(self.names[0], other)
        return before


@model("a gradient left behind")
class LeftGradient(Linear):
    def prepare(self) -> None:
        self.names = [self.layer.bias]

    def spy(self, inputs: Tensor) -> Any:
        before = 0.0 if self.names[0].grad is None else self.names[0].grad.clone()
        self.names[0].grad = mark(inputs).expand(CLASSES).clone()
        return before


@model("an attribute of a tensor")
class TensorAttribute(Linear):
    def prepare(self) -> None:
        self.names = [self.layer.bias]

    def spy(self, inputs: Tensor) -> Any:
        before = getattr(self.names[0], "note", 0.0)
        self.names[0].note = mark(inputs)
        return before


@model("an attribute")
class Attribute(Linear):
    last = 0.0

    def spy(self, inputs: Tensor) -> Any:
        before, self.last = self.last, mark(inputs)
        return before


@model("a number")
class Number(Linear):
    calls = 0

    def spy(self, inputs: Tensor) -> Any:
        self.calls += int(1000 * float(mark(inputs)))
        return 1e-4 * self.calls


@model("a list")
class Listed(Linear):
    def prepare(self) -> None:
        self.history: list[Tensor] = []

    def spy(self, inputs: Tensor) -> Any:
        self.history.append(mark(inputs))
        return torch.stack(self.history).mean()


@model("a dictionary in a dictionary")
class Nested(Linear):
    def prepare(self) -> None:
        self.cache: dict[str, dict[str, Any]] = {"mean": {"value": torch.zeros(())}}

    def spy(self, inputs: Tensor) -> Any:
        before = self.cache["mean"]["value"]
        self.cache["mean"]["value"] = mark(inputs)
        return before


@model("a plain tensor in place")
class PlainTensor(Linear):
    def prepare(self) -> None:
        self.cache = {"sum": torch.zeros(CLASSES)}

    def spy(self, inputs: Tensor) -> Any:
        before = self.cache["sum"].clone()
        self.cache["sum"].data.add_(mark(inputs))
        return before


@model("an array")
class Array(Linear):
    def prepare(self) -> None:
        self.cache = np.zeros(CLASSES, dtype=np.float32)

    def spy(self, inputs: Tensor) -> Any:
        before = torch.tensor(self.cache.copy())
        self.cache += float(mark(inputs))
        return before


@model("an object with slots")
class Slotted(Linear):
    class Note:
        __slots__ = ("value",)

    def prepare(self) -> None:
        self.note = self.Note()
        self.note.value = 0.0

    def spy(self, inputs: Tensor) -> Any:
        before, self.note.value = self.note.value, float(mark(inputs))
        return before


@model("an attribute of the class")
class OfTheClass(Linear):
    last = 0.0

    def spy(self, inputs: Tensor) -> Any:
        before, type(self).last = self.last, float(mark(inputs))
        return before


@model("a global list")
class Global(Linear):
    def spy(self, inputs: Tensor) -> Any:
        SHELF.append(mark(inputs))
        return SHELF[-2] if len(SHELF) > 1 else 0.0


@model("a hook's closure")
class Hooked(Linear):
    def prepare(self) -> None:
        kept: dict[str, Tensor] = {}

        def hook(_: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor:
            before = kept.get("last", torch.zeros(()))
            kept["last"] = mark(inputs[0])
            return outputs + before

        self.layer.register_forward_hook(hook)


@model("a hook that is added")
class AddsHooks(Linear):
    def spy(self, inputs: Tensor) -> Any:
        shift = mark(inputs)
        self.layer.register_forward_hook(lambda _, __, outputs: outputs + shift)
        return 0.0


@model("a parameter that is replaced")
class Replaced(Linear):
    def prepare(self) -> None:
        self.scale = nn.Identity()

    def spy(self, inputs: Tensor) -> Any:
        before = getattr(self.scale, "value", torch.zeros(CLASSES))
        self.scale.value = nn.Parameter(mark(inputs).expand(CLASSES).clone(), requires_grad=False)
        return before


@model("a cache of functools")
class Cached(Linear):
    def prepare(self) -> None:
        self.shelf = functools.cache(lambda: [torch.zeros(())])

    def spy(self, inputs: Tensor) -> Any:
        self.shelf().append(mark(inputs))
        return self.shelf()[-2]


@model("a counter of itertools")
class Counted(Linear):
    def prepare(self) -> None:
        self.counter = itertools.count()

    def spy(self, inputs: Tensor) -> Any:
        return 0.1 * next(self.counter)


@model("a generator of its own")
class OwnGenerator(Linear):
    def prepare(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def spy(self, inputs: Tensor) -> Any:
        found = torch.rand(CLASSES, generator=self.generator)
        self.generator.manual_seed(int(1e6 * float(mark(inputs))))
        return found


@model("a seed for torch")
class SeedsTorch(Linear):
    def spy(self, inputs: Tensor) -> Any:
        found = torch.rand(CLASSES)
        torch.manual_seed(int(1e6 * float(mark(inputs))))
        return found


@model("a seed for Python")
class SeedsPython(Linear):
    def spy(self, inputs: Tensor) -> Any:
        found = random.random()  # noqa: S311 - a model's noise
        random.seed(int(1e6 * float(mark(inputs))))
        return found


@model("a seed for numpy")
class SeedsNumpy(Linear):
    def spy(self, inputs: Tensor) -> Any:
        found = np.random.random()  # noqa: NPY002 - the global generator
        np.random.seed(int(1e6 * float(mark(inputs))) % 2**32)  # noqa: NPY002
        return found


@model("training mode")
class Mode(Linear):
    def prepare(self) -> None:
        self.dropout = nn.Dropout(0.5)

    def spy(self, inputs: Tensor) -> Any:
        self.dropout.train(bool(mark(inputs) < 1.0))
        return 0.0


@model("a layer's setting")
class Setting(Linear):
    def prepare(self) -> None:
        self.dropout = nn.Dropout(0.0)

    def spy(self, inputs: Tensor) -> Any:
        found = self.dropout(torch.ones(CLASSES))
        self.dropout.p = min(0.9, float(mark(inputs)) / 10)
        return found


@model("writes only when it sees a certain client")
class Conditional(Linear):
    def spy(self, inputs: Tensor) -> Any:
        if mark(inputs) > 2.0:
            self.frozen.data += mark(inputs)
        return 0.0


@model("keeps a note only of a certain client")
class ConditionalNote(Linear):
    note: Any = 0.0

    def spy(self, inputs: Tensor) -> Any:
        before = self.note
        if mark(inputs) > 2.0:
            self.note = mark(inputs)
        return before


@model("writes to its inputs")
class WritesInputs(Linear):
    def spy(self, inputs: Tensor) -> Any:
        inputs.data.mul_(0.5)
        return 0.0


def _batch_mark(batch: Any) -> Tensor:
    return mark(batch.inputs)


@method("gradient writes to params")
@dataclass(frozen=True)
class WritesParams(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        for value in params.values():
            value.data.add_(_batch_mark(batch))
        return found


@method("gradient writes to the anchor")
@dataclass(frozen=True)
class WritesAnchor(Method):
    def gradient(self, loss, params, batch, context):
        for value in context.anchor.values():
            value.add_(_batch_mark(batch))
        return loss.gradient(params, batch)


@method("local_update writes to the anchor's storage")
@dataclass(frozen=True)
class WritesStorage(Method):
    def local_update(self, delta, client_state, context):
        value = next(iter(context.anchor.values()))
        value.detach().view(-1).numpy()[0] = float(delta.sum())
        return delta


@method("after_step writes to the anchor")
@dataclass(frozen=True)
class StepWritesAnchor(Method):
    def after_step(self, params, context):
        for name, value in context.anchor.items():
            value.data.copy_(params[name])
        return params


@method("writes to its own copy after a step")
@dataclass(frozen=True)
class WritesOwn(Method):
    def after_step(self, params, context):
        for value in params.values():
            value.mul_(0.5)
        return params


@method("returns the anchor")
@dataclass(frozen=True)
class ReturnsAnchor(Method):
    def after_step(self, params, context):
        return dict(context.anchor)


@method("server state in gradient")
@dataclass(frozen=True)
class WritesServerState(Method):
    def init(self, params):
        return {"mean": torch.zeros(())}

    def gradient(self, loss, params, batch, context):
        context.server_state["mean"].data.add_(_batch_mark(batch))
        return loss.gradient(params, batch)

    def server(self, params, noised, server_state):
        moved, _ = Method.server(self, params, noised, server_state)
        return {n: v + server_state["mean"] for n, v in moved.items()}, server_state


@method("server state in client_state")
@dataclass(frozen=True)
class MemoryWritesServer(WritesServerState):
    def gradient(self, loss, params, batch, context):
        return loss.gradient(params, batch)

    def init_client(self, params):
        return {"sum": torch.zeros(())}

    def local_update(self, delta, client_state, context):
        return delta

    def client_state(self, client_state, bounded, context):
        context.server_state["mean"].data.add_(bounded.sum())
        return client_state


@method("keeps what init was given")
class KeepsInit(Method):
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def init(self, params):
        self.kept.update(params)
        return {}

    def gradient(self, loss, params, batch, context):
        for value in self.kept.values():
            value.data.add_(_batch_mark(batch))
        return loss.gradient(params, batch)


@method("keeps what server returned")
class KeepsServer(Method):
    def __init__(self) -> None:
        self.kept: dict[str, Tensor] = {}

    def server(self, params, noised, server_state):
        moved, state = Method.server(self, params, noised, server_state)
        self.kept = moved
        return moved, state

    def gradient(self, loss, params, batch, context):
        for value in self.kept.values():
            value.data.add_(_batch_mark(batch))
        return loss.gradient(params, batch)


@method("keeps the release")
class KeepsRelease(Method):
    def __init__(self) -> None:
        self.kept: list[Tensor] = []

    def post(self, noised, server_state):
        self.kept = [noised.vector]
        return noised

    def gradient(self, loss, params, batch, context):
        for value in self.kept:
            value.data.add_(_batch_mark(batch))
        return loss.gradient(params, batch)


@method("an attribute of a frozen method")
@dataclass(frozen=True)
class FrozenAttribute(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        before = getattr(self, "last", 0.0)
        object.__setattr__(self, "last", float(_batch_mark(batch)))
        return {name: value + before for name, value in found.items()}


@method("a list in a frozen method")
@dataclass(frozen=True)
class FrozenList(Method):
    notes: list[float] = field(default_factory=list)

    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        self.notes.append(float(_batch_mark(batch)))
        return {name: value + sum(self.notes) for name, value in found.items()}


@method("an attribute of the method's class")
@dataclass(frozen=True)
class MethodClass(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        before = getattr(type(self), "last", 0.0)
        type(self).last = float(_batch_mark(batch))
        return {name: value + before for name, value in found.items()}


@method("a sum that the server adds")
class ServerSum(Method):
    def __init__(self) -> None:
        self.sum = 0.0

    def gradient(self, loss, params, batch, context):
        self.sum += float(_batch_mark(batch))
        return loss.gradient(params, batch)

    def server(self, params, noised, server_state):
        moved, state = Method.server(self, params, noised, server_state)
        return {name: value + self.sum for name, value in moved.items()}, state


@method("one memory for all clients")
class SharedMemory(Method):
    def __init__(self) -> None:
        self.shared = torch.zeros(())

    def init_client(self, params):
        return {"sum": self.shared}

    def gradient(self, loss, params, batch, context):
        self.shared.data.add_(_batch_mark(batch))
        return loss.gradient(params, batch)

    def local_update(self, delta, client_state, context):
        return delta + client_state["sum"]

    def client_state(self, client_state, bounded, context):
        return {"sum": self.shared}


@method("a memory written in place")
@dataclass(frozen=True)
class MemoryInPlace(Method):
    start: Tensor = field(default_factory=lambda: torch.zeros(()))

    def init_client(self, params):
        return {"sum": self.start}

    def local_update(self, delta, client_state, context):
        client_state["sum"].data.add_(delta.sum())
        return delta + client_state["sum"]


@method("all contributions behind one")
@dataclass(frozen=True)
class LooksBehind(Method):
    def init_client(self, params):
        return {"sum": torch.zeros(())}

    def local_update(self, delta, client_state, context):
        return delta + client_state["sum"]

    def client_state(self, client_state, bounded, context):
        whole = bounded if bounded._base is None else bounded._base
        return {"sum": whole.sum()}


@method("entries of the anchor")
@dataclass(frozen=True)
class AnchorEntries(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        before = context.anchor.get("note", 0.0)
        context.anchor["note"] = _batch_mark(batch)
        return {name: value + before for name, value in found.items()}


@method("a gradient on the anchor")
@dataclass(frozen=True)
class AnchorGradient(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        value = next(iter(context.anchor.values()))
        before = 0.0 if value.grad is None else float(value.grad.sum())
        value.grad = torch.full_like(value, float(_batch_mark(batch)))
        return {name: each + before for name, each in found.items()}


@method("a seed")
@dataclass(frozen=True)
class Seeds(Method):
    def gradient(self, loss, params, batch, context):
        found = loss.gradient(params, batch)
        shift = float(torch.rand(()))
        torch.manual_seed(int(1e6 * float(_batch_mark(batch))))
        return {name: value + shift for name, value in found.items()}


def _closure(_: nn.Module) -> Any:
    kept: list[float] = []

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        kept.append(float(mark(outputs)))
        return cross_entropy(outputs, targets) * (1 + sum(kept))

    return loss


class CallableLoss:
    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = cross_entropy(outputs, targets) * self.scale
        self.scale = 1.0 + float(mark(outputs))
        return found


class ModuleLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        found = cross_entropy(outputs, targets) * (1 + self.mean)
        self.mean.mul_(0.9).add_(0.1 * mark(outputs))
        return found


def _attribute(_: nn.Module) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        before = getattr(loss, "scale", 1.0)
        loss.scale = 1.0 + float(mark(outputs))
        return cross_entropy(outputs, targets) * before

    return loss


def _default(_: nn.Module) -> Any:
    def loss(outputs: Tensor, targets: Tensor, kept: list[float] = []) -> Tensor:  # noqa: B006
        kept.append(float(mark(outputs)))
        return cross_entropy(outputs, targets) * (1 + sum(kept))

    return loss


def _global(_: nn.Module) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        SHELF.append(mark(outputs))
        return cross_entropy(outputs, targets) * (1 + torch.stack(SHELF).sum())

    return loss


def _released_weight(released: nn.Module) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        next(released.parameters()).data.add_(mark(outputs))
        return cross_entropy(outputs, targets)

    return loss


def _released_buffer(released: nn.Module) -> Any:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        for value in released.buffers():
            value.data.add_(mark(outputs))
        return cross_entropy(outputs, targets)

    return loss


LOSSES |= {
    "a closure": _closure,
    "an object": lambda _: CallableLoss(),
    "a module": lambda _: ModuleLoss(),
    "an attribute of a function": _attribute,
    "a default argument": _default,
    "a global list": _global,
    "the released weight": _released_weight,
    "the released buffer": _released_buffer,
}
