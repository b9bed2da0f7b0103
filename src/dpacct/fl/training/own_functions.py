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

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_GOLDEN = 0x9E3779B97F4A7C15
# Bits of a random number in [0, 1).
_BITS = 24


class OwnFunctions(TorchFunctionMode):
    """A context in which dropout, attention and embeddings are those of one client's step.

    Args:
        seed: of the step, int64 []. May be batched by vmap.
    """

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
        if func is functional.dropout:
            return self._dropout(*args, **named)
        if func is cast("Any", torch).dropout:
            values = dict(zip(("input", "p", "train"), args, strict=False)) | named
            return self._dropout(values["input"], values["p"], values["train"])
        if func is functional.embedding:
            return _embedding(*args, **named)
        if func is functional.scaled_dot_product_attention:
            return self._attention(*args, **named)
        if func is functional.multi_head_attention_forward:
            given = inspect.signature(func).bind(*args, **named)
            given.apply_defaults()
            return self._heads(**given.arguments)
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

    def _heads(self, **given: Any) -> tuple[Tensor, Tensor | None]:
        """Return the output of `torch.nn.MultiheadAttention`, and its weights if they are needed.

        Arguments are those of ``multi_head_attention_forward``. Shapes: l queries and s keys of n
        examples, with h heads: [l, n, e] and [s, n, e], or [l, e] and [s, e].
        """
        batched, heads = given["query"].ndim == 3, given["num_heads"]
        parts = [given[name] for name in ("query", "key", "value")]
        parts = parts if batched else [part.unsqueeze(1) for part in parts]
        matrices = [given[f"{name}_proj_weight"] for name in "qkv"]
        if not given["use_separate_proj_weight"]:
            matrices = given["in_proj_weight"].chunk(3)
        bias = given["in_proj_bias"]
        biases = [None] * 3 if bias is None else bias.chunk(3)
        query, *kept = map(functional.linear, parts, matrices, biases)
        if given["bias_k"] is not None:
            more = (given[name].expand(1, query.shape[1], -1) for name in ("bias_k", "bias_v"))
            kept = [torch.cat(pair) for pair in zip(kept, more, strict=True)]
        if given["add_zero_attn"]:
            kept = [torch.cat([part, torch.zeros_like(part[:1])]) for part in kept]
        split: list[Tensor] = [
            part.reshape(*part.shape[:2], heads, -1).permute(1, 2, 0, 3) for part in (query, *kept)
        ]
        query, key, value = split
        mask = _mask_of_heads(given, query, key.shape[2])
        rate = given["dropout_p"] if given["training"] else 0.0
        weights: Tensor | None = None
        if given["need_weights"]:
            scores = (query * query.shape[-1] ** -0.5) @ key.mT
            seen = (scores if mask is None else scores + mask).softmax(dim=-1)
            seen = self._dropout(seen, rate) if rate else seen
            outputs = seen @ value
            weights = seen.mean(dim=1) if given["average_attn_weights"] else seen
        else:
            outputs = self._attention(query, key, value, mask, rate)
        outputs = outputs.permute(2, 0, 1, 3).flatten(2)
        outputs = functional.linear(outputs, given["out_proj_weight"], given["out_proj_bias"])
        if not batched:
            outputs = outputs.squeeze(1)
            weights = None if weights is None else weights.squeeze(0)
        return outputs, weights


def _mask_of_heads(given: Mapping[str, Any], query: Tensor, columns: int) -> Tensor | None:
    """Return what is added to the scores [n, h, l, columns] of an attention, or None."""
    examples, heads = query.shape[:2]
    mask, padding = given["attn_mask"], given["key_padding_mask"]
    if mask is not None and mask.ndim == 3:
        mask = mask.view(examples, heads, *mask.shape[1:])
    if padding is not None:
        padding = padding.view(examples, 1, 1, -1)
    added: Tensor | None = None
    for part in (mask, padding):
        if part is None:
            continue
        if part.dtype == torch.bool:
            zeros = torch.zeros(part.shape, dtype=query.dtype, device=part.device)
            part = zeros.masked_fill(part, -torch.inf)  # noqa: PLW2901 - in the one form
        added = part if added is None else added + part
    # Columns behind the given keys are seen by every query.
    return added if added is None else functional.pad(added, (0, columns - added.shape[-1]))


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
