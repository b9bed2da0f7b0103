"""The range checks of the package, and their wording.

Each function returns its argument as the plain Python type that the mathematics uses, or raises
`InvalidParameter`. Rule 1: booleans and strings are never numbers, and the error names the type
before any range. Rule 2: NaN and infinities are never in range. Rule 3: a number that no float
holds (1/3, 2^53 + 1) is rounded so that no bound gets too low: noise, delta and epsilon down, a
sampling rate up.
"""

from __future__ import annotations

import math
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from numbers import Integral, Real
from os import PathLike
from pathlib import Path
from typing import Any, cast

from dpacct.errors import InvalidParameter

# Below the first value 1/sigma^2 times the largest order overflows. Above the second one a round
# is indistinguishable from no round in double precision.
NOISE_MULTIPLIER_RANGE = LEAST_NOISE, _ = (1e-3, 1e10)
MAX_ROUNDS = 10**12
MAX_ORDER = 1e7
# Below, its square underflows.
MIN_SAMPLING_RATE = 1e-150
# Characters of a name, or of any text on one line.
MAX_LINE = 200
# Bytes of a file of text. Bytes of memory that any file may take, or for each of its own bytes.
MAX_TEXT, MAX_UNPACKED, MAX_GROWTH = 2**28, 2**26, 100
# Characters of a file in TOML, which Python reads at about a million a second.
MAX_TOML = 2**23
# A key of 30 parts at the start of a line. Python's parser keeps all beginnings of a dotted key,
# and of its table's key with it, so that 100 kB of "a.a.a" take 10 GB.
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')[ \t]*+"""
_LONG_KEY = re.compile(rf"^[ \t\[]*+(?:{_PART}\.[ \t]*+){{29}}", re.MULTILINE)
# Below, bounds of error rates would need subnormal numbers.
MIN_PROBABILITY = 1e-100

# Values that people pass instead of numbers, in words. Other types go by their names.
_KINDS: dict[type[object], str] = {
    str: "text",
    bytes: "bytes",
    bool: "a truth value",
    type(None): "nothing",
}


def _number(name: str, value: object, rule: str) -> Any:
    """Return a real number: as it is, or the one that an array without axes holds."""
    held: Any = value
    if getattr(held, "shape", None) == () and hasattr(held, "item"):
        held = held.item()
    if isinstance(held, bool) or not isinstance(held, Real):
        kind = _KINDS.get(cast("object", held).__class__, f"of the type {type(held).__name__}")
        raise InvalidParameter(name, held, f"it has to be a number, not {kind}: {rule}")
    return held


def real(
    name: str, value: object, rule: str, fits: Callable[[float], bool] = math.isfinite
) -> float:
    """Return a finite real number as float: the largest float that is not above it."""
    exact = _number(name, value, rule)
    try:
        number = float(exact)
    except OverflowError:
        raise InvalidParameter(name, exact, rule) from None
    if number > exact:
        number = math.nextafter(number, -math.inf)
    if not (math.isfinite(number) and fits(number)):
        raise InvalidParameter(name, value, rule)
    return number


def count(name: str, value: object, noun: str, maximum: int = MAX_ROUNDS, hint: str = "") -> int:
    """Return a whole number from 1 to ``maximum``."""
    most = str(maximum) if maximum < 10**6 else f"{maximum:.0e}"
    rule = f"{noun} is a whole number from 1 to {most}"
    value = _number(name, value, rule)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, Integral) or not 1 <= int(value) <= maximum:
        raise InvalidParameter(name, value, rule, hint)
    return int(value)


def rounds(value: object) -> int:
    """Return the number of rounds."""
    return count("rounds", value, "the number of rounds")


def noise_multiplier(value: object, name: str = "noise_multiplier") -> float:
    """Return the noise multiplier z."""
    return within(name, value, "a noise multiplier", NOISE_MULTIPLIER_RANGE)


def noise_or_none(value: object, name: str = "noise_multiplier") -> float:
    """Return the noise multiplier of a training that may have no noise, which is 0."""
    return 0.0 if type(value) in (int, float) and value == 0 else noise_multiplier(value, name)


def sampling_rate(value: object, name: str = "sampling_rate") -> float:
    """Return the sampling rate q, rounded up: a higher rate costs more, never less."""
    rule = "a sampling rate lies in (0, 1]"
    number = real(name, value, rule)
    if number < _number(name, value, rule):
        number = math.nextafter(number, math.inf)
    if not 0.0 < number <= 1.0:
        raise InvalidParameter(name, value, rule, _meant_rate(number))
    if number < MIN_SAMPLING_RATE:
        raise InvalidParameter(name, value, f"{rule}, and is at least {MIN_SAMPLING_RATE:g} here")
    return number


