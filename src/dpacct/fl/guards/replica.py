"""The model that clients train: a copy, whose own tensors and attributes must stay as they are."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from dpacct.errors import Unsupported
from dpacct.fl.guards.seals import Seal
from dpacct.fl.guards.watch import Watch


class Replica:
    """What clients see of a model beside the parameters that they train.

    Args:
        model: as they call it. loss: what they minimize.
        names: of the parameters that are trained, which are passed in with each call.

    Attributes:
        constants: frozen parameters and buffers, in copies, by name.
        places: of tensors in layers, and the name by which each is passed in: a tensor has one
            name, and may have several places.
        objects: layers and loss, by what an error calls them.
    """

    def __init__(self, model: nn.Module, loss: object, names: tuple[str, ...]) -> None:
        frozen = {n: p for n, p in model.named_parameters() if n not in names}
        buffers = dict(model.named_buffers())
        self.constants = {n: v.detach().clone() for n, v in (frozen | buffers).items()}
        self.places = _places(model, buffers=False) | _places(model, buffers=True)
        self._layers = cast("dict[str, nn.Module]", dict(cast("Any", model).named_modules()))
        self.objects: dict[str, object] = {_title(n, m): m for n, m in self._layers.items()}
        self.objects["the loss"] = loss
        self.tensors: dict[str, Tensor] = {
            f"frozen parameter {name}" if name in frozen else f"buffer {name}": value
            for name, value in self.constants.items()
        }
        # What a layer may still hold by another name.
        self.tensors |= {f"own parameter {n}": p for n, p in model.named_parameters()}
        self.tensors |= {f"own buffer {n}": b for n, b in buffers.items()}
        self._seal: Seal | None = None
        self._watched: tuple[dict[str, object], Watch] | None = None

    def placed(self, params: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What stands in each place, given the parameters that are trained."""
        tensors = {**params, **self.constants}
        return {place: tensors[name] for place, name in self.places.items()}

    def seal(self) -> Seal:
        """Of all its tensors, as they were when this was first asked for."""
        if self._seal is None:
            self._seal = Seal(self.tensors)
        return self._seal

    def watch(self, others: Mapping[str, object], shown: Sequence[Tensor]) -> Watch:
        """Of all its objects as they are now, and of others.

        What they hold is noted once, and looked at again: where nothing has changed since, notes
        made now would be the same.

        Args:
            others: by what an error calls them. shown: tensors that somebody else looks after.
        """
        found = self.noted(others)
        if found is None:
            roots: dict[str, object] = {**self.objects, **others}
            found = Watch(roots, [*self.tensors.values(), *shown])
            self._watched = roots, found
        return found

    def noted(self, others: Mapping[str, object]) -> Watch | None:
        """The last `watch`, if it was of the same objects and they hold what they held."""
        if self._watched is None:
            return None
        known, watch = self._watched
        roots: dict[str, object] = {**self.objects, **others}
        same = len(known) == len(roots) and all(known.get(n) is v for n, v in roots.items())
        return watch if same and watch.changed() is None else None

    def owner(self, name: str) -> str:
        """The layer of a tensor, whose name may have words before it."""
        layer = name.rpartition(" ")[2].rpartition(".")[0]
        return _title(layer, self._layers[layer])


def _places(model: nn.Module, *, buffers: bool) -> dict[str, str]:
    """Each place of a parameter, or of a buffer, to the first one of the same tensor.

    A layer that a model holds by several names is one layer: with two places it would be given
    back with what was passed in.
    """
    names: dict[Tensor, str] = {}
    found: dict[str, str] = {}
    layers = cast("dict[str, nn.Module]", dict(cast("Any", model).named_modules()))
    for layer, own in layers.items():
        listed = own.named_buffers if buffers else own.named_parameters
        for name, value in listed(layer, recurse=False, remove_duplicate=False):
            found[name] = names.setdefault(value, name)
    return found


def _title(name: str, layer: nn.Module) -> str:
    kind = type(layer).__name__
    return f"the layer {name} ({kind})" if name else f"the model ({kind})"


def separate(model: nn.Module, loss: Any) -> tuple[nn.Module, Any]:
    """A copy of a model, and of a loss that is a module, for clients to train.

    Raises:
        Unsupported: the model cannot be copied.
    """
    try:
        own = copy.deepcopy(model)
        objective = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
    except (RuntimeError, TypeError, copy.Error) as error:
        line = str(error).strip().partition("\n")[0]
        raise Unsupported(
            f"the model cannot be copied ({line[:200]}); clients train on a copy, so that nothing "
            "that they write reaches the released one"
        ) from error
    for value in own.parameters():
        value.grad = None
    return own, objective
