"""The plug-in for Flower over Flower's own messages, in one process."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

pytest.importorskip("flwr", reason="flwr is not installed beside the other test extras")

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import dpacct
from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.flower import PrivateStrategy, client_app, wire
from dpacct.fl.flower.strategy import Roster
from dpacct.fl.training.messages import PROTOCOL, Assignment, pack, unpack
from dpacct.ledger import Ledger
from tests.fl.flower.fake import FakeGrid
from tests.fl.problems import batches, cross_entropy, federation, flat, linear, make_clients

CPU = torch.device("cpu")
CLIENTS = make_clients((9, 4, 0, 7, 5, 8))
LOCAL = fl.SGD(lr=0.1, epochs=2, batch_size=4)
SETTINGS = {
    "noise_multiplier": 0.7,
    "sampling": fl.Poisson(0.6),
    "rounds": 3,
    "local": LOCAL,
}
FULL = {"sampling": fl.Full(), "rounds": 1}
QUICK = {"poll": 1e-3, "patience": 0.05}


def own_data(context):
    return CLIENTS[context.node_config["partition-id"]]


def app(model=linear, data=own_data, **options) -> ClientApp:
    return client_app(model, cross_entropy, data, **options)


def settings(options):
    bounded = "bound" in options or getattr(options.get("method"), "bound", None) is not None
    return SETTINGS | {"clip_norm": None if bounded else 0.5} | options


def server(**options) -> fl.Server:
    return fl.Server(linear(), len(CLIENTS), **settings(options))


def grid(fault=None, **options) -> FakeGrid:
    return FakeGrid([app(**options) for _ in CLIENTS], fault)


def play(run: fl.Server, network: FakeGrid, **options):
    strategy = PrivateStrategy(run, **(QUICK | options))
    return strategy.start(network, timeout=0.05)


def cohorts(run: fl.Server, network: FakeGrid, after=lambda _: None, **options) -> list[int]:
    """How many contributions there were in each round; `after` is called with the list."""
    sizes: list[int] = []

    def note(report):
        sizes.append(report.diagnostics.cohort_size)
        after(sizes)

    play(run, network, on_round=note, **options)
    return sizes


def test_a_server_that_is_kept_from_running_misses_no_answer(monkeypatch):
    hours = itertools.count(step=3600.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    with server(**FULL) as run:
        assert cohorts(run, grid()) == [6]


@pytest.mark.parametrize(
    "options",
    [
        {"method": fl.DPFedPGN()},
        {"method": fl.FedSMPTopK()},
        {"method": fl.FedAlphaNormEC(alpha=0.1, beta=0.5)},
        {"bound": fl.AdaptiveClip(0.3), "noise_multiplier": 0.2, "secure_noise": True},
        {"bound": fl.PerLayerClip((0.4, 0.2)), "sampling": fl.Uniform(3, 6)},
    ],
    ids=["pgn", "top-k", "memory", "adaptive", "per layer"],
)
def test_it_ends_with_the_bits_of_a_federation(options):
    options = {"method": fl.DPFedAvg(), "seed": 5, "rounds": 2} | options
    with federation(linear(), CLIENTS, **settings(options)) as run:
        run.run()
        expected = run.model
    with server(**options) as run:
        result = play(run, grid(method=options["method"]))
        assert run.round == 2
    assert torch.equal(flat(run.model), flat(expected))
    found = result.arrays.to_torch_state_dict()
    assert torch.equal(found["weight"], expected.weight.detach())


def test_a_public_size_hides_the_number_of_clients():
    """Neighbors send the same messages to those who are in both, and divide by the same number."""
    seen = []
    for count in (6, 5):
        network = FakeGrid([app() for _ in range(count)])
        with fl.Server(linear(), count, **settings(FULL | {"public_size": 8, "seed": 1})) as run:
            play(run, network)
            assert run.engine.plan.adjacency is dpacct.Adjacency.ADD_REMOVE
            told = [
                unpack(wire.bytes_of(message, "round"), CPU)[0] for _, message in network.sent[:5]
            ]
            # All clients get the same bytes, which Flower sends once.
            assert len({wire.bytes_of(message, "round") for _, message in network.sent}) == 1
        seen.append((run.engine.plan.cohort_size, told))
    assert seen[0] == seen[1]
    assert server().engine.plan.adjacency is dpacct.Adjacency.ZERO_OUT


def own_loop(start, context):
    """A training loop as users of Flower write it."""
    given = batches(own_data(context), LOCAL, seed=context.node_config["partition-id"])
    with start(steps=len(given)) as local:
        for x, y in given:
            local.step(x, y)
    return local


@pytest.mark.parametrize("method", [fl.DPFedAvg(), fl.DPFedPGN(), fl.Scaffold()], ids=str)
def test_a_training_loop_of_ones_own_is_bounded_and_says_nothing_else(method):
    seen = []

    def look(client, message, replies):
        seen.extend(replies)
        return replies

    own = client_app(linear, cross_entropy, train=own_loop, method=method)
    options = FULL | {"method": method, "seed": 5, "clip_norm": 0.1}
    with server(**options) as run:
        play(run, FakeGrid([own for _ in CLIENTS], look))
    with server(**options) as expected:
        [opened] = expected
        for client, data in enumerate(CLIENTS):
            given = batches(data, LOCAL, seed=client)
            with opened.local(client, cross_entropy, steps=len(given)) as local:
                for x, y in given:
                    local.step(x, y)
        opened.release()
    assert torch.equal(flat(run.model), flat(expected.model))
    assert len(seen) == 6
    for reply in seen:
        assert list(reply.content.keys()) == [wire.SIGN, wire.BYTES]
        assert set(reply.content[wire.SIGN]) == {"protocol", "version", "round"}
        facts, groups, _ = answer_in(reply)
        assert set(facts) == {"protocol", "version", "client", "key", "below"}
        assert list(groups["update"]) == ["row"]
        assert float(groups["update"]["row"].double().norm()) <= 0.1
        assert ("memory" in groups) is (method == fl.Scaffold())


def test_an_error_in_a_loop_of_ones_own_costs_its_contribution():
    def breaks(start, context):
        with start() as local:
            if context.node_config["partition-id"] == 2:
                raise OSError("the disk is gone")
        return local

    with server(**FULL) as run:
        own = client_app(linear, cross_entropy, train=breaks)
        assert cohorts(run, FakeGrid([own for _ in CLIENTS])) == [5]
    for wrong in ({}, {"data": own_data, "train": breaks}):
        with pytest.raises(InvalidParameter, match="data"):
            client_app(linear, cross_entropy, **wrong)


def rounds_of(path) -> tuple[int, int]:
    with Ledger.open(path, read_only=True) as book:
        assert not book.verify().problems
        [run] = book.runs
        return run.rounds, run.committed


def test_reserved_before_messages_leave_and_committed_before_the_model_moves(tmp_path):
    path, seen = tmp_path / "run.ledger", []

    def look(client, message, replies):
        seen.append((message.content[wire.SIGN]["round"], rounds_of(path)))
        return replies

    with server(ledger=path, sampling=fl.Full(), rounds=2) as run:
        play(run, grid(look), on_round=lambda report: seen.append((report.round, rounds_of(path))))
    assert seen == [(1, (1, 0))] * 6 + [(1, (1, 1))] + [(2, (2, 1))] * 6 + [(2, (2, 2))]


def test_a_run_that_was_refused_starts_whole_once_there_is_room(tmp_path):
    plan = 2 * dpacct.Round(2.0, adjacency="zero-out")
    budget = dpacct.Budget(dpacct.epsilon(plan, delta=1e-5).upper * 1.01, 1e-5)
    options = {"noise_multiplier": 2.0, "budget": budget, "sampling": fl.Full(), "rounds": 2}
    with Ledger.open(tmp_path / "run.ledger", budget) as ledger:
        other = ledger.start_run("in its way", plan)
        with server(ledger=ledger, **options) as run:
            strategy = PrivateStrategy(run, **QUICK)
            for _ in range(2):
                with pytest.raises(dpacct.BudgetExceeded, match="not one round"):
                    strategy.start(grid(), timeout=0.05)
            other.finish()
            strategy.start(grid(), timeout=0.05)
            assert run.round == 2


# Faults of a client: what arrives, and how many contributions the sum then holds.


def answer_in(reply):
    return unpack(wire.bytes_of(reply, "answer"), CPU)


def with_bytes(reply, message: bytes, **sign):
    """The same reply, with another answer."""
    facts = ConfigRecord(dict(reply.content[wire.SIGN]) | sign)
    found = Message(wire.message_of(facts, answer=message), reply_to=reply)
    found.__dict__["_metadata"] = reply.metadata
    return found


def changed(reply, row=None, **entries):
    """The same reply, with other facts, or another update."""
    facts, groups, _ = answer_in(reply)
    groups |= {} if row is None else {"update": row}
    return with_bytes(reply, pack(facts | entries, groups))


def with_row(reply, values, name="row"):
    return changed(reply, {name: values})


def without_bytes(reply):
    reply.content = RecordDict({wire.SIGN: reply.content[wire.SIGN]})
    return reply


def as_an_answer_to(reply, other):
    """The same reply, under the id that another one is waited for."""
    reply.metadata.__dict__["_reply_to_message_id"] = other.metadata.reply_to_message_id
    return reply


FAULTS = {
    "none": (lambda reply: [reply], 6, 0),
    "gone": (lambda reply: [], 5, 0),
    "nan": (lambda reply: [with_row(reply, torch.full((21,), torch.nan))], 6, 1),
    "twice": (lambda reply: [reply, reply], 6, 0),
    "another key": (lambda reply: [changed(reply, key="f00d")], 5, 0),
    # Whose own answer comes later.
    "as another client": (lambda reply: [changed(reply, client=5)], 5, 0),
    "as nobody": (lambda reply: [changed(reply, client=99)], 5, 0),
    "another version": (lambda reply: [with_bytes(reply, b"", protocol=9)], 5, 0),
    "no number": (lambda reply: [changed(reply, client="one")], 5, 0),
    "too short": (lambda reply: [with_row(reply, torch.ones(4))], 5, 0),
    "no update": (lambda reply: [with_row(reply, torch.ones(21), "other")], 5, 0),
    "whole numbers": (lambda reply: [with_row(reply, torch.ones(21).long())], 5, 0),
    "garbled": (lambda reply: [with_bytes(reply, b"nothing")], 5, 0),
    "no bytes": (lambda reply: [without_bytes(reply)], 5, 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_clients_fault_costs_its_contribution_alone(fault, tmp_path):
    cause, arrived, dropped = FAULTS[fault]
    reports = []

    def act(client, message, replies):
        return cause(replies[0]) if client == 4 else replies

    options = FULL | {
        "noise_multiplier": 1e-3,
        "local": fl.SGD(lr=0.1, epochs=2, batch_size=4, shuffle=False),
    }
    with server(ledger=tmp_path / "run.ledger", **options) as run:
        play(run, grid(act), on_round=reports.append)
    assert reports[0].diagnostics.cohort_size == arrived
    assert reports[0].diagnostics.dropped_updates == dropped
    assert rounds_of(tmp_path / "run.ledger") == (1, 1)
    # What is not there is zero, and what is there twice counts once.
    everybody = [c for c in range(6) if c != 4 or fault in ("none", "twice")]
    some = [CLIENTS[client] for client in everybody]
    with federation(linear(), some, **settings(options | {"seed": 1})) as small:
        small.run()
    ours, theirs = flat(run.model) - flat(linear()), flat(small.model) - flat(linear())
    assert torch.allclose(ours, theirs * len(everybody) / 6, atol=1e-3)


def test_a_long_update_is_shortened_by_the_server():
    long = torch.full((21,), 1e6)
    network = grid(lambda client, message, replies: [with_row(replies[0], long)])
    with server(**FULL, noise_multiplier=1e-3) as run:
        before = flat(run.model)
        play(run, network)
    assert 0.49 < float((flat(run.model) - before).norm()) < 0.51


def test_a_late_answer_does_not_count_in_a_later_round():
    late = []

    def delay(client, message, replies):
        if client != 4:
            return replies
        late.extend(replies)
        # That of the round before arrives now, under the id that is waited for.
        held = late[:-1][-1:]
        for reply in held:
            as_an_answer_to(reply, replies[0])
        return held

    with server(sampling=fl.Full()) as run:
        assert cohorts(run, grid(delay)) == [5, 5, 5]


def test_a_training_error_on_one_node_costs_its_contribution():
    def broken(context):
        if context.node_config["partition-id"] == 2:
            raise OSError("the disk is gone")
        return own_data(context)

    with server(**FULL) as run:
        assert cohorts(run, grid(data=broken)) == [5]


def test_nobody_takes_the_place_of_a_node_that_is_there():
    network, told = grid(), []
    first = network.node_of(3)

    def claim(sizes):
        if len(sizes) == 1:
            network.join(3, app())
        if len(sizes) == 3:
            del network.nodes[first]

    def look(client, message, replies):
        if client == 3:
            told.append(message.metadata.dst_node_id == first)
        return replies

    network.fault = look
    with server(sampling=fl.Full(), rounds=5) as run:
        assert cohorts(run, network, claim) == [6] * 5
    assert told == [True, True, True, False, False]


def test_an_absent_client_contributes_zero_and_is_asked_again_when_back():
    network = grid()

    def away(sizes):
        if len(sizes) == 1:
            del network.nodes[network.node_of(5)]
        if len(sizes) == 2:
            network.join(5, app())

    with server(sampling=fl.Full(), rounds=4) as run:
        sizes = cohorts(run, network, away)
    assert (sizes[0], sizes[1], sizes[-1]) == (6, 5, 6)


# What is refused before anything is charged.


def of_another_package() -> ClientApp:
    found = ClientApp()

    @found.train()
    def train(message, context):
        return Message(RecordDict({"arrays": ArrayRecord()}), reply_to=message)

    return found


@pytest.mark.parametrize(
    ("number", "last", "said"),
    [
        (5, of_another_package, "no client_app of dpacct"),
        (5, ClientApp, "Is its ClientApp that of"),
        (5, lambda: app(clip_norm=0.7), "0.7 on client 5"),
        (5, lambda: app(method=fl.DPFedSAM()), "DPFedSAM"),
        (3, app, "both have it"),
        (6, app, "from 0 to 5"),
        (None, app, "node-config"),
        ("nobody", app, "6 clients answer within"),
    ],
)
def test_a_client_that_does_not_fit_is_refused_at_the_start(tmp_path, number, last, said):
    path = tmp_path / "run.ledger"
    network = FakeGrid([app() for _ in CLIENTS[:5]])
    if number != "nobody":
        network.join(number, last())
    with server(ledger=path) as run:
        with pytest.raises(InvalidParameter, match=said):
            play(run, network)
        assert run.round == 0
    assert not path.exists()


def test_fewer_clients_are_enough_if_that_is_said():
    with server(rounds=1) as run:
        play(run, FakeGrid([app() for _ in range(4)]), min_clients=4)
        assert run.round == 1
    with pytest.raises(InvalidParameter, match="min_clients"):
        PrivateStrategy(server(), min_clients=7)


def test_another_version_is_refused_on_both_sides(monkeypatch):
    roster = Roster(6, "DPFedAvg()", 0.5)
    message = Message(
        RecordDict({wire.SIGN: ConfigRecord({"protocol": 9, "ask": "hello"})}),
        dst_node_id=1,
        message_type="train",
    )
    with pytest.raises(InvalidParameter, match="Install the same dpacct"):
        app()(message, None)
    for found, said in (
        ({"protocol": 9, "client": 0, "version": "9.9"}, f"version {PROTOCOL} of the messages"),
        ({"protocol": PROTOCOL, "client": 0, "version": "0.0.9"}, "0.0.9 on client 0"),
    ):
        reply = Message(RecordDict({wire.SIGN: ConfigRecord(found)}), reply_to=message)
        with pytest.raises(InvalidParameter, match=said):
            roster._client_of(1, reply)


def test_a_model_that_no_client_can_train_is_refused_before_anything_is_charged(tmp_path):
    path, wide = tmp_path / "run.ledger", {"model": lambda: linear(features=7)}
    network = grid(**wide)
    with server(ledger=path) as run, pytest.raises(InvalidParameter, match="none can train"):
        play(run, network)
    assert not path.exists()
    assert network.sent == []
    # One of them costs its own contribution, as whatever goes wrong with one client.
    with server(**FULL) as run:
        assert cohorts(run, FakeGrid([app(**wide), *(app() for _ in CLIENTS[1:])])) == [5]


def test_settings_that_are_not_the_servers_are_refused():
    strategy = PrivateStrategy(server(), **QUICK)
    with pytest.raises(InvalidParameter, match="num_rounds"):
        strategy.start(grid(), num_rounds=9)
    with pytest.raises(InvalidParameter, match="initial_arrays"):
        strategy.start(grid(), initial_arrays=wire.arrays_of({"weight": torch.zeros(3, 6)}))
    with pytest.raises(Unsupported, match="configuration"):
        strategy.start(grid(), train_config=ConfigRecord({"lr": 1.0}))


def test_a_bound_of_ones_own_cannot_be_told():
    class Ours(fl.Clip):
        pass

    class Other:
        clip_norm = 1.0
        sensitivity = fl.Clip(1.0).sensitivity
        limits = fl.Clip(1.0).limits
        apply = fl.Clip(1.0).apply

    for bound in (Ours(1.0), Other()):
        with pytest.raises(Unsupported, match="cannot be sent"):
            PrivateStrategy(server(bound=bound, clip_norm=None))


def test_a_client_answers_to_nothing_else():
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    with pytest.raises(InvalidParameter, match="sign"):
        app()(message, None)
    told = []
    with server(**FULL) as run:
        play(run, grid(lambda client, message, replies: told.append(message) or replies))
    context = type("Context", (), {"node_config": {"partition-id": 1}})()
    with pytest.raises(InvalidParameter, match="answers for no other"):
        app()(told[0], context)
    with pytest.raises(InvalidParameter, match=r"0\.7 alone"):
        app(clip_norm=0.7)(told[1], context)


def test_an_evaluation_goes_to_public_data_alone():
    seen = []

    def evaluate(number, arrays):
        seen.append((number, len(arrays)))
        return MetricRecord({"accuracy": 0.5})

    with server(rounds=2) as run:
        strategy = PrivateStrategy(run, **QUICK)
        result = strategy.start(grid(), timeout=0.05, evaluate_fn=evaluate)
        assert strategy.configure_evaluate(1, ArrayRecord(), ConfigRecord(), None) == []
    assert seen == [(0, 2), (1, 2), (2, 2)]
    assert set(result.evaluate_metrics_serverapp) == {0, 1, 2}
    assert result.evaluate_metrics_clientapp == {}
    assert set(result.train_metrics_clientapp[2]) == {"epsilon", "delta", "clip-norm"}


# Killed and resumed.


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize(
    ("method", "at"), [(fl.DPFedAvg(), 1), (fl.FedAlphaNormEC(), 2)], ids=["avg", "memory"]
)
def test_a_server_that_is_killed_mid_round_goes_on(tmp_path, at, method):
    options = {"checkpoint": tmp_path / "run.pt", "sampling": fl.Full(), "method": method}
    ledger, first = tmp_path / "run.pt.ledger", []

    def kill(client, message, replies):
        given = Assignment.read(wire.bytes_of(message, "client", "round"), CPU)
        if given.broadcast.round == 1:
            first.append(given.memory)
        if (given.broadcast.round, client) == (at, 3):
            raise Killed
        return replies

    network = grid(kill, method=method)
    with pytest.raises(Killed), server(**options) as run:
        play(run, network)
    assert rounds_of(ledger) == (at, at - 1)
    network.fault = None
    with server(**options).resume() as later:
        assert later.round == at - 1
        play(later, network)
        assert later.round == 2
    # The open round is lost, and the ledger has one run.
    assert rounds_of(ledger) == (3, 2)
    # Nobody remembers a round that was not committed.
    assert not any(bool(memory["memory"].any()) for memory in first if memory)


def test_an_answer_to_the_process_that_was_killed_does_not_count(tmp_path):
    options = {"checkpoint": tmp_path / "run.pt", "rounds": 2, "sampling": fl.Full()}
    held = []

    def kill(client, message, replies):
        held.extend(replies)
        if client == 5:
            raise Killed
        return replies

    network = grid(kill)
    with pytest.raises(Killed), server(**options) as run:
        play(run, network)
    network.fault = lambda client, _, replies: [as_an_answer_to(held[client], replies[0])]
    with server(**options).resume() as later:
        assert cohorts(later, network)[0] == 0
