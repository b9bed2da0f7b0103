"""The method of a run: one of those that are known by a name, or a class of the user's own.

Rule 1: a class of one's own is called ``package.module:Class``, in the ledger and in the settings
of the run as well, so that a resume finds it again. Rule 2: what is wrong with it is said in words
before anything is read or charged; an error inside the user's own code stays what it is.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar, cast

from dpacct.errors import DpacctError, InvalidParameter
from dpacct.fl.methods import METHODS
from dpacct.fl.methods.protocol import Method
from dpacct.fl.methods.server_optimizers import Adam, Momentum, ServerOptimizer
from dpacct_cli.errors import OptionConflict

# By the name that the command line knows.
SERVERS: dict[str, Callable[..., ServerOptimizer]] = {"momentum": Momentum, "adam": Adam}
Made = TypeVar("Made")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """The method called ``name``.

    Args:
        name: of `dpacct.fl.METHODS`, or ``package.module:Class``.
        options: arguments of its constructor.
    Raises:
        InvalidParameter: there is none, or an option is out of range.
        OptionConflict: it has no such option, or needs one.
    """
    build = _own(name) if ":" in name else METHODS.get(name)
    if build is None:
        known = f"a method is one of {', '.join(METHODS)}, or package.module:Class of your own"
        raise InvalidParameter("method", name, known)
    return _built(build, name, options, "--set")


def build_server(name: str | None, options: Mapping[str, Any]) -> ServerOptimizer | None:
    """The server's optimizer called ``name``; None for the step itself.

    Args:
        name: of `SERVERS`. options: arguments of its constructor.
    Raises:
        InvalidParameter: there is none, or an option is out of range.
        OptionConflict: it has no such option.
    """
    if name is None:
        return None
    build = SERVERS.get(name)
    if build is None:
        rule = f"a server's optimizer is one of {', '.join(SERVERS)}"
        raise InvalidParameter("server_optimizer", name, rule)
    try:
        return _built(build, name, options, "--server-set")
    except InvalidParameter as error:
        # Its names are those of other options, too.
        called = f"--server-set {error.name}"
        raise InvalidParameter(called, error.value, error.rule, error.hint) from None


def _built(build: Callable[..., Made], name: str, options: Mapping[str, Any], flag: str) -> Made:
    """What a constructor makes of its options, of which those are refused that it does not have."""
    parameters = inspect.signature(build).parameters
    named = [key for key, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
    for key in options:
        if key not in named and len(named) == len(parameters):
            has = f"it has {', '.join(named)}" if named else "it has none"
            raise OptionConflict(f"{flag} {key} is no option of {name}; {has}.")
    for key in named:
        one = parameters[key]
        variadic = one.kind is one.VAR_POSITIONAL
        if one.default is one.empty and key not in options and not variadic:
            raise OptionConflict(f"{flag} {key}=... is missing; {name} has no default for it.")
    try:
        return build(**options)
    except DpacctError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionConflict(f"{name} refuses its options: {error}") from error


def _own(name: str) -> Callable[..., Method]:
    """A class of the user's own.

    Raises:
        InvalidParameter: no such module or class, or the class is no method.
    """
    if not _PATH.fullmatch(name):
        rule = "a method of your own is package.module:Class"
        raise InvalidParameter("method", name, rule)
    place, _, attribute = name.partition(":")
    module = _imported(name, place)
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_method(value)]
        has = f"its methods are {', '.join(own)}" if own else "no class in it is a fl.Method"
        raise InvalidParameter("method", name, f"{place} has no {attribute}; {has}")
    if not _is_method(found):
        rule = f"{attribute} of {place} is {_described(found)}; a method is a class that derives "
        hint = "docs/how-to/train-federated.md has an example."
        raise InvalidParameter("method", name, f"{rule}from dpacct.fl.Method", hint)
    return cast("Callable[..., Method]", found)


def _imported(name: str, place: str) -> ModuleType:
    try:
        with _current_folder():
            return importlib.import_module(place)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if place == missing or place.startswith(f"{missing}."):
            rule = f"there is no module {missing} in the current folder, or among what is installed"
            raise InvalidParameter("method", name, rule) from None
        rule = f"{place} imports {missing}, which is not installed"
        raise InvalidParameter("method", name, rule) from None
    except (ImportError, SyntaxError) as error:
        raise InvalidParameter("method", name, f"{place} cannot be imported ({error})") from None


@contextmanager
def _current_folder() -> Generator[None]:
    """Modules of the current folder can be imported inside; what is installed comes first."""
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if folder in sys.path or "" in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _is_method(value: Any) -> bool:
    return isinstance(value, type) and value is not Method and Method in value.__mro__


def _described(value: Any) -> str:
    if isinstance(value, type):
        return "a class of its own"
    return f"a {type(value).__name__}"
