"""The second proof: its lemmas against mpmath, and both ends of `tight` against it."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import mpmath
import pytest

import dpacct
from dpacct import Epoch, Full, Laplace, Poisson, Round, Schedule, Uniform
from dpacct.certificates import Finding, certified, certify
from dpacct.errors import InvalidParameter, Unsupported

pytestmark = pytest.mark.needs("flint")


@pytest.fixture
def proof() -> Any:
    return pytest.importorskip("dpacct.certificates.proof")


def random_plan(rng: random.Random) -> Schedule:
    """Return one or two kinds of rounds, of 50 to 400 expected participations."""
    plan = Schedule()
    for _ in range(rng.choice((1, 1, 2))):
        rate = round(10 ** rng.uniform(-2.5, -0.3), 5)
        rounds = math.ceil(rng.uniform(50, 400) / rate)
        noise = round(rng.uniform(0.5, 2) * max(1.0, rate * math.sqrt(rounds)), 4)
        plan += rounds * Round(noise, Poisson(rate))
    if rng.random() < 0.3:
        plan += rng.randint(1, 5) * Round(round(rng.uniform(3, 30), 3), Full())
    if rng.random() < 0.2:
        plan += rng.randint(1, 3) * Laplace(round(rng.uniform(5, 50), 3))
    return plan


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(100))
def test_both_ends_of_the_accountant_are_proven(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - no secret
    plan, delta = random_plan(rng), 10 ** rng.uniform(-9, -3)
    spent = dpacct.epsilon(plan, delta=delta)
    assert certify(plan, epsilon=spent.upper, delta=delta).finding is Finding.PROVEN
    if spent.lower > 0:
        below = spent.lower * (1 - 1e-12)
        assert certify(plan, epsilon=below, delta=delta).finding is Finding.REFUTED


@pytest.mark.sampled(5)
@pytest.mark.parametrize("tilt", [1.02, 3.5, -0.05, -6.0])
@pytest.mark.parametrize(("rate", "noise", "u"), [("0.1", "1", 3.0), ("0.9", "0.4", 20.0)])
def test_moments_hold_the_truth(proof: Any, tilt: float, rate: str, noise: str, u: float) -> None:
    q, a = mpmath.mpf(rate), 1 / mpmath.mpf(noise)
    with mpmath.workdps(30):
        true = mpmath.quad(
            lambda x: (
                mpmath.npdf(x)
                * mpmath.exp(
                    mpmath.mpc(tilt, u) * mpmath.log(1 - q + q * mpmath.exp(a * x - a * a / 2))
                )
            ),
            mpmath.linspace(-13, 13 + max(tilt, 0) * float(a), 80),
        )
    # At one and the same precision: few bits make wide balls, which still hold it.
    found = proof.SampledGaussian(rate, noise).line(proof.arb(tilt), proof.arb(u), 1, 1)[0]
    for part, exact in ((found.real, true.real), (found.imag, true.imag)):
        assert abs(float(part.mid()) - float(exact)) <= float(part.rad()) + 1e-13


@pytest.mark.parametrize("step", [0.125, 1.2])
@pytest.mark.parametrize("tilt", [1.016, 1.0234, 2.0, 9.0])
def test_every_contour_holds_the_same_delta(
    proof: Any, tilt: float, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 1: a line near the pole, or a coarse step, makes wide balls and no false ones."""
    rows = [(proof.SampledGaussian, "0.1", "1.28601", 300)]
    low, high = proof.prove(rows, "8")

    def shape(*_: Any, removed: bool) -> Any:
        c, d = (tilt, 0.9 * (tilt - 1)) if removed else (-tilt, 0.9 * tilt)
        return tuple(proof.arb(x) for x in (c, d, step * d))

    monkeypatch.setattr(proof, "_shape", shape)
    other_low, other_high = proof.prove(rows, "8")
    assert other_low <= high
    assert low <= other_high


