from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct import Sampled, best_of
from dpacct.errors import InvalidParameter
from dpacct.mechanisms import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    ZeroConcentratedDP,
)
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from dpacct.schedules import constant, dump_schedule, load_schedule, steps
from tests.strategies import FEWER, schedules

Q = Poisson(0.1)
SUFFIXES = ["toml", "csv", "json"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@FEWER
@given(schedule=schedules())
def test_what_is_written_is_read_back_equal(tmp_path_factory, suffix, schedule):
    file = tmp_path_factory.mktemp("schedules") / f"plan.{suffix}"
    dump_schedule(schedule, file)
    assert load_schedule(file) == schedule
    assert load_schedule(str(file)) == schedule


@pytest.mark.parametrize("suffix", ["TOML", "Csv", "JSON"])
def test_the_case_of_the_suffix_does_not_matter(tmp_path, suffix):
    dump_schedule(constant(3, 1.0, Q), tmp_path / f"plan.{suffix}")
    assert load_schedule(tmp_path / f"plan.{suffix}") == constant(3, 1.0, Q)


def test_the_three_formats_have_the_same_words(tmp_path):
    schedule = steps([(3, 0.1, Q), (2, 1 / 3, Poisson(1e-7)), (1, 2.0)])
    for suffix in SUFFIXES:
        dump_schedule(schedule, tmp_path / f"plan.{suffix}")
    toml = tomllib.loads((tmp_path / "plan.toml").read_text(encoding="utf-8"))
    assert toml == json.loads((tmp_path / "plan.json").read_text(encoding="utf-8"))
    assert toml["adjacency"] == "add-remove"
    assert toml["phase"][1] == {
        "rounds": 2,
        "noise_multiplier": 1 / 3,
        "sampling": "poisson",
        "sampling_rate": 1e-07,
    }
    assert (tmp_path / "plan.csv").read_text(encoding="utf-8").splitlines()[:2] == [
        "rounds,noise_multiplier,sampling,sampling_rate,cohort_size,num_clients,adjacency",
        "3,0.1,poisson,0.1,,,add-remove",
    ]


@pytest.mark.parametrize(
    ("keys", "round_"),
    [
        ({}, Round(1.0, Full())),
        ({"sampling": "full"}, Round(1.0, Full())),
        ({"sampling_rate": 0.1}, Round(1.0, Q)),
        ({"sampling_rate": 1}, Round(1.0, Poisson(1.0))),
        ({"sampling": "poisson", "sampling_rate": 0.1}, Round(1.0, Q)),
        ({"cohort_size": 5, "num_clients": 100}, Round(1.0, Uniform(5, 100))),
        ({"sampling": "uniform", "sampling_rate": 0.05}, Round(1.0, Uniform(1, 20))),
    ],
)
def test_the_scheme_follows_from_the_keys(tmp_path, keys, round_):
    entry = {"rounds": 7, "noise_multiplier": 1} | keys
    (tmp_path / "plan.json").write_text(json.dumps({"phase": [entry]}), encoding="utf-8")
    header, row = ",".join(entry), ",".join(map(str, entry.values()))
    (tmp_path / "plan.csv").write_text(f"{header}\n{row}\n", encoding="utf-8")
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in entry.items())
    (tmp_path / "plan.toml").write_text(f"[[phase]]\n{lines}\n", encoding="utf-8")
    for suffix in SUFFIXES:
        assert load_schedule(tmp_path / f"plan.{suffix}") == 7 * round_


def test_spreadsheets_and_editors_may_add_what_does_not_matter(tmp_path):
    file = tmp_path / "plan.csv"
    file.write_bytes(
        b"\xef\xbb\xbfrounds, noise_multiplier ,sampling_rate\r\n"
        b"1e2, 1.5 ,.1\r\n\r\n,,\r\n +3 ,2.,1E-1\r\n"
    )
    assert load_schedule(file) == 100 * Round(1.5, Q) + 3 * Round(2.0, Q)
    file = tmp_path / "plan.toml"
    file.write_text(
        "\ufeff# a comment\n[[phase]]\nrounds = 3\nnoise_multiplier = 1\n", encoding="utf-8"
    )
    assert load_schedule(file) == 3 * Round(1.0)


