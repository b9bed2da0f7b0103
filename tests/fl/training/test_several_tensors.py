"""Clients with several tensors of inputs, and attention, which drops out weights of its own."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl import attacks
from dpacct.fl.training.own_functions import OwnFunctions
from tests.fl.problems import cross_entropy, federation, flat, linear, make_clients
from tests.fl.training.test_trainers import BOTH, same, setting

SIZES = [6, 3, 9, 0, 1]


class Reader(nn.Module):
    """A transformer of one layer: tokens [b, 5] and which of them are there, bool [b, 5]."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.table = nn.Embedding(7, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        inside = self.layer(self.table(tokens), src_key_padding_mask=~there)
        weights = there.unsqueeze(-1).to(inside.dtype)
        return self.head((inside * weights).sum(dim=1) / weights.sum(dim=1))


class Asker(nn.Module):
    """Attention written by hand, with torch's own function for it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.table, self.head, self.dropout = nn.Embedding(7, 8), nn.Linear(8, 3), dropout

    def forward(self, tokens: Tensor, there: Tensor) -> Tensor:
        own = self.table(tokens)
        mask, rate = there.unsqueeze(1), self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(own, own, own, mask, rate)
        return self.head(mixed.mean(dim=1))


def readers(sizes: list[int], form: type = tuple) -> list[fl.ClientData]:
    generator = torch.Generator().manual_seed(3)
    clients: list[fl.ClientData] = []
    for size in sizes:
        tokens = torch.randint(7, (size, 5), generator=generator)
        there = torch.rand(size, 5, generator=generator) < 0.6
        there[:, 0] = True
        inputs = (tokens, there) if form is tuple else {"there": there, "tokens": tokens}
        clients.append(fl.ClientData(inputs, torch.randint(3, (size,), generator=generator)))
    return clients


@pytest.mark.parametrize("form", [tuple, dict])
@pytest.mark.parametrize("build", [Reader, Asker])
def test_both_trainers_give_the_same_updates(build: Any, form: type):
    updates = same(build(), readers(SIZES, form))
    assert [bool(row.any()) for row in updates] == [True, True, True, False, True]


@pytest.mark.usefixtures("uncounted")
@pytest.mark.parametrize(("form", "single"), [(tuple, True), (dict, False)])
def test_runs_of_both_trainers_are_the_same(form: type, *, single: bool):
    people, ends = readers([12] if single else SIZES, form), list[Tensor]()
    data = fl.Examples(people[0].inputs, people[0].targets) if single else people
    for vectorize in (False, True):
        run = federation(Reader(), data, seed=3, vectorize=vectorize, noise_multiplier=0.01)
        run.run()
        assert ("at once" in run.training_path) == vectorize
        ends.append(flat(run.model))
    moved = float((ends[0] - flat(Reader())).norm())
    assert float((ends[0] - ends[1]).norm()) < 1e-4 * moved
    found = fl.evaluate(run.model, cross_entropy, people[0], batch_size=4)
    [own] = readers([12] if single else SIZES[:1])
    right = (run.model.eval()(*own.inputs).argmax(dim=1) == own.targets).double().mean()
    assert found.accuracy == pytest.approx(float(right))


def test_a_client_of_another_form_trains_alone_or_contributes_zero():
    people = [*readers([6, 6, 6]), *readers([6], dict), make_clients([6])[0]]
    run = federation(Reader(), people, vectorize=True, rounds=1)
    # A dictionary trains alone. One tensor is no input of this model.
    assert run.run().diagnostics.dropped_updates == 1


def test_attacks_read_several_tensors():
    members, others = readers([6]), readers([6, 9])[1:]
    held_out = attacks.without_members(members, [*others, *members])
    assert held_out.left_out == 6
    [losses] = attacks.client_losses(Reader().eval(), cross_entropy, members)
    own: Any = members[0].inputs
    expected = cross_entropy(Reader().eval()(*own), members[0].targets, reduction="none")
    torch.testing.assert_close(torch.tensor(losses), expected.double(), rtol=1e-5, atol=1e-6)


def test_inputs_that_are_no_tensors():
    two = torch.zeros(2)
    for inputs in ((), {}, [two], (two, 3), {"a": None}, {1: two}):
        with pytest.raises(InvalidParameter) as refused:
            fl.ClientData(inputs, two)
        assert refused.value.name == "inputs"
    with pytest.raises(InvalidParameter, match="as many targets"):
        fl.ClientData((two, torch.zeros(3)), two)


# Dropout of attention weights


@pytest.mark.parametrize("build", [Reader, Asker])
def test_attention_dropout_does_not_depend_on_the_other_clients(build: Any):
    """Bit by bit here, and another seed is another mask."""
    _, together, tasks, broadcast = setting(build(0.5), readers(SIZES))
    rows = together.train(tasks, broadcast)
    assert bool(rows.isfinite().all())
    for place, task in enumerate(tasks):
        assert torch.equal(together.train([task], broadcast)[0], rows[place])
    [other] = together.train([replace(tasks[0], seed=5)], broadcast)
    assert not torch.equal(other, rows[0])
    _, plain, tasks, broadcast = setting(build(0.0), readers(SIZES))
    assert not torch.equal(plain.train(tasks, broadcast)[0], rows[0])


@BOTH
def test_a_transformer_with_dropout_trains(*, vectorize: bool):
    run = federation(Reader(0.1), readers([6] * 4), vectorize=vectorize, seed=1)
    assert run.run().diagnostics.dropped_updates == 0
    assert ("at once" in run.training_path) == vectorize


def without_dropping(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let dropout leave everything as it is, and return the rates that were asked for."""
    rates: list[float] = []

    def kept(_: Any, values: Tensor, p: float = 0.5) -> Tensor:
        rates.append(p)
        return values

    monkeypatch.setattr(OwnFunctions, "_dropout", kept)
    return rates


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("options", [{}, {"bias": False, "kdim": 5, "vdim": 7}])
def test_heads_are_those_of_torch(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, *, weights: bool
):
    torch.manual_seed(4)
    rates = without_dropping(monkeypatch)
    ours = nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True, **options)
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, **options)
    theirs.load_state_dict(ours.state_dict())
    sizes = ((3, 8), (6, options.get("kdim", 8)), (6, options.get("vdim", 8)))
    parts = [torch.randn(2, *size) for size in sizes]
    named: dict[str, Any] = {
        "need_weights": weights,
        "key_padding_mask": torch.tensor([[False] * 6, [False] * 4 + [True] * 2]),
        "attn_mask": torch.arange(18).view(3, 6) % 7 == 1,
    }
    with OwnFunctions(torch.tensor(3)):
        found = ours(*parts, **named)
    torch.testing.assert_close(found[0], theirs(*parts, **named)[0])
    assert (found[1] is None) is not weights
    assert rates == [0.3]


