"""What is installed, with what, and that the places that say so agree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import dpacct

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[str]] = PROJECT["dependency-groups"]
REQUIRED: list[str] = PROJECT["project"]["dependencies"]
# Extras beside packages that bring their own Typer and Rich: resolved by .ci/resolve.py alone.
PLUG_INS = {"opacus", "flower", "dp-accounting", "jax"}


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, Requirement]:
    lines = (line.partition("#")[0].strip() for line in read("constraints.txt").splitlines())
    return {normal(pin.name): pin for pin in map(Requirement, filter(None, lines))}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    builder = pytest.importorskip("hatchling.builders.wheel")
    folder = tmp_path_factory.mktemp("wheel")
    (built,) = builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return Parser().parsestr(wheel.read(name).decode())


def test_the_wheel_holds_both_packages_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"dpacct", "dpacct_cli"}
    expected = {
        str(file.relative_to(folder.parent))
        for folder in (ROOT / "src" / "dpacct", ROOT / "cli" / "dpacct_cli")
        for file in folder.rglob("*.py")
    }
    assert expected <= set(wheel.namelist())
    claims = ROOT / "src" / "dpacct" / "claims" / "published"
    shipped = {str(file.relative_to(ROOT / "src")) for file in claims.glob("*.toml")}
    assert shipped
    assert shipped <= set(wheel.namelist())


def test_the_wheel_is_typed_and_licensed(wheel):
    names = wheel.namelist()
    assert "dpacct/py.typed" in names
    assert "dpacct_cli/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_installing_brings_four_packages(metadata):
    needed = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    plain = {requirement.name for requirement in needed if requirement.marker is None}
    assert plain == {"numpy", "scipy", "rich", "typer"}
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    assert set(EXTRAS) == {"fl", "data", "plot", "report", "interop", *PLUG_INS}


def test_every_requirement_has_a_lower_bound():
    for text in (*REQUIRED, *(r for part in (EXTRAS, GROUPS) for e in part.values() for r in e)):
        assert any(clause.operator == ">=" for clause in Requirement(text).specifier), text


def test_the_version_is_said_once_and_has_a_changelog_entry(metadata):
    assert metadata["Version"] == dpacct.__version__
    assert re.search(rf"^## {re.escape(dpacct.__version__)}\b", read("CHANGELOG.md"), re.MULTILINE)


def test_the_constraints_pin_one_version_of_everything_that_is_asked_for():
    pinned = pins()
    assert str(pinned["torch"]) == "torch==2.13.0"
    assert all(re.fullmatch(r"==[^*,]+", str(pin.specifier)) for pin in pinned.values())
    tested = [text for name, extra in EXTRAS.items() if name not in PLUG_INS for text in extra]
    tested += [text for group in GROUPS.values() for text in group]
    for text in (*REQUIRED, *tested):
        wanted = Requirement(text)
        (clause,) = pinned[normal(wanted.name)].specifier
        assert wanted.specifier.contains(clause.version), text


def test_the_command_line_installs_beside_flower():
    # Flower 1.41 asks for rich from 14 to 15.
    (rich,) = (wanted for wanted in map(Requirement, REQUIRED) if wanted.name == "rich")
    assert all(rich.specifier.contains(version) for version in ("14.3.4", "15.0.0"))


def test_continuous_integration_resolves_the_extras_on_each_python():
    script = read(".ci/resolve.py")
    assert ".ci/resolve.py" in read(".ci/run")
    assert f'TORCH = "{pins()["torch"].specifier}"'.replace("==", "") in script
    (extras,) = re.findall(r'^EXTRAS = "(.*)"$', script, re.MULTILINE)
    assert set(extras.split(",")) == PLUG_INS
    versions = [
        c.rpartition(" ")[2] for c in PROJECT["project"]["classifiers"] if re.search(r"3\.\d", c)
    ]
    assert re.findall(r'"(3\.\d+)"', script) == versions


def test_the_readme_has_the_two_commands():
    commands = [
        line
        for line in read("README.md").splitlines()
        if line.startswith("python3 -m venv .venv && ")
    ]
    assert len(commands) == 2
    assert commands[0].endswith("dpacct calibrate --eps 8 --rounds 300 --q 0.1")
    assert " -c constraints.txt " in commands[1]
    assert commands[1].endswith("-m pytest -n auto")


def test_continuous_integration_is_runnable():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize("target", ["test", "lint", "bench", "docs", "flower", "site"])
def test_make_knows_the_target(target):
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    done = subprocess.run([make, "-n", target], cwd=ROOT, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


def test_the_console_script_and_the_module_are_the_same_program():
    script = Path(sys.executable).parent / "dpacct"
    if not script.exists():
        pytest.skip("dpacct is not installed in this environment")
    outputs = [
        subprocess.run([*words, "--version"], check=True, capture_output=True, text=True).stdout
        for words in ([str(script)], *([sys.executable, "-m", m] for m in ("dpacct_cli", "dpacct")))
    ]
    assert outputs == [f"dpacct {dpacct.__version__}\n"] * 3
