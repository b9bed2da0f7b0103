"""Audits by canaries of loops written by hand, and of servers whose clients train elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpacct import Full, Poisson, Uniform, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.rounds import Round
from tests.fl.auditing.test_runs import SLOW, SURE, Quieter
from tests.fl.problems import make_clients

pytestmark = pytest.mark.usefixtures("uncounted")
CLIENTS, ROUNDS, SIZE = 6, 4, 630
VECTOR = torch.zeros(SIZE)


def known():
    return torch.Generator().manual_seed(5)


def planned(**options):
    given = {"noise_multiplier": 0.5, "clip_norm": 0.5, "sampling": Full(), "num_clients": CLIENTS}
    return fl.AggregationPlan(**(given | options))


def by_name():
    torch.manual_seed(0)
    return dict(nn.Linear(20, 30).named_parameters())


def train(number):
    # The numbers of canaries are behind those of clients.
    assert number < CLIENTS
    return {name: value.detach().clone() for name, value in by_name().items()}


def training(plan, run, update, times=1):
    """A loop as the guide has it. A client may send its row several times."""
    while run.held:
        updates = [update(number) for number in plan.draw_cohort() for _ in range(times)]
        yield fl.privatize(updates, plan, run, like=by_name())


def rows(plan, run, update):
    """The same with rows of a matrix."""
    while run.held:
        sent = [update(number) for number in plan.draw_cohort()]
        yield fl.privatize(torch.stack([VECTOR, *sent])[1:], plan, run)


def charge(plan, run, round_=None):
    ticket = run.reserve(round_ or plan.round)
    ticket.draw()
    ticket.commit()


def halved(plan, run, update):
    """Sums by itself, with half of the noise, and charges all of it."""
    std = plan.charge.update_std(plan.bound) / 2
    while run.held:
        sent = [update(number) for number in plan.draw_cohort()]
        total = sum(row * min(1.0, 0.5 / float(row.norm() + 1e-9)) for row in sent)
        charge(plan, run)
        yield (total + std * torch.randn(SIZE)) / plan.charge.cohort_size


def audited(loop=rows, like=VECTOR, *, canaries=40, rounds=ROUNDS, others="silent", **options):
    update = options.pop("update", train if isinstance(like, dict) else lambda _: torch.ones(SIZE))
    plan = options.pop("plan", None) or planned(**options)
    return fl.audit_loop(
        loop, update, plan, like=like, rounds=rounds, canaries=canaries, others=others,
        generator=known(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"others": "heard"},
        {"loop": training, "like": by_name(), "clip_norm": None,
         "bound": fl.PerLayerClip((0.4, 0.3)), "adjacency": "replace-one"},
        pytest.param({"sampling": Poisson(0.4)}, marks=SLOW),
        pytest.param({"sampling": Uniform(3, CLIENTS), "noise_multiplier": 4.0}, marks=SLOW),
    ],
)  # fmt: skip
def test_a_sound_loop_passes(options):
    found = audited(**options)
    assert found.passed
    assert (found.clients, found.rounds) == (CLIENTS, ROUNDS)


def test_canaries_reach_what_the_loop_releases():
    found = audited(training, by_name())
    # Half of the sum's length is missed only by noise of more than seven standard deviations.
    assert found.shown.noise_factor < 2.2
    assert found.passed


def test_a_fault_of_a_loop_is_seen():
    found = audited(halved)
    assert "noise" in found.shown.faults
    assert not found.passed


def free(*given):
    for released in rows(*given):
        yield released
        yield released


def quiet(*given):
    yield from list(rows(*given))[:3]


def elsewhere(_, run, update):
    yield from rows(planned(), run, update)


def other_rounds(plan, run, _):
    for _ in range(3):
        charge(plan, run, Round(plan.noise_multiplier / 2, plan.sampling, plan.adjacency))
        yield torch.randn(SIZE)


def counted_from_one(plan, run, update):
    yield fl.privatize([{"update": update(n + 1)} for n in plan.draw_cohort()], plan, run)


def released(change):
    return lambda *given: (change(mean) for mean in rows(*given))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"loop": free}, fl.AuditFailed, "release 2 was not charged"),
        ({"loop": quiet}, InvalidParameter, f"charged {ROUNDS}"),
        ({"loop": lambda *_: []}, InvalidParameter, "no release"),
        ({"loop": elsewhere}, Unsupported, "asked for no canary"),
        ({"loop": other_rounds}, Unsupported, "other rounds"),
        (
            {
                "loop": lambda *given: training(*given, times=2),
                "like": by_name(),
                "sampling": Poisson(0.3),
                "canaries": 200,
            },
            InvalidParameter,
            "the cohort was drawn otherwise",
        ),
        ({"loop": lambda *_: None}, InvalidParameter, "loop is 'NoneType'; it yields each mean"),
        ({"loop": 7}, InvalidParameter, "loop is 'int'; it is a function"),
        ({"update": 7}, InvalidParameter, "update is 'int'; it is a function"),
        ({"plan": 7}, InvalidParameter, "plan is 'int'; it is an AggregationPlan"),
        ({"like": nn.Linear(2, 2)}, InvalidParameter, "like is 'Linear'; it is a tensor, or"),
        ({"like": {"weight": 7}}, InvalidParameter, "like is 'dict'"),
        ({"loop": released(lambda _: None)}, InvalidParameter, "loop is 'NoneType'; each mean"),
        ({"loop": released(Tensor.tolist)}, InvalidParameter, "loop is 'list'; each mean"),
        (
            {"loop": released(lambda mean: {"update": mean.numpy()})},
            InvalidParameter,
            "loop is 'dict'; each mean",
        ),
        ({"loop": counted_from_one}, InvalidParameter, "number is 46; the numbers that the plan"),
        ({"like": torch.zeros(SIZE, dtype=torch.int64)}, Unsupported, "floating-point"),
        ({"canaries": 3}, InvalidParameter, "canaries"),
        ({"canaries": 900}, InvalidParameter, "canaries"),
        ({"others": "loud"}, InvalidParameter, "others"),
        ({"rounds": 0}, InvalidParameter, "rounds"),
        ({"loop": training, "like": torch.zeros(700)}, InvalidParameter, "by name"),
    ],
)
def test_a_wrong_loop_is_refused(options, error, said):
    with pytest.raises(error, match=said):
        audited(**options)


# Servers.


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
    assert "noise" in served(noise=Quieter(), preflight=False).shown.faults


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
        ({"seed": 1}, Unsupported, "promised"),
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
