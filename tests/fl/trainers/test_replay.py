"""Steps that are played from a record are the steps themselves, bit by bit, or are not played."""

from __future__ import annotations

import random
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
import torch
from torch import nn

from dpacct import fl
from dpacct.fl.engine.loop import RoundLoop
from dpacct.fl.tensors import seed_generators
from dpacct.fl.trainers.agreement import replays_exactly
from dpacct.fl.trainers.replay import Record, Repeated, recorded
from dpacct.fl.trainers.way import taken, way_of
from tests.fl.problems import federation, make_clients
from tests.fl.problems import perceptron as small
from tests.fl.trainers import test_company as company

PLAIN = fl.SGD(lr=1.0, epochs=2, batch_size=5)
# Clients that finish at different times, one alone in its width.
SIZES = (9, 3, 12, 0, 40)


@pytest.fixture
def played(monkeypatch):
    """How many steps were played so far."""
    count = [0]
    play = Record.play

    def counted(self, inputs):
        count[0] += 1
        return play(self, inputs)

    monkeypatch.setattr(Record, "play", counted)
    return count


def rows_of(build, local, method=None, **options):
    """Updates of the same clients with and without a record."""
    trainer, broadcast, draw, task = company.setting(build, local, method, **options)
    tasks = [task(company.client(draw, size, 7 + size), size) for size in SIZES]
    found = []
    for trainer.trainer.replays in (True, False):
        found.append(trainer.train(tasks, broadcast))
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "build",
    [
        company.logistic,
        company.perceptron,
        company.convolutional,
        company.normalized,
        company.recurrent,
        company.dropping,
    ],
)
def test_a_model_is_replayed_bit_by_bit(build, played):
    record, itself = rows_of(build, company.RAGGED)
    assert torch.equal(record, itself)
    assert played[0] > 10


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(fl.METHODS))
def test_a_method_is_replayed_bit_by_bit(name, played):
    record, itself = rows_of(company.perceptron, PLAIN, fl.METHODS[name]())
    assert torch.equal(record, itself)
    # One step is not worth a record.
    assert played[0] > 10 or name == "alpha-normec"


def squared(outputs, targets):
    return (outputs - nn.functional.one_hot(targets, 3)).square().mean()


@pytest.mark.parametrize(
    ("local", "options"),
    [
        (replace(PLAIN, precision="bfloat16"), {}),
        (replace(PLAIN, total_lr=True, weight_decay=0.1), {}),
        (PLAIN, {"loss": squared}),
    ],
)
def test_so_is_any_setting(local, options, played):
    record, itself = rows_of(company.perceptron, local, **options)
    assert torch.equal(record, itself)
    assert played[0] > 10


