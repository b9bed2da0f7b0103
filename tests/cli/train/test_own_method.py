"""`dpacct train package.module:Class`."""

from __future__ import annotations

import json
import os
import signal

import pytest

pytest.importorskip("torch")

from dpacct.ledger import Ledger
from dpacct_cli.train import run as train_run

OWN = """
from dataclasses import dataclass
from dpacct import fl
from dpacct.errors import InvalidParameter

NUMBER = 3

@dataclass(frozen=True)
class Proximal(fl.Method):
    strength: float

    def __post_init__(self):
        if not 0 <= self.strength:
            raise InvalidParameter("strength", self.strength, "it is at least 0")
        if self.strength == 7:
            raise ValueError("seven is too many")

    def gradient(self, loss, params, batch, context):
        plain = loss.gradient(params, batch)
        return {n: plain[n] + self.strength * (params[n] - context.anchor[n]) for n in params}

class Other:
    pass
"""
SETTINGS = "--rounds 3 --clients 20 --q 0.5 --local-epochs 1 --vectorize no"


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    folder = tmp_path / "ours"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "tried.py").write_text(OWN)
    (folder / "broken.py").write_text("def :\n")
    (folder / "needy.py").write_text("import not_installed_here\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_class_of_ones_own_is_trained_named_and_resumed(dpacct, modules, monkeypatch):
    words = f"train ours.tried:Proximal --set strength=0.5 {SETTINGS}"
    append = train_run._append

    def interrupting(file, report, accuracy):
        append(file, report, accuracy)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(train_run, "_append", interrupting)
        stopped = dpacct(words)
    assert stopped.code == 130
    assert "dpacct train ours.tried:Proximal --ledger digits.ledger" in stopped.err
    found = dpacct("train --resume --json").json
    assert found["method"] == "ours.tried:Proximal"
    assert found["rounds"] == 3
    saved = json.loads((modules / "Proximal-digits.settings.json").read_text())
    assert saved["method"] == "ours.tried:Proximal"
    with Ledger.open(modules / "digits.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.name == "ours.tried:Proximal Proximal-digits"
        assert "Proximal(strength=0.5)" in run.details["setting"]
        assert (run.committed, run.finished) == (3, True)


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("ours.missing:Proximal", "there is no module ours.missing"),
        ("nowhere.tried:Proximal", "there is no module nowhere"),
        ("ours.tried:Proximo", "ours.tried has no Proximo; its methods are Proximal"),
        ("ours.tried:Other", "Other of ours.tried is a class of its own; a method is a class"),
        ("ours.tried:NUMBER", "NUMBER of ours.tried is a int"),
        ("ours.broken:Proximal", "ours.broken cannot be imported"),
        ("ours.needy:Proximal", "ours.needy imports not_installed_here"),
        ("ours.tried:", "a method of your own is package.module:Class"),
        ("ours/tried.py:Proximal", "a method of your own is package.module:Class"),
        ("ours.tried:Proximal", "--set strength=... is missing"),
        ("ours.tried:Proximal --set rho=1", "--set rho is no option of ours.tried:Proximal"),
        ("ours.tried:Proximal --set strength=-1", "it is at least 0"),
        ("ours.tried:Proximal --set strength=7", "seven is too many"),
        ("ours.tried:Proximal --set strength=x", "refuses its options"),
        ("proximal", "or package.module:Class of your own"),
    ],
)
def test_what_is_no_method_is_refused_before_anything_is_charged(dpacct, modules, typed, message):
    failed = dpacct(f"train {typed} {SETTINGS}")
    assert (failed.code, failed.out) == (2, "")
    assert message in failed.err
    assert not list(modules.glob("*.ledger"))
