"""Prove that the extras for other people's packages install, alone and together, on each Python.

A dry run of pip: nothing is installed. torch 2.13.0 is a wheel without content that states what the
CPU build requires, since an index gives the CUDA build and its gigabytes to whoever asks for it.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = "opacus,flower,dp-accounting,jax"
TORCH = "2.13.0"
TORCH_REQUIRES = (
    "filelock",
    "typing-extensions>=4.10.0",
    "setuptools>=77.0.3",
    "sympy>=1.13.3",
    "networkx>=2.5.1",
    "jinja2",
    "fsspec>=0.8.5",
)
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def write_wheel(folder: Path, name: str, version: str, metadata: str) -> None:
    """A wheel that is its metadata alone."""
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", WHEEL)
        wheel.writestr(f"{info}/RECORD", "")


def write_torch(folder: Path) -> None:
    """The stand-in; its local version is preferred to the same version of any index."""
    version = f"{TORCH}+cpu"
    lines = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in TORCH_REQUIRES]
    write_wheel(folder, "torch", version, "\n".join(lines) + "\n")


def dry_run(python: str, folder: Path, wheel: Path) -> subprocess.Popen[bytes]:
    """Start pip's resolver for one Python; it installs nothing."""
    return subprocess.Popen(  # noqa: S603 - pip, with words of this file
        [
            sys.executable, "-m", "pip", "--quiet", "install", "--dry-run", "--ignore-installed",
            "--only-binary=:all:", "--python-version", python, "--target", str(folder / "nowhere"),
            "--find-links", str(folder), f"{wheel}[{EXTRAS}]", f"torch=={TORCH}",
        ]
    )  # fmt: skip


def main() -> None:
    """Resolve the extras for every Python at once, since most of the time is waiting."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_torch(folder)
        build = ["-m", "pip", "--quiet", "wheel", "--no-deps", "--wheel-dir", scratch, str(ROOT)]
        subprocess.run([sys.executable, *build], check=True)  # noqa: S603 - pip, likewise
        (wheel,) = folder.glob("dpacct-*.whl")
        for python, started in {p: dry_run(p, folder, wheel) for p in PYTHONS}.items():
            if started.wait():
                sys.exit(f"dpacct[{EXTRAS}] does not resolve on Python {python}")
            sys.stdout.write(f"dpacct[{EXTRAS}] resolves on Python {python}\n")


if __name__ == "__main__":
    main()
