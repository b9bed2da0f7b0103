"""Functions of torch that would mix the clients of a vmapped model, made each client's own.

Random numbers that vmap draws for a group depend on a client's place in it. One client more or less
would change all dropout masks, and the sum would move by more than one contribution. Here dropout
follows from the client's seed, the step and the place in the model. So does that of attention,
which is computed by its formula: torch cannot batch its own kernel. All other random operations
are errors under vmap, and their models are trained one by one.

For an embedding with a table per client, torch reads the tables of all clients, one behind the
other. An index out of range would read another client's weights. Here its row is NaN, so
the client that sent it contributes zero, as it does one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_GOLDEN = 0x9E3779B97F4A7C15
# Bits of a random number in [0, 1).
_BITS = 24
# While torch's function of heads runs, its module holds other ones.
_INSIDE_HEADS = "dropout", "scaled_dot_product_attention"
_DROPOUT = functional.dropout


class OwnFunctions(TorchFunctionMode):
    """A context in which dropout (by a seed []), attention and embeddings are one client's own."""

    def __init__(self, seed: Tensor) -> None:
        super().__init__()
        self._seed, self._calls = seed, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace dropout, attention and embeddings, and call all other functions."""
        named = dict(kwargs or {})
        if func is _DROPOUT:
            return self._dropout(*args, **named)
        if func is cast("Any", torch).dropout:
            values = dict(zip(("input", "p", "train"), args, strict=False)) | named
            return self._dropout(values["input"], values["p"], values["train"])
        if func is functional.embedding:
            return _embedding(*args, **named)
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **named)
        if func is functional.multi_head_attention_forward:
            return self._heads(*args, **named)
        return func(*args, **named)

    def _dropout(
        self,
        input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
        p: float = 0.5,
        training: bool = True,  # noqa: FBT001, FBT002 - as in torch
        inplace: bool = False,  # noqa: FBT001, FBT002 - as in torch
    ) -> Tensor:
        if not training or not 0 < p < 1:
            return _DROPOUT(input, p, training, inplace)
        self._calls += 1
        stream = _mixed(self._seed + _signed(self._calls * _GOLDEN))
        places = torch.arange(input.numel(), device=input.device).view(input.shape)
        bits = _shifted(_mixed(_mixed(stream + places) ^ stream), 64 - _BITS)
        factor = (bits < round((1 - p) * 2**_BITS)).to(input.dtype) / (1 - p)
        return input.mul_(factor) if inplace else input * factor

    def _attention(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
        dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,  # noqa: FBT001, FBT002 - as in torch
        enable_gqa: bool = False,  # noqa: FBT001, FBT002 - as in torch
    ) -> Tensor:  # fmt: skip
        """Return softmax(scale query key^T + mask) value, with dropout of the softmax."""
        if enable_gqa:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(repeats, dim=-3) for part in (key, value))
        factor = query.shape[-1] ** -0.5 if scale is None else scale
        scores = (query * factor) @ key.mT
        if is_causal:
            inside = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~inside, -torch.inf)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        # As in torch, a query that may see nothing reads zeros.
        blind = (scores == -torch.inf).all(dim=-1, keepdim=True)
        weights = scores.masked_fill(blind, 0.0).softmax(dim=-1).masked_fill(blind, 0.0)
        return (self._dropout(weights, dropout_p) if dropout_p else weights) @ value

    def _heads(self, *args: Any, **named: Any) -> Any:
        """Call torch's function of heads, with this dropout and this attention inside."""
        module: Any = functional
        before = {name: getattr(module, name) for name in _INSIDE_HEADS}
        try:
            module.dropout, module.scaled_dot_product_attention = self._dropout, self._attention
            return functional.multi_head_attention_forward(*args, **named)
        finally:
            for name, value in before.items():
                setattr(module, name, value)


def _embedding(
    input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
    weight: Tensor,
    *args: Any,
    **named: Any,
) -> Tensor:
    inside = (input >= 0) & (input < weight.shape[0])
    vectors = functional.embedding(torch.where(inside, input, 0), weight, *args, **named)
    return torch.where(inside.unsqueeze(-1), vectors, torch.nan)


def seeds_of_steps(seeds: Tensor, steps: int) -> Tensor:
    """Return seeds of the first ``steps`` steps, int64 [steps, c], from those of c clients."""
    # Whole numbers of 64 bits wrap around.
    numbers = torch.arange(1, steps + 1, device=seeds.device) * _signed(_GOLDEN)
    return _mixed(seeds + numbers.unsqueeze(1))


def _mixed(values: Tensor) -> Tensor:
    """Apply the finalizer of SplitMix64: int64 to int64, one to one, wrapping around."""
    values = (values ^ _shifted(values, 30)) * _signed(0xBF58476D1CE4E5B9)
    values = (values ^ _shifted(values, 27)) * _signed(0x94D049BB133111EB)
    return values ^ _shifted(values, 31)


def _shifted(values: Tensor, bits: int) -> Tensor:
    """Shift to the right, filling up with zeros."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(word: int) -> int:
    """Return 64 bits as a number with a sign."""
    word %= 2**64
    return word - 2**64 if word >= 2**63 else word
