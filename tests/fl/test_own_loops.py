"""Loops of one's own: the bits of a federation for every method, and mistakes that add nothing."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpacct import fl
from dpacct.correlated import square_root
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.training.messages import pack
from dpacct.ledger import Ledger
from tests.fl.auditing.test_runs import SURE, Quieter
from tests.fl.methods.test_kit import VARIANTS, build
from tests.fl.problems import (
    KILLED,
    batches,
    cross_entropy,
    die,
    federation,
    flat,
    forked,
    linear,
    make_clients,
    perceptron,
)

CLIENTS = make_clients((9, 4, 0, 7, 5, 8))
LOCAL = fl.SGD(lr=0.1, epochs=2, batch_size=4, weight_decay=0.01)
pytestmark = pytest.mark.usefixtures("uncounted")


def settings(**options) -> dict[str, Any]:
    method = options.get("method")
    own = "bound" in options or getattr(method, "bound", None) is not None
    usual = {"noise_multiplier": 0.7, "sampling": fl.Poisson(0.6), "rounds": 3, "local": LOCAL}
    return usual | {"clip_norm": None if own else 0.5} | options


def server(model: Callable[[], nn.Module] = perceptron, **options) -> fl.Server:
    return fl.Server(model(), len(CLIENTS), **settings(**options))


def opened_round(**options) -> fl.OpenRound:
    """A round of all clients, of a run that nobody closes."""
    return next(iter(server(**({"sampling": fl.Full()} | options))))


def here(run: fl.Server, opened: fl.OpenRound, client: int, steps: int):
    """A client of this process."""
    del run
    return opened.local(client, cross_entropy, steps=steps)


@contextmanager
def there(run: fl.Server, opened: fl.OpenRound, client: int, steps: int):
    """A client that gets bytes, and answers by bytes."""
    given, model = opened.assignment(client), perceptron()
    with fl.LocalRun(given, model, cross_entropy, run.engine.method, steps=steps) as local:
        yield local
    opened.receive(local.answer)


def by_steps(local: fl.LocalRun, given) -> None:
    for x, y in given:
        local.step(x, y)


def by_optimizer(make: Callable[[Any], torch.optim.Optimizer]):
    def loop(local: fl.LocalRun, given) -> None:
        optimizer = make(local.parameters())
        for x, y in given:
            optimizer.zero_grad()
            local.backward(x, y)
            optimizer.step()

    return loop


def trained(run: fl.Server, way=here, loop=by_steps) -> list[fl.RoundReport]:
    """Train a server by a loop of one's own, and return the reports."""
    reports = []
    for opened in run:
        for client in opened.workers:
            seed = opened.draw.seed_of(client)
            given = batches(CLIENTS[client], run.engine.local, seed)
            with way(run, opened, client, len(given)) as local:
                loop(local, given)
        reports.append(opened.release())
    return reports


def same_state(one, two) -> None:
    assert torch.equal(flat(one.model), flat(two.model))
    assert one.state.client_states.keys() == two.state.client_states.keys()
    for client, memory in one.state.client_states.items():
        other = two.state.client_states[client]
        assert all(torch.equal(memory[name], other[name]) for name in memory)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)
@pytest.mark.parametrize("way", [here, there], ids=["here", "there"])
def test_a_loop_of_steps_ends_with_the_bits_of_a_federation(name, options, way):
    given = {"method": build(name, options), "seed": 5}
    with federation(perceptron(), CLIENTS, **settings(**given)) as run:
        expected = list(run)
    with server(**given) as own:
        reports = trained(own, way=way)
    same_state(run, own)
    for ours, theirs in zip(reports, expected, strict=True):
        assert ours.noise_std == theirs.noise_std
        assert ours.diagnostics.cohort_size == theirs.diagnostics.cohort_size
        if way is here:
            assert repr(ours.diagnostics) == repr(theirs.diagnostics)


