"""Side by side, no client's data decide how others are trained, whatever calls the operations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.trainers.lots import Lot
from dpacct.fl.trainers.per_example import ExampleTrainer
from dpacct.fl.trainers.sizes import Sizes
from tests.fl.problems import cross_entropy, federation
from tests.fl.trainers import test_company as company

# Not recorded, recorded.
ONE_STEP = fl.SGD(lr=0.3, steps=1, batch_size=5)
MANY_STEPS = fl.SGD(lr=0.3, epochs=2, batch_size=5)
# A group without nobody, who has zeros.
CLIENTS, PLACE, HIDDEN, ROWS = 32, 2, 7, 40
LARGE = 1000.0
_torch: Any = torch
TABLE = torch.arange(float(ROWS)).unsqueeze(1).sin().expand(ROWS, HIDDEN).contiguous()


def rows_of_table(inputs: Tensor) -> Tensor:
    return inputs[:, 0].abs().long()


def careful(slope: Tensor, inputs: Tensor) -> Tensor:
    """Goes another way where a row does not exist."""
    try:
        return slope * TABLE[:, 0].index_select(0, rows_of_table(inputs))[:1]
    except (IndexError, RuntimeError):
        return slope * 2


class Caught(torch.autograd.Function):
    """Catches what is raised in its backward pass; torch makes its rule for vmap."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hidden, inputs):
        return hidden * 1.0, inputs * 1.0

    @staticmethod
    def setup_context(ctx, inputs, _):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, slope, _):
        return careful(slope, *ctx.saved_tensors), None


class Told(torch.autograd.Function):
    """Its rule for vmap goes by the values of all."""

    @staticmethod
    def forward(values):
        return values * 1.0 if float(values.detach().abs().max()) < LARGE else values * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, slope):
        return slope

    @staticmethod
    def vmap(info, in_dims, values):
        del info
        return Told.apply(values), in_dims[0]


def unseen(hidden: Tensor, inputs: Tensor, model: nn.Module) -> Tensor:
    del model
    with _torch._C.DisableTorchFunction():
        return careful(hidden, inputs)


def hooked(hidden: Tensor, inputs: Tensor, model: nn.Module) -> Tensor:
    del model
    if hidden.requires_grad:
        hidden.register_hook(lambda slope: careful(slope, inputs))
    return hidden


