"""Functions of torch that would mix the clients of a vmapped model, made each client's own.

Random numbers that vmap draws for a group depend on a client's place in it. One client more or less
would change all dropout masks, and the sum would move by more than one contribution. Here dropout
follows from the client's seed, the step and the place in the model. So does that of attention,
and of an LSTM, which are computed by their formulas: torch cannot batch its own kernels. All other
random operations are errors under vmap, and their models are trained one by one.

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

from dpacct.fl.models.networks import lstm_states

_GOLDEN = 0x9E3779B97F4A7C15
# Bits of a random number in [0, 1).
_BITS = 24
# While torch's function of heads runs, its module holds other ones.
_INSIDE_HEADS = "dropout", "scaled_dot_product_attention"
_DROPOUT = functional.dropout
_FREQUENCIES = "scale_grad_by_freq counts the tokens of all clients"


class OwnFunctions(TorchFunctionMode):
    """A context in which dropout (by a seed []), attention and embeddings are one client's own.

    With ``own_weights`` each client has weights of its own, and autograd is outside of vmap.
    """

    def __init__(self, seed: Tensor, *, own_weights: bool = False) -> None:
        super().__init__()
        self._seed, self._own_weights, self._calls = seed, own_weights, 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call the method that replaces a function, or the function."""
        method = _REPLACED.get(func)
        if method is None or (method == "_linear" and not self._own_weights):
            return func(*args, **(kwargs or {}))
        # torch.dropout has another name for it.
        named = {"training" if n == "train" else n: value for n, value in (kwargs or {}).items()}
        return getattr(self, method)(*args, **named)

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
        if attn_mask is None:
            weights = scores.softmax(dim=-1)
        else:
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

    def _lstm(self, *given: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return outputs, last hidden states and last cells as `torch.lstm`, step by step.

        Packed sequences, and projections of the hidden state, are left to torch.
        """
        inputs, start, weights, biased, layers, dropout, training, both_ways, batch_first = given
        ways = 2 if both_ways is True else 1
        if isinstance(start, Tensor) or len(weights) != layers * ways * (4 if biased else 2):
            return cast("Any", torch).lstm(*given)
        linear = self._linear if self._own_weights else functional.linear
        own, ends = iter(weights), list[tuple[Tensor, Tensor]]()
        values = inputs.transpose(0, 1) if batch_first else inputs
        for layer in range(layers):
            values = self._dropout(values, dropout, training) if layer else values
            outputs: list[Tensor] = []
            for way in range(ways):
                from_inputs, from_state = next(own), next(own)
                bias = next(own) + next(own) if biased else None
                hidden, cell = (part[layer * ways + way] for part in start)
                gates = linear(values, from_inputs, bias)
                gates = gates.flip(0) if way else gates
                states, cell = lstm_states(gates, from_state, hidden, cell)
                outputs.append(states.flip(0) if way else states)
                ends.append((states[-1], cell))
            values = torch.cat(outputs, dim=-1)
        hidden, cells = (torch.stack(parts) for parts in zip(*ends, strict=True))
        return values.transpose(0, 1) if batch_first else values, hidden, cells

    @staticmethod
    def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - as in torch
        """Return the outputs as (W x^T)^T, whose gradient lies in memory as the weights do.

        That of x W^T comes transposed, and a step along it takes four times as long.
        """
        if input.ndim == 1 or weight.ndim == 1:
            return functional.linear(input, weight, bias)
        rows = input.flatten(0, -2)
        # Contiguous as torch's own, for models that take another view of it.
        outputs = (weight @ rows.mT).mT.contiguous()
        outputs = cast("Any", outputs).unflatten(0, input.shape[:-1])
        return outputs if bias is None else outputs + bias.to(outputs.dtype)

    @staticmethod
    def _embedding(
        input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - as in torch
        sparse: bool = False,  # noqa: FBT001, FBT002 - as in torch
    ) -> Tensor:
        if scale_grad_by_freq:
            raise NotImplementedError(_FREQUENCIES)
        inside = (input >= 0) & (input < weight.shape[0])
        tokens = torch.where(inside, input, 0)
        # Torch would look for the padding in the table of the first client alone.
        vectors = functional.embedding(tokens, weight, None, max_norm, norm_type, sparse=sparse)
        if padding_idx is not None:
            padding = (tokens == padding_idx % weight.shape[0]).unsqueeze(-1)
            vectors = torch.where(padding, vectors.detach(), vectors)
        return torch.where(inside.unsqueeze(-1), vectors, torch.nan)

    @staticmethod
    def _embedding_bag(
        input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
        weight: Tensor,
        offsets: Tensor | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,  # noqa: FBT001, FBT002 - as in torch
        *args: Any,
        **named: Any,
    ) -> Tensor:
        if scale_grad_by_freq:
            raise NotImplementedError(_FREQUENCIES)
        rest = offsets, max_norm, norm_type, scale_grad_by_freq, *args
        return functional.embedding_bag(input, weight, *rest, **named)


# The method for each function that is replaced.
_REPLACED: dict[Any, str] = {
    _DROPOUT: "_dropout",
    cast("Any", torch).dropout: "_dropout",
    cast("Any", torch).lstm: "_lstm",
    functional.embedding: "_embedding",
    functional.embedding_bag: "_embedding_bag",
    functional.linear: "_linear",
    functional.multi_head_attention_forward: "_heads",
    functional.scaled_dot_product_attention: "_attention",
}


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