def test_the_adjacency_of_a_file_holds_for_all_its_phases(tmp_path):
    file = tmp_path / "plan.csv"
    file.write_text(
        "rounds,noise_multiplier,cohort_size,num_clients,adjacency\n"
        "1,1,,,zero-out\n2,2,1,10,zero-out\n",
        encoding="utf-8",
    )
    expected = Round(1.0, Full(), "zero-out") + 2 * Round(2.0, Uniform(1, 10), "zero-out")
    assert load_schedule(file) == expected


PHASE = "[[phase]]\nrounds = 3\nnoise_multiplier = 1\n"
HEADER = "rounds,noise_multiplier\n"


@pytest.mark.parametrize(
    ("suffix", "text", "words"),
    [
        ("toml", "", "empty"),
        ("toml", "x =", "not valid TOML"),
        ("toml", "adjacency = 'add-remove'\n", "at least one phase"),
        ("toml", "phase = 3", "phase is a list of tables"),
        ("toml", "noise_multiplier = 1", "in phase 1 rounds is missing"),
        ("toml", "rounds = 3\nnoise = 2\nx = 1", "another tool, and no phase. Did you mean [["),
        ("toml", "x = 3\n" + PHASE, "the key 'x' is not one of adjacency, phase, rounds"),
        ("toml", PHASE + "sigma = 2", "in phase 1 the key 'sigma' is not one of rounds, "),
        ("toml", PHASE + "sigma = 2", "Did you mean noise_multiplier?"),
        ("toml", PHASE + "adjacency = 'zero-out'", "in phase 1 the key 'adjacency'"),
        ("toml", PHASE + PHASE.replace("3", "2.5"), "in phase 2 rounds is 2.5: the number"),
        ("toml", PHASE.replace("3", "1000000000000") * 2, "rounds is 2000000000000"),
        ("toml", PHASE.replace("= 1", "= true"), "in phase 1 noise_multiplier is True: "),
        ("toml", "[[phase]]\nrounds = 3", "in phase 1 noise_multiplier is missing"),
        ("toml", PHASE + "sampling = 'cyclic'", "sampling is 'cyclic': sampling is one of poisson"),
        (
            "toml",
            PHASE + "sampling = 'full'\nsampling_rate = 0.1",
            "that takes no rate and no cohort",
        ),
        ("toml", PHASE + "cohort_size = 3", "takes cohort_size and num_clients, or sampling_rate"),
        ("toml", PHASE + "cohort_size = 3\nnum_clients = 2", "cohort_size is 3: a cohort"),
        (
            "toml",
            PHASE + "cohort_size = 1\nnum_clients = 2\nsampling_rate = 0.5",
            "sampling is 'poisson': that takes sampling_rate, and the phase has sampling_rate, ",
        ),
        ("toml", "adjacency = 'x'\n" + PHASE, "adjacency is 'x': an adjacency is one of"),
        (
            "toml",
            PHASE + PHASE + "cohort_size = 1\nnum_clients = 2",
            "in phase 2 adjacency is 'replace-one': all rounds",
        ),
        ("csv", "rounds,sigma\n1,2\n", "the key 'sigma' is not one of"),
        ("csv", HEADER, "at least one phase"),
        ("csv", HEADER + "1,2,3\n", "phase 1 has 3 cells, and the header has 2"),
        ("csv", HEADER + "1,2\n3\n", "in phase 2 noise_multiplier is missing"),
        ("csv", "rounds,rounds\n1,1\n", "twice"),
        ("csv", HEADER + "1_0,2\n", "in phase 1 rounds is '1_0': "),
        ("csv", HEADER + "1,1e999\n", "in phase 1 noise_multiplier is inf: "),
        ("csv", HEADER + '1,"2\n', "not valid CSV"),
        ("csv", HEADER[:-1] + ",adjacency\n1,2,zero-out\n1,2,add-remove\n", "the same adjacency"),
        ("json", "{", "not valid JSON"),
        ("json", "[]", 'one object with the key "phase"'),
        ("json", '{"phase": [{"rounds": 1, "rounds": 2}]}', "the key 'rounds' occurs twice"),
        ("json", "[" * 10**5, "not valid JSON"),
        ("json", '{"phase": [{"rounds": ' + "9" * 10**4 + "}]}", "not valid JSON"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path, monkeypatch, suffix, text, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f"plan.{suffix}").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidParameter) as caught:
        load_schedule(f"plan.{suffix}")
    message = str(caught.value)
    assert message.startswith(f"schedule is 'plan.{suffix}'; ")
    assert words in message
    assert "\n" not in message
    assert len(message) < 300
    assert caught.value.name == "schedule"


def test_bytes_that_are_no_text_are_refused(tmp_path):
    for suffix in SUFFIXES:
        (tmp_path / f"plan.{suffix}").write_bytes(b"\xff\xfe\x00\x01")
        with pytest.raises(InvalidParameter, match="UTF-8"):
            load_schedule(tmp_path / f"plan.{suffix}")


@pytest.mark.parametrize("name", ["plan.txt", "plan", ".toml", "plan.toml.bak"])
def test_an_unknown_suffix_is_refused(tmp_path, name):
    for act in (load_schedule, lambda path: dump_schedule(constant(1, 1.0), path)):
        with pytest.raises(InvalidParameter, match=r"ends in \.toml, \.csv, \.json"):
            act(tmp_path / name)


def test_files_that_cannot_be_opened_are_refused(tmp_path):
    (tmp_path / "folder.toml").mkdir()
    for path in (tmp_path / "missing.toml", tmp_path / "folder.toml"):
        with pytest.raises(InvalidParameter, match="cannot be read"):
            load_schedule(path)
    for path in (tmp_path / "nowhere" / "plan.csv", tmp_path / "folder.toml"):
        with pytest.raises(InvalidParameter, match="cannot be written"):
            dump_schedule(constant(1, 1.0), path)


def test_a_schedule_without_rounds_is_not_written(tmp_path):
    with pytest.raises(InvalidParameter, match="at least one phase"):
        dump_schedule(Schedule(), tmp_path / "plan.toml")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(text=st.text())
def test_any_text_is_read_or_refused(tmp_path_factory, suffix, text):
    file = tmp_path_factory.mktemp("schedules") / f"plan.{suffix}"
    file.write_text(text, encoding="utf-8", newline="", errors="surrogatepass")
    with pytest.raises(InvalidParameter) as caught:
        load_schedule(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "a\0.toml"])
