"""The plug-in for dp-accounting: events as schedules and back, and its calibration by our bound."""

from __future__ import annotations

import math
from importlib import metadata
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.ledger import joint_noise_multiplier
from dpacct.packages import import_package
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform

dp_accounting = pytest.importorskip("dp_accounting", reason="dp-accounting is not installed")
plug_in = pytest.importorskip("dpacct.interop.dp_accounting")

G = dp_accounting.GaussianDpEvent
P = dp_accounting.PoissonSampledDpEvent
S = dp_accounting.SelfComposedDpEvent
C = dp_accounting.ComposedDpEvent
NOTHING = dp_accounting.NoOpDpEvent()
RELATIONS = dp_accounting.NeighboringRelation

noises = st.floats(1e-3, 1e10)
schemes = st.one_of(
    st.just(Full()),
    st.builds(Poisson, st.floats(1e-12, 1.0)),
    st.builds(lambda m, more: Uniform(m, m + more), st.integers(1, 99), st.integers(0, 99)),
)
schedules = st.builds(
    lambda adjacency, phases: Schedule(
        dpacct.rounds.Phase(Round(z, scheme, adjacency), n) for z, scheme, n in phases
    ),
    st.sampled_from(Adjacency),
    st.lists(st.tuples(noises, schemes, st.integers(1, 10**9)), max_size=5),
)


def schedule_of(event: Any, adjacency: str = "add-remove") -> Schedule:
    return plug_in.schedule_of_event(event, adjacency)


@settings(max_examples=max(30, settings.default.max_examples // 4))
@given(schedules)
def test_a_schedule_comes_back_as_it_was(schedule: Schedule) -> None:
    event = plug_in.event_of_schedule(schedule)
    assert isinstance(event, dp_accounting.DpEvent)
    assert plug_in.schedule_of_event(event, schedule.adjacency) == schedule


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (NOTHING, Schedule()),
        (G(1.5), 1 * Round(1.5)),
        (P(0.0, G(0.0)), Schedule()),
        (S(NOTHING, 7), Schedule()),
        (S(G(2.0), 0), Schedule()),
        (C([G(1.5), NOTHING, G(1.5)]), 2 * Round(1.5)),
        (S(S(P(0.1, G(1.0)), 5), 4), 20 * Round(1.0, Poisson(0.1))),
        (S(C([G(1.0), P(0.1, G(1.0))]), 3), 3 * (Round(1.0) + Round(1.0, Poisson(0.1)))),
        (P(0.5, S(G(2.0), 4)), 1 * Round(joint_noise_multiplier([2.0] * 4), Poisson(0.5))),
        (P(0.5, C([G(2.0), G(3.0)])), 1 * Round(joint_noise_multiplier([2.0, 3.0]), Poisson(0.5))),
        (P(0.5, C([NOTHING, G(2.0)])), 1 * Round(2.0, Poisson(0.5))),
        (P(0.5, NOTHING), Schedule()),
        # Scalars of numpy, and in the same form those of JAX.
        (P(np.float32(0.5), G(np.array(2.0))), 1 * Round(2.0, Poisson(0.5))),
        (G(1e300), 1 * Round(1e10)),
    ],
    ids=str,
)
def test_what_an_event_comes_to(event: Any, expected: Schedule) -> None:
    assert schedule_of(event) == expected


FIXED = dp_accounting.SampledWithoutReplacementDpEvent(2000, 100, G(2.4))
COHORT = Round(2.4, Uniform(100, 2000), "replace-one")
ALL = Round(12.0, Full(), "replace-one")


