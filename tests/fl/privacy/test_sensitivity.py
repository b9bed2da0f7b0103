"""The sum that is noised moves by at most what is charged, exactly computed, for any rows."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.bounds import MARGIN, check_limits, clip_rows
from dpacct.fl.privacy.noise import grid_exponent
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.privacy.sums import add_rows, contribute, hold
from dpacct.fl.public import PublicSize
from dpacct.rounds import Adjacency, Full, Poisson, Uniform

LAYOUT = Layout(("a", "b", "c"), tuple(torch.Size([n]) for n in (5, 24, 1)), (5, 24, 1))
SIZE = LAYOUT.size
TYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
BOUNDS = [
    fl.Clip(0.3),
    fl.Clip(1e-8),
    fl.Clip(1e12),
    fl.PerLayerClip((0.1, 0.7, 0.02)),
    fl.PerLayerClip((1e-8, 1.0, 1e12)),
    fl.SmoothedNormalization(0.01),
    fl.SmoothedNormalization(1e-12),
    fl.SmoothedNormalization(1e12),
    fl.AdaptiveClip(0.3, indicator_noise=5.0),
    *(method.bound for method in (fl.FedAlphaNormEC(), fl.FedAvgSmoothed())),
]
PUBLIC = PublicSize(100, stated=True)
NOISES = [fl.GaussianNoise(), fl.SecureGaussianNoise(), fl.NoiseShares(1)]
KINDS = ["random", "denormal", "huge", "mixed", "equal", "spike", "zero", "nan", "infinite"]


class Crowd:
    """So many clients, without memory for them."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return fl.ClientData(torch.zeros(0, 1), torch.zeros(0))


class Given:
    """A trainer whose clients send what they are told to."""

    def __init__(self, rows):
        self.rows = list(rows)

    def train(self, tasks, broadcast):
        own, self.rows = self.rows[: len(tasks)], self.rows[len(tasks) :]
        return torch.stack(own)

    def remember(self, tasks, rows, broadcast):
        return None


def update(kind, dtype, exponent, seed):
    largest, least = torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal
    generator = torch.Generator().manual_seed(seed)
    row = torch.randn(SIZE, generator=generator, dtype=torch.float64)
    match kind:
        case "denormal":
            row *= least / 50
        case "huge":
            row = row.sign() * largest
        case "mixed":
            row *= torch.where(torch.arange(SIZE) % 3 == 0, 1e30, 1e-30)
        case "equal":
            row[:] = 1.1 * 10.0**exponent
        case "spike":
            row *= 1e-20
            row[seed % SIZE] = 10.0**exponent
        case "zero":
            row[:] = 0
        case "nan":
            row[seed % SIZE] = math.nan
        case "infinite":
            row[seed % SIZE] = -math.inf
        case _:
            row *= 10.0**exponent
    if kind not in ("nan", "infinite"):
        row.clamp_(-largest, largest)
    return row.to(dtype)


def summed(rows, bound, sampling, population, noise):
    """The sum of these contributions as an engine computes it, in exact numbers."""
    public = PublicSize.choose(None, sampling, population)
    plan = RoundNoise(sampling, sampling.default_adjacency, 1.0, public)
    cpu = torch.device("cpu")
    source = Seeded(1)
    engine = Engine(
        Crowd(population), fl.DPFedAvg(), LAYOUT, fl.SGD(), plan, noise, source, cpu, 1.0
    )
    state = TrainingState(0, {}, {}, {}, bound, None)
    total = engine.collect(state, engine.draw_for(range(len(rows))), Given(rows), 3).total
    if total.is_floating_point():
        return [Fraction(value) for value in total.tolist()]
    unit = Fraction(2) ** grid_exponent(bound.limits(LAYOUT))
    return [value * unit for value in total.tolist()]


def square(vector):
    return sum((value * value for value in vector), Fraction(0))


ROWS = st.lists(
    st.tuples(st.sampled_from(KINDS), st.integers(-12, 30), st.integers(0, 2**31)),
    min_size=1,
    max_size=4,
)


