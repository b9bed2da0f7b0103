"""The options that describe what runs: none without effect, each in every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, Ledger, Round
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


# A command line of each command that trains nothing, short, and a value of each option that is its
# own. What takes a file is said for that command.
RUN = "--noise 9 --rounds 20 --sampling full"
LINES = {
    **dict.fromkeys(("epsilon", "risk", "rdp", "compare", "report", "explore"), RUN),
    **{f"plot {kind}": RUN for kind in ("eps", "delta", "tradeoff", "rdp", "schedule", "compare")},
    **{f"ledger {kind}": "a.ledger" for kind in ("show", "verify", "report", "export")},
    "calibrate": "--eps 2 --rounds 20 --sampling full", "delta": f"{RUN} --eps 1",
    "certify": f"{RUN} --eps 9", "claims check": "fed-alpha-normec-p0.25", "claims list": "",
    "ledger init": "b.ledger --eps 3", "ledger finish": "a.ledger --run 1",
    "ledger remaining": f"a.ledger {RUN}", "ledger charge": f"a.ledger {RUN}",
    "plot samplings": "--examples 200 --batch 20 --epochs 2 --noise 2",
    "plot ledger": "a.ledger", "plot train": "one.report.jsonl",
}  # fmt: skip
TYPED = {
    "--eps": "2.5", "--delta": "1e-6", "--solve": "rounds", "--advantage": "0.2", "--tpr": "0.2",
    "--fpr": "0.2", "--fixed": "plan.csv", "--accountant": "rdp", "--from": "plan.csv",
    "--claim": "3", "--gdp": "1e-6", "--prior": "0.2", "--orders": "3", "--unit": "patient",
    "--promised-delta": "1e-6", "--partition": "country=DE,FR", "--head": "0" * 64,
    "--format": "registry", "--title": "T", "--author": "A", "--date": "2026", "--name": "n",
    "--project": "p", "--part": "country=DE", "--run": "2", "--bits": "300",
    "--output": "out.md", "explore --output": "out.csv", "plot --output": "out.svg",
    "--clients": "50", "--json": "", "--quiet": "", "--certify": "", "--by-theorem": "",
    "--adjacency": "replace-one", "--against": "round",
}  # fmt: skip
NEEDS = {"certify": "flint", "claims check": "flint", "plot": "plotext"}
# Times, dates and hashes differ from run to run.
# What commands do without an option, for all tests of their options.
PLAIN: dict[str, tuple[Any, ...]] = {}
VARYING = re.compile(r'[\d.]+ m?s\b|"seconds": [\d.e-]+|[0-9a-f]{64}|20\d\d-\d\d-\d\d[T ][\d:.]+')


def own_options() -> Iterator[Any]:
    """Each command with its options that describe nothing that runs, and with --clients."""
    for name, entry in ENTRIES.items():
        command = load(name, entry)
        for below, each in getattr(command, "commands", {"": command}).items():
            door = f"{name} {below}".strip()
            needs = NEEDS.get(door, NEEDS.get(name))
            marks = [pytest.mark.needs(needs)] if needs else []
            for option in (param.opts[0] for param in each.params):
                # What is refused, and what an earlier verification saved, have their own tests.
                skipped = ("--over-budget", "--force", "--all", "--help-all")
                if door not in LINES or not option.startswith("--") or option in skipped:
                    continue
                if option not in _NAMES.values() or option == "--clients":
                    yield pytest.param(door, option, id=f"{door} {option}", marks=marks)


@pytest.mark.parametrize(("door", "option"), [*own_options()])
def test_no_option_of_a_command_is_without_effect(
    dpacct: Any, door: str, option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes what is printed, a file or the ledger, or the command is refused."""
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    report = '{"epsilon_upper": 2.0, "test_accuracy": 0.5, "delta": 1e-5}\n'
    value = TYPED.get(f"{door.split(maxsplit=1)[0]} {option}", TYPED.get(option))
    assert value is not None, f"{option} has no value in this table"
    done: list[tuple[Any, ...]] = []
    for more in ("", f"{option} {value}"):
        if not more and door in PLAIN:
            done.append(PLAIN[door])
            continue
        for file in (*Path().glob("?.ledger*"), *Path().glob("out.*")):
            file.unlink()
        Path("one.report.jsonl").write_text(report, encoding="utf-8")
        with Ledger.open("a.ledger", Budget(50, 1e-3)) as ledger:
            ledger.start_run("training", 30 * Round(9.0)).reserve(Round(9.0)).commit()
        line = re.sub(f"{option} \\S+", "", LINES[door]) if more else LINES[door]
        ran = dpacct(f"{door} {line} {more}")
        assert not ran.code or more, ran.err
        kept = [VARYING.sub("", ran.out), ran.err, sorted(path.name for path in Path().iterdir())]
        for file in ("a.ledger", "b.ledger") if not ran.code else ():
            if Path(file).exists():
                with Ledger.open(file, read_only=True) as ledger:
                    kept.append(VARYING.sub("", repr([*ledger.export()])))
        done.append((ran.code, *kept))
    PLAIN[door] = done[0]
    assert done[0] != done[1]


def test_what_takes_no_file_is_not_left_out() -> None:
    """Training, audits, attacks and ledgers in a database have tests of their own."""
    every = {param.id.rpartition(" ")[0] for param in own_options()}
    assert every == {*LINES}
    assert {*doors()} <= every | {"ledger request"}


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
    rounds = "[[phase]]\nrounds = 1000\nnoise_multiplier = 20\n"
    (folder / "plan.toml").write_text(rounds + phases, encoding="utf-8")
    for command in ("report --format md", "plot eps", "epsilon"):
        words = dpacct(f"{command} --schedule plan.toml").text
        assert "1,020 releases" in words
        assert "1,020 rounds" not in words


def test_the_noise_of_a_theorem_is_printed_with_its_true_epsilon(dpacct):
    """DP-Fed-LS, table 2: fixed cohorts of 50 of 1000 clients, 30 rounds, delta 1000^-1.1."""
    words = "calibrate --rounds 30 --cohort 50 --clients 1000 --sampling uniform --by-theorem"
    noises = [
        float(dpacct(f"{words} --delta {1000**-1.1} --eps {epsilon} -q").text) for epsilon in (6, 9)
    ]
    assert noises == pytest.approx([2.6934, 1.7524], abs=6e-5)
    data = dpacct(f"{words} --delta {1000**-1.1} --eps 6 --json").json
    assert 0.75 < data["epsilon"]["lower"] < data["epsilon"]["upper"] < 0.82
    assert data["accountant"] == "closed-form"
    assert "true epsilon" in dpacct(f"{words} --delta {1000**-1.1} --eps 6").text
