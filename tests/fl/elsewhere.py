"""A device that is not there: tensors with real values that refuse to be mixed with the CPU's.

Tensors "on" it say that they are on ``HERE_NOT``, and hold their values on the CPU. Every operation
runs on the CPU behind a check that a real device would make: all its tensors are there (but for
single numbers, and for indices, which a device takes over from the host). What a device would wait
for is counted. So a tensor that was left behind, and a round that asks too often, are found without
one. What it cannot show: other kernels, their rounding, and how long anything takes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# A device for which PyTorch needs no driver, and on which nothing else here computes.
HERE_NOT = torch.device("meta")
_CPU = torch.device("cpu")
_aten: Any = torch.ops.aten
_tensor = torch.tensor
_MOVES = (_aten._to_copy.default, _aten.copy_.default)
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


class Mixed(AssertionError):
    """Tensors of two devices in one operation."""


class Elsewhere(Tensor):
    """A tensor that is not on the CPU, as far as anybody can tell."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor):
        return Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=HERE_NOT,
        )

    def __init__(self, inner: Tensor) -> None:
        super().__init__()
        self.inner = inner

    def data_ptr(self) -> int:
        return self.inner.data_ptr()

    def tolist(self) -> list[Any]:
        return self.to("cpu").tolist()

    def new_tensor(self, data: Any, dtype: Any = None) -> Tensor:
        return torch.tensor(data, dtype=dtype or self.dtype).to(HERE_NOT)

    def numpy(self, **_: Any):
        raise TypeError("can't convert a tensor of another device to numpy; copy it to the CPU")

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise Mixed(f"{func} outside of the device's mode")


def tensor(data: Any, *, device: Any = "cpu", **options: Any) -> Tensor:
    """`torch.tensor`, which makes tensors on the host, past all modes, and then copies them."""
    return _tensor(data, **options).to(device)


class Generator(torch.Generator):
    """One of the CPU, wherever it is asked for: no driver knows the device."""

    def __new__(cls, device: Any = "cpu") -> torch.Generator:
        del device
        return super().__new__(cls, _CPU)


class Device(TorchDispatchMode):
    """Inside, there is a device.

    Attributes:
        waits: for a value or a shape that the host asks for, by operation.
        copies: from and to the device, by direction.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        given = dict(kwargs or {})
        found = [leaf for leaf in tree_leaves((args, given)) if isinstance(leaf, Tensor)]
        there = any(isinstance(leaf, Elsewhere) for leaf in found)
        asked = given.get("device")
        to_there = there if asked is None else torch.device(asked) == HERE_NOT
        if asked is not None:
            given["device"] = _CPU
        self._look(func, args, found, there=there, to_there=to_there)
        plain, options = tree_map(_inner, (args, given))
        result = func(*plain, **options)
        if _changes_first(func):
            return args[0]
        return tree_map(_wrapped, result) if to_there else result

    def _look(self, func: Any, args: Any, found: Any, *, there: bool, to_there: bool) -> None:
        name = str(func.overloadpacket).removeprefix("aten.")
        if any(leaf.device == HERE_NOT and not isinstance(leaf, Elsewhere) for leaf in found):
            # A list in place of an index, say: its values are lost.
            raise Mixed(f"{name} with a tensor that was made past all modes")
        if func in _MOVES:
            source = isinstance(args[1 if func is _MOVES[1] else 0], Elsewhere)
            target = isinstance(args[0], Elsewhere) if func is _MOVES[1] else to_there
            if source != target:
                self.copies["to the host" if source else "from the host"] += 1
            return
        if not there:
            return
        if func in _INDEXED:
            indices = [index for index in args[1] if index is not None]
            masks = any(index.dtype == torch.bool for index in indices)
            self.waits.update([f"{name} by a mask"] * masks)
            host = sum(not isinstance(index, Elsewhere) for index in indices)
            self.copies.update(["from the host"] * host)
            known = set(map(id, indices))
            found = [leaf for leaf in found if id(leaf) not in known]
        if func in (_aten._local_scalar_dense.default, _aten.equal.default, _aten.nonzero.default):
            self.waits[name] += 1
        for leaf in found:
            if not isinstance(leaf, Elsewhere) and leaf.ndim:
                raise Mixed(f"{name} with a tensor {tuple(leaf.shape)} that is on the CPU")


def _inner(value: Any) -> Any:
    return value.inner if isinstance(value, Elsewhere) else value


def _wrapped(value: Any) -> Any:
    return Elsewhere(value) if isinstance(value, Tensor) else value


def _changes_first(func: Any) -> bool:
    """Whether it writes to its first tensor and returns it."""
    arguments = func._schema.arguments
    info = arguments[0].alias_info if arguments else None
    returned = func._schema.returns
    return bool(info and info.is_write and len(returned) == 1 and returned[0].alias_info)
