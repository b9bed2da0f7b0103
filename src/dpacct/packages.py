"""Optional packages: installed and recent enough, or rejected with what to install."""

from __future__ import annotations

import importlib
import re
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from shutil import which
from typing import Any

from dpacct.errors import Unsupported


def import_package(module: str, distribution: str, at_least: str, extra: str) -> Any:
    """Return a module, untyped, that belongs to another package or needs it.

    Args:
        module: its dotted name.
        distribution: the name by which pip knows the package.
        at_least: the oldest version that serves, as ``1.6``.
        extra: the extra of dpacct that installs it.
    Raises:
        Unsupported: the package is not installed, or older than that.
    """
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise Unsupported(f"{distribution} is not installed: {install_command(extra)}") from None
    if _release(version) < _release(at_least):
        rule = f"{distribution} {version} is too old, version {at_least} or later is needed"
        raise Unsupported(f"{rule}: {install_command(extra)}")
    return importlib.import_module(module)


def import_other(package: str, at_least: str, *names: str) -> list[Any]:
    """Return names of a package that no extra of dpacct brings, untyped.

    Raises:
        Unsupported: it is not installed, older than that, or does not import. Packages of Hugging
            Face do not import beside a torchvision that was built for another PyTorch.
    """
    try:
        module = import_package(package, package, at_least, "")
        return [getattr(module, name) for name in names]
    except Unsupported as error:
        why = str(error).partition(":")[0]
        wanted = install_command(packages=(f'"{package}>={at_least}"',))
        raise Unsupported(f"{why}: {wanted}") from None
    except (ImportError, RuntimeError) as error:
        cause = " ".join(str(error.__cause__ or error).split())
        hint = "Does torchvision fit PyTorch? Uninstall it, or install both from one index."
        raise Unsupported(f"{package} is installed and does not import ({cause}). {hint}") from None


def install_command(extra: str = "", packages: tuple[str, ...] = ()) -> str:
    """Return the command that adds packages, or those of extras, to this installation.

    It names the packages, since a wheel, a copy by pipx or a clone that is gone cannot be
    installed again by the name of dpacct. Double quotes serve every shell.
    """
    installer = None
    with suppress(metadata.PackageNotFoundError):
        here = metadata.distribution("dpacct")
        installer = here.read_text("INSTALLER")
        for line in here.requires or ():
            package, _, marker = line.partition(";")
            if any(re.search(rf"extra == .{name}\W", marker) for name in extra.split(",")):
                packages += (f'"{package.strip()}"',)
    # Without metadata, the sources are on the path: a clone.
    words = " ".join(packages) or f'".[{extra}]"'
    prefix = Path(sys.prefix)
    python = f'"{sys.executable}"' if " " in sys.executable else sys.executable
    if (prefix / "pipx_metadata.json").is_file():
        return f"pipx inject {prefix.name} {words}"
    if installer is not None and installer.strip() == "uv":
        return f"uv pip install --python {python} {words}"
    # The first pip on the path may be that of another environment.
    pip = which("pip")
    first = pip is not None and Path(pip).parent == Path(sys.executable).parent
    return f"{'pip' if first else f'{python} -m pip'} install {words}"


def import_torch() -> Any:
    """Return PyTorch if it reads files that others made safely.

    Before 2.10, ``torch.load(weights_only=True)`` runs code of some files or corrupts memory.
    """
    return import_package("torch", "torch", "2.10", "fl")


def import_opacus(part: str) -> Any:
    """Return a module of Opacus, which several rooms need."""
    return import_package(f"opacus.{part}", "opacus", "1.6", "opacus")


def _release(version: str) -> tuple[int, ...]:
    """Return the numbers a version begins with, so that ``2`` equals ``2.0``."""
    numbers = [int(part) for part in re.findall(r"\d+", re.split(r"[^\d.]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