CASES: dict[str, dict[str, Any]] = {
    "momentum": {"local": fl.SGD(lr=0.1, batch_size=4, momentum=0.5, lr_decay=0.9)},
    "norms of gradients": {"local": fl.SGD(lr=0.1, batch_size=3, max_grad_norm=0.1)},
    "one rate for all steps": {"local": fl.SGD(lr=0.5, epochs=2, batch_size=3, total_lr=True)},
    "rates by round": {"local": fl.SGD(lr=lambda t: 0.3 / t, steps=5, batch_size=4)},
    "adam": {"local": fl.LocalAdam(lr=0.01, epochs=2, batch_size=4)},
    "pgn with momentum": {
        "local": fl.SGD(lr=0.1, batch_size=4, momentum=0.5), "method": fl.DPFedPGN(rho=0.1),
    },
    "adaptive": {"bound": fl.AdaptiveClip(0.3), "noise_multiplier": 0.2},
    "per tensor": {"bound": fl.PerLayerClip((0.4, 0.2, 0.3, 0.1)), "sampling": fl.Uniform(3, 6)},
    "secure": {"secure_noise": True},
    "server": {"server": fl.Adam(0.05), "server_lr": lambda t: 1 / t},
    "allocation": {"sampling": fl.Allocation(3)},
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", [here, there], ids=["here", "there"])
def test_settings_of_a_run_are_those_of_the_loop(case, way):
    options = CASES[case] | {"seed": 3}
    with federation(perceptron(), CLIENTS, **settings(**options)) as run:
        run.run()
    with server(**options) as own:
        trained(own, way=way)
    same_state(run, own)


class Tied(nn.Module):
    """One weight of two layers, dropout, and a parameter that is not trained."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.last.weight.requires_grad_(requires_grad=False)
        self.norm = nn.BatchNorm1d(6).eval().requires_grad_(requires_grad=False)

    def forward(self, x):
        inner = self.second(self.norm(torch.tanh(self.first(x))))
        return self.last(nn.functional.dropout(inner, 0.3, self.training))


def test_tied_frozen_and_random_layers_are_those_of_a_federation():
    with federation(Tied(), CLIENTS, **settings(seed=5)) as run:
        run.run()
    with server(Tied, seed=5) as own:
        trained(own)
    same_state(run, own)


def plain(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize(
    "method",
    [
        fl.DPFedAvg(),
        fl.DPFedSAM(rho=0.1),
        fl.DPFedLS(),
        fl.BLUR(penalty=1.0),
        fl.FedDyn(),
        fl.BLURS(),
    ],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("way", [here, there], ids=["here", "there"])
def test_an_optimizer_of_ones_own_takes_the_methods_direction(method, way):
    """Torch's plain SGD steps as the run does, with the projection of DP-Fed-LS behind each."""
    options = {
        "method": method,
        "seed": 5,
        "clip_norm": 0.05,
        "local": fl.SGD(lr=0.1, batch_size=2),
    }
    with federation(perceptron(), CLIENTS, **settings(**options)) as run:
        run.run()
    with server(**options) as own:
        trained(own, way=way, loop=by_optimizer(plain))
    same_state(run, own)


def test_accelerate_prepares_optimizer_and_loader():
    """As docs/how-to/your-framework.md has it, against the optimizer without Accelerate."""
    accelerate = pytest.importorskip("accelerate")

    def loop(local: fl.LocalRun, given) -> None:
        optimizer = torch.optim.AdamW(local.parameters(), lr=0.02)
        loader = DataLoader(list(given), batch_size=None)
        optimizer, loader = accelerate.Accelerator(cpu=True).prepare(optimizer, loader)
        for x, y in loader:
            optimizer.zero_grad()
            local.backward(x, y)
            optimizer.step()

    def adam(parameters):
        return torch.optim.AdamW(parameters, lr=0.02)

    runs = [server(method=fl.DPFedSAM(), seed=5, local=fl.SGD(batch_size=4)) for _ in range(2)]
    for run, way in zip(runs, (loop, by_optimizer(adam)), strict=True):
        with run:
            trained(run, loop=way)
    same_state(*runs)


def test_any_optimizer_trains_and_gradients_add_up_as_in_torch():
    with server(sampling=fl.Full(), local=fl.SGD(), noise_multiplier=1e-3, clip_norm=50.0) as run:
        before = flat(run.model)
        opened = next(iter(run))
        x, y = CLIENTS[0].inputs, CLIENTS[0].targets
        with opened.local(0, cross_entropy) as local:
            parameters = local.parameters()
            assert parameters is not local.parameters()
            local.backward(x, y)
            once = [value.grad.clone() for value in parameters]
            local.backward(x, y)
            for value, first in zip(parameters, once, strict=True):
                assert torch.allclose(value.grad, 2 * first)
            torch.optim.AdamW(parameters, lr=0.02).step()
            moved = torch.cat([value.detach().flatten() for value in parameters]) - before
        assert torch.equal(local.update, moved)
        assert 0.019 < float(local.update.abs().max()) < 0.021
        assert torch.equal(flat(run.model), before)


def test_rates_may_change_within_a_round_where_the_method_allows_it():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    with server(sampling=fl.Full(), method=fl.FedAlphaNormEC()) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy) as local:
            local.step(x, y, lr=0.1)
            local.step(x, y, lr=0.3)
        # The average gradient is what it sends: the displacement over the sum of the rates.
        first = local.update * 0.4
        assert not torch.equal(first, torch.zeros_like(first))
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    for rate in (0.1, 0.3):
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    assert torch.allclose(first, flat(perceptron()) - flat(model), atol=1e-6)


