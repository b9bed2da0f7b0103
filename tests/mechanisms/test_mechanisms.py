"""Mechanisms beside rounds, as users call them. Oracle values: convex-order grids and contours."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    InvalidParameter,
    Laplace,
    NotConverged,
    Poisson,
    PureDP,
    RandomizedResponse,
    Round,
    Unsupported,
    ZeroConcentratedDP,
)
from dpacct.pairs.dominating import Direction, is_exact, proven_pairs
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_epsilon
from tests.strategies import FEWER, log_uniform

TRAINING = 1000 * Round(1.0, Poisson(0.01))
COUNTS = 20 * Laplace(epsilon=0.1)
PROMISE = ApproximateDP(0.2, 1e-7)
ALL = (
    Laplace(2.0),
    RandomizedResponse(0.5),
    PureDP(0.5),
    ApproximateDP(0.5, 1e-6),
    ZeroConcentratedDP(0.1),
    DiscreteGaussian(2.0),
    DiscreteLaplace(2.0, shift=2),
    ExponentialMechanism(0.5),
)


def test_one_budget_over_a_whole_project():
    plan = TRAINING + COUNTS + RandomizedResponse(0.5) + PROMISE
    # Convex-order grids with Richardson extrapolation and contour integrals, to the digits shown.
    expected = {Direction.REMOVE: 3.072243, Direction.ADD: 2.866951}
    for direction, truth in expected.items():
        whole = Composition.of_schedule(plan, proven_pairs, direction)
        assert composed_epsilon(whole, 1e-5).upper == pytest.approx(truth, abs=2e-6)
    assert dpacct.epsilon(plan, delta=1e-5).upper == pytest.approx(3.072243, abs=1e-6)


def test_counts_alone_and_gaussians_beside():
    found = dpacct.epsilon(COUNTS, delta=1e-5)
    assert found.lower <= 1.5922295 <= found.upper
    assert found.width < 1e-6
    plan = TRAINING + 10 * Round(5.0)
    assert dpacct.epsilon(plan, delta=1e-5).upper == pytest.approx(3.241559, abs=2e-6)


def test_integers_cost_more_than_one_number_moved_by_their_norm():
    # Scale 1, shift (1, -1), eps 1: .2625; the scalar at scale / sqrt 2: .1897.
    assert dpacct.delta(
        1 * DiscreteGaussian(1.0, shift=(1, -1)), epsilon=1.0
    ).upper == pytest.approx(0.2625, abs=1e-4)
    scalar = dpacct.delta(1 * DiscreteGaussian(0.5**0.5), epsilon=1.0)
    assert scalar.upper == pytest.approx(0.1897, abs=1e-4)


def test_published_rhos_by_the_conversion_alone():
    # In print: 8.9 (rho .81), and 17.14 by a coarser choice of orders than the hull's 17.158.
    assert 8.9 < dpacct.epsilon(1 * ZeroConcentratedDP(0.81), delta=1e-10).upper < 8.93
    gaussian = dpacct.epsilon(1 * Round((2 * 0.81) ** -0.5), delta=1e-10).upper
    assert gaussian == pytest.approx(8.549, abs=1e-3)


@pytest.mark.parametrize("count", [75, 76, 100, 4000])
def test_promises_of_zcdp_with_a_large_sum_have_the_bound_of_renyi(count: int) -> None:
    plan = count * ZeroConcentratedDP(2.0)
    rho = 2.0 * count
    found = dpacct.epsilon(plan, delta=1e-5)
    # Not above rho + 2 sqrt(rho log(1 / delta)), and above the Gaussian that is rho-zCDP.
    assert found.upper <= rho + 2 * math.sqrt(rho * math.log(1e5))
    exact = dpacct.epsilon(Round(1 / math.sqrt(2 * rho)), delta=1e-5)
    assert found.upper >= exact.lower
    assert found.upper <= dpacct.epsilon(plan, delta=1e-5, accountant="rdp").upper * (1 + 1e-9)
    assert dpacct.delta(plan, epsilon=found.upper).upper == pytest.approx(1e-5, rel=1e-3)
    beside = dpacct.epsilon(plan + 1 * Laplace(epsilon=0.1), delta=1e-5)
    assert found.upper <= beside.upper <= found.upper + 0.1 + 1e-6


def test_rhos_of_promises_add_up():
    one, many = 1 * ZeroConcentratedDP(0.1), 10 * ZeroConcentratedDP(0.01)
    first, second = (dpacct.epsilon(plan, delta=1e-6).upper for plan in (one, many))
    assert second == pytest.approx(first, rel=1e-9)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ALL, ids=repr)
def test_each_mechanism_alone_beside_rounds_and_as_text(kind):
    assert eval(repr(kind), vars(dpacct)) == kind  # noqa: S307 - what a user may type
    alone = dpacct.epsilon(1 * kind, delta=1e-5)
    project = dpacct.epsilon(TRAINING + 3 * kind, delta=1e-5)
    assert alone.upper <= project.upper
    assert project.upper >= dpacct.epsilon(TRAINING, delta=1e-5).upper
    if is_exact(kind):
        assert project.width <= 1e-6 * project.upper
    if isinstance(kind, PureDP | ApproximateDP | ZeroConcentratedDP):
        assert alone.lower == 0.0
    delta = dpacct.delta(TRAINING + 3 * kind, epsilon=project.upper)
    assert delta.lower <= 1e-5 * (1 + 1e-6)
    assert delta.upper >= 1e-5 * (1 - 1e-2)
    curve = dpacct.tradeoff(TRAINING + 3 * kind, fpr=[0.0, 0.01])
    assert curve.tpr[1].lower <= curve.tpr[1].upper < 1


@pytest.mark.parametrize("kind", ALL, ids=repr)
def test_other_accountants_answer_or_refuse(kind):
    plan = TRAINING + kind
    if isinstance(kind, ApproximateDP):
        with pytest.raises(Unsupported, match="ApproximateDP"):
            dpacct.epsilon(plan, delta=1e-5, accountant="rdp")
    else:
        renyi = dpacct.epsilon(plan, delta=1e-5, accountant="rdp")
        assert renyi.upper >= dpacct.epsilon(plan, delta=1e-5).upper * (1 - 1e-9)
        assert dpacct.rdp(plan, orders=[2.0])[0].upper < math.inf
    for name in ("gdp", "closed-form"):
        with pytest.raises(Unsupported):
            dpacct.epsilon(plan, delta=1e-5, accountant=name)
        with pytest.raises(Unsupported):
            dpacct.epsilon(2 * kind, delta=1e-5, accountant=name)


def test_renyi_divergences_of_a_promise_are_those_of_its_rho():
    for order in (1.5, 2.0, 64.0):
        (value,) = dpacct.rdp(3 * ZeroConcentratedDP(0.2), orders=[order])
        assert value.upper == pytest.approx(0.6 * order)
        assert value.lower == 0.0


def test_infinite_losses_are_told_as_such():
    plan = TRAINING + 3 * ApproximateDP(0.2, 1e-7)
    with pytest.raises(
        InvalidParameter, match="no epsilon is enough there, since 3e-07 of the mass"
    ):
        dpacct.epsilon(plan, delta=2e-7)
    with pytest.raises(InvalidParameter, match="infinite loss"):
        dpacct.calibrate(schedule=plan, epsilon=1, delta=1e-7)
    far = dpacct.delta(plan, epsilon=100.0)
    assert 3e-7 * (1 - 1e-6) <= far.upper <= 3.001e-7
    assert dpacct.tradeoff(plan, fpr=[0.0]).tpr[0].upper == pytest.approx(3e-7)


def test_a_source_changes_no_cost_and_no_equality():
    named = ApproximateDP(0.2, 1e-7, source="https://example.org/report")
    assert named == PROMISE
    assert hash(named) == hash(PROMISE)
    assert named.source
    assert (named + PROMISE).phases[0].rounds == 2
    assert "source='https://example.org/report'" in repr(named)


def test_calibration_scales_what_has_noise_and_names_the_rest():
    plan = TRAINING + COUNTS + RandomizedResponse(0.5)
    found = dpacct.calibrate(schedule=plan, epsilon=2, delta=1e-5)
    assert 2 * (1 - 1e-5) <= found.epsilon.upper <= 2
    assert "RandomizedResponse(0.5)" in found.not_scaled
    assert "Laplace" not in found.not_scaled
    assert found.schedule.phases[1].round == Laplace(10.0 * found.noise_scale)
    alone = dpacct.calibrate(schedule=COUNTS, epsilon=1, delta=1e-5)
    assert 1 - 1e-5 <= alone.epsilon.upper <= 1
    assert alone.not_scaled == ""
    integers = dpacct.calibrate(schedule=5 * DiscreteGaussian(3.0, shift=2), epsilon=1, delta=1e-6)
    assert 1 - 1e-5 <= integers.epsilon.upper <= 1
    with pytest.raises(NotConverged, match=r"10 \* PureDP\(0.5\) has no noise to scale"):
        dpacct.calibrate(schedule=TRAINING + 10 * PureDP(0.5), epsilon=3, delta=1e-5)
    with pytest.raises(InvalidParameter, match="none of its releases has noise"):
        dpacct.calibrate(schedule=3 * PureDP(0.5), epsilon=3, delta=1e-5)


def test_calibration_for_a_risk_sees_mechanisms():
    found = dpacct.calibrate(schedule=TRAINING + COUNTS, advantage=0.2)
    assert found.risk is not None
    assert 0.199 < found.risk.upper <= 0.2


def test_adjacency_changes_the_shift_and_may_not_be_mixed():
    half = Laplace(2.0, adjacency="replace-one")
    assert half.epsilon == 1.0
    assert Laplace(2.0, adjacency="zero-out").epsilon == 0.5
    assert Laplace(epsilon=0.1, adjacency="replace-one").epsilon == pytest.approx(0.1)
    with pytest.raises(InvalidParameter, match="share one adjacency"):
        TRAINING + half


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (Laplace, "noise_multiplier"),
        (lambda: Laplace(1.0, epsilon=1.0), "noise_multiplier"),
        (lambda: Laplace(epsilon=0.0), "epsilon"),
        (lambda: Laplace(1e-9), "noise_multiplier"),
        (lambda: RandomizedResponse(-1.0), "epsilon"),
        (lambda: RandomizedResponse(1e4), "epsilon"),
        (lambda: PureDP("much"), "epsilon"),
        (lambda: PureDP(1.0, source="two\nlines"), "source"),
        (lambda: ApproximateDP(1.0, 0.0), "delta"),
        (lambda: ZeroConcentratedDP(1e4), "rho"),
        (lambda: DiscreteGaussian(0.0), "scale"),
        (lambda: DiscreteGaussian(1.0, shift=0.5), "shift"),
        (lambda: DiscreteGaussian(1.0, shift=0), "shift"),
        (lambda: DiscreteGaussian(1.0, shift=()), "shift"),
        (lambda: DiscreteLaplace(1.0, shift=(1, "x")), "shift"),
        (lambda: DiscreteLaplace(1.0, shift=10**9), "shift"),
        (lambda: ExponentialMechanism(math.nan), "epsilon"),
        (lambda: ExponentialMechanism(1.0, "sideways"), "adjacency"),
    ],
)
def test_a_bad_parameter_is_named(build, name):
    with pytest.raises(InvalidParameter) as refused:
        build()
    assert refused.value.name == name


@given(
    epsilon=log_uniform(1e-6, 60.0),
    count=st.sampled_from([1, 2, 7, 10_000]),
    delta=log_uniform(1e-12, 1e-2),
)
@FEWER
def test_many_or_huge_laplace_releases_have_narrow_brackets(epsilon, count, delta):
    found = dpacct.epsilon(count * Laplace(epsilon=epsilon), delta=delta)
    assert found.upper <= count * epsilon * (1 + 1e-12)
    assert found.width <= 2e-6 * found.upper + 1e-15


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 1.6])
def test_delta_at_an_atom_is_narrow(epsilon):
    found = dpacct.delta(COUNTS, epsilon=epsilon)
    assert found.width <= 2e-6 * found.upper


def test_the_atoms_apart_agree_with_a_blur():
    from dpacct.tight.atoms_apart import AtomsApart
    from dpacct.tight.contour import Contour, log_delta_estimate, tilt_at_epsilon

    whole = Composition.of_schedule(
        COUNTS + 3 * RandomizedResponse(0.3), proven_pairs, Direction.ADD
    )
    for epsilon in (0.35, 1.05, 1.83):
        tilt, at = tilt_at_epsilon(whole, epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
        blurred = Contour(whole, tilt, epsilon, log_delta, 1e-6, at.variance).delta(epsilon)
        apart = AtomsApart(whole, epsilon).delta(epsilon)
        assert max(apart.lower, blurred.lower) <= min(apart.upper, blurred.upper)
        assert apart.width <= 2e-6 * apart.upper


@given(
    whole=log_uniform(1e-3, 20.0),
    share=st.floats(0.01, 0.99),
    at=st.floats(0.0, 0.999),
)
@FEWER
def test_a_vector_with_laplace_noise_costs_no_more_than_one_number(whole, share, at):
    parts = Laplace(epsilon=share * whole) + Laplace(epsilon=(1 - share) * whole)
    split = dpacct.delta(parts, epsilon=at * whole)
    assert split.lower <= dpacct.delta(1 * Laplace(epsilon=whole), epsilon=at * whole).upper


def test_the_exponential_mechanism_alone_has_a_narrow_bracket():
    found = dpacct.epsilon(1 * ExponentialMechanism(0.5), delta=1e-5)
    assert found.width <= 1e-8
    # (1 - e^((y - eps) / 2))^2 / (1 - e^-eps) = delta.
    gap = math.sqrt(1e-5 * -math.expm1(-0.5))
    assert found.upper == pytest.approx(0.5 + 2 * math.log1p(-gap), rel=1e-9)


def test_pictures_and_reports_name_the_mechanisms():
    from dpacct import report
    from dpacct.pictures import schedule_picture

    beside = schedule_picture(TRAINING + COUNTS + PROMISE)
    assert "beside 21 releases without rounds" in beside.note
    with pytest.raises(InvalidParameter, match="at least one round"):
        schedule_picture(COUNTS + PROMISE)
    page = report.on_schedule(TRAINING + COUNTS + PROMISE, delta=1e-5).to_markdown()
    assert "20 x Laplace noise 10" in page
    assert "a promise of epsilon 0.2 at delta 1e-07" in page


def test_atoms_of_next_to_no_mass_are_answered_by_a_blur():
    """This ended in an error about losses without atoms."""
    many = 11 * Laplace(3.1011366230258046) + 15327 * Laplace(10.160676577506733)
    bounds = dpacct.delta(many, epsilon=0.24209174700697797)
    assert 0.99 < bounds.lower <= bounds.upper < 1.0
