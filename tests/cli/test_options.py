"""The options that describe what runs: none without effect, each in every command."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from dpacct.errors import DpacctError
from dpacct_cli import errors, words
from dpacct_cli.app import ENTRIES, load
from dpacct_cli.options import _NAMES, MECHANISM, MechanismOptions

# Something that runs, of each kind.
RUNS: dict[str, dict[str, str]] = {
    "poisson": {"noise_multiplier": "2", "rounds": "20", "sampling_rate": "0.1"},
    "by epochs": {"noise_multiplier": "2", "epochs": "2", "cohort_size": "5", "num_clients": "50"},
    "uniform": {
        "noise_multiplier": "2", "rounds": "20", "sampling": "uniform", "cohort_size": "5",
        "num_clients": "50", "adjacency": "zero-out",
    },
    "full": {"noise_multiplier": "9", "rounds": "20", "sampling": "full"},
    "allocation": {"noise_multiplier": "2", "sampling": "allocation", "steps": "20"},
    "shuffle": {"noise_multiplier": "9", "sampling": "shuffle", "steps": "20"},
    "correlated": {
        "noise_multiplier": "9", "rounds": "20", "strategy": "square-root", "min_separation": "5",
        "bands": "5",
    },
    "best of": {"noise_multiplier": "9", "rounds": "3", "sampling": "full", "runs": "poisson:3"},
    "laplace": {"laplace": "0.1"},
    "release": {"release": "zcdp:rho=0.01", "times": "2"},
    "file": {"schedule": "plan.csv"},
}  # fmt: skip
# A value of each option that none of them has.
VALUES = {
    "noise_multiplier": "3", "rounds": "21", "epochs": "3", "sampling_rate": "0.2",
    "schedule": "other.csv", "sampling": "uniform", "cohort_size": "6", "num_clients": "60",
    "adjacency": "replace-one", "runs": "geometric:4", "participations": "3", "min_separation": "6",
    "bands": "4", "strategy": "independent", "steps": "21", "passes": "2", "max_cohort": "7",
    "reveals_size": "mean",
    "rate": "0.3", "records": "3", "release": "laplace:epsilon=1", "laplace": "0.2", "times": "3",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.csv").write_text("rounds,noise_multiplier\n20,9\n", encoding="utf-8")
    Path("other.csv").write_text("rounds,noise_multiplier\n20,8\n", encoding="utf-8")


def doors() -> dict[str, Any]:
    """The commands that describe what runs."""
    found: dict[str, Any] = {}
    for name, entry in ENTRIES.items():
        command = load(name, entry)
        for below, each in getattr(command, "commands", {"": command}).items():
            if any("--best-of" in param.opts for param in each.params):
                found[f"{name} {below}".strip()] = each
    return found


def test_every_value_is_new_and_every_option_has_one() -> None:
    assert VALUES.keys() == MECHANISM.keys()
    for run in RUNS.values():
        assert all(VALUES[field] != text for field, text in run.items() if field != "sampling")


def test_every_command_has_every_option() -> None:
    commands = doors()
    assert len(commands) >= 18
    for name, command in commands.items():
        known = {option for param in command.params for option in param.opts}
        assert {*_NAMES.values()} <= known, name


@pytest.mark.parametrize("field", MECHANISM)
@pytest.mark.parametrize("run", RUNS)
def test_an_option_changes_what_runs_or_is_refused_as_typed(run: str, field: str) -> None:
    before = MechanismOptions(**RUNS[run])
    after = before.but(**{field: VALUES[field]})
    plan = before.read_schedule()
    try:
        changed = after.read_schedule()
    except DpacctError as error:
        typed = [_NAMES[each] for each in after.fields()]
        words.record(shlex.split(after.retyped()), load("epsilon", ENTRIES["epsilon"]).params)
        line = errors.line(error)
        words.forget()
        # The line begins with an option that was typed, or says what is missing beside them.
        assert line.startswith(tuple(typed)) or "is missing" in line, line
        return
    if RUNS[run].get(field) == VALUES[field]:
        assert changed == plan
    elif field == "num_clients":
        assert before.described(plan) != after.described(changed)
    else:
        assert changed != plan or changed.adjacency is not plan.adjacency


@pytest.mark.parametrize(
    "command",
    ["rdp", "risk", "plot eps", "plot schedule", "plot compare", "ledger charge a.ledger"],
)
def test_a_population_that_no_number_depends_on_is_refused(dpacct: Any, command: str) -> None:
    dpacct("ledger init a.ledger --eps 8")
    for run in ("--q 0.1 --rounds 3", "--sampling full --rounds 3", "--laplace 1"):
        noise = "" if "laplace" in run else "--noise 2"
        ran = dpacct(f"{command} {run} {noise} --clients 9")
        assert ran.code == 2
        assert "--clients 9 changes nothing" in ran.err


def test_what_was_not_typed_is_not_named_as_an_option(dpacct: Any) -> None:
    assert dpacct("ledger init a.ledger --eps 8 --adjacency zero-out").code == 0
    charged = "ledger charge a.ledger --noise 5 --rounds 3 --sampling uniform --q 0.1 --json"
    assert dpacct(charged).json["adjacency"] == "zero-out"
    refused = dpacct(
        "ledger charge a.ledger --noise 5 --rounds 3 --q 0.1 --max-cohort 3 --clients 9"
    )
    assert refused.code == 2
    assert refused.err.startswith("dpacct: adjacency is 'zero-out';")
    drawn = dpacct("plot schedule --correlated square-root --rounds 57 --separation 3 --noise 2")
    assert "57 rounds" in drawn.text
    refused = dpacct("plot schedule --laplace 1")
    assert refused.code == 2
    assert "--schedule" not in refused.err
    scaled = dpacct("calibrate --eps 2 --laplace 0.1")
    assert "scale of the noise / largest l1 norm" in scaled.text
    refused = dpacct("calibrate --eps 2 --release zcdp:rho=1")
    assert refused.err.startswith("dpacct: schedule is 'a promise of 1-zCDP'; none of its")
    refused = dpacct("calibrate --eps 2 --solve q --noise 2 --laplace 1 --rounds 3")
    assert "(only rounds have a rate to solve for)" in refused.err


def test_what_has_no_rounds_is_not_counted_in_rounds(dpacct: Any, folder: Path) -> None:
    phases = '[[phase]]\nmechanism = "laplace"\nepsilon = 0.1\nrounds = 20\n'
    rounds = "[[phase]]\nrounds = 1000\nnoise_multiplier = 20\nsampling_rate = 0.01\n"
    (folder / "plan.toml").write_text(rounds + phases, encoding="utf-8")
    for command in ("report --format md", "plot tradeoff", "plot eps", "epsilon"):
        words = dpacct(f"{command} --schedule plan.toml").text
        assert "1,020 releases" in words
        assert "1,020 rounds" not in words