def test_attention_is_that_of_torch(monkeypatch: pytest.MonkeyPatch):
    rates = without_dropping(monkeypatch)
    torch.manual_seed(5)
    query, key, value = (torch.randn(2, 3, n, 8) for n in (4, 6, 6))
    masks = torch.arange(4 * 6).view(4, 6) % 5 != 3, torch.linspace(-2, 2, 24).view(4, 6)
    attend = functional.scaled_dot_product_attention
    for options in (
        {}, {"is_causal": True}, {"scale": 0.7}, *({"attn_mask": mask} for mask in masks),
    ):  # fmt: skip
        expected = attend(query, key, value, **options)
        with OwnFunctions(torch.tensor(3)):
            found = attend(query, key, value, dropout_p=0.2, **options)
        torch.testing.assert_close(found, expected)
    assert rates == [0.2] * 5


@pytest.mark.parametrize("own_weights", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"bias": False, "bidirectional": True, "batch_first": True},
    ],
)
def test_an_lstm_of_a_group_is_that_of_torch(options: Any, *, own_weights: bool):
    torch.manual_seed(5)
    layer, inputs = nn.LSTM(3, 4, **options), torch.randn(5, 6, 2, 3)
    params = {name: value.detach() for name, value in layer.named_parameters()}
    each = {n: v + 0.1 * torch.randn(5, *v.shape) for n, v in params.items()}

    def value(params: Any, own: Tensor, seed: Tensor | None) -> Tensor:
        with nullcontext() if seed is None else OwnFunctions(seed, own_weights=own_weights):
            outputs, (hidden, cell) = torch.func.functional_call(layer, params, (own,))
        return outputs.square().sum() + hidden.sum() + cell.square().sum()

    slope, seeds = torch.func.grad(value), torch.arange(5)
    if own_weights:
        found = torch.func.vmap(slope)(each, inputs, seeds)
    else:
        found = torch.func.vmap(slope, (None, 0, 0))(params, inputs, seeds)
    for place, own in enumerate(inputs):
        theirs = {n: v[place] for n, v in each.items()} if own_weights else params
        expected = slope(theirs, own, None)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name][place], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_clients_with_an_lstm_train_in_groups(rate: float):
    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.LSTM(2, 4, 2, dropout=rate, batch_first=True), linear(4, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.head(self.body(inputs.view(-1, 3, 2))[0][:, -1])

    with federation(Reader(), make_clients([4] * 6), vectorize=True) as run:
        report = next(iter(run))
        assert "at once" in run.training_path
    assert report.diagnostics.norm_mean > 0
    assert not report.diagnostics.dropped_updates


@pytest.mark.parametrize("kind", ["attention", "heads"])
def test_a_query_that_may_see_nothing_reads_zeros_as_in_torch(kind: str):
    """A sequence of padding alone: its NaN would drop the whole client."""
    torch.manual_seed(7)
    values = torch.randn(2, 5, 8, requires_grad=True)
    hidden = torch.tensor([[False] * 3 + [True] * 2, [True] * 5])
    layer = nn.MultiheadAttention(8, 2, batch_first=True)

    def output() -> Tensor:
        if kind == "heads":
            named = {"key_padding_mask": hidden, "need_weights": False}
            return layer(values, values, values, **named)[0]
        return functional.scaled_dot_product_attention(
            values, values, values, ~hidden[:, None].expand(2, 5, 5)
        )

    expected = output()
    slopes = torch.autograd.grad(expected.square().sum(), values)
    with OwnFunctions(torch.tensor(3)):
        found = output()
    assert found.isfinite().all()
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), values), slopes)