def _meant_rate(number: float) -> str:
    """Return a question on a rate above 1: per cents, or a population over a cohort."""
    if not 1.0 < number < math.inf:
        return ""
    # Per cents have few decimals. 97.65625 is 1 / 0.01024.
    inverse = f"{1 / number:.6g}"
    if not (100 * number).is_integer() and float(inverse) * number == 1.0:
        return f"Did you mean {inverse} (1 / {number:.12g})?"
    return f"Did you mean {number / 100:.12g} ({number:.12g} %)?" if number <= 100.0 else ""


def delta(value: object) -> float:
    """Return the delta of (epsilon, delta)-DP."""
    return real("delta", value, "delta lies in (0, 1)", lambda number: 0.0 < number < 1.0)


def epsilon(value: object) -> float:
    """Return an epsilon of at least 0, at which a delta is computed."""
    return at_least_zero("epsilon", value, "epsilon")


def target_epsilon(value: object) -> float:
    """Return the epsilon of a budget: finite and above 0."""
    return above_zero("epsilon", value, "a target epsilon")


def order(value: object, name: str = "orders") -> float:
    """Return a Renyi order above 1."""
    rule = f"a Renyi order lies in (1, {MAX_ORDER:g}]"
    return real(name, value, rule, lambda number: 1.0 < number <= MAX_ORDER)


def probability(name: str, value: object, noun: str = "a rate of errors") -> float:
    """Return a number in [0, 1]."""
    return real(name, value, f"{noun} lies in [0, 1]", lambda number: 0.0 <= number <= 1.0)


def below_one(name: str, value: object, noun: str) -> float:
    """Return a number in [0, 1)."""
    return real(name, value, f"{noun} lies in [0, 1)", lambda number: 0.0 <= number < 1.0)


def positive_probability(
    name: str, value: object, noun: str = "a rate of errors", *, below_one: bool = False
) -> float:
    """Return a probability above 0, and below 1 if ``below_one``."""
    rule = f"{noun} lies in (0, 1{')' if below_one else ']'}"
    most = math.nextafter(1.0, 0.0) if below_one else 1.0
    number = real(name, value, rule, lambda number: 0.0 < number <= most)
    if number < MIN_PROBABILITY:
        raise InvalidParameter(name, value, f"{rule}, and is at least {MIN_PROBABILITY:g} here")
    return number


def at_least_zero(name: str, value: object, noun: str) -> float:
    """Return a finite number of at least 0."""
    rule = f"{noun} is a finite number of at least 0"
    return real(name, value, rule, lambda number: number >= 0.0)


def above_zero(name: str, value: object, noun: str) -> float:
    """Return a finite number above 0."""
    return real(name, value, f"{noun} is a finite number above 0", lambda number: number > 0.0)


def within(name: str, value: object, noun: str, ends: tuple[float, float]) -> float:
    """Return a number between two ends, which are in range."""
    low, high = ends
    rule = f"{noun} lies in [{low:g}, {high:g}]"
    return real(name, value, rule, lambda number: low <= number <= high)


def bound(name: str, value: object) -> float:
    """Return an end of an interval: a number, or an infinity."""
    rule = "a bound is a number"
    value = _number(name, value, rule)
    return value if isinstance(value, float) and math.isinf(value) else real(name, value, rule)


def several(name: str, values: object, noun: str) -> Sequence[object]:
    """Return a sequence or an array with axes. The caller checks its elements.

    A dictionary would be read as its keys, and a set loses what is equal. Both would be charged
    for less than was meant. A generator is empty when it is read again.
    """
    given = cast("Any", values)
    array = bool(getattr(given, "shape", ())) and hasattr(given, "tolist")
    if not array and (not isinstance(given, Sequence) or isinstance(given, str | bytes)):
        kind = _KINDS.get(given.__class__, f"of the type {type(given).__name__}")
        rule = f"several {noun} are asked for, as a list, a tuple or an array, not {kind}"
        raise InvalidParameter(name, given, rule)
    return cast("Sequence[object]", given)


