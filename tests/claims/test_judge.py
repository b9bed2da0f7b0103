"""Verdicts: proven, refuted, open, not private as described."""

from __future__ import annotations

import pytest

import dpacct
from dpacct.budget import Interval
from dpacct.claims import Verdict, judge, parse_claims, shipped_claims
from dpacct.claims.judge import answer, compare, facts_of, witness
from dpacct.errors import InvalidParameter
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
from tests.claims.test_files import GOOD


def claim(more: str = "", **changed: str) -> Verdict:
    text = GOOD + more
    for key, value in changed.items():
        (old,) = (line for line in GOOD.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(old, f"{key} = {value}")
    return judge(parse_claims(text, "a.toml").claims[0]).verdict


def test_verdicts_follow_what_is_proven_and_achieved():
    for stated, word in ((0.9, "refuted"), (1.0, "open"), (1.5, "open"), (2.0, "proven")):
        assert compare(stated, Interval(1.0, 2.0)) == word
    spent = dpacct.epsilon(100 * Round(2.0, Poisson(0.1)), delta=1e-5)
    assert claim(epsilon=repr(spent.upper)) is Verdict.PROVEN
    assert claim(epsilon=repr(spent.lower * (1 - 1e-9))) is Verdict.REFUTED
    assert claim(epsilon=repr(spent.upper * (1 - 1e-12))) in (Verdict.OPEN, Verdict.REFUTED)


def test_the_noise_that_is_told_makes_a_claim_true():
    (one,) = judge(parse_claims(GOOD.replace("= 2\n", "= 1.5\n"), "a.toml").claims[0]).readings
    assert one.verdict is Verdict.REFUTED
    assert one.noise is not None
    again = dpacct.epsilon(100 * Round(one.noise, Poisson(0.1)), delta=1e-5)
    assert again.upper <= 1.5
    assert one.noise > 2.0


def test_quick_and_whole_judgments_agree():
    some = [one for one in shipped_claims().claims if one.source.name == "Fed-alpha-NormEC"][::3]
    for one in some:
        quick, whole = judge(one, quick=True), judge(one)
        assert [r.epsilon for r in quick.readings] == [r.epsilon for r in whole.readings]
        assert [r.verdict for r in quick.readings] == [r.verdict for r in whole.readings]


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ('clip_from = "median"', Verdict.NOT_PRIVATE),
        ('unprotected = "the exact mean is released"', Verdict.NOT_PRIVATE),
        ('noise_by = "participants"', Verdict.OPEN),
        ('noise_by = "participants"\nnum_clients = 1', Verdict.NOT_PRIVATE),
        # A fixed number of clients: the noise is always as much.
        ('noise_by = "clients"', Verdict.REFUTED),
        ('divisor = "realized"', Verdict.OPEN),
        ('divisor = "realized"\nnum_clients = 1', Verdict.NOT_PRIVATE),
        ('divisor = "realized"\nnum_clients = 100', Verdict.REFUTED),
        ('clip_from = "released"', Verdict.REFUTED),
        ('clip_from = "private-quantile"', Verdict.REFUTED),
    ],
)
def test_what_is_released_unprotected_decides(more, word):
    assert claim(f"{more}\n", epsilon="1.5") is word


def test_shares_of_a_fixed_number_of_clients_are_noise_on_the_sum():
    fixed = (
        'noise_by = "participants"\n[[claim.reading]]\nsampling = "uniform"\n'
        'cohort_size = 3\nnum_clients = 30\nadjacency = "replace-one"\n'
    )
    assert claim(fixed, epsilon="60", rounds="1") is Verdict.PROVEN
    everybody = 'noise_by = "participants"\n[[claim.reading]]\nsampling = "full"\nadjacency = '
    assert claim(everybody + '"replace-one"\n', epsilon="60", rounds="2") is Verdict.PROVEN
    assert claim(everybody + '"add-remove"\n', epsilon="60", rounds="2") is Verdict.NOT_PRIVATE


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ('divisor = "realized"', "sum"),
        ('divisor = "realized"\nnoise_std = 0.02\nclip_norm = 1\nnoise_on = "mean"', "mean"),
        ('noise_by = "participants"', "client"),
        ('noise_std = 0.2\nclip_norm = 1\nnoise_on = "client"', "client"),
    ],
)
@pytest.mark.parametrize("relation", ["zero-out", "replace-one", "add-remove"])
def test_a_known_size_of_a_cohort_has_a_bound(more, kind, relation):
    text = GOOD if "noise_std" not in more else GOOD.replace("noise_multiplier = 2.0\n", "")
    text = text.replace('"add-remove"', f'"{relation}"').replace("rounds = 100", "rounds = 3")
    found = parse_claims(f"{text}num_clients = 100\n{more}\n", "a.toml").claims[0]
    (one,) = found.readings
    level = 0.2 * 10**0.5 if "0.2\n" in more else 0.2 if "0.02\n" in more else 2.0
    assert one.only.noise_multiplier == pytest.approx(level)
    sampling = Poisson(0.1, num_clients=100, reveals_size=kind)
    assert one.only == Round(one.only.noise_multiplier, sampling, relation)
    if relation == "zero-out":
        (judged,) = judge(found, quick=True).readings
        assert judged.epsilon == dpacct.epsilon(one.schedule, delta=1e-5)
    assert "all other clients contribute -C" in witness(one.schedule)


