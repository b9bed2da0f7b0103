"""Where Python objects keep things: attributes, containers, closures, globals that a function uses.

Not followed: the insides of objects of torch, numpy, the standard library and dpacct, except of
`torch.nn.Module` and of those that `dpacct.fl.guards.holders` can read; and the entries of
containers with more than `LARGEST`. Of a module, or of somebody else's class, the attributes are
looked at that a function names.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from types import BuiltinMethodType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple, cast

from torch import nn

from dpacct.fl.guards.holders import entries, held

LARGEST = 1 << 16
_FOREIGN = frozenset(sys.stdlib_module_names) - {"__main__"} | {"torch", "numpy", "dpacct"}
# torch's own memory of the parameters that a recurrent layer was last called with.
_CACHES = frozenset({"_flat_weights", "_flat_weight_refs"})


class Place(NamedTuple):
    """Where things are kept.

    Attributes:
        read: what is there now, one entry a name, as long as nothing changes.
        names: of the entries, to be appended to the path of the owner.
        holder: the container, if it is empty as long as it is false; else None.
        follow: whether what the entries hold matters as well.
    """

    read: Callable[[], list[Any]]
    names: list[str]
    holder: object
    follow: bool = True


def places(value: Any, *, root: bool = False) -> Iterator[Place]:
    """The places where an object keeps things; of a foreign object none, unless it is a root."""
    match value:
        case dict():
            yield _dictionary(cast("dict[Any, Any]", value))
        case list() | tuple() | set() | frozenset() | deque():
            yield _sequence(cast("list[Any]", value))
        case bytearray():
            yield Place(lambda: [bytes(value)], [""], None)
        case MethodType() | BuiltinMethodType() | functools.partial():
            yield from _wrapper(value)
        case ModuleType():
            return
        case _:
            own = isinstance(value, nn.Module) or not _is_foreign(_origin(value))
            if root or own:
                yield from _object(value)
            else:
                found = held(value)
                if found is not None:
                    yield Place(found.read, found.names, None)


def _object(value: Any) -> Iterator[Place]:
    match value:
        case FunctionType():
            yield from _function(value)
        case type():
            yield _class(value)
        case _:
            yield from _instance(value)


def _origin(value: Any) -> str | None:
    """The module in which a function, a class or the class of an object is defined."""
    named = value if isinstance(value, FunctionType | type) else type(value)
    return named.__module__


def _is_foreign(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _FOREIGN


def _dictionary(held: Mapping[Any, Any]) -> Place:
    if len(held) > LARGEST:
        return Place(lambda: [len(held)], [""], None)
    names = [f"[{key!r}]" for key in held] + [""] * len(held)
    return Place(lambda: entries(held), names, held)


def _sequence(held: Any) -> Place:
    items = cast("Collection[Any]", held)
    if len(items) > LARGEST:
        return Place(lambda: [len(items)], [""], None)
    holder: Any = None if isinstance(held, tuple | frozenset) else held
    return Place(lambda: list(items), [f"[{place}]" for place in range(len(items))], holder)


def _attributes(value: Any) -> Place:
    """Of an object whose dictionary may be exchanged as a whole, and is another in each thread."""
    held = cast("dict[str, Any]", value.__dict__)
    names = [f".{name}" for name in held] + [""] * len(held)
    return Place(lambda: entries(value.__dict__), names, held or None)


def _wrapper(value: Any) -> Iterator[Place]:
    if isinstance(value, functools.partial):
        parts: Any = cast("Any", value)
        names = ["", " (arguments)", " (arguments)"]
        yield Place(lambda: [parts.func, parts.args, parts.keywords], names, None)
        yield _attributes(parts)
    else:
        # Of a built-in method (the append of a list, say) the object alone keeps anything.
        function = getattr(value, "__func__", None)
        yield Place(lambda: [value.__self__, function], ["", ""], None)


def _function(value: FunctionType) -> Iterator[Place]:
    yield Place(lambda: [value.__code__], [" (its code)"], None, follow=False)
    cells = value.__closure__ or ()
    if cells:
        names = [f" (its variable {name!r})" for name in value.__code__.co_freevars]
        yield Place(lambda: [_content(cell) for cell in cells], names, None)
    if value.__defaults__ or value.__kwdefaults__:
        defaults = [" (a default argument)", " (a default argument)"]
        yield Place(lambda: [value.__defaults__, value.__kwdefaults__], defaults, None)
    yield _attributes(value)
    scope = value.__globals__
    named = _names(value.__code__)
    # Those that are missing may come into being; they are looked for when something is amiss.
    used = sorted(named)
    if used:
        names = [f" (the global name {name!r})" for name in used]
        yield Place(lambda: [scope.get(name) for name in used], names, None)
    yield from _qualified([scope[name] for name in used if name in scope], named)


def _qualified(owners: list[Any], named: set[str]) -> Iterator[Place]:
    """Attributes with these names, of modules and of classes that are somebody else's."""
    queue, seen = deque(owners), set[int]()
    while queue:
        owner = queue.popleft()
        module = isinstance(owner, ModuleType)
        foreign = _is_foreign(owner.__name__ if module else _origin(owner))
        if id(owner) in seen or not (module or (isinstance(owner, type) and foreign)):
            continue
        seen.add(id(owner))
        scope: dict[str, Any] = vars(owner)
        used = sorted(named)
        names = [f" (the name {owner.__name__}.{name})" for name in used]
        # A library may exchange its own functions.
        show: Callable[[Any], Any] = _but_functions if foreign else _bare
        read = functools.partial(_shown, scope, used, show)
        yield Place(read, names, None, not foreign)
        queue.extend(scope[name] for name in used if name in scope)


def _shown(scope: dict[str, Any], names: list[str], show: Callable[[Any], Any]) -> list[Any]:
    return [show(scope.get(name)) for name in names]


def _but_functions(value: Any) -> Any:
    return "" if callable(value) or isinstance(value, ModuleType) else value


def _content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:
        # A variable that has no value yet.
        return None


def _names(code: CodeType) -> set[str]:
    """Names that a function and the functions inside it look up outside."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _names(constant)
    return found


def _class(value: type) -> Place:
    scope = vars(value)
    names = list(scope)

    def read() -> list[Any]:
        return [*(_bare(scope.get(name)) for name in names), len(scope)]

    return Place(read, [f".{name}" for name in names] + [""], None)


def _bare(value: Any) -> Any:
    wrapped = isinstance(value, classmethod | staticmethod)
    return cast("Any", value).__func__ if wrapped else value


def _instance(value: Any) -> Iterator[Place]:
    if isinstance(value, nn.RNNBase):
        kept = [name for name in vars(value) if name not in _CACHES]
        names = [f".{name}" for name in kept] + [""]
        yield Place(lambda: [*map(vars(value).get, kept), len(vars(value))], names, None)
    elif isinstance(getattr(value, "__dict__", None), dict):
        yield _attributes(value)
    # An object may be given another class, and a class other bases.
    kinds = type(value).__mro__
    yield Place(lambda: list(type(value).__mro__), [""] * len(kinds), None)
    for kind in kinds:
        if _is_foreign(kind.__module__):
            continue
        slots: Any = vars(kind).get("__slots__", ())
        slots = [slots] if isinstance(slots, str) else list(slots)
        if slots:
            names = [f".{slot}" for slot in slots]
            yield Place(lambda s=slots: [getattr(value, slot, None) for slot in s], names, None)
