"""Audits by canaries of servers whose clients train elsewhere."""

from __future__ import annotations

import pytest
import torch

from dpacct import Full, Poisson, fl
from dpacct.errors import InvalidParameter, Unsupported
from tests.fl.auditing.test_runs import SLOW, SURE, Quieter
from tests.fl.problems import make_clients

pytestmark = pytest.mark.usefixtures("uncounted")


def known():
    return torch.Generator().manual_seed(5)


def serving(**options):
    given = {"rounds": 4, "clip_norm": 0.5, "noise_multiplier": 1.0, "sampling": Full()}
    return lambda clients: fl.Server(
        torch.nn.Linear(20, 40), clients, **(given | {"delta": 1e-5} | options)
    )


def play(server, people, leave_at=None):
    """Messages are function calls here, and no client trains, as all are planted."""
    for opened in server:
        if opened.number == leave_at:
            break
        answers = [people[client] for client in opened.workers]
        assert all(isinstance(found, fl.Canary) for found in answers)
        updates = torch.stack([found.update for found in answers])
        opened.add(opened.workers, opened.bound(updates))
        opened.release()


def nobody(server, _):
    for opened in server:
        opened.release()


def served(played=play, canaries=40, people=None, build=None, **options):
    return fl.audit_server(
        build or serving(**options), played, people or make_clients([5, 3, 4]), canaries=canaries,
        confidence=SURE, generator=options.pop("generator", None) or known(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Poisson(0.5), "method": fl.FedSMPRandK(), "rounds": 8},
        {"adjacency": "replace-one", "server": fl.Momentum(0.9)},
        pytest.param(
            {"clip_norm": None, "bound": fl.AdaptiveClip(0.5, indicator_noise=30.0)}, marks=SLOW
        ),
    ],
)
def test_a_sound_server_passes(options):
    found = served(**options)
    found.require()
    assert (found.clients, found.rounds) == (3, options.get("rounds", 4))
    assert found.gaussian_epsilon < found.charged.upper
    assert found.shown.epsilon < found.charged.upper


def test_a_fault_of_a_server_is_seen():
    assert "noise" in served(noise=Quieter()).shown.faults


def test_a_round_that_is_left_is_charged_and_shows_nothing():
    found = served(lambda server, people: play(server, people, leave_at=3))
    assert (found.passed, found.rounds) == (True, 2)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"played": nobody}, Unsupported, "no canary was asked"),
        ({"played": lambda *_: None}, Unsupported, "nothing was released"),
        ({"played": 5}, InvalidParameter, "play is 'int'"),
        ({"canaries": 3}, InvalidParameter, "canaries"),
        ({"seed": 1}, Unsupported, "no guarantee"),
        ({"build": 5}, InvalidParameter, "build is 'int'"),
        ({"build": lambda _: None}, InvalidParameter, "build is 'NoneType'"),
        ({"build": lambda _: serving()(7)}, InvalidParameter, "build is 7"),
        ({"people": 5}, InvalidParameter, "clients is 'int'"),
        (
            {"people": fl.Examples(torch.zeros(3, 20), torch.zeros(3))},
            InvalidParameter,
            "clients is 'Examples'",
        ),
        ({"generator": torch.default_generator}, InvalidParameter, "generator is"),
    ],
)
def test_a_wrong_server_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        served(**options)


def test_an_audited_server_has_no_ledger(tmp_path):
    with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
        served(ledger=tmp_path / "a.ledger")
    assert not list(tmp_path.iterdir())
