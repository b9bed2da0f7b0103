"""Claim files: what they say is what is read, and what is wrong is named with its line."""

from __future__ import annotations

from pathlib import Path

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


def test_readings_take_over_what_they_do_not_say() -> None:
    claim = only(GOOD)
    (reading,) = claim.readings
    assert (claim.id, claim.place, claim.epsilon, claim.delta) == ("a", "Table 1", 2.0, 1e-5)
    assert reading.schedule == 100 * Round(2.0, Poisson(0.1))
    assert (reading.noise_by, reading.clip_from) == (NoiseBy.SERVER, ClipFrom.CONSTANT)
    assert claim.line == 4
    fixed, twice = only(GOOD + BELOW).readings
    assert fixed.schedule == 100 * Round(2.0, Uniform(50, 500))
    assert (fixed.role, fixed.noise_by, fixed.divisor) == (
        Role.RUN, NoiseBy.CLIENTS, Divisor.REALIZED,
    )  # fmt: skip
    assert twice.schedule == 100 * Round(4.0, Poisson(0.1))
    assert twice.role is Role.STATED
    assert (fixed.line, twice.line) == (15, 26)


def test_delta_may_be_said_in_clients() -> None:
    values = {"num_clients^-1.1": 500**-1.1, "1/num_clients": 0.002, "0.1/num_clients": 0.0002}
    for words, value in values.items():
        claim = only(GOOD.replace("delta = 1e-5", f'delta = "{words}"\nnum_clients = 500'))
        assert (claim.delta, claim.delta_words) == (value, words)


def test_lines_are_those_of_the_file_whatever_stands_above() -> None:
    text = GOOD.replace(
        'name = "A paper"', 'name = "A paper"\nabout = """\n[[claim]]\nrounds = 3\n"""'
    ).replace("rounds = 100", "rounds = 0")
    with pytest.raises(InvalidParameter, match=r"line 13: rounds is 0; the number of rounds"):
        parse_claims(text, "a.toml")


BAD = [
    ("rounds = 100\n", "", "line 4: rounds is missing"),
    ("sampling = ", "sampling_ = ", "line 10: 'sampling_' is not one of id"),
    ('adjacency = "add-remove"\n', "", "line 4: adjacency is missing: one of add-remove, repl"),
    ('id = "a"\n', "", "line 4: id is missing"),
    ("delta = 1e-5\n", "", "line 4: delta is missing"),
    ("noise_multiplier = 2.0\n", "", "line 4: a noise multiplier is missing"),
    ('name = "A paper"\n', "", "line 1: name is missing"),
    ('[source]\nname = "A paper"\n', "", r"line 1: \[source\] is missing"),
    ("sampling_rate = 0.1\n", "", "line 4: sampling_rate is missing, for poisson"),
    ("rounds = 100", "rounds = 0", "line 9: rounds is 0; the number of rounds"),
    ("rounds = 100", "rounds = 1.5", "line 9: rounds is 1.5"),
    ("epsilon = 2", "epsilon = -2", "line 7: epsilon is -2; a target epsilon"),
    ("epsilon = 2", 'epsilon = "2"', "line 7: epsilon is '2'; it has to be a number"),
    ("epsilon = 2", "epsilon = nan", "line 7: epsilon is nan"),
    ("delta = 1e-5", "delta = 1", r"line 8: delta is 1; delta lies in \(0, 1\)"),
    ("delta = 1e-5", 'delta = "n^-2"\nnum_clients = 9', "line 8: delta is 'n\\^-2'; it is a"),
    ("delta = 1e-5", 'delta = "1/num_clients"', "line 8: delta in terms of num_clients needs"),
    ("sampling_rate = 0.1", "sampling_rate = 10", r"line 11: sampling_rate is 10.*\(10 %\)"),
    ('"poisson"', '"posson"', "line 10: sampling is 'posson'; it is one of poisson"),
    ('"poisson"', '"full"', "line 10: sampling is 'full'; all clients take part"),
    ('"poisson"', '"uniform"', "line 4: cohort_size is missing, for uniform"),
    ('"poisson"', '"poisson"\ncohort_size = 3', "line 11: cohort_size is 3; Poisson cohorts"),
    ('"add-remove"', '"replace"', "line 12: adjacency is 'replace'; an adjacency is one of"),
    ("noise_multiplier = 2.0", "noise_multiplier = -2.0", "line 13: noise_multiplier is -2.0"),
    ("noise_multiplier", "sigma", "line 13: 'sigma' is not a key of this.*mean noise_multiplier"),
    ("noise_multiplier", "noise_std", "line 4: clip_norm is missing"),
    ("[[claim]]", "[claim]", r"each claim stands below \[\[claim\]\], with two brackets"),
    ("= 2.0", '= 2.0\nnoise_by = "us"', "line 14: noise_by is 'us'; it is one of server"),
    ("= 2.0", "= 2.0\n[[claim.reading]]\nrole = 1", "line 15: role is 1; it is one of stated"),
    ("= 2.0", "= 2.0\n[[claim.reading]]\nrounds = -1", "line 15: rounds is -1"),
    ("= 2.0", "= 2.0\n[[statement]]\nholds = 'yes'", "line 14: place is missing in this"),
    ("delta = 1e-5", "delta = ", "not valid TOML.*line 8"),
    ('"Table 1"', '"Table\\u0007"', "line 6: place is at most"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "message"), BAD)
