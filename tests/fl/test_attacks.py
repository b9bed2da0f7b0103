"""Attacks on models: they find what was memorized, and nothing where nothing was."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from dpacct.empirical.roc import null_deviation
from dpacct.errors import InvalidParameter
from dpacct.fl import ClientData
from dpacct.fl.attacks import (
    client_losses,
    client_margins,
    likelihood_attack,
    loss_attack,
    without_members,
)
from tests.fl.problems import cross_entropy, linear

FEATURES = 30


def people(count, size=6, seed=0):
    """Clients whose labels are coins: only memory can tell who was there."""
    generator = torch.Generator().manual_seed(seed)
    return [
        ClientData(
            torch.randn(size, FEATURES, generator=generator),
            torch.randint(0, 3, (size,), generator=generator),
        )
        for _ in range(count)
    ]


def fitted(clients, steps=200):
    model = linear(FEATURES, 3)
    inputs = torch.cat([data.inputs for data in clients])
    targets = torch.cat([data.targets for data in clients])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    return model


def test_losses_are_those_of_single_examples():
    model, [data] = linear(FEATURES, 3), people(1)
    [found] = client_losses(model, cross_entropy, [data])
    with torch.no_grad():
        each = [cross_entropy(model(x[None]), y[None]) for x, y in zip(data.inputs, data.targets)]  # noqa: B905
    assert found == pytest.approx([float(value) for value in each], rel=1e-5)
    [margins] = client_margins(model, [data])
    assert found == pytest.approx(np.log1p(np.exp(-margins)), rel=1e-9)
    assert model.training


def test_positions_are_averaged():
    model = nn.Identity()
    model.register_parameter("unused", nn.Parameter(torch.zeros(1)))
    logits, targets = torch.randn(4, 5, 7), torch.randint(0, 5, (4, 7))
    data = ClientData(logits, targets)
    [found] = client_losses(model, cross_entropy, [data])
    plain = nn.functional.cross_entropy(logits, targets, reduction="none").mean(dim=1)
    assert found == pytest.approx(plain.tolist(), rel=1e-5)
    [margins] = client_margins(model, [data])
    assert margins.shape == (4,)


def test_evaluation_mode_and_confident_models():
    model = nn.Sequential(nn.Dropout(0.9), linear(FEATURES, 3))
    clients = people(3)
    one, two = (client_losses(model, cross_entropy, clients) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(1e4)
    margins = np.concatenate(client_margins(model, clients))
    assert np.isfinite(margins).all()
    assert len(np.unique(margins)) == len(margins)


def test_members_of_a_model_that_learned_them_by_heart_are_found():
    members, others = people(30, seed=1), people(30, seed=2)
    found = loss_attack(fitted(members), cross_entropy, members, others)
    assert found.examples.auc.lower > 0.52
    assert found.clients.auc.value > found.examples.auc.value
    assert found.clients.auc.lower > 0.6
    assert found.client_size == 6


def test_a_model_without_training_knows_nobody():
    members, others = people(60, seed=3), people(60, seed=4)
    found = loss_attack(linear(FEATURES, 3), cross_entropy, members, others)
    assert 0.5 in found.examples.auc
    assert abs(found.examples.auc.value - 0.5) < 5 * null_deviation(360, 360)
    assert abs(found.clients.auc.value - 0.5) < 5 * null_deviation(60, 60)


@pytest.mark.parametrize("trained", [False, True])
def test_shadow_models_tell_who_was_there_and_only_then(trained):
    members, others = people(20, seed=5), people(40, seed=6)
    model = fitted(members if trained else people(20, seed=7))
    seen: list[int] = []

    def train(clients, _number):
        seen.append(len(clients))
        assert all(any(data is other for other in others) for data in clients)
        return fitted(clients, steps=60)

    found = likelihood_attack(model, members, others, train, shadows=4)
    assert seen == [15] * 4
    assert (found.clients.members, found.clients.nonmembers) == (20, 20)
    if trained:
        assert found.examples.auc.lower > 0.5
    else:
        assert abs(found.examples.auc.value - 0.5) < 5 * null_deviation(120, 120)


def test_examples_that_members_have_are_left_out():
    members, others = people(4, seed=8), people(3, seed=9)
    mixed = ClientData(
        torch.cat([others[0].inputs, members[1].inputs[:2]]),
        torch.cat([others[0].targets, members[1].targets[:2]]),
    )
    found = without_members(members, [mixed, others[1]])
    assert (found.left_out, [len(data) for data in found.clients]) == (2, [6, 6])
    assert torch.equal(found.clients[0].inputs, others[0].inputs)
    # The same input with another label is another example.
    relabeled = ClientData(members[0].inputs, (members[0].targets + 1) % 3)
    assert without_members(members, [relabeled]).left_out == 0


def test_too_few_people_and_foreign_outputs_are_refused():
    members, model, broken = people(4), linear(FEATURES), linear(FEATURES)
    with torch.no_grad():
        broken.weight.fill_(torch.nan)

    def attack(others, **options):
        return likelihood_attack(model, members, others, lambda *_: model, **options)

    for call, words in (
        (lambda: attack(people(3)), "four are needed"),
        (lambda: attack(people(4), shadows=1), "two shadow models"),
        (lambda: client_margins(linear(FEATURES, 1), members), "two classes"),
        (lambda: client_losses(model, lambda out, _: out.sum(dim=0), members), "out dimensions"),
        (lambda: loss_attack(broken, cross_entropy, members, people(2)), "NaN"),
        (lambda: without_members(members, [*members, *people(1, seed=9)]), "24 of these 30"),
        (lambda: without_members(members, []), "not trained on"),
    ):
        with pytest.raises(InvalidParameter, match=words):
            call()
