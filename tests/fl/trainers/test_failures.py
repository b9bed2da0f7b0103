"""What goes wrong with one client's data costs that client's contribution, and nothing else."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.local.labels import Labels
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.trainers.tasks import NO_DATA
from dpacct.ledger import Ledger
from tests.fl.problems import cross_entropy, federation, flat, linear, make_clients, perceptron

pytestmark = pytest.mark.usefixtures("uncounted")
TRAINERS = pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])
SIZES = [5, 3, 4, 6, 2]
BAD = 1


class Silent(fl.GaussianNoise):
    """No noise: for comparing sums."""

    def add(self, total, limits, std, source):
        return total


class Unreadable:
    """A population of which some clients cannot be read."""

    def __init__(self, clients: list[fl.ClientData], error: BaseException, *bad: int) -> None:
        self._clients = clients
        self._error = error
        self._bad = bad

    def __len__(self) -> int:
        return len(self._clients)

    def __getitem__(self, client: int) -> fl.ClientData:
        if client in self._bad:
            raise self._error
        return self._clients[client]


class Corrupt(Exception):
    """An error that nobody has heard of."""


def changed(inputs: Any = None, targets: Any = None) -> list[fl.ClientData]:
    """The clients, one of them with other data."""
    clients = make_clients(SIZES)
    data = clients[BAD]
    x = data.inputs if inputs is None else inputs(data.inputs)
    y = data.targets if targets is None else targets(data.targets)
    clients[BAD] = fl.ClientData(x, y)
    return clients


def first_label(value: int):
    def change(targets: Tensor) -> Tensor:
        return torch.cat([torch.tensor([value]), targets[1:]])

    return change


FAULTS: dict[str, Any] = {
    "OSError": Unreadable(make_clients(SIZES), OSError("no such file"), BAD),
    "KeyError": Unreadable(make_clients(SIZES), KeyError("name"), BAD),
    "ValueError": Unreadable(make_clients(SIZES), ValueError("cut off"), BAD),
    "struct.error": Unreadable(make_clients(SIZES), struct.error("cut off"), BAD),
    "an error of its own": Unreadable(make_clients(SIZES), Corrupt(), BAD),
    "no client": [*make_clients(SIZES)[:BAD], (1, 2), *make_clients(SIZES)[BAD + 1 :]],
    "a label too large": changed(targets=first_label(3)),
    "a huge label": changed(targets=first_label(2**62)),
    "a negative label": changed(targets=first_label(-1)),
    "labels of another type": changed(targets=lambda y: y.double() + 0.5),
    "labels of another shape": changed(targets=lambda y: y.repeat(2, 1).T),
    "NaN": changed(inputs=lambda x: x * torch.nan),
    "one infinity": changed(inputs=lambda x: torch.where(x == x.max(), torch.inf, x)),
    "other inputs": changed(inputs=lambda x: x[:, :4]),
    "inputs of another type": changed(inputs=lambda x: x.double()),
    "sparse inputs": changed(inputs=lambda x: x.to_sparse()),
}


def released(clients: Any, *, vectorize: bool, **options: Any) -> tuple[Tensor, Any]:
    model = perceptron()
    settings = {"seed": 4, "noise": Silent(), "clip_norm": 1e3, "rounds": 2}
    with federation(model, clients, vectorize=vectorize, **(settings | options)) as run:
        last = run.run()
    return flat(model), last


@cache
def known(*, absent: bool, vectorize: bool) -> Tensor:
    """What is released with everybody, or without the one that fails elsewhere."""
    clients = make_clients(SIZES)
    return released(
        Unreadable(clients, OSError("absent"), BAD) if absent else clients, vectorize=vectorize
    )[0]


@TRAINERS
@pytest.mark.parametrize("fault", FAULTS)
def test_a_client_that_fails_counts_as_zero_and_the_round_goes_on(fault, vectorize):
    found, last = released(FAULTS[fault], vectorize=vectorize)
    assert torch.equal(found, known(absent=True, vectorize=vectorize))
    assert last.diagnostics.dropped_updates == 1
    assert last.diagnostics.cohort_size == len(SIZES)
    assert not torch.equal(found, known(absent=False, vectorize=vectorize))


@TRAINERS
def test_an_empty_client_of_any_shape_sends_nothing(vectorize):
    clients = make_clients(SIZES)
    for nobody in (NO_DATA, fl.ClientData(torch.zeros(0, 2, 2), torch.zeros(0, 5))):
        clients[BAD] = nobody
        found, last = released(clients, vectorize=vectorize)
        assert last.diagnostics.dropped_updates == 0
        absent, _ = released(Unreadable(clients, OSError(), BAD), vectorize=vectorize)
        assert torch.equal(found, absent)


@TRAINERS
@pytest.mark.parametrize("bad", [(0,), (0, 1, 3), (0, 1, 2, 3, 4)])
def test_however_many_fail_the_run_is_charged_and_released(vectorize, bad, tmp_path):
    clients = Unreadable(make_clients(SIZES), OSError("gone"), *bad)
    path = tmp_path / "run.ledger"
    example = make_clients([4], seed=9)[0]
    with federation(linear(), clients, vectorize=vectorize, ledger=path, example=example) as run:
        reports = list(run)
    assert [report.diagnostics.dropped_updates for report in reports] == [len(bad)] * 3
    assert all(report.released for report in reports)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.runs[0].committed == 3


def test_clients_side_by_side_may_differ_in_shape():
    class Mean(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(1, 3)

        def forward(self, inputs):
            return self.layer(inputs.mean(dim=1, keepdim=True))

    clients = make_clients(SIZES)
    clients[2] = fl.ClientData(clients[2].inputs[:, :2], clients[2].targets)
    finals = []
    for vectorize in (False, True):
        model = Mean()
        with federation(model, clients, vectorize=vectorize, noise=Silent(), seed=1) as run:
            assert run.run().diagnostics.dropped_updates == 0
        finals.append(flat(model))
    assert torch.allclose(*finals, atol=1e-6)


def test_a_client_with_more_data_than_its_share_of_the_memory_is_trained_alone():
    clients = make_clients([4, 4, 400, 4])
    finals = []
    for options in ({"vectorize": False}, {"vectorize": True, "memory_limit": 80_000}):
        model = linear()
        with federation(model, clients, noise=Silent(), seed=1, **options) as run:
            run.run()
            choice = run.player.choice
        finals.append(flat(model))
    assert [choice.trainer.admit(data) for data in clients] == [True, True, False, True]
    assert torch.allclose(*finals, atol=1e-6)


@TRAINERS
def test_a_loss_that_refuses_one_clients_data_costs_that_client(vectorize):
    def picky(outputs: Tensor, targets: Tensor) -> Tensor:
        picked = torch.gather(outputs.log_softmax(dim=-1), -1, targets.unsqueeze(-1))
        return -picked.mean()

    found, last = released(changed(targets=first_label(7)), loss=picky, vectorize=vectorize)
    without, _ = released(
        Unreadable(make_clients(SIZES), OSError(), BAD), loss=picky, vectorize=vectorize
    )
    assert torch.equal(found, without)
    assert last.diagnostics.dropped_updates == 1


@TRAINERS
def test_labels_that_a_loss_ignores_are_labels(vectorize):
    clients = changed(targets=first_label(-100))
    found, last = released(clients, vectorize=vectorize)
    assert last.diagnostics.dropped_updates == 0
    one_less = make_clients(SIZES)
    data = one_less[BAD]
    one_less[BAD] = fl.ClientData(data.inputs[1:], data.targets[1:])
    less, _ = released(one_less, vectorize=vectorize, local=fl.SGD(lr=0.1, steps=1, batch_size=8))
    same, _ = released(clients, vectorize=vectorize, local=fl.SGD(lr=0.1, steps=1, batch_size=8))
    assert torch.allclose(same, less, atol=1e-6)
    assert not torch.equal(found, less)


def test_the_labels_of_a_loss_are_read_from_it():
    def labels(loss: Any, targets: Tensor) -> Labels | None:
        objective = LocalLoss(linear(), loss, (), "float32", functional=False)
        return Labels.of(objective, torch.zeros(2, 4), targets)

    classes = torch.tensor([0, 3])
    assert labels(cross_entropy, classes) == Labels(4, -100, padded=True)
    assert labels(nn.CrossEntropyLoss(ignore_index=2), classes) == Labels(4, 2)
    assert labels(nn.functional.nll_loss, classes) == Labels(4, -100)
    assert labels(cross_entropy, torch.zeros(2, 4)) is None
    assert labels(nn.functional.mse_loss, classes) is None
    assert not Labels(4, -100).check(torch.tensor([0, 3, -100]))
    assert not Labels(4, 2).check(torch.tensor([0, 2]))
    assert Labels(4, 2).check(torch.tensor([0, 3]))
    assert Labels(4, -100).check(torch.zeros(0, dtype=torch.int64))
    for value in (4, -1, 255):
        with pytest.raises(InvalidParameter, match=r"labels lie in 0\.\.3"):
            Labels(4, -100).check(torch.tensor([0, value]))


@TRAINERS
def test_an_interrupt_is_no_clients_failure(vectorize):
    with (
        federation(
            linear(),
            Unreadable(make_clients([4] * 9), KeyboardInterrupt(), 8),
            vectorize=vectorize,
        ) as run,
        pytest.raises(KeyboardInterrupt),
    ):
        run.run()


def test_memories_of_clients_that_fail_stay_as_they_are():
    clients = changed(targets=first_label(9))
    for vectorize in (False, True):
        with federation(
            linear(), clients, method=fl.FedAlphaNormEC(), clip_norm=None, vectorize=vectorize
        ) as run:
            run.run()
            memories = run.player.state.client_states
        assert [bool(memories[client]["memory"].any()) for client in range(5)] == [
            client != BAD for client in range(5)
        ]


class Shrinking(list):
    """A population that clients leave and join."""


def test_a_population_that_shrinks_is_refused_before_the_round_is_charged(tmp_path):
    path = tmp_path / "run.ledger"
    clients = Shrinking(make_clients([3] * 40))
    with federation(
        linear(), clients, sampling=fl.Uniform(20, 40), noise_multiplier=2.0, ledger=path
    ) as run:
        rounds = iter(run)
        next(rounds)
        del clients[25:]
        with pytest.raises(InvalidParameter, match=r"clients is 25; .* planned for 40 clients"):
            next(rounds)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.runs[0].rounds == ledger.runs[0].committed == 1


@pytest.mark.parametrize("sampling", [fl.Full(), fl.Poisson(0.5), fl.Uniform(3, 6)], ids=str)
@pytest.mark.parametrize("count", [5, 7])
def test_a_population_of_another_size_is_refused_under_every_sampling(sampling, count):
    clients = Shrinking(make_clients([3] * 7))
    del clients[6:]
    with federation(linear(), clients, sampling=sampling) as run:
        if count == 5:
            clients.pop()
        else:
            clients.append(make_clients([3], seed=5)[0])
        with pytest.raises(InvalidParameter, match=f"clients is {count}"):
            run.run()
        assert run.epsilon.upper == 0


def test_a_client_that_counts_twice_is_refused():
    [one, two] = make_clients([3, 3])
    with pytest.raises(InvalidParameter, match="client 0 is the same object"):
        federation(linear(), [one, two, one])
    clients = Shrinking([one, two])
    with federation(linear(), clients) as run:
        rounds = iter(run)
        next(rounds)
        clients[1] = one
        with pytest.raises(InvalidParameter, match="counts twice"):
            next(rounds)


def test_indices_beyond_the_data_are_clients_that_fail():
    class Longer(Unreadable):
        def __len__(self):
            return len(self._clients) + 2

    clients = Longer(make_clients([4] * 6), OSError())
    with federation(linear(), clients) as run:
        assert run.run().diagnostics.dropped_updates == 2


@TRAINERS
def test_a_warning_made_an_error_is_no_clients_failure(vectorize):
    clients = Unreadable(make_clients([4] * 9), UserWarning("look"), 8)
    with (
        federation(linear(), clients, vectorize=vectorize) as run,
        pytest.raises(UserWarning, match="look"),
    ):
        run.run()


def test_what_reaches_further_than_a_client_is_no_clients_failure():
    clients = Unreadable(make_clients([4] * 9), Unsupported("too far"), 8)
    with federation(linear(), clients) as run, pytest.raises(Unsupported, match="too far"):
        run.run()