def test_groups_that_drop_other_clients_are_refused(monkeypatch: pytest.MonkeyPatch):
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = linear(6, 3)

        def forward(self, inputs: Tensor) -> Tensor:
            one = self.first(inputs).unsqueeze(1)
            return functional.scaled_dot_product_attention(one, one, one).squeeze(1)

    def begin() -> None:
        with federation(Attending(), make_clients([4] * 6), vectorize=True) as run:
            next(iter(run))

    begin()
    failing = {"_attention": lambda _, query, *__, **___: query * torch.nan}
    monkeypatch.setattr(OwnFunctions, "_attention", failing["_attention"])
    with pytest.raises(Unsupported, match="another result"):
        begin()


def test_dropped_attention_weights_keep_their_mean():
    """Over many seeds the output is that without dropout."""
    torch.manual_seed(6)
    query = torch.randn(1, 1, 4, 8).expand(4000, 1, 4, 8)
    plain = functional.scaled_dot_product_attention(query[0], query[0], query[0])
    with OwnFunctions(torch.tensor(9)):
        dropped = functional.scaled_dot_product_attention(query, query, query, dropout_p=0.4)
    assert float(dropped.std(dim=0).min()) > 0.1
    torch.testing.assert_close(dropped.mean(dim=0), plain, rtol=0, atol=0.1)
