"""Counts what makes a device wait for the host, or the host for a device, in any run.

On a CPU such operations cost nothing, and are there: so they can be counted where there is no
device. Some are there on a CPU alone: rows are bounded with a look at them
(`dpacct.fl.privacy.unseen`). `tests.fl.elsewhere` counts what a device would be waited for.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_aten: Any = torch.ops.aten
# A value or a shape that the host has to know before it goes on.
_READS = (
    _aten._local_scalar_dense,  # noqa: SLF001 - what item, float, int and bool become
    _aten.nonzero,
    _aten.masked_select,
    _aten.equal,
    _aten.unique_dim,
    _aten._unique2,  # noqa: SLF001 - what unique becomes
    _aten.repeat_interleave.Tensor,
)
_INDEXED = (_aten.index, _aten.index_put, _aten.index_put_)


class HostTraffic(TorchDispatchMode):
    """Inside, operations that a device cannot do without the host are counted by name.

    A list of Python numbers that becomes a tensor is counted as "upload": it is made on the host.

    Attributes:
        reads: of values or shapes. copies: between devices, and from Python numbers.
        operations: all of them, by name.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.reads: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.operations: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Count, then do it."""
        del types
        given = kwargs or {}
        name = str(func.overloadpacket).removeprefix("aten.")
        self.operations[name] += 1
        if func.overloadpacket in _READS or func in _READS:
            self.reads[name] += 1
        elif func.overloadpacket in _INDEXED and _has_mask(args[1]):
            self.reads[f"{name} by a mask"] += 1
        elif func is _aten._to_copy.default and "device" in given:  # noqa: SLF001
            if torch.device(given["device"]).type != args[0].device.type:
                self.copies[name] += 1
        elif func is _aten.copy_.default and args[0].device.type != args[1].device.type:
            self.copies[name] += 1
        elif func is _aten.lift_fresh.default and args[0].ndim:
            self.copies["upload"] += 1
        return func(*args, **given)


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)
