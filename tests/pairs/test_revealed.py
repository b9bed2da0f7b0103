"""Rounds that reveal the size of their cohort, against enumerated cohorts and plain sums."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr
from scipy.stats import binom

import dpacct
from dpacct import InvalidParameter, Poisson, Round, Sampled, Schedule, Uniform, Unsupported
from dpacct.pairs.dominating import Direction, achieved_pair, proven_pair
from strategies import FEWER

POWERS = {"sum": 0.0, "client": 0.5, "mean": 1.0}
GRID = np.linspace(-300, 300, 300_001)
Laws = dict[int, np.ndarray]


def density(center: float, noise: float) -> np.ndarray:
    return np.exp(-((GRID - center) ** 2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))


def laws(sent: list[float], round_: Round, clients: int | None = None) -> Laws:
    """The densities of a round by the size of its cohort, summed over all cohorts."""
    q, count, found = round_.sampling_rate, len(sent), {}
    expected = q * (clients or count)
    kind = round_.sampling.reveals_size
    for cohort in itertools.product((0, 1), repeat=count):
        if size := sum(cohort):
            noise = round_.noise_multiplier * (size / expected) ** POWERS[kind]
            center = sum(v for v, drawn in zip(sent, cohort, strict=True) if drawn)
            mass = q**size * (1 - q) ** (count - size)
            found[size] = found.get(size, 0.0) + mass * density(center, noise)
    return found


def profile(p: Laws, q: Laws, epsilon: float) -> float:
    step, none = GRID[1] - GRID[0], np.zeros(1)
    k = math.exp(epsilon)
    return sum(np.maximum(p[m] - k * q.get(m, none), 0.0).sum() for m in p) * step


def revealing(
    noise: float, rate: float, clients: int, kind: str, relation: str = "zero-out"
) -> Round:
    return Round(noise, Poisson(rate, num_clients=clients, reveals_size=kind), relation)


@FEWER
@given(
    noise=st.floats(0.6, 4.0), rate=st.floats(0.05, 0.9), kind=st.sampled_from([*POWERS]),
    others=st.lists(st.sampled_from([-1.0, 0.0, 0.4, 1.0]), max_size=3),
    relation=st.sampled_from(["zero-out", "replace-one"]), epsilon=st.floats(0.0, 4.0),
)  # fmt: skip
def test_no_cohort_exceeds_the_proven_pair(
    noise: float, rate: float, kind: str, others: list[float], relation: str, epsilon: float
) -> None:
    """All cohorts are enumerated. The achieved pair is that of others at -1."""
    round_ = revealing(noise, rate, 1 + len(others), kind, relation)
    second = 0.0 if relation == "zero-out" else -1.0
    for all_others in (others, [-1.0] * len(others)):
        two = [laws([target, *all_others], round_) for target in (1.0, second)]
        for direction in Direction:
            p, q = two if direction is Direction.REMOVE else two[::-1]
            true = profile(p, q, epsilon)
            proven = proven_pair(round_, direction)
            assert true <= proven.delta(epsilon).upper + 1e-6
            assert true <= proven.hull.delta(epsilon).upper + 1e-6
    achieved = achieved_pair(round_, direction)
    assert achieved.delta(epsilon).upper == pytest.approx(true, abs=1e-6)
    assert achieved.hull.delta(epsilon).lower <= true + 1e-6
    assert achieved.hull.delta(epsilon).lower == pytest.approx(true, abs=2e-4)


@FEWER
@given(
    noise=st.floats(0.6, 4.0), rate=st.floats(0.05, 0.9), kind=st.sampled_from([*POWERS]),
    others=st.lists(st.sampled_from([-1.0, 0.0, 0.4, 1.0]), max_size=3),
    target=st.sampled_from([-1.0, 0.3, 1.0]), epsilon=st.floats(0.0, 4.0),
)  # fmt: skip
@example(noise=1.5, rate=0.75, kind="sum", others=[], target=-1.0, epsilon=1.0)
def test_a_client_that_comes_or_goes(
    noise: float, rate: float, kind: str, others: list[float], target: float, epsilon: float
) -> None:
    """All cohorts are enumerated, of data sets of num_clients and of more clients."""
    clients = 1 + len(others)
    round_ = revealing(noise, rate, clients, kind, "add-remove")

    def all_laws(sent: list[float]) -> Laws:
        found = laws(sent, round_, clients)
        return found | {0: (1 - rate) ** len(sent) * density(0.0, 1.0)}

    for direction in Direction:
        proven, achieved = proven_pair(round_, direction), achieved_pair(round_, direction)
        for data in (others, [-1.0] * (clients - 1), [*others, -1.0]):
            p, q = (all_laws(sent) for sent in ([target, *data], data))
            p, q = (p, q) if direction is Direction.REMOVE else (q, p)
            true = profile(p, q, epsilon)
            assert true <= proven.delta(epsilon).upper + 1e-6
            assert true <= proven.hull.delta(epsilon).upper + 1e-6
        p, q = (all_laws(sent) for sent in ([1.0, *[-1.0] * (clients - 1)], [-1.0] * (clients - 1)))
        p, q = (p, q) if direction is Direction.REMOVE else (q, p)
        true = profile(p, q, epsilon)
        assert achieved.delta(epsilon).lower <= true + 1e-6
        assert proven.delta(epsilon).upper == pytest.approx(true, abs=1e-6)
        assert achieved.hull.delta(epsilon).lower <= true + 1e-6
        # An empty cohort bends the profile at the loss -log(1 - rate). Knots there are 1.5 % of it
        # apart, and the lower hull loses up to a quarter of that.
        near = 2e-3 - 0.004 * math.log1p(-rate) * (1 - rate) ** len(others)
        assert achieved.hull.delta(epsilon).lower == pytest.approx(true, abs=near)


@pytest.mark.parametrize(
    ("n", "q", "z", "epsilon"), [(1000, 0.9, 50.0, 1.15), (400, 0.5, 20.0, 0.62)]
)
def test_a_client_that_comes_to_an_unlikely_cohort(
    n: int, q: float, z: float, epsilon: float
) -> None:
    """Small cohorts far from the mean cost more than larger ones. Each size is summed."""
    size = np.arange(1.0, n)
    s = size / n
    own, other = (1 - s) * (1 / (1 - q) - math.exp(epsilon)), math.exp(epsilon) * s
    level, mu = np.log(other / own) * z / 2, 2 / z
    value = own * ndtr(mu / 2 - level) - other * ndtr(-mu / 2 - level)
    none = (1 - q) ** (n - 1) - math.exp(epsilon) * (1 - q) ** n
    true = none + float(binom.pmf(size, n, q) @ value)
    found = proven_pair(revealing(z, q, n, "sum", "add-remove"), Direction.ADD).delta(epsilon)
    assert 0.0 < true <= found.upper * (1 + 1e-9)


@pytest.mark.parametrize("rate", [0.5, 1 - 1e-6, 1 - 1e-9])
@pytest.mark.parametrize("epsilon", [0.0, 0.6, 9.0])
def test_one_client_alone_is_seen_by_the_size(rate: float, epsilon: float) -> None:
    """Without the client nobody is drawn, and with it nobody with probability 1 - q."""
    round_ = revealing(0.3, rate, 1, "sum", "add-remove")
    true = max(0.0, 1 - math.exp(epsilon) * (1 - rate))
    achieved = achieved_pair(round_, Direction.ADD)
    for found in (achieved.delta(epsilon), achieved.hull.delta(epsilon)):
        assert found.lower <= true * (1 + 1e-15)
    assert achieved.delta(epsilon).lower >= true - 1e-10 / (1 - rate)
    assert true <= proven_pair(round_, Direction.ADD).delta(epsilon).upper


@pytest.mark.parametrize(
    ("n", "q", "z", "epsilon"), [(2, 0.9581495257412133, 0.8, 3.18), (3, 0.0842, 1.645, 0.0883)]
)
def test_nothing_is_achieved_beyond_the_largest_loss(
    n: int, q: float, z: float, epsilon: float
) -> None:
    """No loss of a client that comes is above -log(1 - q)."""
    assert epsilon > -math.log1p(-q)
    pair = achieved_pair(revealing(z, q, n, "client", "add-remove"), Direction.ADD)
    assert pair.delta(epsilon).lower == pair.hull.delta(epsilon).lower == 0.0


@pytest.mark.parametrize("kind", POWERS)
def test_a_client_that_comes_or_goes_in_many_rounds(kind: str) -> None:
    """Against a grid of losses, by theorem 4 line by line."""
    n, q, noise, rounds, epsilon, step, places = 12, 0.3, 2.0, 8, 1.0, 1e-3, 1 << 18
    ends = []
    for up in (False, True):
        grid, found = np.zeros(places), math.ceil if up else math.floor
        grid[found(math.log1p(-q) / step) % places] = (1 - q) ** n
        for size in range(1, n):
            z = noise * (size / (q * n)) ** POWERS[kind]
            x = np.linspace(-12 * z, 2 + 12 * z, 100_001)
            grown = np.exp((2 * x - 2) / z**2)
            other = binom.pmf(size, n - 1, q) * np.exp(-((x / z) ** 2) / 2)
            loss = np.log((1 - q) + (1 - q) * size / (n - size) * grown)
            weight = other * np.exp(loss) * (x[1] - x[0]) / (z * math.sqrt(2 * math.pi))
            place = np.ceil(loss / step) if up else np.floor(loss / step)
            grid += np.bincount(place.astype(int) % places, weight, places)
        total = np.fft.irfft(np.fft.rfft(grid) ** rounds, places)
        place = np.arange(places)
        losses = step * np.where(place < places // 2, place, place - places)
        some = losses > epsilon
        infinite = 1 - (1 - q**n) ** rounds
        ends.append(infinite + float(total[some] @ -np.expm1(epsilon - losses[some])))
    round_ = revealing(noise, q, n, kind, "add-remove")
    spent = dpacct.delta(rounds * round_, epsilon=epsilon)
    assert ends[0] * (1 - 1e-3) <= spent.lower <= ends[1] * (1 + 1e-6)
    assert ends[0] * (1 - 1e-6) <= spent.upper <= ends[1] * (1 + 1e-3)


def half_line(s: float, z: float, k: float) -> float:
    """sup s N(1) - k s N(0) - (k - 1) (1 - s) N(-1) by a search over thresholds."""
    x = np.linspace(-30 * z, 30 * z, 60_001)
    values = s * ndtr((1 - x) / z) - k * s * ndtr(-x / z)
    return float((values - (k - 1) * (1 - s) * ndtr((-1 - x) / z)).max())


@pytest.mark.parametrize("kind", POWERS)
def test_bins_hold_all_sizes_between_them(kind: str) -> None:
    """40,000 clients have bins of several sizes. The mean over all sizes lies between both ends."""
    clients, rate, noise, epsilon = 40_000, 0.2, 1.3, 0.3
    round_ = revealing(noise, rate, clients, kind)
    mean = clients * rate
    true = 0.0
    for size in range(int(mean - 560), int(mean + 561), 8):
        # The profile is smooth in the size, so that every eighth one is enough.
        level = noise * (size / mean) ** POWERS[kind]
        mass = 8 * binom.pmf(size, clients, rate)
        true += mass * half_line(size / clients, level, math.exp(epsilon))
    upper = proven_pair(round_, Direction.REMOVE).delta(epsilon).upper
    lower = achieved_pair(round_, Direction.REMOVE).delta(epsilon).lower
    assert lower <= true * (1 + 1e-6)
    assert upper >= true * (1 - 1e-6)
    assert upper - lower <= 5e-3 * true


def composed(round_: Round, rounds: int, epsilon: float) -> tuple[float, float]:
    """Bounds of delta with all others at -1, the losses rounded to a grid."""
    q, count = round_.sampling_rate, round_.sampling.num_clients
    step, places = 4e-4, 1 << 16
    ends = []
    for up in (False, True):
        grid = np.zeros(places)
        rest = (1 - q) ** count
        grid[0] = rest
        for size in range(1, count + 1):
            s, mass = size / count, binom.pmf(size, count, q)
            noise = (
                round_.noise_multiplier
                * (size / (q * count)) ** POWERS[round_.sampling.reveals_size]
            )
            x = np.linspace(-12 * noise - 1, 12 * noise + 1, 100_001)
            y, half = x / noise**2, 1 / (2 * noise**2)
            p = (1 - s) * np.exp(-y - half) + s * np.exp(y - half)
            loss = np.log(p / ((1 - s) * np.exp(-y - half) + s))
            weight = p * np.exp(-x * x / (2 * noise**2))
            place = np.ceil(loss / step) if up else np.floor(loss / step)
            masses = np.bincount(place.astype(int) % places, weight, places)
            grid += mass * masses / weight.sum()
        total = np.fft.irfft(np.fft.rfft(grid) ** rounds, places)
        place = np.arange(places)
        losses = step * np.where(place < places // 2, place, place - places)
        some = losses > epsilon
        ends.append(float(total[some] @ -np.expm1(epsilon - losses[some])))
    return ends[0], ends[1]


@pytest.mark.parametrize("kind", POWERS)
def test_compositions_achieve_what_a_grid_of_losses_says(kind: str) -> None:
    round_ = revealing(2.0, 0.3, 12, kind)
    low, high = composed(round_, 8, 1.0)
    found = dpacct.delta(8 * round_, epsilon=1.0)
    assert found.lower <= high * (1 + 1e-6)
    assert found.lower >= low * (1 - 1e-3)
    assert found.upper >= low


@pytest.mark.parametrize("relation", ["zero-out", "replace-one"])
@pytest.mark.parametrize("kind", POWERS)
def test_moments_are_at_least_those_that_are_achieved(kind: str, relation: str) -> None:
    round_, order = revealing(1.5, 0.4, 9, kind, relation), 6.0
    second = 0.0 if relation == "zero-out" else -1.0
    true = 0.6**9
    for size in range(1, 10):
        s, noise = size / 9, 1.5 * (size / 3.6) ** POWERS[kind]

        def ratio(x: float, s: float = s, noise: float = noise) -> float:
            logs = [-((x - c) ** 2) / (2 * noise**2) for c in (1.0, second, -1.0)]
            rest = math.log1p(-s) + logs[2] if s < 1 else -math.inf
            p, q = (np.logaddexp(rest, math.log(s) + at) for at in logs[:2])
            return math.exp(q + order * (p - q)) / (noise * math.sqrt(2 * math.pi))

        reach = order + 14 * noise
        true += binom.pmf(size, 9, 0.4) * quad(ratio, -reach, reach, limit=400)[0]
    pair = proven_pair(round_, Direction.REMOVE)
    assert float(pair.renyi_moment(order).upper) >= math.log(true) * (1 - 1e-9)
    assert math.isfinite(float(pair.renyi_moment(order).upper))
    assert pair.infinite_mass > 0.0


def test_the_tail_of_the_moments_is_charged() -> None:
    """At high orders it lies beyond the last knot."""
    pair, order = proven_pair(revealing(1.0, 0.5, 4, "sum"), Direction.REMOVE), 300.0
    finite = float(pair.hull.log_moment(np.array([order - 1])).upper[0])
    # All four clients, and the target among them.
    least = math.log(0.5**4) + order * (order - 1) / 2
    assert float(pair.renyi_moment(order).upper) >= least > finite


def test_a_known_size_costs_more_than_poisson_sampling() -> None:
    """Poisson's epsilon is refuted by data sets in which all others send -C."""
    for kind in POWERS:
        spent = dpacct.epsilon(200 * revealing(2.4, 0.05, 2000, kind), delta=1e-5)
        plain = dpacct.epsilon(200 * Round(2.4, Poisson(0.05)), delta=1e-5)
        assert 1.4 * plain.upper < spent.lower < spent.upper < 1.1 * spent.lower
    more = dpacct.epsilon(200 * revealing(2.4, 0.05, 2000, "sum", "replace-one"), delta=1e-5)
    assert more.lower > dpacct.epsilon(200 * revealing(2.4, 0.05, 2000, "sum"), delta=1e-5).upper


