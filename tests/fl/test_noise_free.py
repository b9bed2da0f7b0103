"""Runs without noise: those of a plain loop, and an infinite epsilon with its reason everywhere."""

from __future__ import annotations

import math

import pytest
import torch

from dpacct import Budget, fl
from dpacct.correlated import square_root
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct.ledger import Event, Ledger, NoisySum
from dpacct.rounds import Poisson, Round
from tests.fl.problems import (
    Recorded,
    cross_entropy,
    federation,
    flat,
    goes_on,
    linear,
    make_clients,
    perceptron,
)

CLIENTS = make_clients((6, 4, 5, 7))
LOCAL = fl.SGD(lr=0.3, epochs=1, batch_size=None)
CLIP = 0.05


def by_hand(rounds: int) -> torch.Tensor:
    """Federated averaging with clipped updates, as anybody would write it."""
    model = perceptron().double()
    for _ in range(rounds):
        start, updates = flat(model), []
        for data in CLIENTS:
            model.zero_grad()
            cross_entropy(model(data.inputs.double()), data.targets).backward()
            step = -0.3 * torch.cat([value.grad.flatten() for value in model.parameters()])
            updates.append(step * min(1.0, CLIP / float(step.norm())))
        torch.nn.utils.vector_to_parameters(start + sum(updates) / 4, model.parameters())
    return flat(model)


def doubled() -> list[fl.ClientData]:
    return [fl.ClientData(data.inputs.double(), data.targets) for data in CLIENTS]


@pytest.mark.parametrize("vectorize", [False, True])
def test_it_is_the_plain_loop(vectorize):
    options = {"noise_multiplier": 0, "clip_norm": CLIP, "local": LOCAL, "rounds": 5}
    with federation(perceptron().double(), doubled(), vectorize=vectorize, **options) as run:
        report = run.run()
    # Bounds keep a millionth of the clip norm for rounding.
    assert float((flat(run.model) - by_hand(5)).abs().max()) < 5 * CLIP * 2**-20
    assert float((flat(run.model) - flat(perceptron())).norm()) > 0.1
    assert (report.noise_multiplier, report.noise_std, run.noise_multiplier) == (0, 0, 0)


def test_updates_within_the_bound_are_those_of_a_plain_loop_to_1e_8(monkeypatch):
    monkeypatch.setattr("tests.fl.test_noise_free.CLIP", 1e3)
    options = {"noise_multiplier": 0, "clip_norm": 1e3, "local": LOCAL, "rounds": 5}
    with federation(perceptron().double(), doubled(), **options) as run:
        run.run()
    assert float((flat(run.model) - by_hand(5)).abs().max()) < 1e-8


def test_examples_and_adaptive_norms_have_no_noise_either():
    inputs, targets = torch.randn(40, 6), torch.randint(3, (40,))
    noise = Recorded()
    options = {"noise_multiplier": 0, "noise": noise, "sampling": fl.Poisson(0.5)}
    data = fl.Examples(inputs, targets)
    with federation(linear(), data, **options) as run:
        run.run()
    with federation(linear(), CLIENTS, bound=fl.AdaptiveClip(0.1), **options) as run:
        run.run()
    assert len(noise.draws) >= 3 + 2 * 3
    assert {std for _, std in noise.draws} == {0.0}


def test_everything_says_that_epsilon_is_infinite_and_why(tmp_path):
    path = tmp_path / "run.ledger"
    with federation(linear(), CLIENTS, noise_multiplier=0, ledger=path) as run:
        assert run.planned_epsilon.lower == run.planned_epsilon.upper == math.inf
        reports = list(run)
        assert run.epsilon.lower == run.epsilon.upper == math.inf
    assert run.epsilon.lower == math.inf
    for report in reports:
        assert report.epsilon.lower == report.epsilon.upper == math.inf
        assert "no noise is added" in str(report)
        assert report.to_dict()["private"] is False
    with Ledger.open(path, read_only=True) as book:
        assert book.verify().problems == ()
        [entry] = book.runs
        assert not entry.private
        assert entry.details["not_private_because"] == "no noise is added"
        assert entry.epsilon().lower == book.epsilon().lower == math.inf
        assert entry.epsilon().upper == book.epsilon().upper == math.inf
        summary = book.summary()
        assert summary["claim"] == summary["runs"][0]["claim"]
        assert summary["claim"] == "No noise is added, so no guarantee holds."
        # JSON has no infinity.
        assert summary["epsilon"] == {"lower": None, "upper": None}
        assert "no noise is added" in book.report_markdown()
        entries = list(book.export())
    charged = [entry["data"] for entry in entries if entry["kind"] == "reserve"]
    assert len(charged) == 3
    for data in charged:
        assert [release["noise_multiplier"] for release in data["releases"]] == [0.0]
        assert data["details"]["noise_std"] == 0.0


