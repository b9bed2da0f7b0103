"""`dpacct train package.module:Class`."""

from __future__ import annotations

import json
import sys

import pytest

pytest.importorskip("torch")

from dpacct.ledger import Ledger
from tests.cli.test_bad_input import assert_refused

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

class Plain(fl.Method):
    pass

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


def test_a_class_of_ones_own_is_trained_named_and_resumed(dpacct, modules, stop_after):
    words = f"train ours.tried:Proximal --set strength=0.5 {SETTINGS}"
    with stop_after(1):
        stopped = dpacct(words)
    assert stopped.code == 130
    assert "dpacct train ours.tried:Proximal --ledger digits.ledger" in stopped.err
    refused = dpacct("train --resume")
    assert_refused(refused, "'ours.tried:Proximal'; a file names this class", "type it as METHOD")
    found = dpacct("train ours.tried:Proximal --resume --json").json
    assert found["method"] == "ours.tried:Proximal"
    assert found["rounds"] == 3
    saved = json.loads((modules / "Proximal-digits.settings.json").read_text())
    assert saved["method"] == "ours.tried:Proximal"
    with Ledger.open(modules / "digits.ledger", read_only=True) as ledger:
        [run] = ledger.runs
        assert run.name == "ours.tried:Proximal Proximal-digits"
        assert "Proximal(strength=0.5)" in run.details["setting"]
        assert (run.committed, run.finished) == (3, True)


@pytest.mark.parametrize("key", ["method", "server", "model", "local_optimizer", "data"])
def test_a_file_of_settings_imports_nothing(dpacct, modules, stop_after, key):
    """Checkpoint, settings and ledger may all be somebody else's."""
    with stop_after(1):
        assert dpacct(f"train dp-fedavg {SETTINGS} --hold-out 0.2").code == 130
    place = modules / "dp-fedavg-digits.settings.json"
    saved = json.loads(place.read_text()) | {key: "evil:X"}
    place.write_text(json.dumps(saved))
    (modules / "evil.py").write_text('raise SystemExit("imported")\n')
    for words in ("attack dp-fedavg-digits.checkpoint", "train --resume"):
        ran = dpacct(words)
        assert (ran.code, ran.out) == (2, "")
        assert "evil:X" in ran.err
    assert "evil" not in sys.modules


FAILS = """
from dpacct import fl
from pulls_COMMAND import pull

class Calls(fl.Method):
    def gradient(self, loss, params, batch, context):
        return pull(params, context)

class Forgets(fl.Method):
    def post(self, noised, server_state):
        noised.map(lambda vector: vector / 2)
"""


@pytest.mark.parametrize("command", ["train", "audit"])
def test_an_error_inside_your_method_has_its_own_line_first(dpacct, modules, command):
    # A module of this name is imported once.
    (modules / f"fails_{command}.py").write_text(FAILS.replace("COMMAND", command))
    (modules / f"pulls_{command}.py").write_text("def pull(params, context):\n    1 / 0\n")
    failed = dpacct(f"{command} fails_{command}:Calls {SETTINGS} -q")
    lines = failed.err.splitlines()
    assert failed.code == 1
    first = f"dpacct: pulls_{command}.py, line 2, in pull: ZeroDivisionError: division by zero"
    assert lines[0] == first
    assert f"fails_{command}.py" in lines[1]
    assert "Nothing is charged" in failed.err
    assert "rehearsal.py" not in failed.err
    failed = dpacct(f"{command} fails_{command}:Forgets {SETTINGS} -q")
    assert failed.err.startswith("dpacct: Forgets.post returned nothing.")
    (modules / f"raises_{command}.py").write_text("value = unknown\n")
    failed = dpacct(f"{command} raises_{command}:Forgets {SETTINGS} -q")
    place = f"dpacct: raises_{command}.py, line 1, in <module>: NameError: name 'unknown'"
    assert failed.err.startswith(place)
    assert not list(modules.glob("*.ledger"))


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("ours.missing:Proximal", "ours.missing cannot be imported (No module named"),
        ("ours.tried:Proximo", "ours.tried has no class Proximo that derives from"),
        ("ours.tried:Other", "ours.tried has no class Other that derives from"),
        ("ours.tried:NUMBER", "ours.tried has no class NUMBER that derives from"),
        ("ours.broken:Proximal", "ours.broken cannot be imported"),
        ("ours.needy:Proximal", "No module named 'not_installed_here'"),
        ("ours.tried:", "a method of your own is package.module:Class"),
        ("ours/tried.py:Proximal", "a method of your own is package.module:Class"),
        ("ours.tried:Proximal", "missing 1 required positional argument: 'strength'"),
        ("ours.tried:Proximal --set rho=1", "unexpected keyword argument 'rho'"),
        ("ours.tried:Proximal --set strength=-1", "it is at least 0"),
        ("ours.tried:Proximal --set strength=7", "seven is too many"),
        ("ours.tried:Proximal --set strength=x", "refuses its options"),
        ("ours.tried:Plain --as-printed", "has no printed form of its own"),
        ("proximal", "or package.module:Class of your own"),
    ],
)
def test_what_is_no_method_is_refused_before_anything_is_charged(dpacct, modules, typed, message):
    failed = dpacct(f"train {typed} {SETTINGS}")
    assert (failed.code, failed.out) == (2, "")
    assert message in failed.err
    assert not list(modules.glob("*.ledger"))