def test_a_name_that_no_file_can_have_is_rejected(name):
    with pytest.raises(InvalidParameter, match="it has to name a file"):
        load_schedule(name)


MIXED = (
    1000 * Round(1.0, Poisson(0.01))
    + 20 * Laplace(epsilon=0.1)
    + RandomizedResponse(0.5)
    + PureDP(0.2, source="a paper")
    + ApproximateDP(0.2, 1e-7)
    + ZeroConcentratedDP(0.01)
    + 3 * DiscreteLaplace(5.0, 2)
    + ExponentialMechanism(0.1)
)
NESTED = 3 * Sampled(2 * Laplace(1.0), 0.5) + best_of(3 * Round(4.0), "poisson:3")


@pytest.mark.parametrize(
    ("suffix", "plan"), [*((suffix, MIXED) for suffix in SUFFIXES), ("toml", NESTED)]
)
def test_mechanisms_are_written_by_name_and_read_back(
    tmp_path: Path, suffix: str, plan: Schedule
) -> None:
    file = tmp_path / f"plan.{suffix}"
    dump_schedule(plan, file)
    assert load_schedule(file) == plan


def test_a_vector_is_a_list_and_no_cell(tmp_path: Path) -> None:
    vector = 2 * DiscreteGaussian(3.0, (1, -1))
    for suffix in ("toml", "json"):
        dump_schedule(vector, tmp_path / f"plan.{suffix}")
        assert load_schedule(tmp_path / f"plan.{suffix}") == vector
    with pytest.raises(InvalidParameter, match="one value"):
        dump_schedule(vector, tmp_path / "plan.csv")


