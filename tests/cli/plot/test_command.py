"""`dpacct plot`."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from dpacct_cli.options import MechanismOptions

PLAN = "--noise 1 --rounds 30 --q 0.1"
KINDS = ["eps", "delta", "tradeoff", "rdp", "schedule", "compare"]


@pytest.fixture(autouse=True)
def _no_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())


@pytest.mark.needs("plotext")
@pytest.mark.parametrize("kind", KINDS)
def test_text_is_drawn_without_a_file(
    dpacct: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = dpacct(f"plot {kind} {PLAN}").text
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= 40
    assert "add-remove" in text
    found = dpacct(f"plot {kind} {PLAN} --json").json
    assert found["title"] in " ".join(text.split())
    assert found["panels"]


def test_one_job_has_a_bar_for_each_sampling(dpacct: Any) -> None:
    job = "--examples 200 --batch 20 --epochs 2 --noise 2"
    found = dpacct(f"plot samplings {job} --json").json
    bars = found["panels"][0]["bars"]
    assert sorted(bar["name"] for bar in bars) == ["allocation", "poisson", "shuffle", "uniform"]
    assert all(bar["lower"] <= bar["upper"] for bar in bars)
    assert found["title"].startswith("The smallest epsilon is ")
    ran = dpacct("plot samplings --noise 2 --epochs 2 --q 0.1")
    assert ran.code == 2
    assert "a training job is" in ran.err


def test_a_file_is_written_by_its_name(dpacct: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "a.svg"
    assert dpacct(f"plot schedule {PLAN} -o {file}").text.endswith(f": {file}\n")
    ran = dpacct(f"plot schedule {PLAN} -o {file}")
    assert (ran.code, ran.out) == (2, "")
    assert "it exists already. --force replaces it." in ran.err
    assert dpacct(f"plot schedule {PLAN} -o {file} --force").code == 0


def test_several_settings_share_a_picture(dpacct: Any) -> None:
    line = "plot eps --noise 1,2 --rounds 3 --q 0.1 --accountant tight,rdp"
    found = dpacct(f"{line} --json").json
    names = [curve["name"].partition(":")[0] for curve in found["panels"][0]["curves"]]
    assert names == ["noise 1, tight", "noise 2, tight", "noise 1, rdp", "noise 2, rdp"]


@pytest.mark.needs("plotext")
def test_a_ledger_and_runs_are_drawn(dpacct: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.ledger"
    assert dpacct(f"ledger init {file} --eps 8 --delta 1e-5").code == 0
    assert dpacct(f"ledger charge {file} {PLAN} --name first").code == 0
    assert "* first" in dpacct(f"plot ledger {file}").text
    report = tmp_path / "one.report.jsonl"
    report.write_text('{"epsilon_upper": 2.0, "test_accuracy": 0.5, "delta": 1e-5}\n')
    assert "accuracy 0.5 at epsilon 2" in dpacct(f"plot train {report}").text


@pytest.mark.parametrize(
    ("words", "package"),
    [
        ("plot eps --noise 9 --rounds 5 --q 0.1", "plotext"),
        ("plot eps --noise 9 --rounds 5 --q 0.1 -o a.png", "matplotlib"),
        ("plot compare --noise 9 --rounds 5 --q 0.1 -o a.png", "matplotlib"),
        ("explore --noise 8,9 --rounds 5 --q 0.1 -o a.png", "matplotlib"),
        ("report --noise 9 --rounds 5 --q 0.1 -o a.pdf", "fpdf2"),
    ],
)
def test_a_missing_package_is_named_before_anything_is_computed(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch, words: str, package: str
) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(MechanismOptions, "read_schedule", lambda *_: pytest.fail("computed"))
    if words.startswith("explore"):  # It reads its schedules to check them.
        monkeypatch.undo()
        monkeypatch.setattr(metadata, "version", version)
        monkeypatch.setattr("dpacct_cli.commands.explore.compute", lambda *_: pytest.fail("done"))
    ran = dpacct(words)
    assert ran.code == 1
    assert f"{package} is not installed: " in ran.err