def test_rounds_of_fixed_cohorts_among_others_stay_in_their_order() -> None:
    """The bound depends on the order; grouped by kind, this one fell below the truth."""
    plan = COHORT + 10 * ALL + 9 * COHORT
    accountant = plug_in.TightPrivacyAccountant(RELATIONS.REPLACE_ONE)
    accountant.compose(FIXED).compose(G(12.0), 10).compose(FIXED, 9)
    assert accountant.schedule == plan
    achieved = dpacct.epsilon(plan, delta=1e-5)
    grouped = dpacct.epsilon(10 * COHORT + 10 * ALL, delta=1e-5).upper
    assert grouped < achieved.lower <= accountant.get_epsilon(1e-5) == achieved.upper

    both = C([FIXED, G(12.0)])
    assert schedule_of(S(both, 5), "replace-one") == 5 * (COHORT + ALL)
    assert schedule_of(S(S(both, 2), 3), "replace-one") == 6 * (COHORT + ALL)
    accountant = plug_in.TightPrivacyAccountant(RELATIONS.REPLACE_ONE).compose(both, 7)
    assert accountant.schedule == 7 * (COHORT + ALL)
    assert schedule_of(S(S(FIXED, 10**5), 10**4), "replace-one") == 10**9 * COHORT


def test_what_is_too_long_to_keep_is_refused() -> None:
    event = C([FIXED, G(12.0)])
    with pytest.raises(plug_in.UnmappedEvent, match="kept in their order"):
        schedule_of(S(event, 10**9), "replace-one")
    accountant = plug_in.TightPrivacyAccountant(RELATIONS.REPLACE_ONE)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="kept in their order"):
        accountant.compose(event, 10**9)
    assert accountant.supports(event)
    assert accountant.get_epsilon(1e-5) == 0.0
    accountant = plug_in.TightPrivacyAccountant().compose(G(1e3), 10**12)
    with pytest.raises(dp_accounting.UnsupportedEventError, match="number of rounds composed"):
        accountant.compose(G(1e3))
    assert accountant.schedule.rounds == 10**12


W = dp_accounting.SampledWithoutReplacementDpEvent
T = dp_accounting.TruncatedSubsampledGaussianDpEvent
M = dp_accounting.dp_event.MixtureOfGaussiansDpEvent
UNMAPPED = {
    "ZCDpEvent": S(C([G(1.0), dp_accounting.ZCDpEvent(0.1, xi=0.1)]), 2),
    "RandomizedResponseDpEvent": dp_accounting.RandomizedResponseDpEvent(1.0, 3),
    "PoissonSampledDpEvent of noise": P(0.1, dp_accounting.LaplaceDpEvent(1.0)),
    "PoissonSampledDpEvent twice": P(0.1, S(P(0.1, G(1.0)), 2)),
    "PoissonSampledDpEvent and more": P(0.1, C([P(0.1, G(1.0)), G(1.0)])),
    "PoissonSampledDpEvent of a cohort": P(0.1, W(9, 3, G(1.0))),
    "SampledWithoutReplacementDpEvent": W(9, 3, S(G(1.0), 2)),
    "SampledWithReplacementDpEvent": dp_accounting.SampledWithReplacementDpEvent(9, 3, G(1.0)),
    "UnsupportedDpEvent": dp_accounting.UnsupportedDpEvent(),
    "MixtureOfGaussiansDpEvent": M(1.0, [0.0, 2.0], [0.5, 0.5]),
    "MixtureOfGaussiansDpEvent of dependent draws": M(1.0, [0.0, 1.0, 2.0], [0.5, 0.25, 0.25]),
    "SingleEpochTreeAggregationDpEvent": dp_accounting.SingleEpochTreeAggregationDpEvent(1.0, 3),
    "NonPrivateDpEvent": dp_accounting.NonPrivateDpEvent(),
    "GaussianDpEvent": G(0.0),
}


@pytest.mark.parametrize("name", UNMAPPED)
def test_an_event_without_a_schedule_is_refused_by_name(name: str) -> None:
    with pytest.raises(plug_in.UnmappedEvent, match=name.split(maxsplit=1)[0]) as caught:
        schedule_of(UNMAPPED[name])
    assert type(caught.value.event).__name__ == name.split(maxsplit=1)[0]


