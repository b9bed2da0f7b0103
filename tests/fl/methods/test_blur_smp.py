"""BLUR, BLURS and Fed-SMP: the penalty, and whose mask it is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods import BLUR, BLURS, DPFedAvg, FedSMPRandK, FedSMPTopK
from dpacct.fl.methods.protocol import Context
from dpacct.fl.privacy.masks import RandomK
from tests.fl.methods.stage import moved, points, quadratics, same, simulate, vector
from tests.fl.problems import cross_entropy, make_clients, perceptron

LAYOUT = Layout.of(dict(perceptron().named_parameters()))
LOCAL = fl.SGD(lr=0.5, epochs=3, batch_size=4)


def run(method, rounds=3, **options):
    settings = {"loss": cross_entropy, "clip_norm": 0.3, "local": LOCAL}
    return simulate(method, perceptron(), make_clients([8, 3, 5]), rounds, **(settings | options))


class Slope:
    def gradient(self, params, batch):
        return {name: torch.ones_like(value) for name, value in params.items()}


@pytest.mark.parametrize(("length", "inside"), [(0.49, True), (0.51, False)])
def test_the_penalty_pulls_back_outside_of_the_ball(length, inside):
    anchor = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([3.0])}
    gap = length * torch.tensor([0.6, 0.0, 0.8])
    params = {"a": anchor["a"] + gap[:2], "b": anchor["b"] + gap[2:]}
    context = Context(1, anchor, {}, fl.SGD(), 0.1, 1, clip_norm=0.5)
    batch = Batch(torch.zeros(1), torch.zeros(1), None)
    for method in (BLUR(penalty=2.0, radius=0.5), BLUR(penalty=2.0)):
        found = vector(method.gradient(Slope(), params, batch, context))
        assert torch.allclose(found, torch.ones(3) + (0 if inside else 2.0 * gap), atol=1e-6)
    # The derivative of (penalty / 2) max(0, |w - w^t|^2 - radius^2).
    w = vector(params).double().requires_grad_()
    squared = (w - vector(anchor).double()).square().sum()
    (torch.clamp(squared - 0.25, min=0) + 0 * squared).backward()
    assert torch.allclose(w.grad.float() + 1, found, atol=1e-6)


def test_without_a_penalty_or_a_mask_it_is_federated_averaging_to_the_bit():
    plain = run(DPFedAvg())
    for method in (
        BLUR(penalty=0), BLURS(penalty=0, fraction=1.0), FedSMPRandK(1.0), FedSMPTopK(1.0),
    ):  # fmt: skip
        assert same(run(method), plain)
    assert same(run(BLURS(fraction=1.0)), run(BLUR()))


def test_sparsified_updates_get_noise_on_all_coordinates():
    clients = quadratics([[0.0] * 50])
    options = {"noise": fl.GaussianNoise(), "noise_multiplier": 1.0, "clip_norm": 1.0}
    final = simulate(BLURS(fraction=0.1), points([0.0] * 50), clients, 1, **options)[-1]
    assert int(vector(final.params).count_nonzero()) == 50
    # Each client picks its own: together they reach more than a tenth.
    clients = quadratics(np.eye(20))
    final = simulate(BLURS(fraction=0.1), points([0.0] * 20), clients, 1)[-1]
    assert int(vector(final.params).count_nonzero()) == 20


def counts(move):
    return [int(move[start:stop].count_nonzero()) for start, stop in LAYOUT.segments]


SHARE = [-(-4 * size // 10) for size in LAYOUT.sizes]


def test_random_masks_are_those_of_the_public_seed_and_carry_all_the_noise():
    noisy = {"noise": fl.GaussianNoise(), "noise_multiplier": 1.0}
    moves = moved(run(FedSMPRandK(seed=5), **noisy))
    again = moved(run(FedSMPRandK(seed=5)))
    for number, (one, two) in enumerate(zip(moves, again, strict=True), 1):
        assert counts(one) == SHARE
        kept = RandomK(0.4, 5).select(LAYOUT, number, None)
        assert torch.equal(one.nonzero().flatten(), kept)
        assert set(two.nonzero().flatten().tolist()) <= set(kept.tolist())
    other = moved(run(FedSMPRandK(seed=6), **noisy))
    assert not torch.equal(other[0] != 0, moves[0] != 0)
    assert not torch.equal(moves[1] != 0, moves[0] != 0)


def test_masked_noise_has_a_share_of_the_energy():
    clients = quadratics([[0.0] * 1000])
    options = {"noise": fl.GaussianNoise(), "noise_multiplier": 1.0, "clip_norm": 2.0}
    energy = {}
    for fraction in (1.0, 0.4):
        method = FedSMPRandK(fraction=fraction)
        final = simulate(method, points([0.0] * 1000), clients, 1, **options)[-1]
        energy[fraction] = float(vector(final.params).square().sum())
    # d (z C)^2 and k (z C)^2.
    assert energy[1.0] == pytest.approx(1000 * 4, rel=0.25)
    assert energy[0.4] == pytest.approx(400 * 4, rel=0.35)


def test_masking_comes_before_the_clip():
    clients = quadratics([[3.0] * 10])
    local = fl.SGD(lr=1.0, steps=1)
    final = simulate(
        FedSMPRandK(fraction=0.4), points([0.0] * 10), clients, 1, local=local, clip_norm=0.5
    )[-1]
    # |M o Delta| > C: the norm of what arrives is C, not C sqrt(k / d).
    assert float(vector(final.params).norm()) == pytest.approx(0.5, rel=1e-5)


@pytest.mark.slow
def test_the_unbiased_version_has_the_whole_mean_as_its_expectation():
    target = torch.tensor([1.0, -2.0, 3.0, 0.5, -0.1], dtype=torch.float64)
    clients = quadratics([target.tolist()])
    local = fl.SGD(lr=1.0, steps=1)
    total, lost = torch.zeros(5, dtype=torch.float64), 0.0
    seeds = range(400)
    for seed in seeds:
        for unbiased in (True, False):
            method = FedSMPRandK(fraction=0.4, seed=seed, unbiased=unbiased)
            final = simulate(method, points([0.0] * 5), clients, 1, local=local)[-1]
            if unbiased:
                total += vector(final.params)
            else:
                lost += float((target - vector(final.params)).square().sum())
    # Two of five kept: each coordinate comes with probability 0.4, times 2.5.
    spread = target.abs() * (0.6 / 0.4 / len(seeds)) ** 0.5
    assert bool(((total / len(seeds) - target).abs() < 5 * spread).all())
    assert lost / len(seeds) == pytest.approx(0.6 * float(target.square().sum()), rel=0.1)


def test_the_public_mask_follows_the_last_release():
    states = run(FedSMPTopK(refresh=3), 5, noise=fl.GaussianNoise(), noise_multiplier=0.1)
    moves = moved(states)
    assert [sum(counts(move)) for move in moves] == [
        LAYOUT.size if number in (0, 3) else sum(SHARE) for number in range(5)
    ]
    for before, after in itertools.pairwise(moves):
        if counts(after) != SHARE:
            continue
        for start, stop in LAYOUT.segments:
            part = before[start:stop].abs()
            kept = after[start:stop] != 0
            # What was kept was, in the last release, at least as large as what was not.
            assert float(part[kept].min()) >= float(part[~kept].max()) - 1e-6