def one_of(name: str, value: object, noun: str, known: Iterable[str], hint: str = "") -> str:
    """Return one of the known words."""
    words = list(known)
    if not isinstance(value, str) or value not in words:
        raise InvalidParameter(name, value, f"{noun} is one of {', '.join(words)}", hint)
    return value


def file_path(name: str, value: object) -> Path:
    """Return the path of a file."""
    given = cast("Any", value)
    if not isinstance(value, str | PathLike) or isinstance(os.fspath(given), bytes):
        raise InvalidParameter(name, given, "a path is text or a pathlib.Path")
    text = cast("str", os.fspath(given))
    if "\0" in text or not text.strip():
        raise InvalidParameter(name, given, "it has to name a file")
    return Path(given)


def check_regular(name: str, file: Path, noun: str, most: int = 2**63) -> None:
    """Reject a pipe, a device and a file that is too long: reading it might not end."""
    try:
        facts = file.stat()
    except (OSError, ValueError) as error:  # a ValueError for a zero byte in a name
        rule = f"it cannot be read ({getattr(error, 'strerror', None) or error})"
        raise InvalidParameter(name, str(file), rule) from None
    if not stat.S_ISREG(facts.st_mode) and not stat.S_ISDIR(facts.st_mode):
        raise InvalidParameter(name, str(file), f"{noun} is a file, and this is a pipe or a device")
    if facts.st_size > most:
        rule = f"{noun} has at most {most:,} bytes, and this file {facts.st_size:,}"
        raise InvalidParameter(name, str(file), rule)


def unpacked(name: str, file: Path, packed: int, whole: int) -> None:
    """Reject a file of ``packed`` bytes that would fill ``whole`` bytes of memory, far more."""
    if whole > max(MAX_UNPACKED, MAX_GROWTH * packed):
        rule = f"it has {packed:,} bytes and would take {whole:,}, more than {MAX_GROWTH} for each"
        raise InvalidParameter(name, str(file), rule)


def archive(name: str, file: Path, noun: str) -> None:
    """Reject what is no regular file, and a zip archive that unpacks to far more than it holds."""
    # As in `toml`.
    import zipfile  # noqa: PLC0415 - see above

    check_regular(name, file, noun)
    others = (OSError, zipfile.BadZipFile, NotImplementedError, ValueError, struct.error)
    whole = 0
    # Its reader says what is wrong with another file.
    with suppress(*others), zipfile.ZipFile(file) as content:
        whole = sum(entry.file_size for entry in content.infolist())
    unpacked(name, file, file.stat().st_size, whole)


def file_text(name: str, file: Path, noun: str) -> str:
    """Return the text of a file in UTF-8, with or without a mark at its start."""
    check_regular(name, file, noun, MAX_TEXT)
    try:
        return file.read_text(encoding="utf-8-sig")
    except OSError as error:
        rule = f"it cannot be read ({error.strerror or 'unknown reason'})"
    except UnicodeDecodeError:
        rule = f"{noun} is text in UTF-8"
    raise InvalidParameter(name, str(file), rule)


def toml(text: str, number: Callable[[str], float] = float) -> dict[str, Any]:
    """Return the content of a text in TOML. ``number`` reads decimals.

    Raises:
        ValueError: it is not TOML, is longer than `MAX_TOML`, or a key has 30 parts.
        RecursionError: it is nested too deep.
    """
    # Commands that read no file start without it.
    import tomllib  # noqa: PLC0415 - see above

    if len(text) > MAX_TOML:
        raise ValueError(f"it has {len(text):,} characters, and at most {MAX_TOML:,} are read")
    if key := _LONG_KEY.search(text):
        raise ValueError(f"the key {key[0].strip()[:20]}... has too many parts")
    return tomllib.loads(text, parse_float=number)


def flag(name: str, value: object) -> bool:
    """Return a truth value."""
    if not isinstance(value, bool):
        raise InvalidParameter(name, value, "it is true or false")
    return value


def is_address(ledger: object) -> bool:
    """Return whether a ledger is named by the address of a database, and not by a path."""
    return str(ledger).startswith(("postgresql://", "postgres://"))


def line(name: str, value: object, noun: str) -> str:
    """Return text on one line, without control characters, line ends or direction marks."""
    rule = f"{noun} is 1 to {MAX_LINE} printable characters on one line"
    if not isinstance(value, str) or not value.strip():
        raise InvalidParameter(name, value, rule)
    if len(value) > MAX_LINE or not value.isprintable():
        raise InvalidParameter(name, value, rule)
    return value