def test_mechanisms_convert_both_ways_and_cost_what_dp_accounting_says() -> None:
    from dpacct import Laplace, PureDP, RandomizedResponse, ZeroConcentratedDP

    training = 1000 * Round(1.0, Poisson(0.01))
    plan = training + 3 * Laplace(2.0) + ZeroConcentratedDP(0.1)
    assert schedule_of(plug_in.event_of_schedule(plan)) == plan
    # As dp-accounting's PLD accountant says: 1.82824 alone, and 2.24391 with a Laplace release.
    event = C([S(P(0.01, G(1.0)), 1000), dp_accounting.LaplaceDpEvent(2.0)])
    found = plug_in.TightPrivacyAccountant().compose(event).get_epsilon(1e-5)
    assert found == pytest.approx(2.24391, abs=2e-5)
    (phase,) = schedule_of(dp_accounting.RandomizedResponseDpEvent(0.5, 2))
    assert isinstance(phase.round, RandomizedResponse)
    assert math.log(3) <= phase.round.epsilon <= math.log(3) * (1 + 1e-13)
    with pytest.raises(Unsupported, match="no event for PureDP"):
        plug_in.event_of_schedule(3 * PureDP(1.0))
    replaced = schedule_of(dp_accounting.LaplaceDpEvent(2.0), "replace-one")
    assert replaced == 1 * Laplace(2.0, adjacency="replace-one")


@pytest.mark.parametrize(
    ("release", "same"),
    [
        (Round(1.0, Poisson(0.01, max_cohort=580, num_clients=50000)), True),
        (Round(1.0, Poisson(0.1, records=4)), False),
        (Round(2.0, Poisson(1e-9, records=3)), False),
        (dpacct.DiscreteLaplace(3.0, 2), False),
        (dpacct.DiscreteLaplace(3.0, 4, "replace-one"), False),
        (dpacct.RandomizedResponse(1.5, answers=7), False),
    ],
    ids=repr,
)
def test_special_events_come_back_at_no_lower_cost(release: Any, same: object) -> None:
    plan = 10 * (release + 1 * release)
    back = plug_in.schedule_of_event(plug_in.event_of_schedule(plan), plan.adjacency)
    assert (back == plan) is same
    ours, theirs = (dpacct.epsilon(one, delta=1e-5).upper for one in (plan, back))
    assert ours * (1 - 1e-9) <= theirs <= ours * (1 + 1e-9)


# Its accountant counts several randomized responses as one.
@pytest.mark.parametrize(
    ("event", "count", "relation"),
    [
        (T(20, 0.3, 15, 2.0), 10, RELATIONS.ADD_OR_REMOVE_ONE),
        pytest.param(
            *(M(1.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01]), 10, RELATIONS.ADD_OR_REMOVE_ONE),
            marks=pytest.mark.slow,
        ),
        (dp_accounting.dp_event.DiscreteLaplaceDpEvent(0.5, 2), 5, RELATIONS.ADD_OR_REMOVE_ONE),
        (dp_accounting.RandomizedResponseDpEvent(0.6, 5), 1, RELATIONS.REPLACE_ONE),
    ],
    ids=str,
)
def test_special_events_cost_what_dp_accounting_says(event: Any, count: int, relation: Any) -> None:
    from dp_accounting.pld import PLDAccountant

    ours = plug_in.TightPrivacyAccountant(relation).compose(event, count).get_epsilon(1e-5)
    theirs = PLDAccountant(relation).compose(event, count).get_epsilon(1e-5)
    assert ours == pytest.approx(theirs, rel=3e-3)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (T(100, 0.1, 100, 2.0), 1 * Round(2.0, Poisson(0.1))),
        (T(100, 0.0, 10, 2.0), Schedule()),
        (T(100, 0.1, 0, 2.0), Schedule()),
        (dp_accounting.RandomizedResponseDpEvent(0.5, 1), Schedule()),
        (dp_accounting.dp_event.DiscreteLaplaceDpEvent(0.5, 0), Schedule()),
    ],
    ids=str,
)  # fmt: skip
def test_special_events_at_their_ends(event: Any, expected: Schedule) -> None:
    assert schedule_of(event) == expected


