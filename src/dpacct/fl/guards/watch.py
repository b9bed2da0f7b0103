"""What Python objects hold, beside what they held.

A module, a method or a loss that keeps something of one client's data in an attribute, a list or a
closure shows it to the next client, past the bound. What is followed says
`dpacct.fl.guards.reach`; what a program hides elsewhere (in a file, say) is not seen.
"""

from __future__ import annotations

import operator
import zlib
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, strided, uint8

from dpacct.fl.guards.holders import SETTINGS, entries, parts, settings
from dpacct.fl.guards.reach import Place, places
from dpacct.fl.guards.seals import Seal
from dpacct.fl.tensors import from_array

# Objects that are followed, and bytes of the tensors among them that are kept beside what they are;
# of further ones a checksum is.
_OBJECTS = 1 << 16
_BYTES = 1 << 25
_PLAIN = (type(None), bool, int, float, complex, str, bytes)


class Watch:
    """What a few objects hold now.

    Args:
        roots: objects, by what an error calls them.
        known: tensors that somebody else looks after.
    """

    def __init__(self, roots: Mapping[str, object], known: Sequence[Tensor]) -> None:
        seen = {id(tensor) for tensor in known}
        self._objects: list[object] = []
        self._places: list[tuple[str, Place, list[Any]]] = []
        self._empty: list[tuple[str, Any]] = []
        names = [f" (its {name})" for name in SETTINGS]
        self._places.append(("torch", Place(settings, names, None), settings()))
        tensors: dict[str, Tensor] = {}
        room = _BYTES
        queue = deque((path, value, True) for path, value in roots.items())
        while queue and len(self._objects) < _OBJECTS:
            path, value, root = queue.popleft()
            if id(value) in seen or isinstance(value, _PLAIN):
                continue
            seen.add(id(value))
            self._objects.append(value)
            if isinstance(value, Tensor):
                queue.extend((path + name, part, False) for name, part in parts(value).items())
                queue.extend((f"{path}.{name}", note, False) for name, note in vars(value).items())
                if value.is_leaf and value.grad is not None:
                    queue.append((f"{path}.grad", value.grad, False))
            tensor = _as_tensor(value)
            if tensor is not None:
                if tensor.nbytes <= room:
                    tensors[path] = tensor
                    room -= tensor.nbytes
                else:
                    read = partial(_checksum, tensor)
                    before = read()
                    summed = Place(read, [""] * len(before), None)
                    self._places.append((path, summed, before))
                continue
            for place in places(value, root=root):
                held = place.read()
                if place.follow:
                    queue.extend(
                        (path + name, entry, False)
                        for name, entry in zip(place.names, held, strict=True)
                    )
                if not held and place.holder is not None:
                    self._empty.append((path, place.holder))
                else:
                    self._places.append((path, place, held))
        self._holders = [holder for _, holder in self._empty]
        self._seal = Seal(tensors)

    @property
    def tensors(self) -> list[Tensor]:
        """Those that it looks after."""
        return [value for value in self._objects if isinstance(value, Tensor)]

    def changed(self) -> str | None:
        """What holds something else than it did, by its path of names; None where nothing does."""
        if any(self._holders):
            return next(path for path, holder in self._empty if holder)
        for path, place, before in self._places:
            now = place.read()
            if len(now) != len(before):
                # The entry that came last, where it can be told.
                entries = list(cast("dict[Any, Any]", place.holder or {}))
                named = isinstance(place.holder, dict) and entries
                return f"{path} (its {entries[-1]!r})" if named else path
            if not all(map(operator.is_, now, before)):
                for name, new, old in zip(place.names, now, before, strict=True):
                    if not _same(new, old):
                        return path + name
        return self._seal.broken()


def _same(new: object, old: object) -> bool:
    """Whether plain values are equal; of others, whether they are one object."""
    if new is old:
        return True
    if not isinstance(new, _PLAIN) or type(new) is not type(old):
        return False
    if isinstance(new, float | complex):
        # Zero has a sign, and not a number is equal to itself.
        return np.asarray(new).tobytes() == np.asarray(old).tobytes()
    return new == old


def _checksum(tensor: Tensor) -> list[Any]:
    """Of the bytes of a tensor, and where they lie; then what hangs on it."""
    bare = tensor.detach().cpu().contiguous().reshape(-1).view(uint8)
    found = [tensor.data_ptr(), zlib.crc32(cast("Any", bare).numpy())]
    grad = tensor.grad if tensor.is_leaf else None
    face = f"{tensor.dtype} {tensor.shape} {tensor.stride()} {tensor.requires_grad}"
    return [*found, face, grad, *entries(vars(tensor))]


def _as_tensor(value: object) -> Tensor | None:
    """A tensor, or an array as one that shares its memory."""
    if isinstance(value, Tensor):
        return value if value.layout == strided else None
    if not isinstance(value, np.ndarray):
        return None
    array = cast("NDArray[Any]", value)
    plain = array.dtype.kind in "biufc" and array.dtype.isnative
    usable = plain and array.flags.writeable and array.flags.c_contiguous
    return from_array(array) if usable else None
