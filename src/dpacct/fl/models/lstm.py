"""A recurrent network that predicts the next character."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class LSTMLayer(nn.Module):
    """One layer of long short-term memory, from a state of zeros.

    Uses PyTorch's fused layer, except inside the transforms of `torch.func`, which cannot vectorize
    it over clients: there plain tensor operations. Gates have PyTorch's order (input, forget, cell,
    output), with one bias for both inputs.

    Args:
        num_inputs: values at each position. num_units: size of the state.
    """

    def __init__(self, num_inputs: int, num_units: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(num_units)
        self.from_inputs = nn.Parameter(torch.empty(4 * num_units, num_inputs))
        self.from_state = nn.Parameter(torch.empty(4 * num_units, num_units))
        self.bias = nn.Parameter(torch.empty(4 * num_units))
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return hidden states [n, length, num_units] of inputs [n, length, num_inputs]."""
        if not _can_be_fused(inputs, self.bias):
            return self._unfused(inputs)
        start = inputs.new_zeros(1, len(inputs), self.from_state.shape[1])
        parameters = [self.from_inputs, self.from_state, self.bias, torch.zeros_like(self.bias)]
        states, _, _ = torch.lstm(
            inputs,
            (start, start),
            parameters,
            has_biases=True,
            num_layers=1,
            dropout=0.0,
            train=torch.is_grad_enabled(),
            bidirectional=False,
            batch_first=True,
        )
        return states

    def _unfused(self, inputs: Tensor) -> Tensor:
        gates = inputs @ self.from_inputs.T + self.bias
        transposed = self.from_state.T
        hidden = cell = None
        states: list[Tensor] = []
        for position in gates.unbind(1):
            total = position if hidden is None else position + hidden @ transposed
            enter, keep, new, out = total.chunk(4, dim=-1)
            cell_input = torch.sigmoid(enter) * torch.tanh(new)
            cell = cell_input if cell is None else torch.sigmoid(keep) * cell + cell_input
            hidden = torch.sigmoid(out) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states, dim=1)


class CharacterLSTM(nn.Module):
    """An embedding, layers of LSTM, and a linear layer at each position.

    Args:
        num_characters: size of the alphabet.
        embedding: values for each character. num_units: of each LSTM layer. num_layers: of them.
        every_position: predict the character behind each position, or only behind the last.

    Source: the two-layer network of McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017,
        arXiv:1602.05629, section 3.
    """

    def __init__(
        self,
        num_characters: int,
        *,
        embedding: int = 8,
        num_units: int = 256,
        num_layers: int = 2,
        every_position: bool = True,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(num_characters, embedding)
        widths = [embedding, *([num_units] * num_layers)]
        self.layers = nn.ModuleList(LSTMLayer(width, num_units) for width in widths[:-1])
        self.head = nn.Linear(num_units, num_characters)
        self.every_position = every_position

    def forward(self, characters: Tensor) -> Tensor:
        """Return logits of int64 characters [n, length].

        Their shape is [n, num_characters, length] at every position, else [n, num_characters].
        """
        values = self.embedding(characters)
        for layer in self.layers:
            values = layer(values)
        if not self.every_position:
            return self.head(values[:, -1])
        return self.head(values).transpose(1, 2)


def _can_be_fused(inputs: Tensor, parameter: Tensor) -> bool:
    """Return whether PyTorch's layer takes these inputs and computes the plain operations."""
    try:
        # Tensors inside a transform of torch.func have no memory of their own.
        _ = inputs.data_ptr(), parameter.data_ptr()
    except RuntimeError:
        return False
    # cuDNN would use TF32, and with autocast the states as well would be of reduced precision.
    return inputs.is_cpu and not torch.is_autocast_enabled("cpu")
