"""A DP-SGD step of the engine, by hand (vmap(grad), norm, clip, sum, noise), and of ghost clipping.

``python -m benchmarks.plain_vmap``. Steps alternate in one process on one thread. The results are
means of processor time, since some batches take a second group. By hand, nothing is charged or
checked, and sums are not exact. Ghost clipping is that of Opacus: norms
without gradients, then one weighted backward pass.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from benchmarks.examples import OpacusNet
from benchmarks.measure import table
from dpacct import fl

# Steps at a batch of 256. Smaller batches take more of them.
EXAMPLES, STEPS, WARM = 4096, 12, 4
BATCHES = (64, 256, 1024)
# Networks of linear layers and embeddings, for which ghost clipping is made.
GHOST = ("MLP", "bag of words")


class Sequence(nn.Module):
    """Tokens to classes by an LSTM or a small transformer, with averaged outputs."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, 32)
        self.kind = kind
        if kind == "LSTM":
            self.body: nn.Module = nn.LSTM(32, 32, batch_first=True)
        else:
            self.body = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return class scores [n, 10] of tokens [n, length]."""
        found: Any = self.body(self.embedding(tokens))
        # An LSTM returns its state as well.
        hidden: Tensor = found[0] if self.kind == "LSTM" else found
        return self.head(torch.mean(hidden, dim=1))


class BagOfWords(nn.Module):
    """Words to classes by one large embedding, 1.3 M weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20_000, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, words: Tensor) -> Tensor:
        """Return class scores [n, 10] of words [n, length]."""
        found: Tensor = self.head(torch.mean(self.embedding(words), dim=1))
        return found


def networks() -> dict[str, tuple[nn.Module, fl.ClientData]]:
    """Return five networks, each with examples that it takes."""
    images, labels = torch.randn(EXAMPLES, 1, 28, 28), torch.randint(10, (EXAMPLES,))
    tokens = torch.randint(100, (EXAMPLES, 20))
    words = torch.randint(20_000, (EXAMPLES, 20))
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    return {
        "MLP": (mlp, fl.ClientData(images, labels)),
        "bag of words": (BagOfWords(), fl.ClientData(words, labels)),
        "CNN": (OpacusNet(), fl.ClientData(images, labels)),
        "LSTM": (Sequence("LSTM"), fl.ClientData(tokens, labels)),
        "transformer": (Sequence("transformer"), fl.ClientData(tokens, labels)),
    }


def by_hand(model: nn.Module, data: fl.ClientData, batch: int) -> Callable[[], None]:
    """Return a step as it is written for a notebook."""
    params = {name: value.detach().clone() for name, value in model.named_parameters()}

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        outputs = functional_call(model, own, (x[None],))
        return functional.cross_entropy(outputs, y[None])

    gradients: Any = vmap(grad(loss), (None, 0, 0))

    def step() -> None:
        rows = (torch.rand(len(data)) < batch / len(data)).nonzero().flatten()
        found: dict[str, Tensor] = gradients(params, data.tensor[rows], data.targets[rows])
        squares = [g.flatten(1).square().sum(dim=1) for g in found.values()]
        norms = torch.stack(squares, 1).sum(dim=1).sqrt()
        factors = torch.clamp(1.0 / (norms + 1e-6), max=1.0)
        for name, value in params.items():
            total = torch.einsum("i,i...", factors, found[name])
            value.sub_((total + torch.randn_like(total)) / batch, alpha=0.1)

    return step


def ghost(model: nn.Module, data: fl.ClientData, batch: int) -> Iterator[None]:
    """Yield steps of Opacus with its loader and ghost clipping. It keeps no ledger."""
    warnings.simplefilter("ignore")
    engine: Any = import_module("opacus").PrivacyEngine()
    model = copy.deepcopy(model).train()
    dataset: Any = torch.utils.data.TensorDataset(data.tensor, data.targets)
    model, optimizer, criterion, loader = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        criterion=nn.CrossEntropyLoss(),
        data_loader=torch.utils.data.DataLoader(dataset, batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        grad_sample_mode="ghost",
    )
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            criterion(model(inputs), targets).backward()
            optimizer.step()
            yield None


def ours(model: nn.Module, data: fl.ClientData, batch: int) -> Iterator[object]:
    """Yield rounds of the engine on single examples."""
    run = fl.Federation(
        model,
        functional.cross_entropy,
        fl.Examples(data),
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling=fl.Poisson(batch / len(data)),
        rounds=1_000_000,
        server_lr=0.1,
    )
    with run:
        next(iter(run))
        engine, state, choice = cast("Any", (run.engine, run.state, run.choice))
        while True:
            # Without the ledger: draw, train, bound, sum, noise and step alone.
            found = engine.collect(state, engine.draw(), choice.trainer, choice.plan.chunk)
            state = engine.apply(state, engine.release(state, found))
            yield state


def main() -> None:
    """Print means of steps that take turns, and the ratio."""
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    for name, (model, data) in networks().items():
        for batch in BATCHES:
            rounds = ours(model, data, batch)
            calls = {"engine": lambda r=rounds: next(r), "hand": by_hand(model, data, batch)}
            if name in GHOST:
                calls["ghost"] = partial(next, ghost(model, data, batch))
            spent: dict[str, list[float]] = {way: [] for way in calls}
            for _ in range(STEPS * max(1, 256 // batch)):
                for way, call in calls.items():
                    began = time.process_time()
                    call()
                    spent[way].append(time.process_time() - began)
            engine, hand, *others = (statistics.fmean(spent[way][WARM:]) for way in calls)
            shown = [1e3 * engine, 1e3 * hand, *(1e3 * other for other in others)]
            ratios = [engine / hand, *(engine / other for other in others)]
            cells = [f"{v:.1f}" for v in shown] + [""] * (3 - len(shown))
            cells += [f"{v:.2f}" for v in ratios] + [""] * (2 - len(ratios))
            rows.append([name, str(batch), *cells])
            print(rows[-1], file=sys.stderr, flush=True)
    header = [
        "network",
        "batch",
        "engine, ms",
        "by hand",
        "ghost",
        "by hand: ratio",
        "ghost: ratio",
    ]
    print(table("A DP-SGD step without the ledger, processor time", header, rows))


if __name__ == "__main__":
    main()
