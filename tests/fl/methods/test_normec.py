"""Fed-alpha-NormEC: golden rounds, its memories, its limits, and the bias that it removes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.methods import AlphaNormEC, FedAlphaNormEC, FedAvgSmoothed
from dpacct.fl.privacy.bounds import MARGIN, row_norms
from tests.fl.methods.stage import points, quadratics, simulate, vector
from tests.fl.problems import federation, make_clients, perceptron

TWO = quadratics([[1.0, 0.0], [0.0, 2.0]])
# The engine normalizes to (1 - 2^-17) of the printed length.
CLOSE = 2e-5
CASES = [
    (1, 1.0, [
        ((-0.25, 0), (0, -1 / 3), (-0.125, -1 / 6), (0.06, 0.08)),
        ((-0.4535852004, 0.0236040812), (0.0115928556, -0.6398999591),
         (-0.2209961724, -0.3081479389), (0.1182792124, 0.1612621277)),
    ]),
    (2, 0.5, [
        ((-0.2333333333, 0), (0, -0.3181818182), (-0.1166666667, -0.1590909091),
         (0.0591363664, 0.0806404996)),
        ((-0.4183632167, 0.0221313696), (0.0109523804, -0.6063103016),
         (-0.2037054182, -0.2920894660), (0.1163398057, 0.1626634630)),
    ]),
]  # fmt: skip


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("total", [False, True])
@pytest.mark.parametrize(("count", "gamma", "rounds"), CASES)
def test_the_printed_rounds(count, gamma, rounds, total, vectorized):
    # gamma is the size of all steps together: lr with total_lr, else lr times their number.
    local = fl.SGD(lr=gamma if total else gamma / count, steps=count, total_lr=total)
    method = FedAlphaNormEC(alpha=1.0, beta=0.5, server_normalization=True)
    states = simulate(
        method, points([0.0, 0.0]), TWO, 2, local=local, server_lr=0.1, vectorized=vectorized
    )
    for state, (one, two, memory, x) in zip(states[1:], rounds, strict=True):
        memories = [state.client_states[client]["memory"].tolist() for client in (0, 1)]
        assert memories == [pytest.approx(one, abs=CLOSE), pytest.approx(two, abs=CLOSE)]
        assert vector(state.server_state).tolist() == pytest.approx(memory, abs=CLOSE)
        assert vector(state.params).tolist() == pytest.approx(x, abs=CLOSE)


def normalized(rows, alpha):
    layout = Layout.of({"w": rows[0]})
    return fl.SmoothedNormalization(alpha).apply(rows.clone(), row_norms(rows), layout, MARGIN)


@given(
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8),
    st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=8),
    st.floats(1e-3, 10),
    st.floats(1e-3, 5),
)
def test_the_normalization_is_short_monotone_and_lipschitz(one, two, alpha, beta):
    size = min(len(one), len(two))
    v = torch.tensor([one[:size], two[:size]], dtype=torch.float64)
    found = normalized(v, alpha)
    lengths, norms = v.norm(dim=1), found.norm(dim=1)
    assert bool((norms < 1).all())
    assert norms.tolist() == pytest.approx((lengths / (alpha + lengths)).tolist(), rel=2e-5)
    if lengths[0] < lengths[1] * (1 - 1e-5):
        assert norms[0] <= norms[1]
    gap = float((found[0] - found[1]).norm())
    assert gap <= float((v[0] - v[1]).norm()) / alpha * (1 + 1e-4) + 2e-5
    left = float((v[0] - beta * found[0]).norm())
    expected = abs(1 - beta / (alpha + float(lengths[0]))) * float(lengths[0])
    assert left == pytest.approx(expected, abs=2e-5 * beta + 1e-9)


def people(count=5, size=3):
    return quadratics(np.random.default_rng(2).normal(size=(count, size)))


START = [1.0, -0.5, 2.0]
LOCAL = fl.SGD(lr=0.2, steps=3, batch_size=None)


def test_partial_participation_moves_the_server_by_the_mean_in_expectation():
    method = FedAlphaNormEC(beta=0.2)
    total = torch.zeros(3, dtype=torch.float64)
    cohorts = [[c for c in range(3) if bits >> c & 1] for bits in range(8)]
    for cohort in cohorts:
        state = simulate(
            method, points(START), people(3), 1, local=LOCAL, sampling=fl.Poisson(0.5),
            cohorts=[cohort],
        )[-1]  # fmt: skip
        # At rate one half all cohorts are equally likely.
        total += vector(state.server_state) / 8
        memories = torch.stack([own["memory"] for own in state.client_states.values()])
    assert torch.allclose(total, memories.mean(dim=0), atol=1e-12)


def test_memories_depend_neither_on_the_cohort_nor_on_noise():
    class SameModels(FedAlphaNormEC):
        def server(self, params, noised, server_state):
            _, state = super().server(params, noised, server_state)
            return {name: 0.9 * value for name, value in params.items()}, state

    def played(cohorts, **noise):
        options = {"local": LOCAL, "sampling": fl.Poisson(0.5), "cohorts": cohorts}
        return simulate(SameModels(beta=0.2), points(START), people(), 3, **options, **noise)

    one = played([[0, 1], [], [4]])
    two = played([[3], [0, 2, 4], [1]], noise=fl.GaussianNoise(), noise_multiplier=5.0)
    for a, b in zip(one[1:], two[1:], strict=True):
        assert a.client_states.keys() == b.client_states.keys() == set(range(5))
        for client, own in a.client_states.items():
            assert torch.equal(own["memory"], b.client_states[client]["memory"])
    assert not torch.equal(vector(one[-1].server_state), vector(two[-1].server_state))


def test_a_normalized_step_has_the_length_of_the_rate():
    method = FedAlphaNormEC(server_normalization=True)
    states = simulate(
        method, points(START), people(), 5, local=LOCAL, server_lr=0.07,
        sampling=fl.Poisson(0.4), cohorts=[[0], [], [1, 2], [3], []],
        noise=fl.GaussianNoise(), noise_multiplier=1.0,
    )  # fmt: skip
    for before, after in itertools.pairwise(states):
        step = vector(after.params) - vector(before.params)
        assert float(step.norm()) == pytest.approx(0.07, rel=1e-12)
    still = simulate(method, points([1.0, 2.0]), quadratics([[1.0, 2.0]] * 2), 2, server_lr=0.07)
    assert vector(still[-1].params).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("gamma", [0.01, 0.3, 1.7])
def test_one_step_is_the_gradient_whatever_its_size(gamma):
    centers = torch.stack([client.targets[0] for client in people()])
    expected = 0.2 * normalized(torch.tensor(START, dtype=torch.float64) - centers, 0.5)
    for method, local in (
        (FedAlphaNormEC(0.5, 0.2), fl.SGD(lr=gamma, steps=1)),
        (FedAlphaNormEC(0.5, 0.2, operator="incremental"), fl.SGD(lr=gamma)),
        (AlphaNormEC(0.5, 0.2), fl.SGD(lr=gamma, epochs=7, batch_size=2)),
    ):
        state = simulate(method, points(START), people(), 1, local=local)[-1]
        memories = torch.stack([own["memory"] for own in state.client_states.values()])
        assert torch.allclose(memories, expected, rtol=1e-4, atol=1e-9)


def test_the_incremental_operator_takes_each_example_once_in_order():
    examples, gamma = np.random.default_rng(3).normal(size=(4, 3)), 0.8
    method = FedAlphaNormEC(0.5, 0.2, operator="incremental")
    local = fl.SGD(lr=gamma, total_lr=True, epochs=9, batch_size=3)
    found = []
    for order in (examples, examples[::-1].copy()):
        y = np.array(START)
        for point in order:
            y = y - gamma / 4 * (y - point)
        gap = (np.array(START) - y) / gamma
        state = simulate(method, points(START), quadratics([order]), 1, local=local)[-1]
        found.append(state.client_states[0]["memory"].numpy())
        assert found[-1] == pytest.approx(0.2 * gap / (0.5 + np.linalg.norm(gap)), rel=1e-5)
    assert not np.allclose(*found, rtol=1e-3)


def test_a_run_takes_the_local_operator_of_the_method():
    for method, expected in (
        (FedAlphaNormEC(operator="incremental"), fl.SGD(epochs=1, batch_size=1, shuffle=False)),
        (AlphaNormEC(), fl.SGD(steps=1, batch_size=None)),
    ):
        with federation(perceptron(), make_clients([4, 5]), method=method, local=fl.SGD()) as run:
            assert run.engine.local == expected


@pytest.mark.slow
def test_the_memory_removes_the_bias_of_normalization():
    clients, options = quadratics([[0.0], [0.0], [3.0]]), {"server_lr": 0.01}
    for method, rounds, end, error in (
        (FedAvgSmoothed(alpha=0.1, beta=1.0), 1200, 0.0935618, 1e-6),
        (FedAlphaNormEC(alpha=0.1, beta=0.05), 2000, 1.0, 1e-3),
    ):
        local = fl.SGD(lr=1.0, steps=1)
        state = simulate(method, points([0.0]), clients, rounds, local=local, **options)[-1]
        assert vector(state.params).item() == pytest.approx(end, abs=error)


def test_normalized_averaging_scales_contributions_and_noise_alike():
    beta = 0.01
    clients = quadratics([[0.0] * 2000] * 4)
    final = simulate(
        FedAvgSmoothed(beta=beta), points([0.0] * 2000), clients, 1, noise=fl.GaussianNoise(),
        noise_multiplier=2.0,
    )[-1]  # fmt: skip
    assert float(vector(final.params).std()) == pytest.approx(beta * 2.0 / 4, rel=0.1)
