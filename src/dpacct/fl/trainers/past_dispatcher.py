"""Where values may reach the host without an operation: arrays, lists, text, code of one's own.

Under `torch.func.vmap` tensors have no values that could be read. A function with a rule of its own
for it (of `torch.autograd.Function`, or `torch.library`) is given those of all clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dpacct.fl.trainers.linear_layers import Product

_torch: Any = torch
_tensor: Any = torch.Tensor
_READS = frozenset(
    {
        _tensor.__array__,
        _tensor.__dlpack__,
        _tensor.__format__,
        _tensor.__reduce_ex__,
        _tensor.__repr__,
        _tensor.data_ptr,
        _tensor.numpy,
        _tensor.storage,
        _tensor.tolist,
    }
)
_HIGHER: Any = _torch._ops.HigherOrderOperator  # noqa: SLF001 - it has no public name
_OPERATIONS: Any = (_torch._ops.OpOverload, _torch._ops.OpOverloadPacket)  # noqa: SLF001


class PastDispatcher(TorchFunctionMode):
    """Inside, tells when something is called that may read values past the dispatcher.

    Args:
        tell: is called then.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        super().__init__()
        self._tell = tell

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the function."""
        del types
        if func in _READS or is_foreign(func, args):
            self._tell()
        return func(*args, **(kwargs or {}))


def is_foreign(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether code that is not torch's own may be given tensors without vmap around them."""
    if isinstance(func, _HIGHER):
        # Of an autograd function, unless torch makes the rule: then all of it is under vmap.
        known = args and (args[0] is Product or getattr(args[0], "generate_vmap_rule", False))
        return not known
    if isinstance(func, _OPERATIONS):
        return not str(func).startswith("aten")
    return False