class InPlace(nn.Module):
    """Writes to its batch, to what it computes, and to a table of zeros that it makes."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(13, 3)
        self.register_buffer("scale", torch.tensor(1.5))

    def forward(self, inputs):
        wide = self.layer(inputs.mul_(0.5)).relu_()
        table = torch.zeros_like(wide).add_(wide * self.scale)
        return torch.cat([table, wide], dim=-1)[..., 1:4]


def test_a_model_that_writes_in_place_is_replayed_bit_by_bit(played):
    record, itself = rows_of(lambda: (InPlace(), company.vectors), PLAIN)
    assert torch.equal(record, itself)
    assert played[0] > 10


HIDDEN = torch.ones(3)
LIBRARY = torch.library.Library("dpacct_tests", "DEF")
LIBRARY.define("twice(Tensor x) -> Tensor")
LIBRARY.impl("twice", lambda x: x * 2, "CPU")


def written(values, constant):
    """What is written to it through a view, which nobody looks at behind that."""
    whole = values.clone()
    whole[:2].mul_(constant[:2])
    whole[2] = constant[0]
    return whole


def reused(values):
    """The sum with a tensor that has the address of one that was made here before."""
    made = values + 1
    address = id(made)
    del made
    others = []
    for _ in range(100):
        others.append(torch.from_numpy(np.ones(3, np.float32)))
        if id(others[-1]) == address:
            break
    return values + others[-1]


REFUSED = {
    "the host reads a value": lambda x, _: x * float(x.sum()),
    "a shape depends on values": lambda x, _: x.nonzero().float(),
    "a mask depends on values": lambda x, _: x[x > 0.5],
    "values came past the dispatcher": lambda x, _: x + torch.from_numpy(x.numpy() * 2),
    "numbers came past the dispatcher": lambda x, _: x + torch.tensor(x.numpy().tolist()),
    "a tensor is nobody's": lambda x, _: x + HIDDEN,
    "an address is somebody else's": lambda x, _: reused(x),
    "an output is nobody's": lambda x, _: torch.from_numpy(x.numpy() * 2),
    "an operation is not torch's": lambda x, _: torch.ops.dpacct_tests.twice(x),
    "chance is asked": lambda x, _: x + torch.rand(3),
    "a number is read": lambda x, _: x * x.tolist()[0],
    "an array is read": lambda x, _: x * float(np.asarray(x)[0]),
    "bytes are read": lambda x, _: x * float(np.from_dlpack(x)[0]),
    "text is read": lambda x, _: x * len(repr(x * 1e6)),
    "Python draws": lambda x, _: x * random.random(),  # noqa: S311 - what a model may call
    "numpy draws": lambda x, _: x * float(np.random.rand()),  # noqa: NPY002 - the global one
}
PLAYED = {
    "arithmetic": lambda x, c: (x * c).softmax(0),
    "a constant alone": lambda _, c: c * 2.0,
    "an input as it is": lambda x, _: x.view(3),
    "several results": lambda x, c: torch.cat(torch.stack([x, c]).unbind(0)[::-1]),
    "indices": lambda x, c: c[(x > 0.5).long()],
    "a result that nobody needs": lambda x, _: (x.exp(), x + 1)[1],
    "the data of a tensor": lambda x, _: x + x.data,
    "a write to a part": written,
    "a write": lambda x, c: x.clone().mul_(c).t_(),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_could_hold_data_is_never_replayed(what):
    constant = torch.tensor([0.0, 2.0, -1.0])
    step = Repeated(lambda x: [REFUSED[what](x, constant)], [constant], True)
    for seed in range(3):
        values = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        cpu = torch.device("cpu")
        seed_generators(seed, cpu)
        (found,) = step(values)
        seed_generators(seed, cpu)
        assert torch.equal(found, REFUSED[what](values, constant))
    assert recorded(lambda x: [REFUSED[what](x, constant)], [values], [constant])[1] is None


@pytest.mark.parametrize("what", PLAYED)
def test_what_cannot_is(what, played):
    constant = torch.tensor([0.0, 2.0, -1.0])
    step = Repeated(lambda x: [PLAYED[what](x, constant)], [constant], True)
    for seed in range(3):
        values = torch.rand(3, generator=torch.Generator().manual_seed(seed))
        constant += 1.0
        (found,) = step(values)
        assert torch.equal(found, PLAYED[what](values, constant))
    assert played[0] == 2


def test_tensors_of_another_form_are_computed(played):
    step = Repeated(lambda x: [x.sum(0)], [], True)
    forms = [torch.rand(3, 2), torch.rand(4, 2), torch.rand(2, 3).t(), torch.rand(3, 2).double()]
    for values in forms:
        assert torch.equal(step(values)[0], values.sum(0))
    assert played[0] == 0
    assert torch.equal(step(forms[0])[0], forms[0].sum(0))
    assert played[0] == 1


def test_a_record_keeps_nothing_of_what_it_was_made_with():
    given = torch.rand(3)
    _, record = recorded(lambda x: [x.exp().sin()], [given], [])
    assert record is not None
    given.fill_(7.0)
    values = torch.rand(3)
    assert torch.equal(record.play([values])[0], values.exp().sin())


def test_a_record_keeps_nothing_of_what_it_was_played_with():
    _, record = recorded(lambda x: [x.exp().sin()], [torch.rand(3)], [])
    assert record is not None
    (found,) = record.play([torch.rand(3)])
    alive = ref(found)
    del found
    assert alive() is None


class Passing(torch.autograd.Function):
    """Its forward pass under vmap lets NumPy compute, which no dispatcher sees."""

    @staticmethod
    def forward(values):
        return values * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, slope):
        return slope * 2

    @staticmethod
    def vmap(info, in_dims, values):
        del info
        return torch.from_numpy(values.detach().numpy() * 2), in_dims[0]


class Deciding(Passing):
    """Another one, that goes by what NumPy finds large."""

    @staticmethod
    def vmap(info, in_dims, values):
        del info
        large = [bool(own.detach().numpy().max() > 2.5) for own in values]
        return torch.stack(
            [v * (2 - is_large) for v, is_large in zip(values, large, strict=True)]
        ), in_dims[0]


@torch.library.custom_op("dpacct_tests::doubled", mutates_args=())
def doubled(values: torch.Tensor) -> torch.Tensor:
    return values * 2


@doubled.register_fake
def _(values):
    return values * 2


@doubled.register_vmap
def _(info, in_dims, values):
    del info
    return values * (2 if values.numpy()[0, 0, 0] > 0 else 3), in_dims[0]


class Foreign(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.layer = nn.Linear(13, 3)
        self.function = function

    def forward(self, inputs):
        return self.layer(self.function(inputs))


@pytest.mark.parametrize("function", [Passing.apply, Deciding.apply, doubled])
def test_a_model_that_computes_elsewhere_is_refused(function):
    """Its rule is given the values of all, and may go by one of them."""
    with pytest.raises(RuntimeError, match="values of all"):
        rows_of(lambda: (Foreign(function), company.vectors), PLAIN)


class Generated(torch.autograd.Function):
    """Of which torch makes the rule for vmap: no value can be read in it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values):
        return values * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(_, slope):
        return slope * 2


