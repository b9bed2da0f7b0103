"""Functions side by side that `torch.func.vmap` would not keep apart: tables, code of one's own.

Rule 1: what one client looks up never leads to another's parameters. vmap puts the tables of all
clients below each other and adds a client's place to its indices: an index that is out of range is
another client's row, which it would read, and change by its gradient. The row of padding, which
gets no gradient, would be that of the first client alone. Rule 2: code that vmap hands the values
of all clients is refused. `dpacct.fl.trainers.one_way` sees the operations themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpacct.fl.trainers.one_way import OneWay
from dpacct.fl.trainers.past_dispatcher import is_foreign

_torch: Any = torch
_SIGNATURE = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")


class KeptApart(TorchFunctionMode):
    """Around all that runs under vmap for clients or examples.

    An embedding out of range is NaN, as a failed client's update is.

    Args:
        way: around that vmap; is told what is called.
    """

    def __init__(self, way: OneWay) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._way = way

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace embeddings, refuse what cannot be, pass on all other functions.

        Raises:
            RuntimeError: a function that is given the values of all.
        """
        del types
        way, named = self._way, dict(kwargs or {})
        before, way.asked = way.asked, (args, named)
        try:
            with way.failures:
                return self._done(func, args, named)
        finally:
            way.asked = before

    def _done(self, func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if is_foreign(func, args):
            raise RuntimeError("code with a rule of its own for vmap is given the values of all")
        if func is functional.embedding:
            return self._own(*args, **named)
        if func is _torch.embedding:
            values = dict(zip(_SIGNATURE, args, strict=False)) | named
            padding = values.pop("padding_idx", -1)
            # There -1 stands for no padding.
            known = None if padding < 0 else padding
            return self._own(values.pop("indices"), values.pop("weight"), known, **values)
        return func(*args, **named)

    def _own(
        self,
        input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
        weight: Tensor,
        padding_idx: int | None = None,
        *others: Any,
        **named: Any,
    ) -> Tensor:
        """`torch.nn.functional.embedding` of one client."""
        count = weight.shape[0]
        inside = input.clamp(0, count - 1)
        way = self._way
        way.own_rows = True
        try:
            rows = functional.embedding(inside, weight, None, *others, **named)
        finally:
            way.own_rows = False
        if padding_idx is not None:
            padding = input == padding_idx % count
            rows = torch.where(padding.unsqueeze(-1), rows.detach(), rows)
        return torch.where((input == inside).unsqueeze(-1), rows, torch.nan)