def test_many_clients_have_nearly_the_cohort_of_fixed_size() -> None:
    fixed = dpacct.epsilon(100 * Round(1.0, Uniform(10**6, 10**8), "zero-out"), delta=1e-6)
    spent = dpacct.epsilon(100 * revealing(1.0, 0.01, 10**8, "client"), delta=1e-6)
    assert spent.lower == pytest.approx(fixed.lower, rel=2e-2)
    assert spent.upper >= fixed.lower


@pytest.mark.parametrize(
    ("parts", "relation", "words"),
    [
        ({"reveals_size": "sum"}, None, "num_clients"),
        ({"num_clients": 9, "reveals_size": "server"}, None, "sum, client, mean"),
        (
            {"num_clients": 9, "reveals_size": "sum", "max_cohort": 3},
            None,
            "Leave out reveals_size",
        ),
        ({"num_clients": 9, "reveals_size": "sum", "records": 3}, None, "Leave reveals_size out"),
        ({"num_clients": 10**10, "reveals_size": "sum"}, None, "num_clients"),
        ({"num_clients": 9, "reveals_size": "sum", "sampling_rate": 1.0}, None, "below 1"),
    ],
)
def test_what_no_theorem_covers_is_refused(
    parts: dict[str, object], relation: str | None, words: str
) -> None:
    with pytest.raises(InvalidParameter, match=words):
        Round(1.0, Poisson(**{"sampling_rate": 0.1, **parts}), relation)


def test_other_doors_refuse_by_name() -> None:
    round_ = revealing(1.0, 0.1, 50, "sum")
    with pytest.raises(InvalidParameter, match="the size of a sample is secret"):
        Sampled(round_, 0.5)
    for accountant in ("closed-form", "gdp"):
        with pytest.raises(Unsupported):
            dpacct.epsilon(Schedule([(round_, 1)]), delta=1e-5, accountant=accountant)
