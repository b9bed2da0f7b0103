"""Formulas as MathML, which browsers typeset themselves: no script, no picture, no network."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

from latex2mathml import exceptions
from latex2mathml.converter import convert

# Leftovers that a formula may not have: an unknown command is shown as it is typed.
LEFTOVER = re.compile(r"\\[A-Za-z]+|\\\\")
REFUSALS = tuple(
    value
    for value in vars(exceptions).values()
    if isinstance(value, type) and issubclass(value, Exception)
)
# GitHub's spellings that the converter knows by another name, or spaces better by it.
SPELLINGS = (
    (re.compile(r"\\mathop\{\\mathrm\{(\w+)\}\}"), r"\\operatorname{\1}"),
    (re.compile(r"\\mathrm\{((?:\w|\\_)+)\}"), r"\\text{\1}"),
    (re.compile(r"\\lvert(?![A-Za-z])"), r"\\left|"),
    (re.compile(r"\\rvert(?![A-Za-z])"), r"\\right|"),
    (re.compile(r"\\langle(?![A-Za-z])"), r"\\left\\langle"),
    (re.compile(r"\\rangle(?![A-Za-z])"), r"\\right\\rangle"),
)


NAMESPACE = "http://www.w3.org/1998/Math/MathML"
MO, MI, MROW, MSPACE, MSUB, MSUP, MSUBSUP, MUNDER = (
    f"{{{NAMESPACE}}}{name}"
    for name in ("mo", "mi", "mrow", "mspace", "msub", "msup", "msubsup", "munder")
)
PRIME = "\u2032"
SIGNS = {"\u2212", "+", "\u00b1"}


class FormulaError(ValueError):
    """A formula that cannot be typeset."""


def to_mathml(formula: str, *, display: bool) -> str:
    """Return a formula in TeX notation as a `math` element.

    Raises:
        FormulaError: a command is unknown, or braces do not match.
    """
    if formula.count("{") - formula.count(r"\{") != formula.count("}") - formula.count(r"\}"):
        raise FormulaError(f"braces do not match in {formula!r}")
    spelled = formula
    for pattern, spelling in SPELLINGS:
        spelled = pattern.sub(spelling, spelled)
    try:
        text = convert(spelled, display="block" if display else "inline")
        root = ET.fromstring(text)  # noqa: S314 - made in the line above
    except (*REFUSALS, ET.ParseError) as error:
        raise FormulaError(f"cannot typeset {formula!r}: {error}") from error
    shown = " ".join(part for part in root.itertext())
    if left := LEFTOVER.search(shown):
        raise FormulaError(f"{left[0]} is not understood in {formula!r}")
    _set_well(root)
    ET.register_namespace("", NAMESPACE)
    return ET.tostring(root, encoding="unicode")


def _set_well(element: Element) -> None:
    """Set spaces and forms that the converter leaves to chance, below an element."""
    for child in list(element):
        _set_well(child)
    children = list(element)
    for place, child in enumerate(children):
        text = child.text or ""
        before = children[place - 1] if place else None
        after = children[place + 1] if place + 1 < len(children) else None
        if child.tag == MO and text in SIGNS and _opens(before):
            child.set("form", "prefix")
            child.set("lspace", "0")
            child.set("rspace", "0")
        elif child.tag == MO and text == "/":
            child.set("lspace", "0.05em")
            child.set("rspace", "0.05em")
        elif child.tag == MO and text == "|":
            child.set("stretchy", "false")
        elif child.tag == MI and re.fullmatch("[\u0391-\u03a9]", text):
            child.set("mathvariant", "normal")
        elif _is_function(child) and element.tag == MROW:
            _space_around(element, child, before, after)
        elif child.tag == MSUP and child[1].text == PRIME:
            _lower_prime(child)


def _opens(before: Element | None) -> bool:
    """Return True if a sign after this belongs to a number, and is no operation."""
    if before is None:
        return True
    return before.tag == MO and (before.text or "") not in {")", "]", "}", "|", PRIME, "!"}


def _is_function(element: Element) -> bool:
    """Return True if an element is the name of a function, with or without a script."""
    base = element[0] if element.tag in {MSUB, MSUP, MSUBSUP, MUNDER} else element
    return base.tag in {MI, MO} and len(base.text or "") > 1 and (base.text or "").isalpha()


def _space_around(
    row: Element, name: Element, before: Element | None, after: Element | None
) -> None:
    """Put a thin space between the name of a function and a following non-bracket."""
    base = name[0] if len(name) else name
    if base.tag == MO:
        base.set("lspace", "0")
        base.set("rspace", "0")
    bare = after is not None and not (after.tag == MO and (after.text or "") in "([{")
    if bare and after is not None and after.tag != MO:
        row.insert(list(row).index(name) + 1, Element(MSPACE, {"width": "0.17em"}))
    if before is not None and (before.tag != MO or (before.text or "") in ")]"):
        row.insert(list(row).index(name), Element(MSPACE, {"width": "0.17em"}))


def _lower_prime(script: Element) -> None:
    """Lower a prime. It already has the height of a superscript, and would be raised twice."""
    base = script[0]
    script.clear()
    script.tag = MROW
    prime = Element(MO, {"lspace": "0", "rspace": "0"})
    prime.text = PRIME
    script.extend([base, prime])