class Two(nn.Module):
    """Two inputs, and the loss if there are labels among them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(6, 3)

    def forward(self, x, z=0.0, labels=None):
        outputs = self.inner(x) + z
        if labels is None:
            return outputs
        return {"logits": outputs, "loss": cross_entropy(outputs, labels)}


class Batches(Mapping):
    """Several tensors by name, as tokenizers give them."""

    def __init__(self, **values) -> None:
        self._values = values

    def __getitem__(self, name):
        return self._values[name]

    def __iter__(self):
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def test_inputs_may_be_several_and_a_model_may_return_its_loss():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    z = torch.ones(len(x), 1)
    updates = []
    for inputs, targets, loss in (
        ((x, z), y, cross_entropy),
        ([x, z], y, cross_entropy),
        ({"z": z, "x": x}, y, cross_entropy),
        (Batches(x=x, z=z), y, nn.CrossEntropyLoss()),
        ({"x": x, "z": z, "labels": y}, None, None),
        (Batches(labels=y, x=x, z=z), None, None),
        ([x, z, y], None, None),
    ):
        with fl.Server(Two(), 6, **settings(sampling=fl.Full())) as run:
            opened = next(iter(run))
            with opened.local(0, loss) as local:
                local.step(inputs, targets)
            updates.append(local.update)
    assert float(updates[0].norm()) > 0
    assert all(torch.equal(update, updates[0]) for update in updates)


def test_a_loader_shuffles_by_the_clients_own_seed():
    """One client more in the cohort must not change the batches of another one."""
    data = TensorDataset(torch.arange(40.0).unsqueeze(1), torch.zeros(40, dtype=torch.int64))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    drawn: dict[int, list[Any]] = {}
    for others in ((), (1, 2)):
        torch.manual_seed(0)
        with server(sampling=fl.Full(), seed=7) as run:
            opened = next(iter(run))
            for client in (*others, 3):
                with opened.local(client, cross_entropy):
                    found = [x.flatten().tolist() for x, _ in loader]
                    found += [np.random.rand(), random.random()]  # noqa: NPY002, S311 - global ones
                    drawn.setdefault(client, []).append(found)
    assert drawn[3][0] == drawn[3][1]
    assert drawn[1] != drawn[2] != drawn[3][:1]


def test_the_generators_of_the_program_are_restored():
    opened = opened_round()
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with opened.local(0, cross_entropy):
        torch.rand(100)
    fails(KeyError, opened.local(1, cross_entropy), lambda _: torch.rand(7))
    assert torch.equal(torch.rand(2), expected)


# A rehearsal, before anything is charged.


def one_round(opened: fl.OpenRound, loss=cross_entropy) -> fl.RoundReport:
    """A loop of one's own, as a function of its round."""
    for client in opened.workers:
        x, y = CLIENTS[client].inputs, CLIENTS[client].targets
        with opened.local(client, loss, steps=1) as local:
            local.step(x, y)
    return opened.release()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": fl.FedAlphaNormEC()},
        {"bound": fl.AdaptiveClip(0.3), "noise_multiplier": 0.2},
        {"sampling": fl.Allocation(3)},
        {"noise": fl.CorrelatedNoise(square_root(3, 2)), "sampling": fl.Cyclic(2)},
        {"method": fl.DPFedPGN(as_printed=True)},
        {"secure_noise": True},
    ],
    ids=str,
)
def test_a_rehearsal_charges_and_changes_nothing(options, tmp_path):
    finals = []
    for tries in (0, 2):
        path = tmp_path / f"{tries}.ledger"
        with server(**options, seed=4, ledger=path) as run:
            for _ in range(tries):
                opened = run.rehearsal(client=1)
                report = one_round(opened)
                assert (list(opened.workers), report.round, run.round) == ([1], 1, 0)
                assert torch.equal(flat(run.model), flat(perceptron()))
                assert not run.state.client_states
                assert not path.exists()
            for opened in run:
                one_round(opened)
            finals.append((flat(run.model), run.state.client_states))
        with Ledger.open(path, read_only=True) as book:
            finals[-1] += (book.runs[0].rounds,)
    assert torch.equal(finals[0][0], finals[1][0])
    assert finals[0][2] == finals[1][2]
    assert finals[0][1].keys() == finals[1][1].keys()


