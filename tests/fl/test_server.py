"""`fl.Server` is `fl.Federation` with the clients elsewhere: the same bits, the same charges."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter, LedgerError, Unsupported
from dpacct.fl.layout import Layout, copies, scatter, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import plan_batches
from dpacct.fl.privacy.sums import contribute
from dpacct.fl.training.tasks import SequentialTrainer, Task
from dpacct.ledger import Ledger
from tests.fl.problems import (
    KILLED,
    cross_entropy,
    die,
    federation,
    flat,
    forked,
    linear,
    make_clients,
)

SIZES = (9, 4, 0, 7, 5, 8)
CLIENTS = make_clients(SIZES)
SETTINGS = {"local": fl.SGD(lr=0.1, epochs=2, batch_size=4)}
USUAL = {"noise_multiplier": 0.7, "sampling": fl.Poisson(0.6), "rounds": 3} | SETTINGS


class Devices:
    """Clients that train somewhere else: they know what they are told, and their own data."""

    def __init__(self, method: fl.Method, local: fl.SGD) -> None:
        self.model = linear()
        self.layout = Layout.of(trainable(self.model))
        loss = LocalLoss(self.model, cross_entropy, self.layout.names, "float32", functional=False)
        self.trainer = SequentialTrainer(method, loss, self.layout)
        self.local = method.prepare(local)

    def task(self, opened: fl.OpenRound, client: int):
        seed, memory = opened.draw.seed_of(client), opened.memory(client)
        generator = torch.Generator().manual_seed(seed)
        plan = plan_batches(len(CLIENTS[client]), self.local, generator)
        return Task(CLIENTS[client], plan, memory, seed)

    def answer(self, opened: fl.OpenRound, client: int, *, bounded_there: bool) -> None:
        task, kept = self.task(opened, client), opened.found.kept
        row = self.trainer.train([task], opened.broadcast)
        if bounded_there:
            bound, most = opened._state.bound, opened._engine.plan.contributions
            layout = self.layout if kept is None else self.layout.restrict(kept)
            sent = row if kept is None else row[:, kept]
            inside, norms, _ = contribute(sent, bound, layout, most)
            contribution = opened.check(inside, norms <= bound.clip_norm)
            assert torch.equal(contribution.rows, inside)
        else:
            contribution = opened.bound(row)
        opened.add([client], contribution)
        rows = scatter(contribution.rows, kept, self.layout.size)
        for memory in self.trainer.remember([task], rows, opened.broadcast) or []:
            opened.remember(client, memory)


def settings(**options):
    method = options.get("method")
    bounded = "bound" in options or getattr(method, "bound", None) is not None
    return USUAL | ({} if bounded else {"clip_norm": 0.5}) | options


def server(**options) -> fl.Server:
    return fl.Server(linear(), len(CLIENTS), **settings(**options))


def one_place(**options):
    """The reports, and the model, of a federation."""
    with federation(linear(), CLIENTS, **settings(**options)) as run:
        return list(run), flat(run.model)


pytestmark = pytest.mark.usefixtures("uncounted")

METHODS = [
    fl.DPFedAvg(),
    fl.DPFedSAM(),
    fl.DPFedPGN(),
    fl.DPFedLS(),
    fl.FedSMPTopK(),
    fl.FedAlphaNormEC(alpha=0.1, beta=0.5),
]


CASES = {
    **{method.name: {"method": method, "seed": 5} for method in METHODS},
    "adaptive": {"bound": fl.AdaptiveClip(0.3), "noise_multiplier": 0.2, "seed": 3},
    "adaptive, secure": {
        "bound": fl.AdaptiveClip(0.3), "noise_multiplier": 0.2, "seed": 3, "secure_noise": True,
    },
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_it_ends_with_the_bits_of_a_federation(name):
    options = CASES[name]
    method = options.get("method", fl.DPFedAvg())
    expected, model = one_place(**options)
    with server(**options) as run:
        devices, reports = Devices(method, SETTINGS["local"]), []
        for opened in run:
            for client in reversed(list(opened.workers)):
                # Some are bounded by the client, the others here.
                devices.answer(opened, client, bounded_there=client % 2 == 0)
            reports.append(opened.release())
    assert torch.equal(flat(run.model), model)
    for ours, theirs in zip(reports, expected, strict=True):
        assert ours.diagnostics.cohort_size == theirs.diagnostics.cohort_size
        assert ours.noise_std == theirs.noise_std
    assert run.not_private_because is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("method", [fl.DPFedAvg(), fl.FedAlphaNormEC()], ids=["avg", "ec"])
def test_shares_that_are_collected_apart_are_the_whole(secure, method):
    options = {"seed": 4, "secure_noise": secure, "method": method}
    _, model = one_place(**options)
    with federation(linear(), CLIENTS, **settings(**options)) as run:
        player = run
        player.begin()
        for _ in range(run.rounds):
            opened = player.open()
            shares = [opened.draw.share(part, 3) for part in range(3)]
            assert sorted(w for share in shares for w in share.workers) == list(opened.workers)
            assert sorted(m for share in shares for m in share.members) == list(opened.cohort)
            for share in reversed(shares):
                opened.merge(player.collect(share))
            opened.release()
        assert torch.equal(flat(run.model), model)


def test_a_round_is_on_disk_before_its_cohort_and_committed_before_the_model(tmp_path, monkeypatch):
    path = tmp_path / "run.ledger"
    with server(ledger=path) as run:
        before = flat(run.model)
        rounds = iter(run)
        assert run.ledger_path == path
        opened = next(rounds)
        with Ledger.open(path, read_only=True) as book:
            assert (book.runs[0].rounds, book.runs[0].committed) == (1, 0)
        assert torch.equal(flat(run.model), before)
        moved = []
        write = run.write_model
        with Ledger.open(path, read_only=True) as book:
            monkeypatch.setattr(
                run, "write_model", lambda: (moved.append(book.runs[0].committed), write())
            )
            opened.release()
        assert moved == [1]
        assert not torch.equal(flat(run.model), before)


def test_a_ledger_that_cannot_commit_releases_nothing(tmp_path, monkeypatch):
    with server(ledger=tmp_path / "run.ledger", method=fl.FedAlphaNormEC()) as run:
        opened = next(iter(run))
        opened.remember(1, {"memory": torch.ones(21)})
        before = flat(run.model)

        def fails(*_: object) -> None:
            raise LedgerError("the disk is full")

        monkeypatch.setattr("dpacct.ledger.writing.Transaction.commit", fails)
        refused("disk", opened.release, error=LedgerError)
        assert torch.equal(flat(run.model), before)
        assert run.state.client_states == {}
        assert run.round == 0


def test_a_round_that_is_left_stays_spent_and_a_run_ends_with_its_plan(tmp_path):
    with server(rounds=3, ledger=tmp_path / "run.ledger") as run:
        rounds = iter(run)
        next(rounds)
        for opened in rounds:
            opened.release()
        assert run.round == 2
        assert "charged" in run.stopped_because


def spent_in(path) -> tuple[int, int]:
    with Ledger.open(path, read_only=True) as book:
        [entry] = book.runs
        assert not book.verify().problems
        return entry.rounds, entry.committed


@pytest.mark.needs("posix")
@pytest.mark.parametrize(("done", "kept"), [(0, True), (2, True), (1, False)])
def test_a_server_that_was_killed_loses_the_open_round(tmp_path, done, kept):
    """If its last release was not kept, somebody may have seen the model: it stays spent too."""
    options, ledger = {"rounds": 4, "checkpoint": tmp_path / "run.pt"}, tmp_path / "run.pt.ledger"

    def killed_server():
        run = server(**options)
        rounds = iter(run)
        for _ in range(done):
            next(rounds).release()
        torch.save(flat(run.model), tmp_path / "reached.pt")
        opened = next(rounds)
        if not kept:
            run.save = lambda: None
            opened.release()
        die()

    assert forked(killed_server) == KILLED
    lost = 1 - kept
    assert spent_in(ledger) == (done + 1, done + lost)
    with server(**options).resume() as later:
        assert torch.equal(flat(later.model), torch.load(tmp_path / "reached.pt"))
        assert [opened.release().round for opened in later] == list(range(done + 1, 4))
        assert "charged" in later.stopped_because
    assert spent_in(ledger) == (4, 3 + lost)


def sent(opened: fl.OpenRound, rows: torch.Tensor) -> fl.Contributions:
    return opened.check(rows, torch.ones(len(rows), dtype=torch.bool))


def test_what_is_sent_is_held_to_the_bound():
    with server(sampling=fl.Full(), noise_multiplier=0.01) as run:
        opened = next(iter(run))
        rows = torch.zeros(6, 21)
        rows[0] = 1e30
        rows[1, 3] = float("nan")
        rows[2, 0] = float("inf")
        rows[3, 0] = 0.25
        given = rows.clone()
        contributions = sent(opened, rows)
        assert torch.equal(rows.nan_to_num(7.0), given.nan_to_num(7.0))
        found = contributions.rows
        assert contributions.bad.tolist() == [False, True, True, False, False, False]
        assert 0.49 < float(found[0].double().norm()) <= 0.5
        assert float(found[1:3].abs().sum()) == 0
        assert float(found[3, 0]) == 0.25
        opened.add(range(6), contributions)
        total = opened.found.total
        assert float((total - found.double().sum(dim=0)).abs().max()) == 0
        report = opened.release()
    assert report.diagnostics.dropped_updates == 2


def test_a_method_that_breaks_behind_the_noise_costs_nothing(tmp_path):
    class Shrinking(fl.DPFedAvg):
        def server(self, params, noised, server_state):
            return {name: value[:1] for name, value in params.items()}, server_state

    with server(method=Shrinking(), ledger=tmp_path / "run.ledger") as run:
        refused("server", lambda: next(iter(run)))
        assert not (tmp_path / "run.ledger").exists()


def test_what_was_bounded_for_another_round_is_refused():
    ones = torch.ones(1, 21)
    with server(sampling=fl.Full()) as run, server(sampling=fl.Full(), clip_norm=10.0) as other:
        first, foreign = next(iter(run)), next(iter(other))
        refused(
            "of another round", lambda: first.add([first.cohort[0]], foreign.bound(ones)),
            lambda: first.merge(foreign.found),
        )  # fmt: skip
        kept = first.bound(ones)
        first.release()
        late = next(iter(run))
        refused("of another round", lambda: late.add([late.cohort[0]], kept))
        late.add([late.cohort[0]], late.bound(ones))
        before = late.found.total.clone()
        refused("count once", lambda: late.merge(late.found))
        assert torch.equal(late.found.total, before)


def test_what_is_private_is_not_printed():
    """Logs, and tools that show the variables of a traceback, print what they find."""
    options = {"clip_norm": 1.0, "noise_multiplier": 1.0, "sampling": fl.Full(), "rounds": 1}
    people = make_clients([2, 3, 4])
    with federation(linear(), people, vectorize=True, method=fl.Scaffold()) as run:
        run.run()
        remembering = run.state
        task = run.engine.task(0, remembering, 1)
    for opened in fl.Server(linear(), 3, **options):
        contributions = opened.bound(torch.ones(1, 21))
        opened.add([0], contributions)
        private = opened.draw, opened.found, contributions, task, remembering
        for value in private:
            assert not set("[{(") & set(repr(value))


def refused(words: str, *calls, error=InvalidParameter) -> None:
    for call in calls:
        with pytest.raises(error, match=words):
            call()


def test_a_client_that_is_not_in_the_round_or_came_before_adds_nothing():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        opened.add([1], sent(opened, torch.ones(1, 21)))
        before = opened.found.total.clone()
        for places in ([6], [-1], [2, 2], [0, 1]):
            rows = sent(opened, torch.ones(len(places), 21))
            refused("clients", lambda: opened.add(places, rows))  # noqa: B023
        refused("one of each client", lambda: opened.add([0], sent(opened, torch.ones(2, 21))))
        # One number a client, stretched over the model, would be longer than the charged norm.
        for shape in ((1, 1), (1, 20), (1, 22), (1, 1, 21), (21,)):
            rows = torch.ones(shape)
            refused("rows is 'of shape", lambda: opened.bound(rows))  # noqa: B023
            refused("rows is 'of shape", lambda: opened.check(rows, torch.tensor([True])))  # noqa: B023
        wide = torch.ones(1, 21, dtype=torch.bool)
        refused("below is 'of shape", lambda: opened.check(torch.ones(1, 21), wide))
        assert torch.equal(opened.found.total, before)
        assert opened.found.arrived == 1
    with server(sampling=fl.Uniform(2, 6), adjacency="replace-one") as run:
        opened = next(iter(run))
        stranger = next(client for client in range(6) if client not in opened.cohort)
        row = sent(opened, torch.ones(1, 21))
        refused("is not in round 1", lambda: opened.add([stranger], row))


def test_after_the_release_nothing_is_added_or_released():
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        row, empty = sent(opened, torch.ones(1, 21)), opened.found
        anchor = copies(opened.broadcast.anchor)
        opened.release()
        assert all(torch.equal(anchor[name], opened.broadcast.anchor[name]) for name in anchor)
        late = (lambda: opened.add([0], row), lambda: opened.merge(empty), opened.release)
        refused("released", *late, lambda: opened.remember(0, {}), error=Unsupported)
        assert run.round == 1
        opened = next(iter(run))
        object.__setattr__(run.state.bound, "clip_norm", 9.0)
        refused("changed", opened.release, error=Unsupported)
        assert run.round == 1


def test_memories_are_of_workers_and_kept_after_the_commit_alone(monkeypatch):
    options = {"method": fl.FedAlphaNormEC(), "rounds": 2}
    with server(**options, sampling=fl.Poisson(0.5)) as run:
        rounds, memory = iter(run), {"memory": torch.ones(21)}
        lost = next(rounds)
        lost.remember(2, memory)
        opened = next(rounds)
        assert float(opened.memory(2)["memory"].abs().sum()) == 0
        opened.remember(2, memory)
        assert float(opened.memory(2)["memory"].abs().sum()) == 0
        for other in ({}, {"memory": torch.zeros(4)}, {"memory": torch.full((21,), torch.nan)}):
            refused("memory", lambda: opened.remember(0, other))  # noqa: B023
        # All clients work, and those outside of the cohort count nothing.
        assert list(opened.workers) == list(range(6))
        opened.add(range(6), sent(opened, torch.full((6, 21), 0.01)))
        assert opened.found.arrived == len(opened.cohort)
        opened.release()
        assert float(run.state.client_states[2]["memory"].sum()) == 21
    monkeypatch.setattr("dpacct.fl.engine.engine.draw_cohort", lambda *_: [0, 2])
    with server(method=fl.Scaffold(), sampling=fl.Poisson(0.5)) as run:
        opened = next(iter(run))
        known = opened.memory(0)
        for client in (1, 99, -1, 10**9):
            refused("is not in round 1", lambda: opened.remember(client, known))  # noqa: B023


def test_settings_that_a_server_cannot_have_are_refused():
    refused("num_clients", lambda: fl.Server(linear(), 0, clip_norm=1.0, **USUAL))
    refused("elsewhere", lambda: server().engine.clients[0], error=Unsupported)


def test_what_is_no_row_and_no_client_is_refused_in_a_sentence_and_the_round_goes_on():
    """Whoever carries messages hands on what a client sent."""
    nothing: list[Any] = [None, "x", 1.5, object(), [None], [[]], {}, torch.tensor(1.0)]
    with server(sampling=fl.Full()) as run:
        opened = next(iter(run))
        good, one = opened.bound(torch.ones(1, 21)), torch.ones(1, dtype=torch.bool)
        calls: list[Callable[[Any], object]] = [
            opened.bound,
            lambda value: opened.check(value, one),
            lambda value: opened.check(torch.ones(1, 21), value),
            lambda value: opened.add([0], value),
            lambda value: opened.add([value], good),
            lambda value: opened.add(value, good),
            opened.merge,
            opened.memory,
            lambda value: opened.remember(value, {}),
        ]
        for call, value in product(calls, nothing):
            with pytest.raises(InvalidParameter):
                call(value)
        refused("a dictionary of tensors", lambda: opened.remember(0, None))
        opened.add([0], good)
        assert opened.release().released