def test_rounds_is_another_name_of_the_list_and_one_release_needs_no_count(tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text('[[rounds]]\nmechanism = "laplace"\nepsilon = 0.1\n')
    assert load_schedule(file) == 1 * Laplace(epsilon=0.1)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('mechanism = "gumbel"', "in phase 1 mechanism is 'gumbel': a mechanism is one of laplace"),
        ('mechanism = "laplace"\neps = 1', "in phase 1 the key 'eps' is not one of rounds, mech"),
        ('mechanism = "zcdp"', "in phase 1 rho is missing"),
        ('mechanism = "zcdp"\nrho = -1', "in phase 1 rho is -1: "),
        ('mechanism = "laplace"', "in phase 1 Laplace noise has either"),
    ],
)
def test_a_bad_mechanism_is_refused_by_key_and_value(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(f"[[phase]]\n{text}\n")
    with pytest.raises(InvalidParameter) as caught:
        load_schedule(file)
    assert words in str(caught.value)


def test_the_keys_of_one_phase_are_that_phase(tmp_path: Path) -> None:
    keys = {"adjacency": "zero-out", "rounds": 25, "noise_multiplier": 1, "sampling_rate": 0.5}
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in keys.items())
    for name, text in (("plan.toml", lines), ("plan.json", json.dumps(keys))):
        (tmp_path / name).write_text(text)
        assert load_schedule(tmp_path / name) == 25 * Round(1.0, Poisson(0.5), "zero-out")


def test_an_answer_in_json_is_read_for_its_phases(tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    phases = [{"rounds": 3, "noise_multiplier": 1, "sampling_rate": 0.1}]
    answer = {"schema": 1, "epsilon": {"lower": 1, "upper": 2}, "adjacency": "zero-out"}
    file.write_text(json.dumps(answer | {"phases": phases}))
    assert load_schedule(file) == 3 * Round(1.0, Q, "zero-out")


# Settings as other tools write them, and the phase that the refusal shows.
_TUNED = """{"dp": {"sigma": 0.8, "batch_size": 256, "num_examples": 51200, "epochs": 2,
"delta": 1e-6}}"""
_ACCUMULATED = """noise: 2
per_device_train_batch_size: 8
gradient_accumulation_steps: 128
num_examples: 10240
max_steps: 9
"""
_OPTIONS = (
    "rounds = 400, with the batch of one optimizer step? As options: --noise 0.8 --q 0.005 "
    "--rounds 400 --delta 1e-06."
)
SETTINGS = [
    (
        "a.yaml",
        "rounds: 25\nnoise_multiplier: 1.0\nsample_rate: 0.667\n",
        "Did you mean [[phase]] with noise_multiplier = 1, sampling_rate = 0.667, rounds = 25?",
    ),
    (
        "a.toml",
        "[tool.app.config]\nnum-server-rounds = 3\nfraction-fit = 0.5\nlr = 0.1\n",
        "noise_multiplier = ..., sampling_rate = 0.5, rounds = 3?",
    ),
    ("a.json", _TUNED, f"noise_multiplier = 0.8, sampling_rate = 0.005, {_OPTIONS}"),
    ("a.yml", _ACCUMULATED, "noise_multiplier = 2, sampling_rate = 0.1, rounds = 9"),
    (
        "b.toml",
        "sigma = 1\nclients_per_round = 10\nnum_clients = 100\nnum_rounds = 5\n",
        "noise_multiplier = 1, sampling_rate = 0.1, rounds = 5",
    ),
    (
        "b.yaml",
        "z: 1\ncohort_size: 10\npopulation: 40\nepochs: 5\n",
        "noise_multiplier = 1, sampling_rate = 0.25, rounds = 20",
    ),
]


@pytest.mark.parametrize(("name", "text", "words"), SETTINGS, ids=[n for n, *_ in SETTINGS])
def test_settings_of_other_tools_are_refused_with_what_they_mean(
    tmp_path: Path, name: str, text: str, words: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidParameter) as caught:
        load_schedule(tmp_path / name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_without_noise_and_rate_are_refused_plainly(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("lr: 0.1\nepochs: 3\n")
    with pytest.raises(InvalidParameter, match=r"a schedule file ends in \.toml, \.csv, \.json\.$"):
        load_schedule(tmp_path / "a.yaml")