def test_a_line_on_the_wrong_side_is_no_proof(proof: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = tuple(proof.arb(x) for x in (1.5, 0.6, 0.1))
    monkeypatch.setattr(proof, "_shape", lambda *_, **__: shape)
    with pytest.raises(proof.OutOfReachError, match="without poles"):
        proof.prove([(proof.SampledGaussian, "0.1", "1", 100)], "1")


def test_golden_values(proof: Any) -> None:
    """By an independent program: trapezoid sums in balls, with other bounds of the tail."""
    for rows, epsilon, value in [
        ([("0.1", "1.28601", 300)], "8.0001", "9.99756338674522278e-6"),
    ]:
        made = [(proof.SampledGaussian, *row) for row in rows]
        low, high = proof.prove(made, epsilon)
        assert low <= Fraction(value) <= high or abs(low - Fraction(value)) < Fraction("1e-23")
        assert high - low < Fraction("1e-22")


@pytest.mark.parametrize(("epsilons", "e"), [((0.5, 0.5), 0.0), ((0.5, 0.3), 0.2), ((1.0,), 0.4)])
def test_laplace_by_atoms_and_densities(epsilons: tuple[float, ...], e: float) -> None:
    """Each loss has the atoms -a and a, and the density exp(-(l + a)/2) / 4 between, under Q."""

    def above(level: float, rest: tuple[float, ...]) -> float:
        if not rest:
            return max(math.exp(level) - math.exp(e), 0.0)
        a, others = rest[0], rest[1:]
        kinks = [e - level - s * b for b in others or (0.0,) for s in (-1, 0, 1)]
        ends = [-a, *sorted(x for x in kinks if -a < x < a), a]
        dense = mpmath.quad(lambda y: above(level + y, others) * mpmath.exp(-(y + a) / 2) / 4, ends)
        atoms = above(level - a, others) / 2 + above(level + a, others) * math.exp(-a) / 2
        return atoms + float(dense)

    plan = Schedule()
    for each in epsilons:
        plan += 1 * Laplace(
            1 / each if each != 0.3 else None, **({"epsilon": 0.3} if each == 0.3 else {})
        )
    found = certify(plan, epsilon=e, delta=0.5)
    assert float(found.delta.upper) == pytest.approx(above(0.0, epsilons), rel=1e-9)


def test_closed_forms_meet_the_accountant() -> None:
    for plan, epsilon in [
        (1 * Round(1.0, Poisson(0.01)), 1.0),
        (7 * Round(4.0) + 2 * Round(9.0), 1.5),
        (20 * Laplace(2.0), 4.0),
        (3 * Round(32.0, Full(), "replace-one"), 0.2),
        (2 * Laplace(3.0, adjacency="replace-one"), 0.5),
        (1 * Round(0.5, Poisson(0.3)), 0.1),
        (200 * Round(4.0, Uniform(20, 100), "add-remove"), 6.0),
    ]:
        known, found = (
            dpacct.delta(plan, epsilon=epsilon),
            certify(plan, epsilon=epsilon, delta=0.5),
        )
        assert found.delta.lower <= known.upper
        assert known.lower <= found.delta.upper
        assert found.delta.width <= 1e-12 * found.delta.upper


def test_few_participations() -> None:
    """Two expected ones: most of the loss is next to an atom, and the tail decays slowly."""
    plan = 2000 * Round(1.0, Poisson(0.001))
    known, found = dpacct.delta(plan, epsilon=0.5), certify(plan, epsilon=0.5, delta=0.5)
    assert known.lower <= found.delta.upper
    assert found.delta.lower <= known.upper


@pytest.mark.parametrize(
    "plan",
    [
        5 * Round(1.0, Uniform(10, 100)),
        5 * Round(1.0, Uniform(10, 10), "add-remove"),
        5 * Round(1.0, Poisson(0.1), "replace-one"),
        5 * Round(1.0, Poisson(0.1, records=2)),
        1 * Epoch(1.0, 20),
    ],
)
def test_what_is_not_covered_is_said(plan: Schedule) -> None:
    with pytest.raises(Unsupported, match="no certificate"):
        certify(plan, epsilon=1.0, delta=1e-5)
    assert certified(plan, 1.0, 1e-5)["finding"] is None


def test_what_takes_too_long_is_refused(proof: Any) -> None:
    with pytest.raises(proof.OutOfReachError, match="few rounds"):
        proof.prove([(proof.SampledGaussian, "0.01", "1", 2)], "1", products=1e5)


@pytest.mark.parametrize(
    ("q", "z", "rounds"), [("0.1", "1", 5), ("0.01", "4", 10), ("0.0001", "1", 1000)]
)
def test_what_is_out_of_reach_is_known_before_it_is_summed(
    proof: Any, monkeypatch: pytest.MonkeyPatch, q: str, z: str, rounds: int
) -> None:
    monkeypatch.setattr(proof.SampledGaussian, "line", None)
    with pytest.raises(proof.OutOfReachError, match="few rounds"):
        proof.prove([(proof.SampledGaussian, q, z, rounds)], "0.2")


EDGES = [
    1 * Round(3.0, Poisson(1e-6)),
    5 * Round(0.4, Poisson(1e-6)),
    100_000 * Round(1000.0, Poisson(0.3)),
    10_000 * Round(0.3, Poisson(0.999999)),
    1 * Round(0.2, Poisson(0.999)),
    400 * Round(9.0, Poisson(0.97)) + 2 * Round(50.0, Full()) + 2 * Laplace(9.0),
    300 * Round(9.0, Poisson(0.1)) + 300 * Round(0.9, Poisson(0.001)),
    3 * Round(0.3, Full(), "replace-one"),
    7 * Laplace(3.0, adjacency="replace-one"),
    500 * Round(4.0, Uniform(999_999, 10**6), "add-remove"),
    10 * Round(20.248, Poisson(0.05094)) + 3 * Laplace(7.04) + 3 * Round(1.82, Full()),
]


# Each plan, and each number of bits with several of them.
@pytest.mark.sampled(12)
@pytest.mark.parametrize("bits", [2, 10, 128])
@pytest.mark.parametrize("plan", EDGES)
def test_nothing_false_is_proven_at_the_edges(
    plan: Schedule, bits: int, proof: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = proof.prove
    monkeypatch.setattr(proof, "prove", lambda *given: whole(*given, 4e5))
    for delta in (1e-15, 1e-6, 0.3):
        spent = dpacct.epsilon(plan, delta=delta)
        below = spent.lower * (1 - 1e-9)
        for epsilon, wrong in (
            (spent.upper, Finding.REFUTED),
            (below, Finding.PROVEN if below else Finding.REFUTED),
            (spent.upper + 500, Finding.REFUTED),
        ):
            try:
                assert certify(plan, epsilon=epsilon, delta=delta, bits=bits).finding is not wrong
            except Unsupported:
                continue


def test_few_bits_leave_it_undecided() -> None:
    plan = 300 * Round(1.28601, Poisson(0.1))
    near = certify(plan, epsilon=8.0, delta=1e-5).delta.upper
    assert certify(plan, epsilon=8.0, delta=near * (1 + 1e-14)).finding is Finding.PROVEN
    rough = certify(plan, epsilon=8.0, delta=near, bits=40)
    assert rough.finding is Finding.UNDECIDED
    assert near in rough.delta


@pytest.mark.parametrize("wrong", [{"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.5}, {"bits": 0}])
def test_bad_input(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParameter, match=next(iter(wrong))):
        certify(1 * Round(1.0), **{"epsilon": 1.0, "delta": 1e-5} | wrong)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> str:
        raise importlib_metadata.PackageNotFoundError

    from importlib import metadata as importlib_metadata

    monkeypatch.setattr("dpacct.packages.metadata.version", missing)
    with pytest.raises(Unsupported, match="python-flint is not installed"):
        certify(1 * Round(1.0), epsilon=1.0, delta=1e-5)
