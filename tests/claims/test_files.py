"""Claim files: what they say is what is read, and what is wrong is named with its claim."""

from __future__ import annotations

import pytest

from dpacct.claims import (
    Claim,
    ClipFrom,
    Divisor,
    NoiseBy,
    Role,
    Verdict,
    judge,
    load_claims,
    parse_claims,
)
from dpacct.errors import InvalidParameter
from dpacct.rounds import Full, Poisson, Round, Uniform

GOOD = """\
[source]
name = "A paper"

[[claim]]
id = "a"
place = "Table 1"
epsilon = 2
delta = 1e-5
rounds = 100
sampling = "poisson"
sampling_rate = 0.1
adjacency = "add-remove"
noise_multiplier = 2.0
"""
BELOW = """
[[claim.reading]]
words = "with cohorts of fixed size"
role = "run"
sampling = "uniform"
cohort_size = 50
num_clients = 500
adjacency = "replace-one"
noise_by = "clients"
clip_from = "released"
divisor = "realized"

[[claim.reading]]
words = "with twice the noise"
role = "stated"
noise_std = 2.0
clip_norm = 0.5
"""


def only(text: str) -> Claim:
    (claim,) = parse_claims(text, "a.toml").claims
    return claim


def test_readings_take_over_what_they_do_not_say():
    claim = only(GOOD)
    (reading,) = claim.readings
    assert (claim.id, claim.place, claim.epsilon, claim.delta) == ("a", "Table 1", 2.0, 1e-5)
    assert reading.schedule == 100 * Round(2.0, Poisson(0.1))
    assert (reading.noise_by, reading.clip_from) == (NoiseBy.SERVER, ClipFrom.CONSTANT)
    fixed, twice = only(GOOD + BELOW).readings
    assert fixed.schedule == 100 * Round(2.0, Uniform(50, 500))
    assert (fixed.role, fixed.noise_by, fixed.divisor) == (
        Role.RUN, NoiseBy.CLIENTS, Divisor.REALIZED,
    )  # fmt: skip
    assert twice.schedule == 100 * Round(4.0, Poisson(0.1))
    assert twice.role is Role.STATED


def test_delta_may_be_said_in_clients():
    values = {"num_clients^-1.1": 500**-1.1, "1/num_clients": 0.002, "0.1/num_clients": 0.0002}
    for words, value in values.items():
        claim = only(GOOD.replace("delta = 1e-5", f'delta = "{words}"\nnum_clients = 500'))
        assert (claim.delta, claim.delta_words) == (value, words)


BAD = [
    ("rounds = 100\n", "", "claim 'a': rounds is missing"),
    ("sampling = ", "sampling_ = ", "claim 'a': the key 'sampling_' is not one of id"),
    ('adjacency = "add-remove"\n', "", "claim 'a': adjacency is missing"),
    ('id = "a"\n', "", "claim 1: id is missing"),
    ("noise_multiplier = 2.0\n", "", "claim 'a': a reading has noise_multiplier, or noise_std"),
    ('name = "A paper"\n', "", "source: name is missing"),
    ('[source]\nname = "A paper"\n', "", r"\[source\] is missing"),
    ("sampling_rate = 0.1\n", "", "claim 'a': sampling is 'poisson': that takes sampling_rate"),
    ("rounds = 100", "rounds = 1.5", "claim 'a': rounds is 1.5"),
    ("epsilon = 2", "epsilon = -2", "claim 'a': epsilon is -2: a target epsilon"),
    ("delta = 1e-5", 'delta = "n^-2"\nnum_clients = 9', "delta is 'n\\^-2': it is a number"),
    ("delta = 1e-5", 'delta = "1/num_clients"', "num_clients is missing: delta is given"),
    ("sampling_rate = 0.1", "sampling_rate = 10", r"claim 'a': sampling_rate is 10.*\(10 %\)"),
    ('"poisson"', '"uniform"', "claim 'a': cohort_size is missing"),
    ('"poisson"', '"poisson"\ncohort_size = 3', "claim 'a': sampling is 'poisson': that takes"),
    ("noise_multiplier", "noise_std", "claim 'a': clip_norm is missing"),
    ("= 2.0", "= 2.0\nnoise_std = 2.0", "noise_multiplier is 2.0: a reading has"),
    ("[[claim]]", "[claim]", r"each claim is a table with two brackets"),
    ("= 2.0", '= 2.0\nnoise_by = "us"', "claim 'a': noise_by is 'us': it is one of server"),
    ("= 2.0", "= 2.0\n[[claim.reading]]\nrole = 1", "'a': reading 1: role is 1: it is one of"),
    ("= 2.0", "= 2.0\n[[statement]]\nholds = 'yes'", "statement 1: place is missing"),
    ("delta = 1e-5", "delta = ", "not valid TOML.*line 8"),
    ('"Table 1"', '"Table\\u0007"', "claim 'a': place is at most"),
    ("= 2.0", '= 2.0\nmechanism = "x"', "a mechanism is a table|belongs to a round"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "message"), BAD)
