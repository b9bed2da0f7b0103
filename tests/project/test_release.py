"""What a release uploads: both archives build, one from the other, and say what an index shows."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import dpacct

ROOT = Path(__file__).resolve().parents[2]


def python(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words], cwd=ROOT, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_both_archives_build_and_are_what_an_index_takes(tmp_path):
    pytest.importorskip("twine", reason="the group `release` is not installed")
    pytest.importorskip("build.__main__", reason="the group `release` is not installed")
    # The wheel is made of what the source archive holds, by the backend that is installed.
    python("-m", "build", "--no-isolation", "--outdir", str(tmp_path))
    wheel = tmp_path / f"dpacct-{dpacct.__version__}-py3-none-any.whl"
    source = tmp_path / f"dpacct-{dpacct.__version__}.tar.gz"
    assert sorted(tmp_path.iterdir()) == sorted([wheel, source])
    said = python("-m", "twine", "check", "--strict", str(wheel), str(source))
    assert said.count("PASSED") == 2
    with tarfile.open(source) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"docs/navigation.toml", "website/conf.py", "examples/plan.toml", "constraints.txt"}
    assert needed <= held
    assert not [name for name in held if name.endswith(".pyc")]
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if ".dist-info" not in top} == {"dpacct", "dpacct_cli"}