def test_the_way_out_stands_in_the_refusal() -> None:
    sampled = P(0.1, dp_accounting.LaplaceDpEvent(1.0))
    with pytest.raises(plug_in.UnmappedEvent, match=r"PureDP\(0\.15857\) in a schedule bounds it"):
        schedule_of(sampled)
    truncated = T(100, 0.1, 20, 1.0)
    with pytest.raises(InvalidParameter, match="add-remove"):
        schedule_of(truncated, "replace-one")


def test_several_gaussians_on_one_sample_are_refused_where_a_record_is_replaced() -> None:
    event = P(0.5, S(G(2.0), 4))
    assert schedule_of(event, "zero-out").rounds == 1
    with pytest.raises(plug_in.UnmappedEvent, match="no record is replaced"):
        schedule_of(event, "replace-one")
    assert schedule_of(P(0.5, S(G(2.0), 1)), "replace-one").rounds == 1


def test_values_out_of_range_are_refused() -> None:
    for event in (G(-1.0), G(math.nan), P(1.5, G(1.0)), P(-0.1, G(1.0))):
        with pytest.raises(InvalidParameter):
            schedule_of(event)
        accountant = plug_in.TightPrivacyAccountant()
        assert not accountant.supports(event)
        with pytest.raises(dp_accounting.UnsupportedEventError):
            accountant.compose(event)


@pytest.mark.parametrize("relation", list(RELATIONS), ids=str)
def test_the_accountant_answers_as_the_library_does(relation: Any) -> None:
    accountant = plug_in.TightPrivacyAccountant(relation)
    event = C([S(P(0.1, G(1.2)), 20), G(9.0)])
    assert accountant.compose(event).compose(G(9.0), 2) is accountant
    plan = accountant.schedule
    assert plan.rounds == 23
    assert accountant.get_epsilon(1e-5) == dpacct.epsilon(plan, delta=1e-5).upper
    assert accountant.get_delta(1.0) == dpacct.delta(plan, epsilon=1.0).upper
    assert accountant.neighboring_relation is relation


def test_a_record_that_is_replaced_moves_twice_the_clip_norm() -> None:
    """Both of dp-accounting's own accountants, beside what one pair of data sets achieves."""
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    ours, pld, renyi = (
        accountant.compose(S(G(10.0), 20)).get_epsilon(1e-5)
        for accountant in (
            plug_in.TightPrivacyAccountant(RELATIONS.REPLACE_ONE),
            PLDAccountant(RELATIONS.REPLACE_ONE),
            RdpAccountant(neighboring_relation=RELATIONS.REPLACE_ONE),
        )
    )
    achieved = dpacct.epsilon(20 * Round(10.0, Full(), "replace-one"), delta=1e-5).lower
    assert achieved <= ours == pytest.approx(achieved, rel=1e-6)
    assert pld == pytest.approx(ours, rel=1e-3)
    assert renyi < 0.6 * achieved


def test_events_that_can_be_read_once_are_refused() -> None:
    """The library reads an event twice: the second time they would be none, and cost nothing."""
    event = C(G(1.0) for _ in range(2))
    accountant = plug_in.TightPrivacyAccountant()
    with pytest.raises(dp_accounting.UnsupportedEventError, match="are no list"):
        accountant.compose(event)
    assert accountant.compose(C((G(1.0),))).schedule == 1 * Round(1.0)