def test_bad_input_is_named_with_its_line(before: str, after: str, message: str) -> None:
    assert before in GOOD
    with pytest.raises(InvalidParameter, match=message) as caught:
        parse_claims(GOOD.replace(before, after, 1), "a.toml")
    assert caught.value.value == "a.toml"


MIXED = [
    ("noise_std = 4.0\nclip_norm = 1.0", "divided by the sensitivity 2 x clip_norm"),
    ("noise_std = 4.0\nclip_norm = 2.0", None),
    ("noise_std = 1.0\nclip_norm = 1.0", "divided by half the clip norm"),
    ("noise_variance = 4.0\nclip_norm = 1.0", None),
    ("noise_variance = 2.0\nclip_norm = 1.0", "The variance was divided by clip_norm; its root"),
    ("noise_std = 1.0\nclip_norm = 0.25\nnum_clients = 1000", "clip_norm. Div|looks|itself"),
    ("noise_std = 0.02\nclip_norm = 1.0\nnum_clients = 1000", 'noise_on = "mean"'),
    ('noise_std = 0.02\nclip_norm = 1.0\nnum_clients = 1000\nnoise_on = "mean"', None),
    ('noise_std = 2.0\nclip_norm = 1.0\nnum_clients = 1000\nnoise_on = "mean"', "on the sum"),
    ("noise_variance = 2.0\nclip_norm = 1.0", "or it is a standard deviation: name it noise_std"),
    (
        'noise_variance = 0.02\nclip_norm = 0.5\nnum_clients = 500\nnoise_on = "mean"',
        "name it noise_std",
    ),
    ("noise_std = 2.0\nclip_norm = 7.0", "not divided by clip_norm"),
    ("noise_std = 36.0\nclip_norm = 3.0", "looks like a variance: name it noise_variance"),
    ("noise_std = 2.0\nclip_norm = 1.0\nsensitivity = 1.0", None),
    ("noise_std = 2.0\nclip_norm = 1.0\nsensitivity = 2.0", "2 x clip_norm, as under another"),
    ("clip_norm = 1.0\nsensitivity = 5.0", "one client moves the sum by up to 1 x clip_norm"),
    ("sensitivity = 5.0", "compared with the clip norm, which is missing"),
    ("noise_std = 2.0\nnoise_variance = 2.0\nclip_norm = 1", "Is one of them the other"),
    ('noise_std = 2.0\nclip_norm = 1.0\nnoise_on = "mean"', "Give num_clients"),
    ('noise_std = 2.0\nclip_norm = 1.0\nnoise_on = "it"', "it is one of sum, mean, client"),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), MIXED)
def test_units_that_are_mixed_up_are_named(more: str, message: str | None) -> None:
    text = f"{GOOD}{more}\n"
    if message is None:
        assert parse_claims(text, "a.toml").claims[0].readings[0].round.noise_multiplier == 2.0
        return
    with pytest.raises(InvalidParameter, match=rf"line 1\d: .*({message})"):
        parse_claims(text, "a.toml")


def test_the_sensitivity_goes_with_the_adjacency() -> None:
    fixed = GOOD.replace('"poisson"\nsampling_rate = 0.1', '"uniform"\ncohort_size = 10')
    fixed += "num_clients = 100\nclip_norm = 0.5\nsensitivity = {}\n"
    for adjacency, times in {"replace-one": 2, "add-remove": 2, "zero-out": 1}.items():
        text = fixed.replace("add-remove", adjacency)
        assert parse_claims(text.format(times * 0.5), "a.toml").claims
        with pytest.raises(InvalidParameter, match=f"up to {times} x clip_norm, {times * 0.5:g}"):
            parse_claims(text.format((3 - times) * 0.5), "a.toml")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    again = GOOD[GOOD.index("[[claim]]") :]
    with pytest.raises(InvalidParameter, match="line 15: another claim is called 'a'"):
        parse_claims(GOOD + again, "a.toml")
    for name, content, words in (
        ("bytes.toml", b"\xff\xfe\x00", "UTF-8"),
        ("empty.toml", b'[source]\nname = "A"\n', "there is no claim"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidParameter, match=words):
            load_claims(tmp_path / name)
    with pytest.raises(InvalidParameter, match="cannot be read"):
        load_claims(tmp_path / "none.toml")


@pytest.mark.parametrize("rounds", ["9" * 5000, "0x" + "f" * 20_000, "-" + "9" * 4000])
def test_numbers_without_end_are_refused_in_words(rounds: str) -> None:
    with pytest.raises(InvalidParameter) as refused:
        parse_claims(GOOD.replace("rounds = 100", f"rounds = {rounds}"), "a.toml")
    assert len(str(refused.value)) < 400


def test_noise_of_each_client_adds_up_by_its_squares() -> None:
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
    with pytest.raises(InvalidParameter, match="needs the number of clients"):
        parse_claims(shared.replace("num_clients = 16", ""), "a.toml")
