"""Audits of servers whose clients train elsewhere: their code carries messages and canaries."""

from __future__ import annotations

import pytest
import torch

from dpacct import Full, Poisson, fl
from dpacct.errors import InvalidParameter, Unsupported
from tests.fl.auditing.test_runs import SURE, Quieter
from tests.fl.problems import make_clients

pytestmark = pytest.mark.usefixtures("uncounted")


def builder(**options):
    given = {
        "rounds": 8, "clip_norm": 0.5, "noise_multiplier": 1.0, "sampling": Full(), "delta": 1e-5,
    } | options  # fmt: skip
    return lambda clients: fl.Server(torch.nn.Linear(20, 40), clients, **given)


def play(server, people):
    """Messages are function calls here; nobody's training is asked for, as all are planted."""
    for opened in server:
        answer(opened, people)
        opened.release()


def answer(opened, people):
    answers = [people[client] for client in opened.workers]
    assert all(isinstance(found, fl.Canary) for found in answers)
    rows = torch.stack([found.update for found in answers])
    opened.add(opened.workers, opened.bound(rows))


def audited(played=play, canaries=100, **options):
    known = torch.Generator().manual_seed(5)
    return fl.audit_server(
        builder(**options), played, make_clients([5, 3, 4]), canaries=canaries, confidence=SURE,
        generator=known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"sampling": Poisson(0.5), "method": fl.FedSMPRandK()},
        pytest.param(
            {"clip_norm": None, "bound": fl.AdaptiveClip(0.5, indicator_noise=30.0)},
            marks=pytest.mark.slow,
        ),
        {"adjacency": "replace-one", "server": fl.Momentum(0.9)},
    ],
)
def test_a_sound_server_passes(options):
    found = audited(**options)
    found.require()
    assert (found.clients, found.rounds) == (3, 8)
    assert found.gaussian_epsilon < found.charged.upper
    assert found.shown.epsilon < found.charged.upper


def test_a_fault_is_seen():
    assert "noise" in audited(noise=Quieter(), preflight=False).shown.faults


def test_a_round_that_is_left_is_charged_and_shows_nothing():
    def leaving(server, people):
        for opened in server:
            if opened.number == 5:
                break
            answer(opened, people)
            opened.release()

    found = audited(leaving)
    assert found.passed
    assert found.rounds == 4


def nobody(server, _):
    for opened in server:
        opened.release()


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"played": nobody}, Unsupported, "no canary was asked"),
        ({"played": lambda *_: None}, Unsupported, "nothing was released"),
        ({"canaries": 3}, InvalidParameter, "canaries"),
        ({"seed": 1}, Unsupported, "promised"),
    ],
)
def test_bad_audits_are_refused(options, error, said):
    with pytest.raises(error, match=said):
        audited(**options)


def test_a_server_of_other_clients_is_refused(tmp_path):
    build = builder()
    with pytest.raises(InvalidParameter, match="build is 7"):
        fl.audit_server(lambda _: build(7), play, make_clients([5, 3]), canaries=40)
    with pytest.raises(Unsupported, match="without ledger= and checkpoint="):
        audited(ledger=tmp_path / "a.ledger")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"build": 5}, "build is 'int'"),
        ({"build": lambda _: None}, "build is 'NoneType'"),
        ({"play": 5}, "play is 'int'"),
        ({"clients": 5}, "clients is 'int'"),
        ({"clients": fl.Examples(torch.zeros(3, 20), torch.zeros(3))}, "clients is 'Examples'"),
        ({"generator": torch.default_generator}, "generator is"),
    ],
)
def test_wrong_kinds_are_refused(changed, said):
    given = {"build": builder(), "play": play, "clients": make_clients([5, 3])} | changed
    with pytest.raises(InvalidParameter, match=said):
        fl.audit_server(**given, canaries=40)
