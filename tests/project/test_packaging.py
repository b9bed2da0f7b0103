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
# A group may include another one, which stands beside it.
GROUPS: dict[str, list[str]] = {
    name: [each for each in group if isinstance(each, str)]
    for name, group in PROJECT["dependency-groups"].items()
}
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
        for file in folder.rglob("*.*")
        if file.suffix in (".py", ".html", ".css", ".js")
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
    assert set(EXTRAS) == {
        "fl",
        "data",
        "plot",
        "report",
        "certify",
        "app",
        "postgres",
        "interop",
        *PLUG_INS,
    }


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


TARGETS = re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE)


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_make_is_known_explained_and_installs_what_it_needs(target, tmp_path):
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    words = [f"{name}={tmp_path / 'none'}" for name in ("VENV", "FLOWER_VENV", "LOWEST_VENV")]
    alone = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(
        [make, "-n", target, *words],
        cwd=ROOT, env=alone, check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # In a fresh clone: an environment, then what it lacks, then the work.
    made, checked, *_ = done.stdout.splitlines()
    assert made.startswith("python3 -m venv ")
    assert ".ci/environment.py lacks " in checked
    assert target == "tools" or f"make {target} " in read("CONTRIBUTING.md")


def environment(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(folder / ".ci" / "environment.py"), *words],
        check=False, capture_output=True, text=True,
    )  # fmt: skip


def test_an_environment_lacks_what_is_not_installed_or_installed_from_elsewhere(tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "environment.py", tmp_path / ".ci")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    elsewhere = environment("lacks", "test", folder=tmp_path)
    assert (elsewhere.returncode, elsewhere.stdout) == (1, "dpacct from this folder\n")
    page = read("pyproject.toml").replace("dev = [", 'dev = [\n    "no-such-package>=1",', 1)
    (tmp_path / "pyproject.toml").write_text(page, encoding="utf-8")
    assert "no-such-package>=1\n" in environment("lacks", "dev", folder=tmp_path).stdout


def test_the_lowest_versions_are_those_of_the_requirements():
    done = environment("lowest")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    asked = [Requirement(text) for text in (*REQUIRED, *EXTRAS["plot"], *EXTRAS["report"])]
    for wanted in asked:
        (line,) = (line for line in lines if normal(Requirement(line).name) == normal(wanted.name))
        (floor,) = (c.version for c in wanted.specifier if c.operator == ">=")
        assert Requirement(line).specifier.contains(floor), (line, wanted)
    others = {normal(Requirement(line).name) for line in lines} - {normal(r.name) for r in asked}
    assert others == set(pins()) - {normal(wanted.name) for wanted in asked}


def test_pre_commit_has_the_pinned_ruff():
    asked = re.findall(r"additional_dependencies: \[(.*)\]", read(".pre-commit-config.yaml"))
    assert asked == [str(pins()["ruff"])] * 2


def test_line_ends_of_a_clone_are_those_of_linux_everywhere(tmp_path):
    git = shutil.which("git")
    if git is None:
        pytest.skip("git is not installed")
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    (origin / ".ci").mkdir(parents=True)
    for name in (".gitattributes", ".ci/run"):
        shutil.copy(ROOT / name, origin / name)
    author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-q", "-m", "one"]):
        subprocess.run([git, "-C", str(origin), *words], check=True)
    windows = ["clone", "-q", "-c", "core.autocrlf=true", str(origin), str(clone)]
    subprocess.run([git, *windows], check=True)
    assert (clone / ".ci" / "run").read_bytes() == (ROOT / ".ci" / "run").read_bytes()


def test_the_console_script_and_the_module_are_the_same_program():
    script = Path(sys.executable).parent / "dpacct"
    if not script.exists():
        pytest.skip("dpacct is not installed in this environment")
    outputs = [
        subprocess.run([*words, "--version"], check=True, capture_output=True, text=True).stdout
        for words in ([str(script)], *([sys.executable, "-m", m] for m in ("dpacct_cli", "dpacct")))
    ]
    assert outputs == [f"dpacct {dpacct.__version__}\n"] * 3
