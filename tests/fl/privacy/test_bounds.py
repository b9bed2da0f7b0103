from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dpacct
from dpacct import Budget, fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.bounds import MARGIN, row_norms
from dpacct.fl.public import PublicSize
from dpacct.ledger import Ledger
from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from tests.fl.problems import Recorded, federation, linear, make_clients

LAYOUT = Layout(("a", "b", "c"), tuple(torch.Size([n]) for n in (5, 130, 1)), (5, 130, 1))


def rows_of(seed: int, exponent: int, count: int = 4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, LAYOUT.size, generator=generator) * 10.0**exponent


def exact_norm(row) -> float:
    """In exact arithmetic, rounded once."""
    return math.sqrt(math.fsum(float(value) ** 2 for value in row))


def applied(bound, rows):
    return bound.apply(rows.clone(), row_norms(rows), LAYOUT, MARGIN)


@settings(max_examples=10)
@given(st.integers(0, 2**31), st.integers(-7, 17))
def test_norms_are_as_close_as_the_derivation_says(seed, exponent):
    rows = rows_of(seed, exponent)
    for row, found in zip(rows, row_norms(rows), strict=True):
        assert abs(float(found) / exact_norm(row) - 1) <= 2.1e-6


@settings(max_examples=20)
@given(st.integers(0, 2**31), st.floats(0.01, 0.9))
def test_clipping_keeps_direction_and_short_updates(seed, limit):
    rows = rows_of(seed, 0)
    clipped = applied(fl.Clip(limit), rows)
    for row, inside in zip(rows, clipped, strict=True):
        assert exact_norm(inside) == pytest.approx(limit, rel=2e-5)
        cosine = torch.nn.functional.cosine_similarity(row, inside, dim=0)
        assert float(cosine) == pytest.approx(1, abs=1e-6)
    assert torch.equal(applied(fl.Clip(1e3), rows), rows)
    assert torch.allclose(applied(fl.Clip(limit), clipped), clipped, rtol=2e-5)


def test_a_norm_is_the_same_to_the_last_bit_whoever_is_beside_on_any_threads():
    threads = torch.get_num_threads()
    rows = torch.randn(7, 32_768, generator=torch.Generator().manual_seed(1))
    alone = torch.cat([row_norms(row.unsqueeze(0)) for row in rows])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for first in range(7):
                assert torch.equal(row_norms(rows[first:]), alone[first:])
                assert torch.equal(row_norms(rows[: first + 1]), alone[: first + 1])
    finally:
        torch.set_num_threads(threads)


def test_the_norm_is_that_of_all_tensors_together():
    rows = torch.ones(1, LAYOUT.size)
    assert exact_norm(applied(fl.Clip(1.0), rows)[0]) == pytest.approx(1.0, rel=1e-4)
    # Tensor by tensor it would be sqrt(3).
    per_layer = fl.PerLayerClip((1.0, 1.0, 1.0))
    assert per_layer.sensitivity(Adjacency.ADD_REMOVE) >= math.sqrt(3)
    assert exact_norm(applied(per_layer, rows)[0]) == pytest.approx(math.sqrt(3), rel=1e-4)


def test_smoothed_normalization_worked_out_by_hand():
    layout = Layout(("v",), (torch.Size([2]),), (2,))
    rows = torch.tensor([[3.0, 4.0]])
    one = fl.SmoothedNormalization(1.0).apply(rows.clone(), row_norms(rows), layout, 0.0)
    assert one[0].tolist() == pytest.approx([0.5, 2 / 3], rel=1e-6)
    small = fl.SmoothedNormalization(0.01).apply(rows.clone(), row_norms(rows), layout, 0.0)
    assert small[0].tolist() == pytest.approx([0.5988023952, 0.7984031936], rel=1e-6)


def test_sensitivities():
    for bound, norm in (
        (fl.Clip(3.0), 3),
        (fl.SmoothedNormalization(2.0), 1),
        (fl.AdaptiveClip(3.0), 3),
        (fl.PerLayerClip((3.0, 4.0)), 5 * (1 + 2.0**-50)),
    ):
        assert bound.sensitivity(Adjacency.ADD_REMOVE) == norm
        assert bound.sensitivity(Adjacency.ZERO_OUT) == norm
        assert bound.sensitivity(Adjacency.REPLACE_ONE) == 2 * norm


def test_each_tensor_has_a_norm():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    with pytest.raises(InvalidParameter, match="4 tensors"):
        fl.PerLayerClip((1.0, 2.0)).limits(Layout.of(dict(model.named_parameters())))


REFUSED = [
    *((fl.Clip, (norm,)) for norm in (0, -1, math.inf, math.nan, 1e13, True)),
    *((fl.AdaptiveClip, (norm,)) for norm in (0, math.nan)),
    *((fl.AdaptiveClip, (1.0, quantile)) for quantile in (0, 1, math.nan)),
    *((fl.AdaptiveClip, more) for more in ((1.0, 0.5, 0), (1.0, 0.5, 0.2, 0))),
    (fl.PerLayerClip, ((1.0, -1),)),
    (fl.PerLayerClip, ((),)),
    (fl.PerLayerClip, (None,)),
    *((fl.SmoothedNormalization, (alpha,)) for alpha in (1e-22, 0, -1, math.inf, 1e13)),
]


