"""Operations of which the host learns something about values: one of them, or a shape."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_tags: Any = torch.Tag
_HOST = {_tags.data_dependent_output, _tags.dynamic_output_shape}
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)


@cache
def may_ask_host(func: Any) -> bool:
    """Whether an operation of `torch.ops` does, with some arguments."""
    return bool(_HOST.intersection(func.tags))


def asks_host(func: Any, args: tuple[Any, ...]) -> bool:
    """Whether it does with these: a shape follows from a mask, but from no other index."""
    return may_ask_host(func) and not (func in _INDEXED and not any(map(_is_mask, args[1])))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)
