"""Looks at every tensor that operations give, those inside `torch.func` and autocast too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorsMade(TorchDispatchMode):
    """Inside, operations are done, and each tensor that one gives is shown.

    Args:
        show: is called with the tensor.
    """

    def __init__(self, show: Callable[[Tensor], None]) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._show = show

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do it, and show what it gives."""
        del types
        found = func(*args, **(kwargs or {}))
        leaves: list[Any] = tree_leaves(found)
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                self._show(leaf)
        return found