def test_values_out_of_range_and_rules_on_private_values_are_refused():
    for make, arguments in REFUSED:
        with pytest.raises(InvalidParameter):
            make(*arguments)
    for value in (torch.median, "median", torch.tensor(1.0)):
        with pytest.raises(Unsupported, match="without noise"):
            fl.Clip(value)


# An adaptive norm and its indicators.


@settings(max_examples=30)
@given(st.floats(1e-2, 50), st.floats(1.0001, 1e3))
def test_both_releases_together_cost_what_was_asked_for(noise_multiplier, ratio):
    """Theorem 1 of the paper, checked in exact arithmetic."""
    bound = fl.AdaptiveClip(1.0, indicator_noise=noise_multiplier / 2 * ratio)
    update = bound.update_multiplier(noise_multiplier, 100)
    own = Fraction(bound.indicator_std(100)) * 2
    joint = 1 / Fraction(update) ** 2 + 1 / own**2
    assert joint <= 1 / Fraction(noise_multiplier) ** 2
    if ratio > 1.01:
        assert float(joint) == pytest.approx(noise_multiplier**-2, rel=1e-6)


def test_the_formula_of_the_paper():
    bound = fl.AdaptiveClip(1.0, indicator_noise=5.0)
    expected = (1.0**-2 - (2 * 5.0) ** -2) ** -0.5
    assert bound.update_multiplier(1.0, 100) == pytest.approx(expected, rel=1e-9)
    assert fl.AdaptiveClip(1.0).indicator_std(100) == 5.0


def test_an_indicator_that_costs_too_much_is_refused_before_anything_runs():
    bound = fl.AdaptiveClip(1.0, indicator_noise=0.5)
    with pytest.raises(InvalidParameter, match=r"indicator's noise is above 0\.5"):
        federation(linear(), make_clients([4] * 4), bound=bound)


@pytest.mark.parametrize("sampling", [Full(), Poisson(0.3), Uniform(3, 10)])
def test_a_round_is_charged_as_it_was_asked_for_both_releases_jointly(sampling):
    plan = RoundNoise(sampling, sampling.default_adjacency, 1.5, PublicSize(10, stated=True))
    event = plan.event(fl.Clip(0.3), fl.GaussianNoise(), {})
    assert event.charged == dpacct.Round(1.5, sampling)
    bound = fl.AdaptiveClip(0.7, indicator_noise=4.0)
    event = plan.event(bound, fl.GaussianNoise(), {})
    names = [release.name for release in event.releases]
    assert names == ["update", "indicator"]
    assert event.charged == dpacct.Round(1.5, sampling)
    update, indicator = event.releases
    assert update.noise_multiplier > 1.5
    assert indicator.noise_multiplier == pytest.approx(8.0)
    assert update.sensitivity == 0.7
    assert indicator.sensitivity == 0.5


@pytest.mark.parametrize("sampling", [Full(), Poisson(0.5), Uniform(3, 8)])
def test_what_is_charged_is_the_noise_that_was_added_rounded_down(tmp_path, sampling):
    """z = (z_u^-2 + (2 s)^-2)^(-1/2) of the two draws of each round, in exact arithmetic."""
    noise, path = Recorded(), tmp_path / "a.ledger"
    bound = fl.AdaptiveClip(0.3, indicator_noise=0.7)
    with federation(
        linear(), make_clients([4] * 8), bound=bound, noise=noise, noise_multiplier=1.2,
        sampling=sampling, ledger=path, delta=1e-5,
    ) as run:  # fmt: skip
        norms = [report.clip_norm for report in run]
    with Ledger.open(path, read_only=True) as ledger:
        rounds = [entry["data"] for entry in ledger.export() if entry["kind"] == "reserve"]
    margin = Fraction(1, 2**39)
    # The first draws were those of the rehearsal.
    stds = ([std for sums, std in noise.draws if len(sums) == size][-3:] for size in (21, 1))
    for update, indicator, clip, entry in zip(*stds, norms, rounds, strict=True):
        really = [Fraction(update) / Fraction(clip), Fraction(indicator) * 2]
        recorded = [Fraction(part["noise_multiplier"]) for part in entry["releases"]]
        for told, real in zip(recorded, really, strict=True):
            assert real * (1 - margin) <= told <= real
        charged = Fraction(entry["charged"]["noise_multiplier"])
        joint = 1 / sum(1 / real**2 for real in really)
        assert joint * (1 - 16 * margin) <= charged**2 <= joint
        assert charged == Fraction(1.2)


@dataclass(frozen=True)
class Moved(fl.Clip):
    """A bound whose sum moves by another multiple of the norm if a client is replaced."""

    replaced: float = 2.0

    def sensitivity(self, adjacency):
        return self.clip_norm * (self.replaced if adjacency is Adjacency.REPLACE_ONE else 1)


