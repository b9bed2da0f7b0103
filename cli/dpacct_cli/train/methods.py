"""The method of a run by its name, or a class of your own, and the server's optimizer.

Rule 1: your own class is called ``package.module:Class``, in ledger and settings as well, so that a
resume finds it again.
Rule 2: a wrong class or option is rejected before anything is read or charged. An error inside your
own code is passed on unchanged.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, TypeVar

from dpacct.errors import DpacctError, InvalidParameter
from dpacct.fl.methods import METHODS
from dpacct.fl.methods.protocol import Method
from dpacct.fl.methods.server_optimizers import Adam, Momentum, ServerOptimizer
from dpacct_cli.errors import OptionConflict

# The names of `dpacct_cli.train.options.SERVERS`.
SERVERS: dict[str, Callable[..., ServerOptimizer]] = {"momentum": Momentum, "adam": Adam}
Made = TypeVar("Made")
_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


def build_method(name: str, options: Mapping[str, Any]) -> Method:
    """Return a method.

    Args:
        name: a name of `dpacct.fl.METHODS`, or ``package.module:Class``.
        options: arguments of its constructor.
    Raises:
        InvalidParameter: it does not exist, or an option is out of range.
        OptionConflict: it has no such option, or needs one.
    """
    build = _own_class(name) if ":" in name else METHODS.get(name)
    if build is None:
        known = f"a method is one of {', '.join(METHODS)}, or package.module:Class of your own"
        raise InvalidParameter("method", name, known)
    return _built(build, name, options, "--set")


def build_server(name: str | None, options: Mapping[str, Any]) -> ServerOptimizer | None:
    """Return the server's optimizer, or None for the plain step.

    Raises:
        InvalidParameter: it does not exist, or an option is out of range.
        OptionConflict: it has no such option.
    """
    if name is None:
        return None
    build = SERVERS.get(name)
    if build is None:
        rule = f"a server's optimizer is one of {', '.join(SERVERS)}"
        raise InvalidParameter("server_optimizer", name, rule)
    return _built(build, name, options, "--server-set")


def _built(build: Callable[..., Made], name: str, options: Mapping[str, Any], flag: str) -> Made:
    """Call a constructor with its options. Reject unknown and missing options by name."""
    parameters = inspect.signature(build).parameters
    named = [key for key, one in parameters.items() if one.kind is not one.VAR_KEYWORD]
    for key in options:
        if key not in named and len(named) == len(parameters):
            has = f"it has {', '.join(named)}" if named else "it has none"
            raise OptionConflict(f"{flag} {key} is not an option of {name}; {has}.")
    for key in named:
        one = parameters[key]
        required = one.default is one.empty and one.kind is not one.VAR_POSITIONAL
        if required and key not in options:
            raise OptionConflict(f"{flag} {key}=... is missing; {name} has no default for it.")
    try:
        return build(**options)
    except InvalidParameter as error:
        # Other options have the same names, so the label says whose option it is.
        label = f"{flag} {error.name}" if error.name in options else error.name
        raise InvalidParameter(label, error.value, error.rule, error.hint) from None
    except DpacctError:
        raise
    except (TypeError, ValueError) as error:
        raise OptionConflict(f"{name} refuses its options: {error}") from error


def _own_class(name: str) -> type[Method]:
    """Return your own class.

    Raises:
        InvalidParameter: the module or class does not exist, or the class is no method.
    """
    if not _PATH.fullmatch(name):
        raise InvalidParameter("method", name, "a method of your own is package.module:Class")
    place, _, attribute = name.partition(":")
    module = _imported(name, place)
    found = getattr(module, attribute, None)
    if found is None:
        own = [key for key, value in vars(module).items() if _is_method(value)]
        has = f"its methods are {', '.join(own)}" if own else "no class in it is a fl.Method"
        raise InvalidParameter("method", name, f"{place} has no {attribute}; {has}")
    if not _is_method(found):
        kind = "a class of its own" if isinstance(found, type) else f"a {type(found).__name__}"
        rule = f"{attribute} of {place} is {kind}; a method is a class that derives from"
        hint = "docs/how-to/train-federated.md has an example."
        raise InvalidParameter("method", name, f"{rule} dpacct.fl.Method", hint)
    return found


def _imported(name: str, place: str) -> ModuleType:
    """Import a module, also from the current folder. Installed modules come first."""
    folder = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    added = folder not in sys.path and "" not in sys.path
    if added:
        sys.path.append(folder)
    try:
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
    finally:
        if added:
            sys.path.remove(folder)


def _is_method(value: Any) -> bool:
    return isinstance(value, type) and value is not Method and Method in value.__mro__
