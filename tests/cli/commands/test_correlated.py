"""Correlated noise on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RUN = "--correlated square-root --rounds 2000 --bands 100 --separation 100 --participations 20"


def test_calibration_of_a_run(dpacct: Any) -> None:
    found = dpacct(f"calibrate --eps 8 {RUN} --json").json
    assert found["noise_multiplier"] == pytest.approx(4.270792, abs=2e-6)
    assert found["epsilon"]["upper"] <= 8.0
    assert found["phases"][0] == {
        "rounds": 1,
        "mechanism": "correlated",
        "noise_multiplier": found["noise_multiplier"],
        "strategy": "square-root",
        "steps": 2000,
        "bands": 100,
        "min_separation": 100,
        "participations": 20,
    }
    text = dpacct(f"calibrate --eps 8 {RUN}").text
    assert "4.270793" in text
    assert "2000 rounds of correlated noise (square-root), 100 bands, 100 rounds apart" in text
    assert "up to 20 participations, add-remove a client" in text
    assert "13.319" in text


@pytest.mark.parametrize("kind", ["square-root", "buffered-toeplitz"])
def test_fewer_participations_need_less_noise(dpacct: Any, kind: str) -> None:
    run = f"--eps 8 --rounds 60 --correlated {kind} --separation 10"
    every, six, three = (
        dpacct(f"calibrate {run} {more} --json").json
        for more in ("", "--participations 6", "--participations 3")
    )
    assert every == six
    assert three["noise_multiplier"] < 0.8 * six["noise_multiplier"]
    assert three["phases"][0]["participations"] == 3
    text = dpacct(f"calibrate {run} --participations 3").text
    assert "up to 3 participations" in text


def test_a_file_says_the_same(dpacct: Any, tmp_path: Path) -> None:
    found = dpacct(f"calibrate --eps 8 {RUN} --json").json
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"adjacency": "add-remove", "phase": found["phases"]}))
    again = dpacct(f"epsilon --schedule {file} --json").json
    assert again["epsilon"]["upper"] == pytest.approx(found["epsilon"]["upper"], rel=1e-12)


@pytest.mark.parametrize("command", ["epsilon", "delta --eps 8", "risk", "compare", "rdp"])
def test_every_question_has_an_answer(dpacct: Any, command: str) -> None:
    assert dpacct(f"{command} --noise 4.27 {RUN} --json").json


def test_sampling_in_groups(dpacct: Any) -> None:
    line = "--correlated square-root --rounds 200 --bands 8 --separation 8 --q 0.04 --noise 2"
    text = dpacct(f"epsilon {line}").text
    assert "8 rounds apart, Poisson sampling at rate 0.04 in groups" in text
    alone = dpacct("epsilon --noise 2 --rounds 25 --q 0.04 --json").json["epsilon"]["upper"]
    # Columns of the square root are longer than 1.
    assert dpacct(f"epsilon {line} --json").json["epsilon"]["upper"] > alone


@pytest.mark.parametrize("kind", ["buffered-toeplitz --bands 2", "optimized --bands 4"])
def test_searches_beat_independent_noise(dpacct: Any, kind: str) -> None:
    run = "--rounds 60 --separation 10 --eps 4"
    error = {
        name: float(
            dpacct(f"calibrate --correlated {name} {run}").text.split("error")[1].split()[0]
        )
        for name in (kind, "independent")
    }
    assert error[kind] < 0.6 * error["independent"]
