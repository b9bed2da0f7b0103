"""What a release uploads: the archives of `make release`, their links, and the version's tag."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

import dpacct

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "https://example.org/dpacct"
NAME = f"dpacct-{dpacct.__version__}"


@pytest.fixture
def folder() -> Path:
    place = os.environ.get("DPACCT_DIST")
    if place is None:
        pytest.skip("`make release` builds the archives; DPACCT_DIST names their folder")
    return ROOT / place


def page_of(text: str) -> Message:
    return Parser().parsestr(text)


def test_the_archives_are_these(folder):
    assert {file.name for file in folder.iterdir()} == {
        f"{NAME}-py3-none-any.whl",
        f"{NAME}.tar.gz",
    }


def test_the_source_archive_holds_what_its_tests_and_targets_read(folder):
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = {
        "docs/navigation.toml", "website/conf.py", "examples/plan.toml", "constraints.txt",
        ".ci/run", ".ci/environment.py", "CITATION.cff", "Makefile", "hatch_build.py",
    }  # fmt: skip
    assert needed <= held
    assert not [name for name in held if name.endswith(".pyc")]


def test_both_archives_describe_the_same_and_name_no_file_that_is_not_beside_them(folder):
    with tarfile.open(folder / f"{NAME}.tar.gz") as archive:
        member = archive.extractfile(f"{NAME}/PKG-INFO")
        assert member is not None
        source = page_of(member.read().decode())
    with zipfile.ZipFile(folder / f"{NAME}-py3-none-any.whl") as wheel:
        tops = {name.partition("/")[0] for name in wheel.namelist()}
        installed = page_of(wheel.read(f"{NAME}.dist-info/METADATA").decode())
    assert tops == {"dpacct", "dpacct_cli", f"{NAME}.dist-info"}
    assert source.items() == installed.items()
    assert source.get_payload() == installed.get_payload()
    assert installed["Author"] == "dpacct contributors"
    assert all(re.match(r"\w+:|#|REPOSITORY/", place) for place in places(installed.get_payload()))


def places(page: Any) -> list[str]:
    """The targets of the links and pictures of a page."""
    return re.findall(r"\]\(([^)\s]+)\)", page)


def test_an_address_makes_every_link_of_the_description_absolute(tmp_path):
    builder = pytest.importorskip("hatchling.metadata.core")
    manager = pytest.importorskip("hatchling.plugin.manager").PluginManager()
    for name in (
        "pyproject.toml",
        "hatch_build.py",
        "README.md",
        "LICENSE",
        "src/dpacct/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    with (tmp_path / "pyproject.toml").open("a", encoding="utf-8") as project:
        project.write(f'\n[project.urls]\nRepository = "{ADDRESS}"\n')
    before = places((ROOT / "README.md").read_text(encoding="utf-8"))
    after = places(builder.ProjectMetadata(str(tmp_path), manager).core.readme)
    assert len(after) == len(before) > 20
    for place, address in zip(before, after, strict=True):
        kind = "raw" if place.endswith(".png") else "blob"
        kept = place.startswith("#") or "://" in place
        assert address == (place if kept else f"{ADDRESS}/{kind}/v{dpacct.__version__}/{place}")


def test_a_tagged_version_is_the_one_that_it_says_and_has_an_address():
    git = subprocess.run(
        ["git", "tag", "--points-at", "HEAD"],  # noqa: S607 - whichever git the reader has
        cwd=ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    tags = [tag for tag in git.stdout.split() if re.match(r"v\d", tag)]
    if not tags or not (ROOT / ".git").exists():
        pytest.skip("this commit is not tagged as a version")
    assert tags == [f"v{dpacct.__version__}"]
    assert "[project.urls]" in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
