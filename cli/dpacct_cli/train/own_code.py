"""A class of your own: imported by its name, and its errors shown by their own lines.

Rule 1: it is called ``package.module:Class``, in ledger and settings as well. It is imported if
that name was typed on this command line, never because a file says so.
Rule 2: an error inside it is printed with its place first. The frames of dpacct are left out.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import cast

from dpacct.errors import DpacctError, InvalidParameter
from dpacct.fl.methods.protocol import Method
from dpacct_cli import FAILED, errors
from dpacct_cli.words import was_typed

_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class OwnErrors:
    """Prints an error inside a module of your own, and ends the program. Rule 2."""

    def __init__(self, method: str) -> None:
        self._module = method.partition(":")[0] if ":" in method else ""

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Print the place, the error, and the lines from there on."""
        # A module that failed while it was imported is no module.
        missing = str(Path.cwd() / f"{self._module.replace('.', '/')}.py")
        folder = Path(getattr(sys.modules.get(self._module), "__file__", missing)).parent
        frames = traceback.extract_tb(trace)
        places = [at for at, each in enumerate(frames) if Path(each.filename).parent == folder]
        ours = isinstance(error, DpacctError) or not isinstance(error, Exception)
        if ours or not self._module or not places:
            return
        last = frames[places[-1]]
        what = traceback.format_exception_only(error)[0].strip()
        place = f"{Path(last.filename).name}, line {last.lineno}, in {last.name}"
        errors.print_line(f"{place}: {what}")
        notes = [f"{note}\n" for note in getattr(error, "__notes__", ())]
        print(*traceback.format_list(frames[places[0] :]), *notes, sep="", end="", file=sys.stderr)
        raise SystemExit(FAILED) from None


def own_class(name: str) -> type[Method]:
    """Import your own class, also from the current folder. Installed modules come first."""
    if not _PATH.fullmatch(name):
        raise InvalidParameter("method", name, "a method of your own is package.module:Class")
    if not was_typed(name):
        rule = "a file names this class, and dpacct imports only what you type on this command line"
        hint = "If it is your own, type it as METHOD of train, or as --method of attack."
        raise InvalidParameter("method", name, rule, hint)
    place, _, attribute = name.partition(":")
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.append(folder)
    try:
        method = getattr(importlib.import_module(place), attribute, None)
    except (ImportError, SyntaxError) as error:
        raise InvalidParameter("method", name, f"{place} cannot be imported ({error})") from None
    finally:
        if added:
            sys.path.remove(folder)
    if not (isinstance(method, type) and method is not Method and Method in method.__mro__):
        rule = f"{place} has no class {attribute} that derives from dpacct.fl.Method"
        hint = "docs/how-to/train-federated.md has an example."
        raise InvalidParameter("method", name, rule, hint)
    return cast("type[Method]", method)