def test_a_bound_whose_sum_moves_further_than_its_norm_is_not_charged_for_less():
    def event(bound):
        return RoundNoise(Uniform(3, 10), Adjacency.REPLACE_ONE, 1.5, public).event(
            bound, fl.GaussianNoise(), {}
        )

    public = PublicSize(10, stated=False)
    with pytest.raises(InvalidParameter, match=r"one contribution may have norm 0\.3003"):
        event(Moved(0.3, 2.002))
    # The noise is that of the norm, however little a replacement moves.
    assert event(Moved(0.3, 0.5)).releases[0].sensitivity == 0.3


@pytest.mark.parametrize("adjacency", Adjacency)
def test_sensitivity_of_the_pair_for_each_adjacency(adjacency):
    """Largest distance between neighboring contributions in units of z, by brute force.

    A contribution is (x, b) with x in [-C, C] on a line through the ball; the indicator is -1/2
    where the update was clipped (then |x| = C), and may be +1/2 anywhere.
    """
    steps, clip, update, std = 25, 1.0, 2.0, 1.0
    points = [(x / steps * clip, 0.5) for x in range(-steps, steps + 1)]
    points += [(clip, -0.5), (-clip, -0.5)]
    scaled = [(x / (update * clip), b / std) for x, b in points]
    replaced = adjacency is Adjacency.REPLACE_ONE
    others = scaled if replaced else [(0.0, 0.0)]
    z = (update**-2 + (2 * std) ** -2) ** -0.5
    shift = max(math.dist(p, q) for p in scaled for q in others) * z
    assert shift == pytest.approx(2 if replaced else 1)


def converge(start: float, *, quantile: float, rounds: int = 70) -> list[float]:
    """Clip norms of a run whose updates have lengths 1/40, 2/40, ..., 1."""
    clients = make_clients([1] * 40)

    @dataclass(frozen=True)
    class Lengths(Method):
        everyone_computes = False

        def init_client(self, params):
            return {"length": torch.ones(())}

        def local_update(self, delta, client_state, context):
            one = torch.zeros_like(delta)
            one[0] = client_state["length"]
            return one

    bound = fl.AdaptiveClip(start, quantile=quantile, rate=0.5, indicator_noise=3.0)
    with federation(
        linear(), clients, method=Lengths(), bound=bound, rounds=rounds,
        noise_multiplier=2.0, local=fl.SGD(steps=1),
    ) as run:  # fmt: skip
        states = run.state.client_states
        for client in range(40):
            states[client] = {"length": torch.tensor((client + 1) / 40)}
        return [report.clip_norm for report in run]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0.05, 10.0])
@pytest.mark.parametrize("quantile", [0.3, 0.7])
def test_the_norm_reaches_the_true_quantile_from_both_sides(start, quantile):
    norms = converge(start, quantile=quantile)
    # From far away the fraction is nearly 0 or 1: log C moves by rate (quantile - fraction).
    speed = 0.5 * (quantile if start < 0.1 else quantile - 1)
    assert math.log(norms[5] / norms[0]) == pytest.approx(5 * speed, rel=0.7)
    # Near the quantile c the mean of d log C is -rate (F(C) - c), here with F(C) = C. Noise of
    # standard deviation 3/40 keeps log C moving by sqrt(rate / (2 c)) 3/40; steps of F are 1/40.
    spread = 3 / 40 * math.sqrt(0.5 / (2 * quantile))
    late = norms[-20:]
    mean = sum(math.log(norm) for norm in late) / len(late)
    assert abs(mean - math.log(quantile)) < 5 * spread
    assert max(late) < quantile * math.exp(7 * spread)


def test_more_updates_within_the_norm_make_it_fall():
    bound = fl.AdaptiveClip(1.0, quantile=0.5, rate=0.2)
    assert bound.adapt(+20.0, 40).clip_norm == pytest.approx(math.exp(-0.1))
    assert bound.adapt(-20.0, 40).clip_norm == pytest.approx(math.exp(0.1))
    assert bound.adapt(0.0, 40).clip_norm == 1.0
    assert bound.adapt(1e9, 40).clip_norm >= 1e-8
    assert bound.adapt(-1e9, 40).clip_norm <= 1e12


def test_the_budget_covers_the_norm_too(tmp_path):
    path = tmp_path / "a.ledger"
    with federation(
        linear(), make_clients([6] * 40), bound=fl.AdaptiveClip(0.1),
        noise_multiplier=None, budget=Budget(5, 1e-5), rounds=6, ledger=path, sampling=Poisson(0.5),
    ) as run:  # fmt: skip
        reports = list(run)
        assert run.epsilon.upper <= 5
        assert run.epsilon.upper == pytest.approx(5, rel=1e-4)
        assert reports[0].clip_norm == 0.1
        assert len({report.clip_norm for report in reports}) == 6
        update = run.bound.update_multiplier(run.noise_multiplier, 20)
        assert reports[0].noise_std == pytest.approx(0.1 * update, rel=1e-9)
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.runs[0].on_plan