def test_nothing_and_everything() -> None:
    accountant = plug_in.TightPrivacyAccountant()
    assert accountant.compose(NOTHING).get_epsilon(1e-5) == accountant.get_delta(1.0) == 0.0
    accountant.compose(G(1.0))
    assert accountant.get_epsilon(0.0) == math.inf
    assert accountant.get_epsilon(1.0) == accountant.get_delta(math.inf) == 0.0
    assert accountant.supports(dp_accounting.NonPrivateDpEvent())
    assert accountant.get_epsilon(1e-5) < math.inf
    accountant.compose(dp_accounting.NonPrivateDpEvent())
    assert accountant.get_epsilon(1e-5) == math.inf
    assert accountant.get_delta(1.0) == 1.0
    with pytest.raises(InvalidParameter, match="without noise"):
        _ = accountant.schedule


def test_the_library_calibrates_with_it() -> None:
    def calibrated(event: Any, **options: Any) -> Any:
        kind = plug_in.TightPrivacyAccountant
        found = dp_accounting.calibrate_dp_mechanism(kind, event, 8, 1e-5, **options)
        assert dpacct.epsilon(schedule_of(event(found)), delta=1e-5).upper <= 8
        return found

    noise = calibrated(lambda noise: S(P(0.1, G(noise)), 300))
    ours = dpacct.calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    assert noise == pytest.approx(ours.noise_multiplier, abs=2e-6)
    bracket = dp_accounting.ExplicitBracketInterval(1, 1000)
    calibrated(lambda n: S(P(0.1, G(1.5)), n), bracket_interval=bracket, discrete=True)


def test_another_accountant_of_ours_and_none() -> None:
    accountant = plug_in.TightPrivacyAccountant(accountant="rdp").compose(P(0.1, G(1.0)))
    expected = dpacct.epsilon(Round(1.0, Poisson(0.1)), delta=1e-5, accountant="rdp").upper
    assert accountant.get_epsilon(1e-5) == expected
    with pytest.raises(InvalidParameter, match="accountant"):
        plug_in.TightPrivacyAccountant(accountant="pld")
    with pytest.raises(InvalidParameter, match="neighboring_relation"):
        plug_in.TightPrivacyAccountant("add-remove")


@pytest.mark.parametrize(
    ("found", "needed", "said"),
    [
        ("2", "2.0", None),
        ("1.10", "1.6", None),
        ("1.6", "1.6.0", None),
        ("1.5.99", "1.6", r"dp-accounting 1\.5\.99 is too old, version 1\.6 or later"),
        (None, "1", 'dp-accounting is not installed: .*install "dp-accounting>=0.6"'),
    ],
)
def test_a_package_that_is_too_old_or_missing_is_refused(
    monkeypatch: pytest.MonkeyPatch, found: str | None, needed: str, said: str | None
) -> None:
    def version(_name: str) -> str:
        if found is None:
            raise metadata.PackageNotFoundError
        return found

    monkeypatch.setattr(metadata, "version", version)
    words = "json", "dp-accounting", needed, "dp-accounting"
    if said is None:
        assert import_package(*words).__name__ == "json"
    else:
        with pytest.raises(Unsupported, match=said):
            import_package(*words)


@pytest.mark.parametrize("law", ["poisson:10", "geometric:4", "negative-binomial:3,0.5"])
def test_repeat_and_select_is_the_best_of_several_runs(law: str) -> None:
    schedule = 3 * dpacct.best_of(2 * Round(2.0, Poisson(0.1)), law)
    event = plug_in.event_of_schedule(schedule)
    assert plug_in.schedule_of_event(event, "add-remove") == schedule


@given(st.floats(math.log(1e-9), math.log(500.0)).map(math.exp))
def test_randomized_response_never_comes_back_with_a_lower_epsilon(epsilon: float) -> None:
    event = plug_in.event_of_schedule(2 * dpacct.RandomizedResponse(epsilon))
    told = mpmath.mpf(event.event.noise_parameter)
    (phase,) = schedule_of(event)
    found = phase.round.epsilon
    # The event's own epsilon lies between, by 40 digits.
    with mpmath.workdps(40):
        assert epsilon <= mpmath.log((2 - told) / told) <= found
    assert found <= epsilon * (1 + 1e-12) + 1e-13
