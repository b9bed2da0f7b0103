"""The command that installs what is missing fits the installation that lacks it."""

from __future__ import annotations

import gc
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dpacct import Ledger, Unsupported, packages
from dpacct.packages import import_other, install_command

REQUIRES = [
    "numpy>=1.26",
    'torch>=2.6; extra == "fl"',
    "plotext<6,>=5.2.8 ; extra == 'plot'",
    "other>=1; extra == 'flower'",
]


class Installed(metadata.Distribution):
    """dpacct as an installer left it."""

    def __init__(self, installer: str | None) -> None:
        self._installer = installer

    @property
    def requires(self) -> list[str]:
        return REQUIRES

    def read_text(self, filename: str) -> str | None:
        return self._installer if filename == "INSTALLER" else None

    def locate_file(self, path: object) -> Path:
        return Path(str(path))


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "venv"))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    (tmp_path / "venv").mkdir()
    return tmp_path / "venv"


def install(monkeypatch: pytest.MonkeyPatch, installer: str | None, pip: str | None) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Installed(installer))
    monkeypatch.setattr(packages, "which", lambda _: pip)


def test_the_pip_of_an_active_environment(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "pip\n", str(prefix / "bin" / "pip"))
    assert install_command("fl") == 'pip install "torch>=2.6"'
    assert install_command("plot,fl") == 'pip install "torch>=2.6" "plotext<6,>=5.2.8"'
    assert install_command(packages=("tensorboard",)) == "pip install tensorboard"


@pytest.mark.parametrize("pip", ["/usr/bin/pip", None])
def test_another_pip_is_not_named(
    prefix: Path, monkeypatch: pytest.MonkeyPatch, pip: str | None
) -> None:
    install(monkeypatch, "pip\n", pip)
    assert install_command("fl") == f'{prefix}/bin/python -m pip install "torch>=2.6"'
    monkeypatch.setattr(sys, "executable", "/my files/python")
    assert install_command("fl") == '"/my files/python" -m pip install "torch>=2.6"'


def test_uv_and_pipx(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "uv", None)
    assert install_command("fl") == f'uv pip install --python {prefix}/bin/python "torch>=2.6"'
    install(monkeypatch, "pip\n", None)
    (prefix / "pipx_metadata.json").touch()
    assert install_command("fl") == 'pipx inject venv "torch>=2.6"'


def test_sources_on_the_path(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    install(monkeypatch, None, str(prefix / "bin" / "pip"))
    monkeypatch.setattr(metadata, "distribution", missing)
    assert install_command("fl") == 'pip install ".[fl]"'


def test_every_hint_is_made_by_this_command() -> None:
    root = Path(__file__).resolve().parents[1]
    files = [file for folder in ("src", "cli") for file in (root / folder).rglob("*.py")]
    written = [file.name for file in files if "pip install" in file.read_text(encoding="utf-8")]
    assert written == ["packages.py"]


@pytest.mark.parametrize("extra", ["fl", "plot", "report", "dp-accounting", "flower,fl"])
def test_each_extra_of_this_installation_has_packages(extra: str) -> None:
    assert ">=" in install_command(extra)


def test_a_database_without_its_package_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    with pytest.raises(Unsupported, match="psycopg is not installed"):
        Ledger.open("postgresql://localhost/none#census", read_only=True)
    # An error in `__del__` of what was half made is a warning, and warnings are errors.
    gc.collect()


def test_a_package_of_no_extra_is_named_with_what_is_wrong(monkeypatch, tmp_path):
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/__init__.py").write_text("raise RuntimeError('operator a::b is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    versions = {"broken": "2.0"}

    def version(name):
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("dpacct.packages.metadata.version", version)
    for package, at_least, said in (
        ("nowhere", "1", r'nowhere is not installed: .*"nowhere>=1"'),
        ("broken", "3", r"broken 2\.0 is too old"),
        ("broken", "1", r"installed and does not import \(operator a::b is missing\).*torchvision"),
    ):
        with pytest.raises(Unsupported, match=said):
            import_other(package, at_least, "name")
