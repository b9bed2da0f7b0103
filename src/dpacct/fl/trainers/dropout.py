"""Dropout side by side, from numbers that are each client's own.

Rule: what is dropped for a client follows from its seed, the step and the place in the model, never
from who trains beside it. Random numbers that `torch.func.vmap` draws for a whole group depend on a
client's place; of a group that one client more or less rearranges, all masks would be others, and
the sum would move by more than one contribution. Only dropout is drawn here: side by side all other
random operations are errors, and their models are trained one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_GOLDEN = 0x9E3779B97F4A7C15
_WORD = 1 << 64
# Bits of which a number in [0, 1) is made.
_BITS = 24


class OwnDropout(TorchFunctionMode):
    """While active, dropout draws from the stream of one client's step.

    Args:
        seed: of the step, int64 []; may be batched by vmap.
    """

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self._seed = seed
        self._calls = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace dropout, pass on all other functions."""
        del types
        named = dict(kwargs or {})
        if func is functional.dropout:
            return self._dropout(*args, **named)
        if func is cast("Any", torch).dropout:
            values = dict(zip(("input", "p", "train"), args, strict=False)) | named
            return self._dropout(values["input"], values["p"], values["train"])
        return func(*args, **named)

    def _dropout(
        self,
        input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
        p: float = 0.5,
        training: bool = True,  # noqa: FBT001, FBT002 - as in torch
        inplace: bool = False,  # noqa: FBT001, FBT002 - as in torch
    ) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)
        self._calls += 1
        stream = _mixed(self._seed + _signed(self._calls * _GOLDEN))
        places = torch.arange(input.numel(), device=input.device).view(input.shape)
        bits = _shifted(_mixed(_mixed(stream + places) ^ stream), 64 - _BITS)
        factor = (bits < round((1 - p) * 2**_BITS)).to(input.dtype) / (1 - p)
        return input.mul_(factor) if inplace else input * factor


def seeds_of_steps(seeds: Tensor, steps: int) -> Tensor:
    """Seeds of the first so many steps, int64 [steps, c], from those of the clients, int64 [c]."""
    # Whole numbers of 64 bits wrap around.
    numbers = torch.arange(1, steps + 1, device=seeds.device) * _signed(_GOLDEN)
    return _mixed(seeds + numbers.unsqueeze(1))


def _mixed(values: Tensor) -> Tensor:
    """The finalizer of SplitMix64: int64 to int64, one to one, wrapping around."""
    values = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """A shift to the right that fills up with zeros."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """64 bits as a number with a sign."""
    word %= _WORD
    return word - _WORD if word >= _WORD // 2 else word