def test_a_rehearsal_shows_nothing_of_its_client():
    releases = []
    for client in (0, 3):
        opened = server().rehearsal(client)
        one_round(opened)
        releases.append(opened.released.mean.vector)
    assert torch.equal(*releases)


def test_a_rehearsal_finds_the_mistakes_of_a_loop(tmp_path):
    def wrong_shape(outputs, targets):
        return cross_entropy(outputs[:, :2], targets)

    def no_number(outputs, targets):
        return (outputs.sum() - targets.sum()) * float("nan")

    with server(ledger=tmp_path / "run.ledger") as run:
        with pytest.raises(IndexError):
            one_round(run.rehearsal(), wrong_shape)
        refused("is finite", lambda: one_round(run.rehearsal(), no_number))
        refused("added no update", lambda: run.rehearsal().release(), Unsupported)
        for client in (6, -1, None, "x"):
            refused("no such client", lambda: run.rehearsal(client))  # noqa: B023
        elsewhere = run.rehearsal()
        with fl.LocalRun(elsewhere.assignment(0), perceptron(), cross_entropy) as local:
            local.step(CLIENTS[0].inputs, CLIENTS[0].targets)
        elsewhere.receive(local.answer)
        elsewhere.release()
        assert not (tmp_path / "run.ledger").exists()


# Mistakes. Each costs the client's contribution, or is refused before it trains.


def steps_of(opened, client=0, count=1, **options):
    with opened.local(client, cross_entropy, **options) as local:
        for _ in range(count):
            local.step(CLIENTS[0].inputs, CLIENTS[0].targets)


def fails(error, block, first: Callable[[Any], object]) -> None:
    """Do something in a block, which then ends by an error."""
    with pytest.raises(error), block as local:  # noqa: PT012 - the error comes after something
        first(local)
        raise error


def refused(words: str, call: Callable[[], object], error=InvalidParameter) -> None:
    with pytest.raises(error, match=words):
        call()


def test_a_client_trains_once_and_in_its_round_alone(monkeypatch):
    monkeypatch.setattr("dpacct.fl.engine.engine.draw_cohort", lambda *_: [0, 3])
    with server() as run:
        rounds = iter(run)
        opened = next(rounds)
        steps_of(opened, 0)
        total = opened.found.total.clone()
        refused("has contributed to", lambda: steps_of(opened, 0))
        refused("has contributed to", lambda: opened.assignment(0))
        for other in (1, 6, -1):
            refused("is not in", lambda: steps_of(opened, other))  # noqa: B023
            refused("is not in", lambda: opened.assignment(other))  # noqa: B023
        for other in (None, "0", 0.5, [0]):
            refused("client", lambda: steps_of(opened, other))  # noqa: B023
        late = opened.assignment(3)
        opened.release()
        refused("released", lambda: steps_of(opened, 3), Unsupported)
        refused("released", lambda: opened.assignment(3), Unsupported)
        with fl.LocalRun(late, perceptron(), cross_entropy) as local:
            local.step(CLIENTS[3].inputs, CLIENTS[3].targets)
        refused("released", lambda: opened.receive(local.answer), Unsupported)
        following = next(rounds)
        refused("another client or round", lambda: following.receive(local.answer))
        assert following.found.arrived == 0
        assert float(total.norm()) > 0


def test_an_answer_counts_for_its_own_client_once():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))

        def answer(client):
            model = perceptron()
            with fl.LocalRun(opened.assignment(client), model, cross_entropy) as local:
                local.step(CLIENTS[3].inputs, CLIENTS[3].targets)
            return local.answer

        first, second = answer(1), answer(2)
        # A client that has its own key alone cannot answer for another one.
        forged = first.replace(b'"client": 1', b'"client": 2')
        assert forged != first
        refused("another client or round", lambda: opened.receive(forged))
        opened.receive(first)
        refused("has contributed", lambda: opened.receive(first))
        opened.receive(second)
        assert opened.found.arrived == 2


