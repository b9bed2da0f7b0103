"""Side by side, what one client looks up never leads to another's parameters."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.fl.trainers.sequential import SequentialTrainer
from tests.fl.trainers import test_company as company

PLAIN = fl.SGD(lr=1.0, epochs=2, batch_size=5)
TOKENS, PLACE = 11, 2


class Looking(nn.Module):
    """Looks up its inputs in a table of its own."""

    def __init__(self, look):
        super().__init__()
        self.table = nn.Embedding(TOKENS, 5)
        self.out = nn.Linear(5, TOKENS)
        self.look = look

    def forward(self, inputs):
        return self.out(self.look(inputs, self.table.weight)).permute(0, 2, 1)


LOOKS = {
    "functional": nn.functional.embedding,
    "named": lambda x, table: nn.functional.embedding(weight=table, input=x, padding_idx=0),
    "from behind": lambda x, table: nn.functional.embedding(x, table, -TOKENS),
    "torch": lambda x, table: torch.embedding(table, x, 0),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsam"])
@pytest.mark.parametrize("token", [-1, TOKENS, 3 * TOKENS])
@pytest.mark.parametrize("how", LOOKS)
def test_a_token_out_of_range_costs_its_own_client_alone(how, token, method):
    def build():
        return Looking(LOOKS[how]), company.texts

    trainer, broadcast, draw, task = company.setting(build, PLAIN, fl.METHODS[method]())
    people = [company.client(draw, size, size) for size in (6, 9, 12, 7, 30)]
    # Whoever leaves off early stands beside others who go on.
    expected = trainer.train([task(data, 5) for data in people], broadcast)
    assert bool(expected.isfinite().all())
    people[PLACE].inputs[4, 3] = token
    found = trainer.train([task(data, 5) for data in people], broadcast)
    assert not bool(found[PLACE].isfinite().all())
    others = [place for place in range(len(people)) if place != PLACE]
    assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize("method", ["dp-fedavg", "dp-fedsam"])
@pytest.mark.parametrize("how", LOOKS)
def test_the_rows_are_those_of_an_embedding(how, method):
    # Of each client: the row of padding is one of every table.
    chosen = fl.METHODS[method]()
    trainer, broadcast, draw, task = company.setting(
        lambda: (Looking(LOOKS[how]), company.texts), PLAIN, chosen
    )
    tasks = [task(company.client(draw, size, size), 5) for size in (6, 9, 7)]
    one = trainer.trainer
    alone = SequentialTrainer(chosen, one.sum.loss, one._layout).train(tasks, broadcast)
    assert torch.allclose(trainer.train(tasks, broadcast), alone, atol=1e-5)
    # The table comes first, and padding first in it.
    assert bool(alone[:, :5].any()) == (how == "functional")


class Careful(nn.Module):
    """Goes another way where a row does not exist."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(5, TOKENS)

    def forward(self, inputs):
        try:
            rows = torch.ones(TOKENS, 5).index_select(0, inputs.flatten())
        except (IndexError, RuntimeError):
            rows = torch.zeros(inputs.numel(), 5)
        return self.out(rows.view(*inputs.shape, 5)).permute(0, 2, 1)


@pytest.mark.parametrize("steps", [1, None])
def test_what_a_model_catches_is_raised_side_by_side(steps):
    """One step, which is not recorded, and more."""
    local = fl.SGD(lr=1.0, steps=1, batch_size=5) if steps else PLAIN
    trainer, broadcast, draw, task = company.setting(lambda: (Careful(), company.texts), local)
    people = [company.client(draw, size, size) for size in (6, 9, 7)]
    assert bool(trainer.train([task(data, 5) for data in people], broadcast).isfinite().all())
    people[PLACE].inputs[:] = TOKENS
    with pytest.raises((IndexError, RuntimeError), match=r"range|bounds"):
        trainer.train([task(data, 5) for data in people], broadcast)


class Hooked(fl.DPFedAvg):
    """Goes another way where a row does not exist, after a step or at the end."""

    def __init__(self, hook):
        super().__init__()
        self.hook = hook

    def _careful(self, values):
        place = (values.abs().max() * 1e-3).long().reshape(1)
        try:
            return values * torch.ones(5).index_select(0, place)
        except (IndexError, RuntimeError):
            return values * 0

    def after_step(self, params, context):
        if self.hook != "step":
            return params
        return {name: self._careful(value) for name, value in params.items()}

    def local_update(self, delta, state, context):
        return self._careful(delta) if self.hook == "end" else delta


@pytest.mark.parametrize("hook", ["step", "end"])
def test_what_a_method_catches_is_raised_side_by_side(hook):
    trainer, broadcast, draw, task = company.setting(
        lambda: (nn.Linear(13, 3), company.vectors), PLAIN, Hooked(hook)
    )
    people = [company.client(draw, size, size) for size in (6, 9, 7)]
    assert bool(trainer.train([task(data, 5) for data in people], broadcast).isfinite().all())
    people[PLACE].inputs.mul_(1e9)
    with pytest.raises((IndexError, RuntimeError), match=r"range|bounds"):
        trainer.train([task(data, 5) for data in people], broadcast)