def test_a_client_that_hardly_ever_takes_part_is_no_proof():
    """At a delta above the chance to take part at all, nothing shows that epsilon is infinite."""
    options = {"noise_multiplier": 0, "sampling": fl.Poisson(1e-6), "rounds": 2}
    for delta, shown in ((1e-6, True), (1e-5, False)):
        with federation(linear(), CLIENTS, delta=delta, **options) as run:
            run.run()
            assert run.epsilon.upper == run.planned_epsilon.upper == math.inf
            assert (run.epsilon.lower == math.inf) is shown
            assert (run.planned_epsilon.lower == math.inf) is shown


def test_it_goes_on_where_it_stopped(tmp_path):
    def build(path):
        return federation(perceptron(), CLIENTS, noise_multiplier=0, checkpoint=path, seed=3)

    _, again = goes_on(build, tmp_path / "run.pt", after=1)
    assert again.epsilon.lower == math.inf


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": Budget(8, 1e-5)}, "a budget needs noise"),
        ({"secure_noise": True}, "secure gaussian noise needs"),
        ({"noise": fl.NoiseShares(3)}, "shares noise needs"),
        (
            {"noise": fl.CorrelatedNoise(square_root(3, 2)), "sampling": fl.Cyclic(2)},
            "correlated gaussian noise needs",
        ),
        ({"noise_multiplier": -0.5}, "a noise multiplier lies in"),
        ({"noise_multiplier": 1e-9}, "a noise multiplier lies in"),
        ({"noise_multiplier": False}, "a noise multiplier"),
        ({"noise_multiplier": "0"}, "a noise multiplier"),
    ],
)
def test_what_needs_noise_is_refused_in_words(options, words):
    with pytest.raises(InvalidParameter, match=words):
        federation(linear(), CLIENTS, **({"noise_multiplier": 0} | options))


def test_a_ledger_with_a_budget_keeps_it(tmp_path):
    with Ledger.open(tmp_path / "kept.ledger", Budget(8, 1e-5)) as book:
        with federation(linear(), CLIENTS, noise_multiplier=0, ledger=book) as run:
            with pytest.raises(BudgetExceeded, match="exceeds any budget"):
                run.run()
            assert torch.equal(flat(run.model), flat(linear()))
        assert book.rounds == 0
        assert not book.runs


def test_a_private_run_of_a_ledger_takes_no_sum_without_noise(tmp_path):
    event = Event(Round(1e-3, Poisson(0.1)), (NoisySum("update", 0.0, 1.0),))
    assert event.is_bare
    assert event.charged == Round(1e-3, Poisson(0.1))
    with Ledger.open(tmp_path / "run.ledger", Budget(1e9, 1e-5)) as book:
        run = book.start_run("private")
        with pytest.raises(InvalidParameter, match="private=False"):
            run.reserve(event)
        assert book.rounds == 0
        run = book.start_run("public", private=False)
        ticket = run.reserve(event)
        assert run.epsilon().lower < math.inf
        ticket.draw()
        ticket.commit()
        assert run.epsilon().lower == book.epsilon().lower == math.inf


def test_a_loop_of_ones_own_has_none_either():
    options = {"noise_multiplier": 0, "clip_norm": 1e3, "sampling": fl.Full(), "rounds": 5}
    with fl.Server(perceptron(), 4, local=LOCAL, **options) as run:
        for opened in run:
            for client in opened.workers:
                with opened.local(client, cross_entropy) as local:
                    local.step(CLIENTS[client].inputs, CLIENTS[client].targets)
            report = opened.release()
    assert report.epsilon.lower == math.inf
    with federation(perceptron(), CLIENTS, local=LOCAL, **options) as other:
        other.run()
    assert torch.equal(flat(run.model), flat(other.model))
