"""Audits of loops that are written by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dpacct import Full, Poisson, Uniform, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.auditing.runs import audit_loop
from dpacct.rounds import Round

CLIENTS, ROUNDS = 6, 12


def planned(**options):
    given = {"noise_multiplier": 1.0, "clip_norm": 0.5, "sampling": Full(), "num_clients": CLIENTS}
    return fl.AggregationPlan(**(given | options))


def model():
    torch.manual_seed(0)
    return nn.Linear(20, 30)


def train(number):
    # The numbers of canaries are behind those of clients.
    assert number < CLIENTS
    return {name: value.detach().clone() for name, value in model().named_parameters()}


def training(plan, run, update):
    """A loop as the guide has it."""
    like = dict(model().named_parameters())
    while run.held:
        updates = [update(number) for number in plan.draw_cohort()]
        yield fl.privatize(updates, plan, run, like=like)


def rows(plan, run, update):
    """The same with rows of a matrix."""
    while run.held:
        sent = [update(number) for number in plan.draw_cohort()]
        yield fl.privatize(torch.stack([torch.zeros(630), *sent])[1:], plan, run)


def twice(plan, run, update):
    """Everybody sends two rows."""
    like = dict(model().named_parameters())
    while run.held:
        updates = [update(number) for number in plan.draw_cohort() for _ in range(2)]
        yield fl.privatize(updates, plan, run, like=like)


def halved(plan, run, update):
    """Sums by itself, with half of the noise, and charges all of it."""
    size, std = 630, plan.charge.update_std(plan.bound) / 2
    while run.held:
        sent = [update(number) for number in plan.draw_cohort()]
        total = sum(row * min(1.0, 0.5 / float(row.norm() + 1e-9)) for row in sent)
        ticket = run.reserve(plan.round)
        ticket.draw()
        ticket.commit()
        yield (total + std * torch.randn(size)) / plan.charge.cohort_size


def audited(loop=training, *, like=None, canaries=100, rounds=ROUNDS, others="silent", **options):
    known = torch.Generator().manual_seed(5)
    like = dict(model().named_parameters()) if like is None else like
    update = train if isinstance(like, dict) else lambda _: torch.ones(630)
    return audit_loop(
        loop, update, planned(**options), like=like, rounds=rounds, canaries=canaries,
        others=others, generator=known,
    )  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"loop": rows, "like": torch.zeros(630), "others": "heard"},
        pytest.param({"sampling": Poisson(0.4)}, marks=pytest.mark.slow),
        pytest.param(
            {"sampling": Uniform(3, CLIENTS), "noise_multiplier": 4.0}, marks=pytest.mark.slow
        ),
        {"clip_norm": None, "bound": fl.PerLayerClip((0.4, 0.3)), "adjacency": "replace-one"},
    ],
)
def test_a_sound_loop_passes(options):
    found = audited(**options)
    assert found.passed
    assert (found.clients, found.rounds) == (CLIENTS, ROUNDS)


def test_canaries_reach_what_the_loop_releases():
    found = audited()
    # Half of the sum's length is missed only by noise of more than seven standard deviations.
    assert found.shown.noise_factor < 2.2
    assert found.passed


def test_a_fault_is_seen():
    # More than eight standard deviations above what is called a fault.
    found = audited(halved, like=torch.zeros(630))
    assert "noise" in found.shown.faults
    assert not found.passed


def test_more_rows_than_a_draw_can_give_are_refused():
    with pytest.raises(InvalidParameter, match="the cohort was drawn otherwise"):
        audited(twice, sampling=Poisson(0.3), canaries=200)


def test_what_is_not_charged_is_a_fault():
    def free(plan, run, update):
        for released in training(plan, run, update):
            yield released
            yield released

    with pytest.raises(fl.AuditFailed, match="release 2 was not charged"):
        audited(free)


def test_what_is_not_yielded_is_told():
    def quiet(plan, run, update):
        releases = list(training(plan, run, update))
        yield from releases[:5]

    with pytest.raises(InvalidParameter, match="charged 12"):
        audited(quiet)
    with pytest.raises(InvalidParameter, match="no release"):
        audited(lambda *_: [])


def released(change):
    return lambda *given: (change(mean) for mean in rows(*given))


def counted_from_one(plan, run, update):
    yield fl.privatize([{"update": update(n + 1)} for n in plan.draw_cohort()], plan, run)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"loop": lambda *_: None}, "loop is 'NoneType'; it yields each mean"),
        ({"loop": 7}, "loop is 'int'; it is a function"),
        ({"update": 7}, "update is 'int'; it is a function"),
        ({"plan": 7}, "plan is 'int'; it is an AggregationPlan"),
        ({"like": nn.Linear(2, 2)}, "like is 'Linear'; it is a tensor, or tensors by name"),
        ({"like": {"weight": 7}}, "like is 'dict'"),
        ({"loop": released(lambda _: None)}, "loop is 'NoneType'; each mean"),
        ({"loop": released(Tensor.tolist)}, "loop is 'list'; each mean"),
        ({"loop": released(lambda mean: {"update": mean.numpy()})}, "loop is 'dict'; each mean"),
        ({"loop": counted_from_one}, "number is 106; the numbers that the plan draws"),
    ],
)
def test_what_is_of_another_kind_is_named(options, said):
    given = {"loop": rows, "update": lambda _: torch.ones(630), "plan": planned()}
    given |= {"like": torch.zeros(630)} | options
    with pytest.raises(InvalidParameter, match=said):
        audit_loop(**given, rounds=2, canaries=100)


def test_whole_numbers_are_no_parameters():
    with pytest.raises(Unsupported, match="floating-point"):
        audited(rows, like=torch.zeros(630, dtype=torch.int64))


def test_a_loop_that_takes_another_plan_shows_nothing():
    """What its canaries would have shown, nobody sees: it does not pass."""
    mine = planned()

    def elsewhere(_, run, update):
        yield from rows(mine, run, update)

    with pytest.raises(Unsupported, match="asked for no canary"):
        audited(elsewhere, like=torch.zeros(630))


def test_other_rounds_than_the_plans_are_refused():
    def other(plan, run, _):
        released = torch.zeros(630)
        for _ in range(3):
            ticket = run.reserve(Round(plan.noise_multiplier / 2, plan.sampling, plan.adjacency))
            ticket.draw()
            ticket.commit()
            yield released + torch.randn(630)

    with pytest.raises(Unsupported, match="other rounds"):
        audited(other, like=torch.zeros(630))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"canaries": 3}, "canaries"),
        ({"canaries": 900}, "canaries"),
        ({"others": "loud"}, "others"),
        ({"rounds": 0}, "rounds"),
        ({"like": torch.zeros(700)}, "by name"),
    ],
)
def test_bad_input_is_named(options, said):
    with pytest.raises(InvalidParameter, match=said):
        audited(**options)