def test_a_function_that_torch_batches_is_replayed(played):
    record, itself = rows_of(lambda: (Foreign(Generated.apply), company.vectors), PLAIN)
    assert torch.equal(record, itself)
    assert played[0] > 10


def test_so_is_the_function_of_large_linear_layers(played):
    record, itself = rows_of(company.wide, PLAIN)
    assert torch.equal(record, itself)
    assert played[0] > 10


@pytest.mark.parametrize("first", [True, False])
def test_what_an_operation_raises_is_not_passed_over(first):
    """The operation is that of all clients: one's index would decide how all are trained."""

    def step(values, index):
        try:
            return [values.index_select(0, index)]
        except (RuntimeError, IndexError):
            return [values[:1] * 0]

    values = torch.arange(3.0)
    repeated = Repeated(step, [], True)
    if not first:
        assert torch.equal(repeated(values, torch.tensor([1]))[0], values[1:2])
    for _ in range(2):
        with pytest.raises((RuntimeError, IndexError), match="out of range"):
            repeated(values, torch.tensor([5]))
    assert torch.equal(repeated(values, torch.tensor([2]))[0], values[2:])


class Wide(nn.Module):
    """Half of it in single precision whatever surrounds it."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(13, 9), nn.Linear(9, 3)

    def forward(self, inputs):
        wide = self.layer(inputs).float()
        with torch.autocast("cpu", enabled=False):
            return self.last(wide.tanh())


def test_what_surrounds_a_run_casts_nothing_twice(played):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        record, itself = rows_of(lambda: (Wide(), company.vectors), PLAIN)
    assert torch.equal(record, itself)
    assert played[0] > 10


def begun(**options):
    run = federation(small(), make_clients([6] * 40), vectorize=True, **options)
    with run:
        run.player.begin("name", 3, None)
    assert isinstance(run.player, RoundLoop)
    return run.player


def test_records_with_other_bits_are_not_used(monkeypatch):
    assert begun().chooser.vectorized.replays
    play = Record.play
    monkeypatch.setattr(Record, "play", lambda *given: [v * (1 + 2e-7) for v in play(*given)])
    loop = begun()
    assert not loop.chooser.vectorized.replays
    # Another process does as this one does.
    other = begun()
    other.chooser.vectorized.replays = True
    taken(way_of(loop.choice), other.chooser, loop.engine.layout)
    assert not other.chooser.vectorized.replays


@pytest.mark.parametrize("batch_size", [10, 64, None])
def test_records_are_compared_on_steps_that_are_played(batch_size, monkeypatch):
    """Also where the made-up clients are so small that they would take one step."""
    inputs: list[list[torch.Tensor]] = []
    play = Record.play

    def noted(self, given):
        inputs.append(given)
        return [value * (1 + 2e-7) for value in play(self, given)]

    monkeypatch.setattr(Record, "play", noted)
    loop = begun(local=fl.SGD(lr=0.1, epochs=1, batch_size=batch_size), rounds=1)
    assert not loop.chooser.vectorized.replays
    assert len(inputs) == 2
    # Examples other than those of the step before.
    assert not torch.equal(inputs[0][4], inputs[1][4])


def test_a_step_that_cannot_be_taken_is_no_reason_to_replay():
    trainer, broadcast, draw, task = company.setting(company.logistic, PLAIN)
    data = company.client(draw, 4, 1)
    wrong = fl.ClientData(data.inputs[:, :5], data.targets)
    assert not replays_exactly(trainer.trainer, [task(wrong, 2)], broadcast)
    assert replays_exactly(trainer.trainer, [task(data, 2)], broadcast)
