"""Operations side by side that `torch.func.vmap` would not keep apart: tables, failures, products.

Rule 1: what one client looks up never leads to another's parameters. vmap puts the tables of all
clients below each other and adds a client's place to its indices: an index that is out of range is
another client's row, which it would read, and change by its gradient. The row of padding, which
gets no gradient, would be that of the first client alone. Rule 2: an operation is that of all
clients, so what it raises is raised, also where a model or method would catch it: one's data would
decide how all are trained. Rule 3: what cannot be kept apart is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpacct.fl.trainers.failures import Noted

_torch: Any = torch
_SIGNATURE = ("weight", "indices", "padding_idx", "scale_grad_by_freq", "sparse")
_FILLS = frozenset({_torch.index_fill, _torch.Tensor.index_fill, _torch.Tensor.index_fill_})
_PRODUCTS = frozenset({_torch.prod, _torch.Tensor.prod})


class KeptApart(TorchFunctionMode):
    """Around all that runs under vmap for clients or examples.

    An embedding out of range is NaN, as a failed client's update is.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self._failures = Noted()

    def __exit__(self, *raised: object) -> None:
        """Raise what an operation raised, if it was passed over."""
        super().__exit__(*raised)  # pyright: ignore[reportUnknownMemberType]
        if raised[0] is None:
            self._failures.tell()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace that, refuse what cannot be, pass on all other functions.

        Raises:
            RuntimeError: an operation that would write to other clients' rows, or show them.
        """
        del types
        with self._failures:
            return _done(func, args, dict(kwargs or {}))


def _done(func: Callable[..., Any], args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    if func is functional.embedding:
        return _own(*args, **named)
    if func is _torch.embedding:
        values = dict(zip(_SIGNATURE, args, strict=False)) | named
        padding = values.pop("padding_idx", -1)
        # There -1 stands for no padding.
        known = None if padding < 0 else padding
        return _own(values.pop("indices"), values.pop("weight"), known, **values)
    if func in _FILLS:
        raise RuntimeError("index_fill side by side may write to the rows of others")
    if func in _PRODUCTS and args[0].is_floating_point():
        # Its gradient is computed in another way for all, if anybody has a zero.
        raise RuntimeError("the gradient of prod side by side shows the zeros of others")
    return func(*args, **named)


def _own(
    input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
    weight: Tensor,
    padding_idx: int | None = None,
    *others: Any,
    **named: Any,
) -> Tensor:
    """`torch.nn.functional.embedding` of one client."""
    count = weight.shape[0]
    inside = input.clamp(0, count - 1)
    rows = functional.embedding(inside, weight, None, *others, **named)
    if padding_idx is not None:
        padding = input == padding_idx % count
        rows = torch.where(padding.unsqueeze(-1), rows.detach(), rows)
    return torch.where((input == inside).unsqueeze(-1), rows, torch.nan)