@settings(max_examples=40)
@given(
    ROWS,
    st.sampled_from(TYPES),
    st.sampled_from(BOUNDS),
    st.sampled_from(NOISES),
    st.sampled_from([7, 1000, 10**6, 5 * 10**7, 8 * 10**9]),
)
@example([("equal", 0, 1)], torch.float16, fl.Clip(0.3), NOISES[0], 7)
@example([("equal", 0, 1)], torch.bfloat16, fl.Clip(0.3), NOISES[0], 7)
@example([("random", 0, 1)], torch.float32, fl.Clip(0.3), NOISES[0], 5 * 10**7)
@example([("huge", 0, 1)], torch.float64, fl.Clip(0.3), NOISES[0], 7)
def test_the_sum_moves_by_at_most_what_is_charged(rows, dtype, bound, noise, population):
    updates = [update(*row[:1], dtype, *row[1:]) for row in rows]
    samplings = [Full(), Uniform(min(population, 10**6), population)]
    if not isinstance(noise, fl.NoiseShares):
        samplings.append(Poisson(0.5))
    sampling = samplings[rows[0][2] % len(samplings)]
    whole = summed(updates, bound, sampling, population, noise)
    for place in range(len(updates)):
        rest = updates[:place] + updates[place + 1 :]
        without = summed(rest, bound, sampling, population, noise)
        alone = summed([updates[place]], bound, sampling, population, noise)
        moved = [one - other for one, other in zip(whole, without, strict=True)]
        # Exactly one contribution, whatever else is in the sum ...
        assert moved == alone
        # ... and that one is within the limits.
        assert square(moved) <= Fraction(bound.sensitivity(Adjacency.ADD_REMOVE)) ** 2
        for start, stop, limit in bound.limits(LAYOUT):
            assert square(moved[start:stop]) <= Fraction(limit) ** 2


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bounded_row_is_as_long_as_it_may_be(bound, dtype):
    # A bound that sends zeros would pass the test above.
    row = update("random", dtype, 3, 1)
    [length] = [math.sqrt(square(summed([row], bound, Full(), 7, fl.GaussianNoise())))]
    asked = math.sqrt(square(Fraction(value) for value in row.tolist()))
    expected = min(bound.clip_norm, asked)
    if isinstance(bound, fl.SmoothedNormalization):
        expected = asked / (asked + bound.alpha)
    if not isinstance(bound, fl.PerLayerClip):
        assert length == pytest.approx(expected, rel=2e-6, abs=1e-9 * bound.clip_norm)
    assert length > 0


def test_rows_of_any_finite_length_are_clipped_and_not_dropped():
    for kind in ("huge", "mixed"):
        row = update(kind, torch.float32, 0, 3)
        moved = summed([row], fl.Clip(0.3), Full(), 7, fl.GaussianNoise())
        assert math.sqrt(square(moved)) == pytest.approx(0.3, rel=2e-6)


class NoMargin:
    """A bound that clips to the limit itself, and rounds to nearest."""

    clip_norm = 0.3

    def sensitivity(self, adjacency):
        return fl.Clip(self.clip_norm).sensitivity(adjacency)

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        return clip_rows(rows, norms, self.clip_norm)


def ruined(change):
    """Such a bound, which changes its rows once more."""
    bound = NoMargin()
    bound.apply = lambda *given: change(NoMargin.apply(bound, *given))
    return bound


@pytest.mark.parametrize("change", [lambda rows: rows, torch.Tensor.half, lambda rows: rows * 1e30])
def test_a_bound_that_breaks_its_word_is_held_to_it(change):
    for seed in range(40):
        row = update("random", torch.float32, 2, seed)
        moved = summed([row], ruined(change), Full(), 7, fl.GaussianNoise())
        assert 0 < square(moved) <= Fraction(0.3) ** 2


class Alone(NoMargin):
    """A bound with the limit that it is given."""

    def __init__(self, limit):
        self.clip_norm = limit

    def sensitivity(self, adjacency):
        return self.clip_norm * (2 if adjacency is Adjacency.REPLACE_ONE else 1)


