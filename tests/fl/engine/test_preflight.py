"""The preflight passes what is right, catches what was planted, and costs no charge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.engine.engine import Engine
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.public import PublicSize
from dpacct.rounds import Poisson, Uniform
from tests.fl.auditing.test_audit import (
    CohortMedian,
    FreeIndicator,
    HalfPrecision,
    HalfTheNoise,
    HalfTheNoiseOnCounts,
    Laplacian,
    LittleLess,
    NoNoise,
    PerTensorClip,
    SameSeed,
    Understated,
)
from tests.fl.problems import convolutional, federation, linear, make_clients, perceptron


def begun(model=None, **options):
    """A run whose first round has been played."""
    clients = options.pop("clients", make_clients([6, 3, 9, 1]))
    settings = {"preflight": True, "rounds": 1, "local": fl.SGD(lr=2.0, epochs=2, batch_size=4)}
    if "bound" in options:
        settings["clip_norm"] = None
    with federation(model or perceptron(), clients, **(settings | options)) as run:
        run.run()
        return run


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(fl.METHODS))
@pytest.mark.parametrize("vectorize", [False, True])
def test_every_method_passes(name, vectorize):
    method = fl.METHODS[name]()
    clip_norm = 0.5 if method.bound is None else None
    assert begun(method=method, clip_norm=clip_norm, vectorize=vectorize).round == 1


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "options",
    [
        {"secure_noise": True},
        {"secure_noise": True, "noise_multiplier": 0.02},
        {"adjacency": "replace-one", "noise_multiplier": 300.0},
        {"sampling": Poisson(0.3)},
        {"sampling": Uniform(3, 4), "noise": fl.NoiseShares(2)},
        {"bound": fl.AdaptiveClip(0.5, indicator_noise=4.0)},
        {"bound": fl.AdaptiveClip(0.5, indicator_noise=4.0), "secure_noise": True},
        {"bound": fl.PerLayerClip((1e-3, 1.0, 5.0, 0.1)), "sampling": Poisson(0.3)},
        {"local": fl.SGD(lr=2.0, steps=50, batch_size=None)},
        {"clip_norm": 1e-8},
        {"clip_norm": 1e12},
        {"method": fl.DPFedPGN(paper_mode=True)},
        {"seed": 5},
    ],
)
def test_what_is_right_passes(options):
    assert begun(**options).round == 1


def test_models_of_all_kinds_pass():
    torch.manual_seed(0)
    pictures = [fl.ClientData(torch.randn(n, 1, 8, 8), torch.zeros(n).long()) for n in (3, 5)]
    assert begun(convolutional(), clients=pictures).round == 1
    doubles = [replace(data, inputs=data.inputs.double()) for data in make_clients([4, 2])]
    assert begun(linear().double(), clients=doubles, vectorize=True).round == 1
    dropping = torch.nn.Sequential(torch.nn.Dropout(), linear())
    for vectorize in (False, True):
        assert begun(dropping, vectorize=vectorize).round == 1


@pytest.mark.parametrize(
    ("options", "check"),
    [
        ({"noise": HalfTheNoise()}, "noise: its standard deviation"),
        ({"noise": LittleLess()}, "empty cohort: its standard deviation"),
        ({"noise": NoNoise()}, "noise: its standard deviation is 0"),
        ({"noise": SameSeed()}, "fresh: two rounds have the same noise"),
        ({"noise": Laplacian()}, "noise: it is not Gaussian"),
        (
            {
                "noise": HalfTheNoiseOnCounts(),
                "bound": fl.AdaptiveClip(0.5, indicator_noise=3.0),
            },
            "indicator: its standard deviation",
        ),
        ({"bound": PerTensorClip(0.3)}, "bound: contributions have norm up to 0.59"),
        ({"bound": HalfPrecision(0.3)}, "bound: contributions have norm up to 0.30"),
    ],
)
def test_what_is_wrong_is_caught_before_anything_is_charged(options, check, tmp_path):
    path = tmp_path / "run.ledger"
    with pytest.raises(fl.AuditFailed, match=check):
        begun(ledger=path, **options)
    assert not path.exists()


class Unsaid(fl.GaussianNoise):
    """Says itself that it draws less than it is asked for."""

    def actual_std(self, std, arrived):
        return std * (1 - 1e-6)


@pytest.mark.parametrize("preflight", [True, False])
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bound": Understated(0.5)}, "claims a sensitivity of 0.25"),
        ({"noise": Unsaid()}, "is charged"),
    ],
)
def test_what_contradicts_the_charge_is_refused_with_and_without_it(
    options, words, preflight, tmp_path
):
    path = tmp_path / "run.ledger"
    with pytest.raises((InvalidParameter, Unsupported), match=words):
        begun(ledger=path, preflight=preflight, **options)
    assert not path.exists()


def test_a_count_that_is_not_charged_for_is_caught(monkeypatch):
    event = NoisePlan.event
    monkeypatch.setattr(
        NoisePlan, "event", lambda plan, bound, *rest: event(plan, fl.Clip(bound.clip_norm), *rest)
    )
    with pytest.raises(fl.AuditFailed, match="joint charge: multiplier"):
        begun(bound=FreeIndicator(0.5, indicator_noise=3.0))


def test_a_realized_denominator_is_caught(monkeypatch):
    release = Engine.release

    def realized(self, state, found):
        plan = replace(self.plan, public=PublicSize(max(found.arrived, 1), stated=False))
        return release(replace(self, plan=plan), state, found)

    monkeypatch.setattr(Engine, "release", realized)
    with pytest.raises(fl.AuditFailed, match=r"denominator|empty cohort"):
        begun()


def test_a_bound_that_mixes_clients_is_caught():
    with pytest.raises(fl.AuditFailed, match="changed by another update"):
        begun(bound=CohortMedian(0.5))


def test_it_is_on_unless_it_is_switched_off():
    settings = {"noise_multiplier": 1.0, "clip_norm": 1.0, "rounds": 1, "noise": NoNoise()}
    clients = make_clients([3, 3])
    with fl.Federation(linear(), torch.nn.functional.cross_entropy, clients, **settings) as run:
        with pytest.raises(fl.AuditFailed):
            run.run()
        assert run.epsilon.upper == 0


def test_the_run_goes_on_as_if_it_had_not_been():
    models = []
    for preflight in (False, True):
        model = torch.nn.Sequential(torch.nn.Dropout(), linear())
        begun(model, preflight=preflight, seed=4, rounds=3)
        models.append(torch.cat([value.flatten() for value in model.parameters()]))
    assert torch.equal(*models)