def test_an_answer_that_does_not_fit_adds_nothing():
    with server(sampling=fl.Full(), method=fl.Scaffold()) as run:
        opened = next(iter(run))
        size, key = run.engine.layout.size, opened._key(1)

        def sent(facts=None, **groups):
            known = {"client": 1, "key": key, "below": True}
            given = {"update": {"row": torch.ones(size)}, "memory": {"memory": torch.zeros(size)}}
            return pack(known | (facts or {}), given | groups)

        for facts in (
            {"client": 99}, {"client": "1"}, {"client": None}, {"client": True}, {"client": 1.0},
            {"key": "00"}, {"key": None}, {"key": 5}, {"below": 1}, {"below": None}, {"below": "x"},
            {"below": [True, False]},
        ):  # fmt: skip
            refused("answer|message", lambda: opened.receive(sent(facts)))  # noqa: B023
        for row in (
            torch.ones(size - 1), torch.ones(1, size), torch.tensor(1.0), torch.ones(0),
            torch.ones(size).long(), torch.ones(size, dtype=torch.bool),
        ):  # fmt: skip
            refused("rows|other tensors", lambda: opened.receive(sent(update={"row": row})))  # noqa: B023
        for more in ({"update": {"other": torch.ones(3)}}, {"more": {"row": torch.ones(size)}}):
            refused("other tensors", lambda: opened.receive(sent(**more)))  # noqa: B023
        for memory in (
            {"memory": torch.ones(3)}, {"other": torch.ones(size)},
            {"memory": torch.full((size,), torch.nan)}, {"memory": torch.ones(size).double()},
        ):  # fmt: skip
            refused("memory", lambda: opened.receive(sent(memory=memory)))  # noqa: B023
        assert opened.found.arrived == 0
        assert not opened.found.memories
        opened.receive(sent())
        assert (opened.found.arrived, list(opened.found.memories)) == (1, [1])


def test_no_tensor_of_an_answer_is_made_before_all_else_fits(monkeypatch):
    """A message of a megabyte may name a hundred thousand tensors, or a shape of huge numbers."""
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        facts = {"client": 1, "key": opened._key(1), "below": True}
        many = pack(facts, {"update": {str(n): torch.ones(0) for n in range(1000)}})
        huge = pack(facts, {"update": {"row": torch.ones(2)}}).replace(b"[2]", b"[9]")
        wrong = pack(facts | {"key": "00"}, {"update": {"row": torch.ones(run.engine.layout.size)}})
        monkeypatch.setattr("torch.frombuffer", lambda *_, **__: pytest.fail("a tensor was made"))
        for message in (many, huge.replace(b"[9]", b"[" + b"9" * 4000 + b"]"), huge, wrong):
            refused("other tensors|another client|read", lambda: opened.receive(message))  # noqa: B023


def test_a_number_of_steps_is_said_where_it_is_needed_and_kept():
    with server(sampling=fl.Full(), method=fl.DPFedPGN()) as run:
        opened = next(iter(run))
        refused("steps=len", lambda: steps_of(opened))
        refused("the loop took 1 steps", lambda: steps_of(opened, steps=2))
        refused("the loop took 3 steps", lambda: steps_of(opened, count=3, steps=2))
        refused("the loop took 1 steps", lambda: steps_of(opened, steps=0))
        for wrong in (-1, 1.5, "2"):
            refused("steps", lambda: steps_of(opened, steps=wrong))  # noqa: B023
        assert opened.found.arrived == 0
        steps_of(opened, count=2, steps=2)
        steps_of(opened, client=1, count=0, steps=0)
        assert opened.found.arrived == 2
    with server(sampling=fl.Full(), local=fl.SGD(lr=0.1, total_lr=True)) as run:
        refused("total_lr", lambda: steps_of(next(iter(run))))
    # The run's own number of steps counts as said, and a client without examples takes none.
    with server(sampling=fl.Full(), local=fl.SGD(lr=0.1, steps=3), method=fl.Scaffold()) as run:
        opened = next(iter(run))
        refused("the loop took 2 steps", lambda: steps_of(opened, count=2))
        steps_of(opened, count=0)
        steps_of(opened, client=1, count=3)


PLAIN = [fl.DPFedPGN(), fl.Scaffold(), fl.FedCM(), fl.AlphaNormEC()]


@pytest.mark.parametrize("method", PLAIN, ids=lambda method: method.name)
def test_a_method_of_plain_steps_takes_no_other_ones(method):
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    with server(sampling=fl.Full(), method=method, local=fl.SGD(lr=0.1)) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy, steps=1) as local:
            refused("optimizer of your own.*step", local.parameters, Unsupported)
            if method.name != "alpha-normec":
                refused("a rate", lambda: local.step(x, y, lr=0.3), Unsupported)
            local.step(x, y, lr=0.1)


