"""What every method passes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import dpacct
from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.methods import METHODS
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.bounds import MARGIN
from tests.fl.methods import references as oracle
from tests.fl.methods.stage import Curved, quadratics, simulate, vector
from tests.fl.problems import federation, flat, goes_on, make_clients, perceptron

NAMES = [
    "dp-fedavg", "blur", "blurs", "fed-smp-randk", "fed-smp-topk", "dp-fedsam", "dp-fedsam-topk",
    "dp-fedpgn", "dp-fedpgn-ls", "dp-fed-ls", "fed-alpha-normec", "alpha-normec",
    "fedavg-smoothed", "scaffold", "feddyn", "fedcm",
]  # fmt: skip
VARIANTS: list[tuple[str, dict]] = [
    *((name, {}) for name in NAMES),
    ("dp-fedsam-topk", {"placement": "shared", "refresh": 2}),
    ("dp-fedsam-topk", {"placement": "client"}),
    ("fed-smp-randk", {"unbiased": True, "fraction": 0.3}),
    ("fed-smp-topk", {"refresh": 2}),
    ("blur", {"penalty": 0.5, "radius": 0.01}),
    ("dp-fedpgn-ls", {"smoothing": 1.0}),
    ("dp-fed-ls", {"order": "OWHI", "smoothing": 2.0}),
    ("dp-fed-ls", {"denoiser": "james-stein"}),
    ("dp-fed-ls", {"denoiser": "soft-threshold"}),
    ("fed-alpha-normec", {"server_normalization": True}),
    ("fed-alpha-normec", {"operator": "incremental"}),
]
each = pytest.mark.parametrize(("name", "options"), VARIANTS, ids=str)


def _written(value: object) -> str:
    """The same in every process: addresses of functions are not."""
    return "reference" if callable(value) else str(value)


def build(name, options=None) -> Method:
    return METHODS[name](**(options or {}))


def test_the_names_are_those_of_the_command_line():
    assert list(METHODS) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_method_is_a_frozen_value_that_says_what_it_is(name):
    method = build(name)
    assert method.name == name
    assert method == build(name)
    assert dataclasses.is_dataclass(method)
    for field in dataclasses.fields(method):
        if field.init:
            # Settings of a run say "as printed" behind the method's words.
            assert field.name == "as_printed" or field.name in repr(method)
            with pytest.raises(dataclasses.FrozenInstanceError):
                setattr(method, field.name, 1)


@pytest.mark.sampled(2)
@each
@pytest.mark.parametrize(
    "mechanism",
    [{"sampling": fl.Uniform(2, 5)}, {"sampling": fl.Poisson(0.4), "noise_multiplier": 0.3}],
    ids=["uniform", "poisson"],
)
def test_the_audit_passes(name, options, mechanism):
    # Uniform cohorts are audited for the replacement of a client, Poisson ones for adding one.
    if name in ("scaffold", "feddyn") and isinstance(mechanism["sampling"], fl.Uniform):
        with pytest.raises(Unsupported, match="remember when they took part"):
            fl.audit(build(name, options), draws=6, **mechanism)
    else:
        fl.audit(build(name, options), draws=6, **mechanism).require()


@pytest.mark.sampled(2)
@each
def test_neither_vectorizing_nor_the_order_of_clients_matters(name, options):
    method = build(name, options)
    generator = np.random.default_rng(5)
    # Clients of different sizes, one of them empty, so that their numbers of steps differ.
    clients = quadratics([generator.normal(size=(size, 7)) for size in (8, 3, 5, 1)])
    clients.append(fl.ClientData(clients[0].inputs[:0], clients[0].targets[:0]))
    settings = {
        "local": fl.SGD(lr=0.05, epochs=2, batch_size=None, weight_decay=0.01),
        "clip_norm": None if method.bound is not None else 0.1, "server_lr": 0.5,
    }  # fmt: skip
    model = Curved(generator.normal(size=7).tolist(), torch.eye(7), split=4)
    plain = simulate(method, model, clients, 3, **settings)
    vectorized = simulate(method, model, clients, 3, vectorized=True, **settings)
    turned = simulate(method, model, clients[::-1], 3, **settings)
    for one, two, three in zip(plain, vectorized, turned, strict=True):
        assert vector(one.params).dtype == torch.float64
        assert torch.allclose(vector(one.params), vector(two.params), rtol=1e-12, atol=1e-13)
        assert torch.allclose(vector(one.params), vector(three.params), rtol=1e-10, atol=1e-12)
        for client, state in one.client_states.items():
            other = two.client_states[client]["memory"]
            assert torch.allclose(state["memory"], other, rtol=1e-12, atol=1e-13)
    assert not torch.equal(vector(plain[0].params), vector(plain[-1].params))


@pytest.mark.sampled(2)
@each
def test_a_resumed_run_ends_where_the_uninterrupted_one_does(name, options, tmp_path):
    clients = make_clients([5, 3, 8, 6])
    local = fl.SGD(lr=0.2, epochs=1, batch_size=3, lr_decay=0.9)
    settings = {"sampling": fl.Poisson(0.6), "rounds": 4, "seed": 12, "local": local}

    def run(path):
        method = build(name, options)
        return federation(perceptron(), clients, method=method, checkpoint=path, **settings)

    goes_on(run, tmp_path / "run.pt")


def setting(clip: float = 100.0) -> tuple[oracle.Setting, list[fl.ClientData], Curved]:
    generator = np.random.default_rng(5)
    matrix = generator.normal(size=(7, 7)) / 3 + np.eye(7)
    centers = generator.normal(size=(4, 7))
    start = generator.normal(size=7)
    case = oracle.Setting(
        start=start, centers=centers, hessian=matrix.T @ matrix, segments=[(0, 4), (4, 7)],
        lr=0.05, steps=3, clip=clip, rounds=4, shrink=MARGIN,
    )  # fmt: skip
    tensor = torch.tensor(matrix)
    return case, quadratics(centers, tensor), Curved(start.tolist(), tensor, split=4)


def project(case):
    def nearest(w, anchor):
        return anchor + (w - anchor) * min(1.0, case.clip / np.linalg.norm(w - anchor))

    return nearest


BLURRED = {"penalty": 0.3, "radius": 0.1}
NORMED = {"beta": 0.3}
REFERENCES: list[tuple[str, dict, Callable[[oracle.Setting], np.ndarray]]] = [
    ("dp-fedavg", {}, oracle.averaging),
    ("blur", BLURRED, lambda s: oracle.averaging(s, oracle.blur(s, 0.3, 0.1))),
    (
        "blurs", BLURRED,
        lambda s: oracle.averaging(s, oracle.blur(s, 0.3, 0.1), sparsify=oracle.top(s, 0.4)),
    ),
    ("dp-fedsam", {}, lambda s: oracle.averaging(s, oracle.sam(s, 0.5))),
    ("dp-fedsam", {"adaptive": True}, lambda s: oracle.averaging(s, oracle.adaptive_sam(s, 0.5))),
    (
        "dp-fedsam-topk", {},
        lambda s: oracle.averaging(s, oracle.sam(s, 0.5), after=oracle.top(s, 0.4)),
    ),
    (
        "dp-fedsam-topk", {"placement": "client"},
        lambda s: oracle.averaging(s, oracle.sam(s, 0.5), sparsify=oracle.top(s, 0.4)),
    ),
    (
        "dp-fed-ls", {},
        lambda s: oracle.averaging(s, project=project(s), after=oracle.smoothed(s, 1.0)),
    ),
    ("dp-fedpgn", {}, lambda s: oracle.pgn(s, 0.2, 0.3)),
    ("dp-fedpgn-ls", {"smoothing": 0.5}, lambda s: oracle.pgn(s, 0.2, 0.3, 0.5)),
    (
        "fed-alpha-normec", NORMED,
        lambda s: oracle.normec(s, 0.01, 0.3, 0.1, normalize=False),
    ),
    (
        "fed-alpha-normec", {"server_normalization": True, **NORMED},
        lambda s: oracle.normec(s, 0.01, 0.3, 0.1, normalize=True),
    ),
    (
        "alpha-normec", NORMED,
        lambda s: oracle.normec(s, 0.01, 0.3, 0.1, normalize=False, steps=1),
    ),
    ("fedavg-smoothed", {}, lambda s: oracle.smoothed_fedavg(s, 0.01, 0.1 * 0.1)),
    ("scaffold", {}, oracle.scaffold),
    ("feddyn", {}, lambda s: oracle.feddyn(s, 0.1)),
    ("fedcm", {}, lambda s: oracle.cm(s, 0.1)),
]  # fmt: skip


@pytest.mark.parametrize("clip", [100.0, 0.1])
@pytest.mark.parametrize("vectorize", [False, True])
def test_the_public_part_of_pgn_is_taken_out_with_momentum_as_well(clip, vectorize):
    case, clients, model = setting(clip)
    local = fl.SGD(lr=case.lr, steps=case.steps, batch_size=None, momentum=0.5)
    states = simulate(
        build("dp-fedpgn", {"rho": 0.0}), model, clients, case.rounds, server_lr=1.0,
        local=local, clip_norm=clip, vectorized=vectorize,
    )  # fmt: skip
    expected = oracle.pgn(case, 0.0, 0.3, momentum=0.5)
    assert vector(states[-1].params).numpy() == pytest.approx(expected, rel=1e-9, abs=1e-11)


@pytest.mark.sampled(17)
@pytest.mark.parametrize("clip", [100.0, 0.1])
@pytest.mark.parametrize(("name", "options", "reference"), REFERENCES, ids=_written)
def test_without_noise_it_is_the_method_of_its_paper(name, options, reference, clip):
    case, clients, model = setting(clip)
    method = build(name, options)
    rate = 0.1 if method.bound is not None else 1.0
    states = simulate(
        method, model, clients, case.rounds, server_lr=rate,
        local=fl.SGD(lr=case.lr, steps=case.steps, batch_size=None),
        clip_norm=None if method.bound is not None else clip,
    )  # fmt: skip
    found = vector(states[-1].params).numpy()
    assert found == pytest.approx(reference(case), rel=1e-9, abs=1e-11)
    # A share of a thousandth of the way is far above the tolerance.
    assert np.linalg.norm(found - case.start) > 1e-3


@pytest.mark.sampled(2)
@each
def test_epsilon_is_that_of_the_mechanism_and_of_nothing_else(name, options, tmp_path):
    with federation(
        perceptron(), make_clients([4] * 8), method=build(name, options), delta=1e-4,
        sampling=fl.Poisson(0.25), noise_multiplier=1.1, local=fl.SGD(lr=0.3, steps=1),
        ledger=tmp_path / "run.ledger",
    ) as run:  # fmt: skip
        last = run.run()
        plain = dpacct.epsilon(noise_multiplier=1.1, rounds=3, sampling_rate=0.25, delta=1e-4)
        assert last.epsilon.upper == pytest.approx(plain.upper, rel=1e-6)
        assert run.not_private_because is None
    assert torch.isfinite(flat(run.model)).all()


def test_parameters_out_of_range_are_refused():
    for name, key, values in (
        ("blur", "penalty", (-1.0, "much")),
        ("blur", "radius", (0.0,)),
        ("blurs", "fraction", (0.0,)),
        ("blurs", "penalty", (-1.0,)),
        ("fed-smp-randk", "fraction", (1.5,)),
        ("fed-smp-randk", "seed", (0.5, -1)),
        ("fed-smp-randk", "unbiased", (1,)),
        ("fed-smp-topk", "refresh", (-3,)),
        ("dp-fedsam", "rho", (-0.1, math.nan)),
        ("dp-fedsam-topk", "placement", ("everywhere",)),
        ("dp-fedsam-topk", "rho", (-0.1,)),
        ("dp-fedpgn", "beta", (1.5,)),
        ("dp-fedpgn", "rho", (math.inf,)),
        ("dp-fedpgn-ls", "beta", (-0.1,)),
        ("dp-fedpgn-ls", "smoothing", (-0.1,)),
        ("dp-fed-ls", "smoothing", (-0.1,)),
        ("dp-fed-ls", "order", ("OOHW",)),
        ("dp-fed-ls", "denoiser", ("median",)),
        ("alpha-normec", "alpha", (-1.0,)),
        ("fed-alpha-normec", "alpha", (0.0,)),
        ("fed-alpha-normec", "beta", (0.0,)),
        ("fed-alpha-normec", "operator", ("newton",)),
        ("fedavg-smoothed", "alpha", (-1,)),
        ("fedavg-smoothed", "beta", (0,)),
        ("feddyn", "strength", (0,)),
        ("fedcm", "alpha", (1.5,)),
    ):
        for value in values:
            with pytest.raises(InvalidParameter) as refusal:
                build(name, {key: value})
            assert refusal.value.name in (key, "seed")
