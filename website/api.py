"""Pages of every public function, made of signatures and docstrings, as Markdown for Sphinx."""

from __future__ import annotations

import ast
import enum
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

import dpacct

# Parts of the page on Python besides dpacct and its packages. For a module without ``__all__``, its
# public names.
PARTS: dict[str, tuple[str, ...]] = {
    "dpacct.fl.postprocess": (),
    "dpacct.fl.data": (),
    "dpacct.fl.models": (),
    "dpacct.renyi.odometer": ("Odometer",),
    "dpacct.renyi.curve": ("RenyiValue",),
    "dpacct.tight.accountant": ("TightAccountant",),
}
HEADINGS = ("Args", "Attributes", "Returns", "Yields", "Error", "Raises", "Source", "Example")
HEADING = re.compile(rf"^(?P<name>{'|'.join(HEADINGS)}): *(?P<rest>.*)$")
ENTRY = re.compile(r"^(?P<names>[*\w`.]+(?:, [*\w`.]+)*): (?P<text>.*)$")
CODE = re.compile(r"(``.+?``|`[^`\n]+`)")
DERIVATION = re.compile(r"docs/(derivations/[\w-]+)\.md")


def modules() -> tuple[ModuleType, ...]:
    """Return the modules that have a page: dpacct, its rooms, and the parts that are promised."""
    rooms = [
        value for name in dir(dpacct) if isinstance(value := getattr(dpacct, name), ModuleType)
    ]
    return (dpacct, *rooms, *map(import_module, PARTS))


def public_names(module: ModuleType) -> list[str]:
    """Return the ``__all__`` of a module, or its names in `PARTS`."""
    offered: Sequence[str] = getattr(module, "__all__", PARTS.get(module.__name__, ()))
    return sorted((name for name in offered if not name.startswith("__")), key=str.lower)


def page_name(module: ModuleType) -> str:
    """Return the path of a module's page on the site, without ending."""
    return f"reference/api/{module.__name__}"


def pages() -> dict[str, str]:
    """Return the text of every page by its name. Shared names appear on the first page only."""
    written: dict[str, str] = {}
    owners: dict[int, str] = {}
    for module in modules():
        # Names in signatures mean those of this module first.
        here = f"```{{py:currentmodule}} {module.__name__}\n```"
        parts = [f"# {module.__name__}", markdown(inspect.getdoc(module) or ""), here]
        for name in public_names(module):
            value = getattr(module, name)
            home = owners.setdefault(id(value), f"{module.__name__}.{name}")
            if home == f"{module.__name__}.{name}":
                parts.append(described(name, value))
            else:
                parts.append(f"- `{name}` is {{py:obj}}`{home}`.")
        written[page_name(module)] = "\n\n".join(parts) + "\n"
    return written


def described(name: str, value: Any) -> str:
    """Return the directive of one name with all that is below it."""
    if inspect.isclass(value):
        return _directive("class", f"{name}{_signature(value)}", _class_body(value), colons=5)
    if inspect.isroutine(value):
        return _directive("function", f"{name}{_signature(value)}", _doc(value))
    return _directive("data", name, f"A value of type `{type(value).__name__}`.")


def _directive(kind: str, signature: str, body: str, colons: int = 4) -> str:
    fence = ":" * colons
    return f"{fence}{{py:{kind}}} {signature}\n\n{body}\n{fence}"


def _doc(value: Any) -> str:
    return markdown(inspect.getdoc(value) or "")


def _class_body(value: Any) -> str:
    parts = [_doc(value)]
    members: Mapping[str, Any] = getattr(value, "__members__", {})
    parts += [f"- `{name}`: `{member.value!r}`" for name, member in members.items()]
    for name, member in _members(value):
        if isinstance(member, property):
            parts.append(_directive("property", name, _doc(member)))
        else:
            function = getattr(value, name)
            kind = "classmethod" if isinstance(member, classmethod) else "method"
            kind = "staticmethod" if isinstance(member, staticmethod) else kind
            parts.append(_directive(kind, f"{name}{_signature(function)}", _doc(function)))
    return "\n\n".join(parts)