def test_an_optimizer_and_the_runs_steps_exclude_each_other():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    for local in (
        fl.SGD(momentum=0.5), fl.SGD(weight_decay=0.1), fl.SGD(total_lr=True), fl.LocalAdam(),
    ):  # fmt: skip
        with opened_round(local=local).local(0, cross_entropy, steps=0) as training:
            refused("its own settings", training.parameters)
    with server(sampling=fl.Full(), local=fl.SGD(lr=0.1)) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy) as training:
            refused("parameters", lambda: training.backward(x, y), Unsupported)
            training.parameters()
            refused("backward", lambda: training.step(x, y), Unsupported)
            training.backward(x, y)
        with opened.local(1, cross_entropy) as training:
            training.step(x, y)
            refused("all steps", training.parameters)


def test_parameters_that_move_without_the_methods_direction_are_no_update():
    def moves(method):
        with server(sampling=fl.Full(), local=fl.SGD(), method=method) as run:
            opened = next(iter(run))
            with opened.local(0, cross_entropy) as local, torch.no_grad():
                for value in local.parameters():
                    value.add_(0.01)
            return opened.found.arrived

    # A training in any framework may set them, for methods without a part in it.
    assert moves(fl.DPFedAvg()) == moves(fl.FedSMPTopK()) == 1
    refused("backward", lambda: moves(fl.DPFedSAM()), Unsupported)


def test_nothing_is_done_outside_of_the_block():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        run_there = fl.LocalRun(opened.assignment(1), perceptron(), cross_entropy)
        refused("with-block", lambda: run_there.step(x, y), Unsupported)
        refused("no answer", lambda: run_there.answer, Unsupported)
        with run_there as local:
            local.step(x, y)
        for late in (lambda: local.step(x, y), lambda: local.backward(x, y), local.parameters):
            refused("with-block", late, Unsupported)
        refused("its block ended", run_there.__enter__, Unsupported)
        broken = fl.LocalRun(opened.assignment(2), perceptron(), cross_entropy)
        fails(ZeroDivisionError, broken, lambda local: local.step(x, y))
        refused("no answer", lambda: broken.answer, Unsupported)


def test_a_contribution_counts_for_one_client():
    """A variable of an earlier client, in a loop that goes on after an error."""
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        stale = opened.bound(torch.ones(1, run.engine.layout.size))
        opened.add([0], stale)
        refused("counts once", lambda: opened.add([1], stale))
        refused("counts once", lambda: opened.add([1], stale.of([1], frozenset([1]))))
        assert float(opened.found.total.norm()) < 0.5
        opened.add([1], opened.bound(torch.ones(1, run.engine.layout.size)))


@pytest.mark.parametrize("what", ["anchor", "server_state"])
def test_what_clients_are_shown_is_not_written_to(what):
    """A loop that steps along the broadcast itself would release its data without noise."""
    with server(sampling=fl.Full(), method=fl.Scaffold()) as run:
        opened, before = next(iter(run)), flat(run.model)
        for value in getattr(opened.broadcast, what).values():
            value.add_(1.0)
        refused("written to in place", opened.commit, Unsupported)
        refused("written to in place", opened.release, Unsupported)
        assert torch.equal(flat(run.model), before)
        following = next(iter(run))
        assert torch.equal(following.broadcast.anchor["0.weight"], run.state.params["0.weight"])
        assert not any(bool(value.any()) for value in following.broadcast.server_state.values())


def test_answers_may_come_from_several_threads(monkeypatch):
    """Two additions at once would lose one of them: who is there would remove another client."""

    def slowly(total, rows):
        before = total.clone()
        time.sleep(0.02)
        total.copy_(before + rows.double().sum(dim=0))

    monkeypatch.setattr("dpacct.fl.engine.engine.add_rows", slowly)
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        rows = torch.eye(3, run.engine.layout.size)
        own = [opened.bound(row.unsqueeze(0)) for row in rows]
        answers: list[Any] = []

        def answer(client: int) -> None:
            try:
                opened.add([client], own[client])
                answers.append(client)
            except InvalidParameter as refusal:
                answers.append(str(refusal))

        threads = [threading.Thread(target=answer, args=[client % 3]) for client in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = torch.cat([one.rows for one in own]).double().sum(dim=0)
        assert torch.equal(opened.found.total, expected)
        assert sum("counts once" in str(one) or "count once" in str(one) for one in answers) == 3


def test_blocks_of_several_threads_do_not_share_the_generators():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        one, other, never = (
            fl.LocalRun(opened.assignment(client), perceptron(), cross_entropy)
            for client in range(3)
        )
        assert [local.client for local in (one, other, never)] == [0, 1, 2]
        found: list[str] = []

        def enter() -> None:
            try:
                other.__enter__()
            except Unsupported as refusal:
                found.append(str(refusal))

        with one:
            thread = threading.Thread(target=enter)
            thread.start()
            thread.join()
        assert "one client trains at a time" in found[0]
        fails(KeyError, never, lambda local: local.step(CLIENTS[0].inputs, CLIENTS[0].targets))
        with other:
            pass


def test_one_client_trains_at_a_time():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy):
            refused("one client trains at a time", lambda: steps_of(opened, 1), Unsupported)
        steps_of(opened, 1)
        assert opened.found.arrived == 2