def test_a_file_may_name_what_a_round_reveals():
    given = 'num_clients = 100\nreveals_size = "sum"\n'
    text = GOOD.replace("add-remove", "zero-out") + given
    (one,) = parse_claims(text, "a.toml").claims[0].readings
    assert one.only.sampling == Poisson(0.1, num_clients=100, reveals_size="sum")
    (one,) = parse_claims(GOOD + given, "a.toml").claims[0].readings
    assert "the target contributes +C, or is not there." in witness(one.schedule)


def test_the_weakest_reading_of_what_runs_counts():
    more = (
        '[[claim.reading]]\nrole = "stated"\nnoise_multiplier = 0.1\n'
        "[[claim.reading]]\nnoise_multiplier = 50\n[[claim.reading]]\nnoise_multiplier = 40\n"
    )
    found = judge(parse_claims(GOOD + more, "a.toml").claims[0])
    assert found.verdict is Verdict.PROVEN
    assert not found.agreed
    assert [one.verdict for one in found.readings] == ["refuted", "proven", "proven"]


def test_without_an_epsilon_the_bracket_is_told():
    (one,) = judge(parse_claims(GOOD.replace("epsilon = 2\n", ""), "a.toml").claims[0]).readings
    assert one.verdict is Verdict.UNSTATED
    assert one.epsilon is not None


def test_the_game_decides_where_fixed_pairs_leave_it_open():
    plan = 200 * Round(2.0, Uniform(100, 2000))
    pairs = dpacct.epsilon(plan, delta=1e-4, accountant="pairs")
    played = Interval(1.02 * pairs.lower, 0.98 * pairs.upper)
    said = answer(1.01 * pairs.lower, plan, 1e-4, played, "pairs")
    assert said.verdict is Verdict.REFUTED
    assert "Depending on earlier releases" in said.data_sets
    fixed = answer(0.99 * pairs.lower, plan, 1e-4, played, "pairs")
    assert "Depending" not in fixed.data_sets


@pytest.mark.parametrize("relation", Adjacency)
@pytest.mark.parametrize("scheme", [Poisson(0.1), Full(), Uniform(5, 50), Uniform(50, 50)])
def test_data_sets_are_told_for_every_kind_of_round(scheme, relation):
    words = witness(Schedule() + Round(1.0, scheme, relation))
    assert words.startswith("In every round all other clients contribute ")
    assert words.endswith(".")
    replaced = relation is Adjacency.REPLACE_ONE
    assert ("replaced" in words) is replaced
    displaces = isinstance(scheme, Uniform) and relation is Adjacency.ADD_REMOVE
    assert ("takes its place" in words) is displaces


MECHANISMS = """
[source]
name = "A statement"
[[claim]]
id = "rho"
place = "p. 1"
epsilon = 8.9
delta = 1e-10
adjacency = "zero-out"
[[claim.reading]]
words = "any release with that rho"
mechanism = { name = "zcdp", rho = 0.81 }
[[claim.reading]]
words = "one Gaussian with that rho"
rounds = 1
sampling = "full"
noise_multiplier = 0.7856742
[[claim]]
id = "laplace"
place = "p. 2"
epsilon = 0.5
delta = 1e-6
adjacency = "add-remove"
rounds = 20
mechanism = { name = "laplace", epsilon = 0.1 }
"""


def test_claims_about_other_mechanisms_get_verdicts():
    rho, laplace = (judge(claim) for claim in parse_claims(MECHANISMS, "a.toml").claims)
    promise, gaussian = rho.readings
    # 8.9 in print; the proven figure of a promise rounds to it, and lies above.
    assert promise.epsilon is not None
    assert (promise.verdict, promise.epsilon.lower) == (Verdict.ROUNDED, 0.0)
    assert promise.epsilon.upper == pytest.approx(8.922, abs=2e-3)
    assert promise.noise is None
    assert gaussian.verdict is Verdict.PROVEN
    assert gaussian.epsilon is not None
    assert gaussian.epsilon.upper == pytest.approx(8.549, abs=1e-3)
    (one,) = laplace.readings
    assert one.verdict is Verdict.REFUTED
    assert one.noise is not None
    assert one.noise > 10.0
    facts = facts_of(laplace)["readings"][0]
    assert facts["phases"] == [{"rounds": 20, "mechanism": "laplace", "noise_multiplier": 10.0}]
    assert (facts["sampling"], facts["rounds"]) == (None, 20)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (
            'name = "zcdp", rho',
            'name = "zcdp", q',
            "reading 1: the key 'q' is not one of name, rho",
        ),
        ("rho = 0.81", "rho = -1", "reading 1: rho is -1"),
        (
            '{ name = "zcdp", rho = 0.81 }',
            '"zcdp"',
            "reading 1: a mechanism is a table such as",
        ),
        (
            "rho = 0.81 }",
            'rho = 0.81 }\nsampling = "full"',
            "reading 1: sampling belongs to a round",
        ),
    ],
)
def test_a_bad_mechanism_of_a_claim_is_refused_by_its_claim(before, after, words):
    with pytest.raises(InvalidParameter) as caught:
        parse_claims(MECHANISMS.replace(before, after, 1), "a.toml")
    assert words in str(caught.value)