def test_limits_that_have_no_grid_in_float32_are_refused():
    """Quotients by a grid that underflows are infinite, and so were the sums."""
    for limit in (1e-31, 1e-24, 1e-9, 1e13, math.inf, math.nan):
        with pytest.raises(InvalidParameter, match=r"in \[1e-08, 1e\+12\]"):
            check_limits(Alone(limit), LAYOUT)
    row = update("random", torch.float32, 2, 1)
    for limit in (0.0, 1e-8, 1e12):
        check_limits(Alone(limit), LAYOUT)
        moved = summed([row], Alone(limit), Full(), 7, fl.GaussianNoise())
        assert square(moved) <= Fraction(limit) ** 2
    held = torch.randn(3, 4)
    held[1] = math.nan
    hold(held, 0.0)
    assert not bool(held.any())


@pytest.mark.parametrize("more", [2.0**-40, 1e-4])
def test_limits_that_together_are_a_little_more_than_the_claim_are_refused(more):
    class Wide(fl.PerLayerClip):
        def limits(self, layout):
            return [(a, b, norm * (1 + more)) for a, b, norm in super().limits(layout)]

    check_limits(fl.PerLayerClip((0.3, 0.4, 0.5)), LAYOUT)
    with pytest.raises(InvalidParameter, match="claims a sensitivity"):
        check_limits(Wide((0.3, 0.4, 0.5)), LAYOUT)


def test_a_row_is_held_below_its_limit_by_what_measuring_may_miss():
    for share, shortened in ((0.25, True), (0.75, False)):
        row = torch.full((1, 4), 0.5 * (1 - share * MARGIN), dtype=torch.float64)
        before = row.clone()
        hold(row, 1.0)
        assert torch.equal(row, before) is not shortened
        assert float(row.norm()) <= 1 - MARGIN / 2


def test_more_clients_than_a_sum_can_hold_are_refused():
    row = update("random", torch.float32, 0, 1)
    for sampling in (Full(), Poisson(1e-6), Uniform(10**12, 10**12)):
        with pytest.raises(InvalidParameter, match="8589934592 contributions"):
            summed([row], fl.Clip(0.3), sampling, 10**12, fl.GaussianNoise())


@pytest.mark.parametrize("size", [0, 1, 7, (1 << 17) + 3])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_sums_are_exact_for_short_and_long_rows(size, count):
    generator = torch.Generator().manual_seed(size + count)
    # On a grid with room for all of them, as bounded rows are.
    rows = torch.randint(-(2**24), 2**24, (count, size), generator=generator).float() * 2.0**-40
    total = torch.full((size,), 2.0**-40, dtype=torch.float64)
    add_rows(total, rows)
    whole = (rows.double() * 2.0**40).long().sum(dim=0) + 1
    assert torch.equal((total * 2.0**40).long(), whole)
    exact = torch.zeros(size, dtype=torch.int64)
    add_rows(exact, (rows.double() * 2.0**40).long())
    assert torch.equal(exact, whole - 1)


def test_one_row_that_is_not_finite_is_zero_and_leaves_the_others_alone():
    bound = fl.Clip(1.0)
    for odd in (math.nan, math.inf, -math.inf):
        rows = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(3))
        clean, _, none = contribute(rows.clone(), bound, LAYOUT, 100)
        rows[2, 4] = odd
        found, norms, bad = contribute(rows, bound, LAYOUT, 100)
        assert bad.tolist() == [False, False, True, False, False]
        assert not bool(none.any())
        assert norms[2] == 0
        assert not bool(found[2].any())
        kept = [0, 1, 3, 4]
        assert torch.equal(found[kept], clean[kept])


@pytest.mark.parametrize("bound", [fl.AdaptiveClip(0.3, indicator_noise=5.0), fl.Clip(0.3)])
def test_an_event_knows_the_bound_that_it_was_charged_for(bound):
    plan = RoundNoise(Poisson(0.1), Adjacency.ADD_REMOVE, 1.5, PUBLIC)
    event = plan.event(bound, fl.GaussianNoise(), {"round": 1})
    assert plan.charged_for(event, bound)
    assert plan.event(bound, fl.GaussianNoise(), {"round": 1}) == event
    for other in (fl.Clip(0.4), fl.Clip(0.2), fl.AdaptiveClip(0.3, indicator_noise=6.0)):
        assert not plan.charged_for(event, other)
    more = RoundNoise(Poisson(0.1), Adjacency.ADD_REMOVE, 1.6, PUBLIC)
    assert not more.charged_for(event, bound)