def test_an_error_goes_up_and_adds_nothing_and_the_client_may_train_again():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    with server(sampling=fl.Full(), method=fl.Scaffold()) as run:
        opened = next(iter(run))
        for error in (ValueError, KeyboardInterrupt):
            fails(error, opened.local(0, cross_entropy, steps=1), lambda local: local.step(x, y))
        refused("took 0 steps", lambda: steps_of(opened, 0, steps=1, count=0))
        assert opened.found.arrived == 0
        assert not opened.found.memories
        steps_of(opened, 0, steps=1)
        assert opened.found.arrived == 1
        # A release inside of a block leaves its client out.
        with pytest.raises(Unsupported, match="released"), opened.local(1, cross_entropy, steps=0):
            opened.release()
        assert run.round == 1
        assert list(run.state.client_states) == [0]


def test_an_update_that_is_not_finite_counts_as_zero():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy) as local:
            local.step(torch.full((2, 6), torch.inf), torch.tensor([0, 1]))
        assert float(opened.found.total.abs().sum()) == 0
        assert opened.release().diagnostics.dropped_updates == 1


@pytest.mark.parametrize("way", ["parameter", "optimizer", "buffer"])
def test_a_loop_that_writes_to_the_runs_model_is_refused(way):
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()
            self.register_buffer("seen", torch.zeros(1))

        def forward(self, x):
            return self.inner(x)

    def writes(local: fl.LocalRun) -> None:
        x, y = CLIENTS[0].inputs, CLIENTS[0].targets
        local.step(x, y)
        if way == "optimizer":
            optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
            cross_entropy(run.model(x), y).backward()
            optimizer.step()
        else:
            name = "seen" if way == "buffer" else "inner.weight"
            run.model.state_dict()[name].add_(1.0)

    with server(Counting, sampling=fl.Full()) as run:
        opened = next(iter(run))
        with (
            pytest.raises(Unsupported, match=r"local\.parameters\(\)"),
            opened.local(0, cross_entropy) as local,
        ):
            writes(local)
        assert opened.found.arrived == 0


def test_a_model_that_keeps_something_between_clients_is_refused():
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()
            self.register_buffer("sum", torch.zeros(6))

        def forward(self, x):
            self.sum += x.detach().sum(dim=0)
            return self.inner(x) + self.sum.sum()

    with server(Remembering, sampling=fl.Full()) as run:
        opened = next(iter(run))
        refused("written to in place", lambda: steps_of(opened), Unsupported)
        assert opened.found.arrived == 0


def test_a_hidden_state_does_not_reach_the_next_client():
    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.inner, self.hidden = linear(), None

        def forward(self, x):
            outputs = self.inner(x)
            if self.hidden is not None:
                outputs = outputs + self.hidden
            self.hidden = outputs.detach().mean(dim=0)
            return outputs

    updates = []
    for others in ((), (1, 2)):
        with server(Stateful, sampling=fl.Full(), seed=3) as run:
            opened = next(iter(run))
            for client in (*others, 3):
                with opened.local(client, cross_entropy) as local:
                    for _ in range(2):
                        local.step(CLIENTS[client].inputs, CLIENTS[client].targets)
            updates.append(local.update)
    assert torch.equal(*updates)
    # Within a client it is kept, as the model wants it.
    with server(linear, sampling=fl.Full(), seed=3) as run:
        opened = next(iter(run))
        with opened.local(3, cross_entropy) as local:
            for _ in range(2):
                local.step(CLIENTS[3].inputs, CLIENTS[3].targets)
    assert not torch.equal(local.update, updates[0])


def test_a_loss_that_keeps_something_between_clients_is_refused():
    class Centered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, outputs, targets):
            self.mean += outputs.detach().mean(dim=0)
            return cross_entropy(outputs - self.mean, targets)

    with server(sampling=fl.Full()) as run:
        opened, loss = next(iter(run)), Centered()
        x, y = CLIENTS[0].inputs, CLIENTS[0].targets
        with pytest.raises(Unsupported, match="mean of the loss"), opened.local(0, loss) as local:
            local.step(x, y)
        assert opened.found.arrived == 0
        assert not bool(loss.mean.any())