def hidden_lookup(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    with _torch._C.DisableTorchFunction():
        return hidden + functional.embedding(rows_of_table(inputs), model.table)


def direct_lookup(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    return hidden + torch.ops.aten.embedding(model.table, rows_of_table(inputs))


def filled(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    return hidden + model.table.index_fill(0, rows_of_table(inputs), 0.0)[:1]


def filled_directly(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    return hidden + torch.ops.aten.index_fill(model.table, 0, rows_of_table(inputs), 0.0)[:1]


def solved(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    """Of many systems, each starts with the order of columns in which the last one ended."""
    del model
    squares = inputs[:, :9].reshape(-1, 3, 3) + torch.eye(3)
    return hidden + torch.linalg.lstsq(squares, inputs[:, :3, None]).solution.sum((1, 2))[:, None]


def told(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    del inputs, model
    return Told.apply(hidden)


def multiplied(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    return hidden + (model.table[0] * inputs[:, :HIDDEN]).prod(dim=1, keepdim=True)


def reading(hidden: Tensor, inputs: Tensor, model: Any) -> Tensor:
    del inputs, model
    return hidden * (2.0 if bool((TABLE.abs() == TABLE).all()) else float(TABLE[1, 1]))


class Network(nn.Module):
    def __init__(self, how: Any) -> None:
        super().__init__()
        self.first = nn.Linear(13, HIDDEN)
        self.table = nn.Parameter(1.5 + TABLE)
        self.last = nn.Linear(HIDDEN, 3)
        self.how = how

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(self.how(self.first(inputs), inputs, self))


def people() -> list[ClientData]:
    return [company.client(company.vectors, 5, seed) for seed in range(CLIENTS)]


def trained(how: Any, local: fl.SGD, clients: list[ClientData]) -> Tensor:
    """The updates of clients side by side."""
    build = lambda: (Network(how), company.vectors)  # noqa: E731 - as the others are built
    trainer, broadcast, _, task = company.setting(build, local)
    return trainer.train([task(data, 5) for data in clients], broadcast)


def trained_examples(how: Any, rows: ClientData) -> Tensor:
    """The updates of examples, all at once."""
    build = lambda: (Network(how), company.vectors)  # noqa: E731 - as the others are built
    local = fl.SGD(lr=0.3, steps=1, batch_size=1)
    group, broadcast, _, _ = company.setting(build, local)
    one = group.trainer
    trainer = ExampleTrainer(one._method, one.sum.loss, one._layout, Sizes.one(len(rows)))
    count = len(rows)
    lot = Lot(rows, torch.arange(count), torch.zeros(count, dtype=torch.bool))
    return trainer.train(lot, broadcast)


CATCHING = {
    "without functions": unseen,
    "in a backward pass": lambda hidden, inputs, _: Caught.apply(hidden, inputs)[0],
}


@pytest.mark.parametrize("local", [ONE_STEP, MANY_STEPS])
@pytest.mark.parametrize("how", CATCHING)
def test_what_is_caught_unseen_is_raised(how: str, local: fl.SGD):
    assert bool(trained(CATCHING[how], local, people()).isfinite().all())
    clients = people()
    clients[PLACE].inputs.fill_(LARGE)
    with pytest.raises((IndexError, RuntimeError), match=r"range|bounds"):
        trained(CATCHING[how], local, clients)


@pytest.mark.parametrize("how", [*CATCHING, "in a hook"])
def test_so_it_is_with_examples(how: str):
    model = (CATCHING | {"in a hook": hooked})[how]
    rows = company.client(company.vectors, CLIENTS, 3)
    assert bool(trained_examples(model, rows).isfinite().all())
    rows.inputs[PLACE] = LARGE
    with pytest.raises((IndexError, RuntimeError), match=r"range|bounds"):
        trained_examples(model, rows)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (hidden_lookup, "rows of others"),
        (direct_lookup, "rows of others"),
        (filled, "rows of others"),
        (filled_directly, "rows of others"),
        (solved, "that of all"),
        (told, "values of all"),
    ],
)
def test_what_mixes_clients_or_shows_them_is_refused(how: Any, words: str):
    for local in (ONE_STEP, MANY_STEPS):
        with pytest.raises(RuntimeError, match=words):
            trained(how, local, people())
    with pytest.raises(RuntimeError, match=words):
        trained_examples(how, company.client(company.vectors, CLIENTS, 3))


@pytest.mark.parametrize("local", [ONE_STEP, MANY_STEPS])
def test_a_clients_zeros_are_its_own(local: fl.SGD):
    """The gradient of a product is computed in one way for all, whoever has a zero."""
    expected = trained(multiplied, local, people())
    clients = people()
    clients[PLACE].inputs.zero_()
    found = trained(multiplied, local, clients)
    others = [place for place in range(CLIENTS) if place != PLACE]
    assert torch.equal(found[others], expected[others])
    assert not torch.equal(found[PLACE], expected[PLACE])


@pytest.mark.parametrize("local", [ONE_STEP, MANY_STEPS])
def test_what_holds_nobodys_data_may_be_read(local: fl.SGD):
    assert bool(trained(reading, local, people()).any())


def test_a_model_that_is_told_the_values_of_all_is_trained_one_by_one():
    options: dict[str, Any] = {"preflight": True, "rounds": 1}
    with federation(Network(told), people(), cross_entropy, vectorize="auto", **options) as run:
        run.run()
        assert run.training_path.startswith("one client at a time")
    refused = federation(Network(told), people(), cross_entropy, vectorize=True, **options)
    with refused, pytest.raises(Unsupported, match="values of all"):
        refused.run()