def test_bad_input_is_named_with_its_claim(before, after, message):
    assert before in GOOD
    with pytest.raises(InvalidParameter, match=message) as caught:
        parse_claims(GOOD.replace(before, after, 1), "a.toml")
    assert caught.value.value == "a.toml"


@pytest.mark.parametrize(
    "noise",
    ["noise_std = 4.0\nclip_norm = 2.0",
     'noise_std = 0.02\nclip_norm = 1.0\nnum_clients = 1000\nnoise_on = "mean"',
     'noise_std = 0.2\nclip_norm = 1.0\nnum_clients = 1000\nnoise_on = "client"'],
)  # fmt: skip
def test_noise_in_the_units_of_the_text(noise):
    found = only(GOOD.replace("noise_multiplier = 2.0", noise)).readings[0].only
    assert found is not None
    assert found.noise_range is not None
    assert found.noise_range[0] == pytest.approx(2.0)


def test_noise_on_the_mean_needs_the_number_of_clients():
    noise = 'noise_std = 2.0\nclip_norm = 1.0\nnoise_on = "{}"'
    for on, words in {"mean": "num_clients is missing", "it": "one of sum, mean, client"}.items():
        with pytest.raises(InvalidParameter, match=words):
            only(GOOD.replace("noise_multiplier = 2.0", noise.format(on)))


def test_files_that_cannot_be_read_are_refused(tmp_path):
    again = GOOD[GOOD.index("[[claim]]") :]
    with pytest.raises(InvalidParameter, match="claim 'a': another claim is called 'a'"):
        parse_claims(GOOD + again, "a.toml")
    for name, content, words in (
        ("bytes.toml", b"\xff\xfe\x00", "UTF-8"),
        ("empty.toml", b'[source]\nname = "A"\n', "has no claim"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidParameter, match=words):
            load_claims(tmp_path / name)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        load_claims(tmp_path / "none.toml")


@pytest.mark.parametrize("rounds", ["9" * 5000, "0x" + "f" * 20_000, "-" + "9" * 4000])
def test_numbers_without_end_are_refused_in_words(rounds):
    with pytest.raises(InvalidParameter) as refused:
        parse_claims(GOOD.replace("rounds = 100", f"rounds = {rounds}"), "a.toml")
    assert len(str(refused.value)) < 400


def test_noise_of_each_client_adds_up_by_its_squares():
    """Sixteen clients who each add a quarter of the clip norm: one round of noise 1."""
    shared = GOOD.replace('sampling = "poisson"\nsampling_rate = 0.1', 'sampling = "full"')
    shared = shared.replace("add-remove", "zero-out").replace("rounds = 100", "rounds = 3")
    shared = shared.replace("epsilon = 2", "epsilon = 8.386").replace(
        "noise_multiplier = 2.0",
        'noise_std = 0.5\nclip_norm = 2.0\nnoise_on = "client"\nnum_clients = 16',
    )
    claim = only(shared)
    (reading,) = claim.readings
    assert reading.schedule == 3 * Round(1.0, Full(), "zero-out")
    assert reading.noise_by is NoiseBy.PARTICIPANTS
    assert judge(claim).verdict is Verdict.PROVEN
    assert judge(only(shared.replace("zero-out", "add-remove"))).verdict is Verdict.NOT_PRIVATE
    with pytest.raises(InvalidParameter, match="num_clients is missing"):
        parse_claims(shared.replace("num_clients = 16", ""), "a.toml")