def test_values_of_a_wrong_kind_are_refused_by_name():
    x, y = CLIENTS[0].inputs, CLIENTS[0].targets
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        with opened.local(0, cross_entropy) as local:
            for inputs, targets in (
                (None, y), ("x", y), (5, y), ([], y), ({}, y), ([x, None], y), ({"x": 3}, y),
                (x, [1, 2]), (x[:2], y), (x, 5),
            ):  # fmt: skip
                refused("inputs|targets", lambda: local.step(inputs, targets))  # noqa: B023
            refused("targets", lambda: local.step(x))
            for rate in (0.0, -1.0, "fast", float("nan"), True):
                refused("lr", lambda: local.step(x, y, lr=rate))  # noqa: B023
        with opened.local(1) as local:
            refused("targets", lambda: local.step(x, y))
            refused("one: model|no dimension|without dimensions", lambda: local.step(x))
        for loss in ("cross entropy", 5, nn.CrossEntropyLoss):
            refused("loss", lambda: steps_with(opened, loss))  # noqa: B023
        refused("method", lambda: fl.LocalRun(opened.assignment(2), perceptron(), None, fl.BLUR()))
        refused("model", lambda: fl.LocalRun(opened.assignment(2), linear(), cross_entropy))
        refused("cannot be read", lambda: fl.LocalRun(b"abc", perceptron(), cross_entropy))


def steps_with(opened, loss):
    with opened.local(2, loss) as local:
        local.step(CLIENTS[0].inputs, CLIENTS[0].targets)


def test_a_bound_of_ones_own_is_not_sent():
    class Ours(fl.Clip):
        pass

    opened = opened_round(bound=Ours(1.0))
    refused("cannot be sent", lambda: opened.assignment(0), Unsupported)
    steps_of(opened)
    assert opened.found.arrived == 1


@pytest.mark.needs("posix")
@pytest.mark.parametrize("at", ["between clients", "within a block", "after all"])
def test_a_loop_that_is_killed_loses_its_round_and_no_more(tmp_path, at):
    options = {
        "rounds": 3, "checkpoint": tmp_path / "run.pt", "method": fl.Scaffold(),
        "sampling": fl.Poisson(0.9),
    }  # fmt: skip

    def killed():
        run = server(**options)
        rounds = iter(run)
        first = next(rounds)
        for client in first.workers:
            steps_of(first, client, steps=1)
        first.release()
        second = next(rounds)
        torch.save(flat(run.model), tmp_path / "reached.pt")
        for number, client in enumerate(second.workers):
            if at == "between clients" and number:
                die()
            with second.local(client, cross_entropy, steps=1) as local:
                if at == "within a block":
                    die()
                local.step(CLIENTS[0].inputs, CLIENTS[0].targets)
        die()

    assert forked(killed) == KILLED
    with Ledger.open(tmp_path / "run.pt.ledger", read_only=True) as book:
        assert (book.runs[0].rounds, book.runs[0].committed) == (2, 1)
    with server(**options).resume() as later:
        assert torch.equal(flat(later.model), torch.load(tmp_path / "reached.pt"))
        assert len(trained(later)) == 1
        assert later.round == 2
    with Ledger.open(tmp_path / "run.pt.ledger", read_only=True) as book:
        assert (book.runs[0].rounds, book.runs[0].committed) == (3, 2)
        assert not book.verify().problems


@pytest.mark.parametrize(("noise", "faults"), [(None, ()), (Quieter(), ("noise",))], ids=str)
def test_an_audit_reaches_a_loop_of_ones_own(noise, faults):
    def play(run: fl.Server, people) -> None:
        for opened in run:
            for client in opened.workers:
                data = people[client]
                if isinstance(data, fl.Canary):
                    opened.add([client], opened.bound(data.update.unsqueeze(0)))
                else:
                    with opened.local(client, cross_entropy) as local:
                        local.step(data.inputs, data.targets)
            opened.release()

    given = {
        "rounds": 2, "clip_norm": 0.5, "noise_multiplier": 2.0, "sampling": fl.Full(),
        "delta": 1e-5, "local": fl.SGD(lr=0.1), "noise": noise,
    }  # fmt: skip
    found = fl.audit_server(
        lambda count: fl.Server(linear(classes=60), count, **given), play,
        make_clients([5, 3, 4]), canaries=24, others="heard", confidence=SURE,
        generator=torch.Generator().manual_seed(5),
    )  # fmt: skip
    assert found.shown.faults == faults