def _members(value: type) -> Iterator[tuple[str, Any]]:
    """Yield documented public methods and properties, in the order of the source."""
    seen: set[str] = set()
    for base in value.__mro__:
        if not base.__module__.startswith("dpacct"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen:
                continue
            function = getattr(member, "__func__", member)
            if isinstance(member, property) or inspect.isfunction(function):
                seen.add(name)
                if inspect.getdoc(member):
                    yield name, member


def _signature(value: Any) -> str:
    """Return the signature in one line. A default that is no literal shows as an ellipsis."""
    if inspect.isclass(value) and issubclass(value, enum.Enum):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "()"
    shown = [
        parameter.replace(
            default=_default(parameter.default), annotation=_annotation(parameter.annotation)
        )
        for parameter in signature.parameters.values()
        if parameter.name not in {"self", "cls"}
    ]
    returned = _annotation(signature.return_annotation)
    if inspect.isclass(value):
        returned = inspect.Signature.empty
    return str(signature.replace(parameters=shown, return_annotation=returned))


class _Shown:
    """Text that stands in a signature as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def _default(value: object) -> Any:
    if value is inspect.Parameter.empty:
        return value
    text = repr(value)
    try:
        ast.parse(text, mode="eval")
    except SyntaxError:
        text = "..."
    return _Shown(text)


def _annotation(annotation: object) -> Any:
    """Return a text annotation without the quotes that Python would add."""
    return _Shown(annotation) if isinstance(annotation, str) else annotation


def plain(text: str) -> str:
    """Return text of a docstring as Markdown: code stays code, nothing else is markup."""
    pieces = CODE.split(text)
    for place in range(0, len(pieces), 2):
        escaped = re.sub(r"([\\*_<>\[\]|$~^{}#])", r"\\\1", pieces[place])
        pieces[place] = DERIVATION.sub(
            lambda match: f"[{match[1]}](/{match[1]}.md)", escaped.replace(r"\_", "_")
        )
    return "".join(pieces)


def markdown(doc: str) -> str:
    """Return a docstring of our style as Markdown: paragraphs, and its sections as bold words."""
    parts: list[str] = []
    paragraph: list[str] = []

    def close() -> None:
        if paragraph:
            parts.append(plain("\n".join(line.strip() for line in paragraph)))
            paragraph.clear()

    lines = iter(doc.splitlines())
    line = next(lines, None)
    while line is not None:
        heading = HEADING.match(line)
        if heading:
            close()
            body = [heading["rest"]] if heading["rest"] else []
            line = next(lines, None)
            while line is not None and (line.startswith("    ") or not line.strip()):
                if line.strip():
                    body.append(line.removeprefix("    "))
                elif body:
                    body.append("")
                line = next(lines, None)
                if line is not None and HEADING.match(line):
                    break
            parts.append(_section(heading["name"], body))
            continue
        if line.strip():
            paragraph.append(line)
        else:
            close()
        line = next(lines, None)
    close()
    return "\n\n".join(parts)


def _section(name: str, body: list[str]) -> str:
    """Return entries of a section as a list, and texts without a name as a paragraph."""
    if not any(ENTRY.match(line) for line in body):
        return f"**{name}.** " + plain("\n".join(line.strip() for line in body)).strip()
    items: list[str] = []
    for line in filter(str.strip, body):
        entry = ENTRY.match(line)
        if entry:
            names = ", ".join(f"`{each.strip('`')}`" for each in entry["names"].split(", "))
            items.append(f"- {names}: {plain(entry['text'])}")
        elif items:
            items[-1] += f"\n  {plain(line.strip())}"
        else:
            items.append(f"- {plain(line.strip())}")
    return f"**{name}**\n\n" + "\n".join(items)
