"""Claim files in TOML: read and checked, with errors that name the line.

A file has a table ``[source]`` and a table ``[[claim]]`` for each claim. The mechanism stands in
the claim itself, or in tables ``[[claim.reading]]`` below it, which inherit every key that they do
not set. ``[[statement]]`` holds sentences that were judged by hand.

Rule 1: an unknown key is an error, because a misspelt key would change the verdict.
Rule 2: rounds, sampling, adjacency and noise have no default. If the text leaves one of them open,
each possibility is a reading of its own.
Rule 3: ``mechanism`` names a release beside the rounds, with its parameters in an inline table:
``mechanism = { name = "zcdp", rho = 0.81 }``. Then noise and sampling have no keys of their own.
Rule 4: two figures for the same noise must agree to the printed digits. If they do not, the error
names the mix-up of units that would explain it.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, NoReturn, cast

from dpacct import validate
from dpacct.claims.claim import (
    Claim,
    Claims,
    ClipFrom,
    Divisor,
    NoiseBy,
    Reading,
    Role,
    Source,
    Statement,
)
from dpacct.errors import InvalidParameter, shown
from dpacct.rounds import MAX_CLIENTS, Adjacency, Full, Poisson, Release, Round, Sampling, Uniform
from dpacct.schedules.files import read_release

LONGEST = 600
# Printed figures may differ by half a unit of their second digit.
PRINTED = 5e-3

# The keys of each table, with the check of each value.
Check = Callable[[str, Any], Any]
Table = dict[str, Any]


def _as_is(_: str, value: Any) -> Any:
    return value


def _text(name: str, value: Any) -> str:
    """Check a text of one paragraph."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidParameter(name, None, f"{name} is text")
    flat = " ".join(value.split())
    if len(flat) > LONGEST or not flat.isprintable():
        raise InvalidParameter(name, None, f"{name} is at most {LONGEST} printable characters")
    return flat


def _one_of(words: Iterable[str]) -> Check:
    def check(name: str, value: Any) -> Any:
        for word in words:
            if word == value:
                return word
        raise InvalidParameter(name, value, f"it is one of {', '.join(words)}")

    return check


def _above_zero(noun: str) -> Check:
    return lambda name, value: validate.above_zero(name, value, noun)


def _clients(noun: str) -> Check:
    return lambda name, value: validate.count(name, value, noun, MAX_CLIENTS)


_SOURCE: dict[str, Check] = {"name": _text, "about": _text, "link": _text}
_STATEMENT: dict[str, Check] = {
    "place": _text, "text": _text, "holds": _one_of(("yes", "no", "in part")), "why": _text,
}  # fmt: skip
_MECHANISM: dict[str, Check] = {
    "mechanism": _as_is,
    "rounds": lambda _, value: validate.rounds(value),
    "sampling": _one_of((Poisson.name, Uniform.name, Full.name)),
    "sampling_rate": lambda _, value: validate.sampling_rate(value),
    "cohort_size": _clients("the cohort size"),
    "num_clients": _clients("the number of clients"),
    "adjacency": lambda _, value: Adjacency.parse(value),
    "noise_multiplier": lambda _, value: validate.noise_multiplier(value),
    "noise_std": _above_zero("a standard deviation"),
    "noise_variance": _above_zero("a variance"),
    "noise_on": _one_of(("sum", "mean", "client")),
    "clip_norm": _above_zero("a clip norm"),
    "sensitivity": _above_zero("a sensitivity"),
    "noise_by": _one_of(NoiseBy),
    "clip_from": _one_of(ClipFrom),
    "divisor": _one_of(Divisor),
    "unprotected": _text,
}
_CLAIM: dict[str, Check] = {
    "id": _text,
    "place": _text,
    "data": _text,
    "epsilon": lambda _, value: validate.target_epsilon(value),
    "delta": lambda _, value: value if isinstance(value, str) else validate.delta(value),
    "accountant": _text,
    "note": _text,
    "reading": _as_is,
}
_READING: dict[str, Check] = {"words": _text, "role": _one_of(Role)}
_REQUIRED = {
    "rounds": "their number",
    "sampling": "one of poisson, uniform, full",
    "adjacency": "one of add-remove, replace-one, zero-out",
}
# A reading that sets one key of a group inherits no other key of that group.
_GROUPS = (
    {"noise_multiplier", "noise_std", "noise_variance", "noise_on"},
    {"sampling", "sampling_rate", "cohort_size"},
)
# A reading with a mechanism inherits no key of rounds, and a round no mechanism.
_OF_ROUNDS = frozenset(_MECHANISM) - {
    "mechanism",
    "rounds",
    "adjacency",
    "num_clients",
    "unprotected",
}
# Common names of a key elsewhere, and its name here.
_MEANT = {
    "sigma": "noise_multiplier", "z": "noise_multiplier", "noise": "noise_multiplier",
    "std": "noise_std", "variance": "noise_variance", "q": "sampling_rate",
    "rate": "sampling_rate", "steps": "rounds", "eps": "epsilon", "clients": "num_clients",
    "cohort": "cohort_size", "clip": "clip_norm", "neighbors": "adjacency",
}  # fmt: skip


def load_claims(path: str | os.PathLike[str]) -> Claims:
    """Read the claims of a TOML file.

    Raises:
        InvalidParameter: the file cannot be read, is not TOML, lacks a key or has a value out of
            range. The message names the file and the line.
    """
    file = validate.file_path("path", path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        rule = f"it cannot be read ({error.strerror or 'unknown reason'})"
        raise InvalidParameter("claims", str(file), rule) from None
    except UnicodeDecodeError:
        raise InvalidParameter("claims", str(file), "a claim file is text in UTF-8") from None
    return parse_claims(text, str(file))


def parse_claims(text: str, name: str) -> Claims:
    """Read claims from TOML text. ``name`` stands for the file in errors, as in `load_claims`."""
    if not isinstance(text, str):
        raise InvalidParameter("text", text, "claims are read from text in TOML")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        rule = f"it is not valid TOML ({' '.join(str(error).split())})"
        raise InvalidParameter("claims", name, rule) from None
    return _File(name, text).claims(data)


@cache
def shipped_claims() -> Claims:
    """Return all claims and statements of the package, in the order of their files."""
    folder = files("dpacct.claims") / "published"
    found = [
        parse_claims(file.read_text(encoding="utf-8"), file.name)
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    ]
    return Claims(
        tuple(claim for one in found for claim in one.claims),
        tuple(statement for one in found for statement in one.statements),
    )


# Lines. A path holds names of tables and keys, and for each table of a list its number from 0.
Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(\.|=)")
_QUOTES = re.compile(r'"""|\'\'\'')


def find_lines(text: str) -> dict[Path, int]:
    """Return the line, from 1, of each table and key of a valid TOML text.

    Keys of inline tables and dotted keys are left out.
    """
    found: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    quote = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header, key = (None, None) if quote else (_HEADER.match(line), _KEY.match(line))
        if header:
            table = ()
            names = [name.strip() for name in header[2].split(".")]
            for depth, name in enumerate(names, start=1):
                table = (*table, name)
                if header[1] == "[[" and depth == len(names):
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    table = (*table, counts[table])
            found.setdefault(table, number)
        elif key:
            found.setdefault((*table, key[1].strip("\"'")), number)
        for mark in _QUOTES.findall(line):
            quote = "" if quote == mark else quote or mark
    return found


class _File:
    """Reads the tables of one file."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines = find_lines(text)

    def line(self, *paths: Path) -> int:
        """Return the line of the first path that has one, or of the nearest table around it."""
        for path in paths:
            if path in self.lines:
                return self.lines[path]
        path = paths[0]
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def fail(self, path: Path, rule: str, hint: str = "") -> NoReturn:
        raise InvalidParameter("claims", self.name, f"line {self.line(path)}: {rule}", hint)

    @contextmanager
    def table_at(self, path: Path) -> Generator[None]:
        """Add the line to an error about the table at ``path``, which may inherit from a claim."""
        try:
            yield
        except InvalidParameter as error:
            rule = error.rule
            if error.value is not None:
                rule = f"{error.name} is {shown(error.value)}; {rule}"
            line = self.line((*path, error.name), (*path[:2], error.name))
            rule = f"line {line}: {rule}"
            raise InvalidParameter("claims", self.name, rule, error.hint) from None

    def values(self, table: Table, path: Path, fields: Mapping[str, Check]) -> Table:
        """Return the checked values of a table, of which all keys must be known."""
        for key in table:
            if key not in fields:
                meant = _MEANT.get(key.lower())
                if meant in fields:
                    hint = f"Did you mean {meant}?"
                    self.fail((*path, key), f"{key[:40]!r} is not a key of this table", hint)
                self.fail((*path, key), f"{key[:40]!r} is not one of {', '.join(fields)}")
        with self.table_at(path):
            return {key: fields[key](key, value) for key, value in table.items()}

    def tables(self, data: Table, path: Path) -> list[Table]:
        """Return the tables below ``[[path]]``, or an empty list."""
        found = data.get(cast("str", path[-1]), [])
        if not isinstance(found, list) or not all(
            isinstance(table, dict) for table in cast("list[Any]", found)
        ):
            name = ".".join(part for part in path if isinstance(part, str))
            self.fail(path, f"each {path[-1]} stands below [[{name}]], with two brackets")
        return cast("list[Table]", found)

    def claims(self, data: Table) -> Claims:
        self.values(data, (), dict.fromkeys(("source", "claim", "statement"), _as_is))
        table = data.get("source")
        if not isinstance(table, dict):
            self.fail(("source",), "[source] is missing; it names the text that makes the claims")
        texts = self.values(cast("Table", table), ("source",), _SOURCE)
        if "name" not in texts:
            self.fail(("source",), "name is missing; it names the text that makes the claims")
        source = Source(**texts)
        claims: dict[str, Claim] = {}
        for number, one in enumerate(self.tables(data, ("claim",))):
            claim = self.claim(one, source, ("claim", number))
            if claim.id in claims:
                self.fail(("claim", number, "id"), f"another claim is called {claim.id!r}")
            claims[claim.id] = claim
        statements: list[Statement] = []
        for number, one in enumerate(self.tables(data, ("statement",))):
            path = ("statement", number)
            texts = self.values(one, path, _STATEMENT)
            for key in _STATEMENT:
                if key not in texts:
                    self.fail(path, f"{key} is missing in this statement")
            statements.append(Statement(source=source, **texts))
        if not claims and not statements:
            self.fail((), "there is no claim; each stands below [[claim]]")
        return Claims(tuple(claims.values()), tuple(statements))

    def claim(self, table: Table, source: Source, path: Path) -> Claim:
        values = self.values(table, path, _CLAIM | _MECHANISM)
        for key in ("id", "place", "delta"):
            if key not in values:
                self.fail(path, f"{key} is missing in this claim")
        common = {key: values[key] for key in _MECHANISM if key in values}
        own = self.tables(table, (*path, "reading")) or [{}]
        readings = [
            self.reading(common, one, (*path, "reading", number)) for number, one in enumerate(own)
        ]
        with self.table_at(path):
            delta = _delta(values["delta"], values.get("num_clients"))
        return Claim(
            source=source,
            epsilon=values.get("epsilon"),
            delta=delta,
            delta_words=values["delta"] if isinstance(values["delta"], str) else "",
            readings=tuple(readings),
            line=self.line(path),
            **{key: values[key] for key in _CLAIM if _CLAIM[key] is _text and key in values},
        )

    def reading(self, common: Table, table: Table, path: Path) -> Reading:
        own = self.values(table, path, _READING | _MECHANISM)
        dropped = {key for group in _GROUPS if group & own.keys() for key in group}
        if "mechanism" in own:
            dropped |= _OF_ROUNDS
        elif own.keys() & _OF_ROUNDS:
            dropped.add("mechanism")
        given = {key: value for key, value in common.items() if key not in dropped} | own
        if "mechanism" in given:
            return self.beside_rounds(given, path)
        for key, words in _REQUIRED.items():
            if key not in given:
                rule = f"{key} is missing: {words}, in the claim or in each of its readings"
                self.fail(path, rule)
        with self.table_at(path):
            sampling = _sampling(given)
            _check_sensitivity(given, sampling)
            noise = _noise_multiplier(given, sampling)
        by_each = given.get("noise_on") == "client"
        return Reading(
            words=given.get("words", "as described"),
            role=given.get("role", Role.RUN),
            rounds=given["rounds"],
            round=Round(noise, sampling, given["adjacency"]),
            num_clients=given.get("num_clients"),
            noise_by=given.get("noise_by", NoiseBy.PARTICIPANTS if by_each else NoiseBy.SERVER),
            clip_from=given.get("clip_from", ClipFrom.CONSTANT),
            divisor=given.get("divisor", Divisor.PLANNED),
            unprotected=given.get("unprotected", ""),
            line=self.line(path),
        )

    def beside_rounds(self, given: Table, path: Path) -> Reading:
        """Return a reading about a release that is no round."""
        known = ("mechanism", "rounds", "adjacency", "num_clients", "unprotected", "words", "role")
        for key in given:
            if key not in known:
                self.fail((*path, key), f"{key} belongs to a round, and this reading has none")
        if "adjacency" not in given:
            self.fail(path, f"adjacency is missing: {_REQUIRED['adjacency']}")
        with self.table_at(path):
            release = _release(given["mechanism"], given["adjacency"])
        return Reading(
            words=given.get("words", "as described"),
            role=given.get("role", Role.RUN),
            rounds=given.get("rounds", 1),
            round=release,
            num_clients=given.get("num_clients"),
            unprotected=given.get("unprotected", ""),
            line=self.line(path),
        )


# Keys that belong together.


def _release(table: Any, adjacency: Adjacency) -> Release:
    """Return the release of an inline table."""
    if not isinstance(table, dict) or "name" not in table:
        rule = 'a mechanism is a table such as { name = "zcdp", rho = 0.81 }'
        raise InvalidParameter("mechanism", None, rule)
    values = {key: value for key, value in cast("Table", table).items() if key != "name"}
    try:
        return read_release(cast("Table", table)["name"], values, adjacency, also=("name",))
    except InvalidParameter as error:
        said = "" if error.value is None else f"{error.name} is {shown(error.value)}; "
        raise InvalidParameter("mechanism", None, f"{said}{error.rule}", error.hint) from None


def _delta(given: float | str, clients: int | None) -> float:
    """Return delta, which may be given in terms of the number of clients."""
    if not isinstance(given, str):
        return given
    if clients is None:
        rule = "delta in terms of num_clients needs num_clients in the same table"
        raise InvalidParameter("delta", None, rule)
    power = re.fullmatch(r"num_clients\s*\^\s*-\s*(\d+(?:\.\d+)?)", given.strip())
    over = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*num_clients", given.strip())
    if power:
        return validate.delta(float(clients) ** -float(power[1]))
    if over:
        return validate.delta(float(over[1]) / clients)
    raise InvalidParameter("delta", given, 'it is a number, "num_clients^-1.1" or "1/num_clients"')


def _sampling(given: Table) -> Sampling:
    name, rate = given["sampling"], given.get("sampling_rate")
    cohort, clients = given.get("cohort_size"), given.get("num_clients")
    if name == Full.name:
        if cohort is not None or rate not in (None, 1.0):
            raise InvalidParameter("sampling", name, "all clients take part, so it has no rate")
        return Full()
    if name == Poisson.name:
        if cohort is not None:
            rule = "Poisson cohorts have no fixed size. Give sampling_rate instead"
            raise InvalidParameter("cohort_size", cohort, rule)
        if rate is None:
            raise InvalidParameter("sampling_rate", None, "sampling_rate is missing, for poisson")
        return Poisson(rate)
    if cohort is None or clients is None:
        missing = "cohort_size" if cohort is None else "num_clients"
        raise InvalidParameter(missing, None, f"{missing} is missing, for uniform")
    uniform = Uniform(cohort, clients)
    if rate is not None and abs(rate / uniform.sampling_rate - 1) > 1e-3:
        rule = f"cohort_size / num_clients is {uniform.sampling_rate:g}"
        raise InvalidParameter("sampling_rate", rate, rule, "One of them is enough.")
    return uniform


def _check_sensitivity(given: Table, sampling: Sampling) -> None:
    """Check that a stated sensitivity is the C or 2 C of the adjacency."""
    found, clip, adjacency = given.get("sensitivity"), given.get("clip_norm"), given["adjacency"]
    if found is None:
        return
    if clip is None:
        rule = "a sensitivity is compared with the clip norm, which is missing"
        raise InvalidParameter("sensitivity", found, rule)
    displaces = isinstance(sampling, Uniform) and adjacency is Adjacency.ADD_REMOVE
    times = 2.0 if adjacency is Adjacency.REPLACE_ONE or displaces else 1.0
    if math.isclose(found, times * clip, rel_tol=PRINTED):
        return
    why = "a cohort that stays full lets a client displace another" if displaces else str(adjacency)
    rule = f"under {why} one client moves the sum by up to {times:g} x clip_norm, {times * clip:g}"
    hint = ""
    if math.isclose(found, (3.0 - times) * clip, rel_tol=PRINTED):
        hint = f"That is {3.0 - times:g} x clip_norm, as under another adjacency."
    raise InvalidParameter("sensitivity", found, rule, hint)


def _noise_multiplier(given: Table, sampling: Sampling) -> float:
    """Return z, the standard deviation of the noise on the sum / clip norm.

    The text may give the standard deviation or the variance, on the sum, on the mean over the
    planned cohort, or of each client's own share.
    """
    printed, std = given.get("noise_multiplier"), _deviation(given)
    if std is None:
        if printed is None:
            rule = "a noise multiplier is missing: std of the noise on the sum / clip norm"
            hint = "Give it, or noise_std (or noise_variance) with clip_norm."
            raise InvalidParameter("noise_multiplier", None, rule, hint)
        return printed
    clip, on = given.get("clip_norm"), given.get("noise_on", "sum")
    if clip is None:
        rule = "clip_norm is missing: the noise multiplier is the noise std / clip_norm"
        raise InvalidParameter("clip_norm", None, rule)
    clients = given.get("num_clients")
    cohort = None if clients is None else sampling.sampling_rate * clients
    if isinstance(sampling, Uniform):
        cohort = float(sampling.cohort_size)
    if on == "sum":
        factor, units = 1.0, ""
    elif cohort is None:
        rule = "noise on the mean, or of each client, needs the number of clients"
        raise InvalidParameter("noise_on", on, rule, "Give num_clients.")
    elif on == "mean":
        factor, units = cohort, f", on the mean of {cohort:g} clients"
    else:  # Independent shares add up by their squares.
        factor, units = math.sqrt(cohort), f", times the root of {cohort:g} clients"
    computed = validate.noise_multiplier(std / clip * factor)
    if printed is None:
        return computed
    if not math.isclose(printed, computed, rel_tol=PRINTED):
        figure = "noise_std" if "noise_std" in given else "the root of noise_variance"
        rule = f"{figure} / clip_norm is {computed:.6g}{units}"
        slip = _slip(printed, std, clip, factor, cohort, on, by_std="noise_std" in given)
        raise InvalidParameter("noise_multiplier", printed, rule, slip)
    # If two figures agree to the printed digits, the one that protects less is judged.
    return min(printed, computed)


def _deviation(given: Table) -> float | None:
    """Return the standard deviation of the noise in the units of the text, if it gives one."""
    std, variance = given.get("noise_std"), given.get("noise_variance")
    if std is None or variance is None:
        return std if variance is None else math.sqrt(variance)
    if not math.isclose(std * std, variance, rel_tol=2 * PRINTED):
        rule = f"the square of noise_std is {std * std:.6g}"
        hint = "Is one of them the other?" if math.isclose(std, variance) else ""
        raise InvalidParameter("noise_variance", variance, rule, hint)
    return min(std, math.sqrt(variance))


def _slip(
    printed: float, std: float, clip: float, factor: float, cohort: float | None, on: str, *,
    by_std: bool,
) -> str:  # fmt: skip
    """Return the mix-up of units that explains why two figures of one noise differ, or nothing."""
    plain = std / clip * factor
    squared = "The variance was divided by clip_norm; its root belongs there."
    if not by_std:
        squared = squared[:-1] + ", or it is a standard deviation: name it noise_std."
    slips = [
        (plain / 2, "It was divided by the sensitivity 2 x clip_norm. Divide by clip_norm."),
        (2 * plain, "It was divided by half the clip norm. Divide by clip_norm itself."),
        (std * plain, squared),
        (plain * plain, "It looks like a variance: its root fits."),
    ]
    if by_std:
        root = "noise_std looks like a variance: name it noise_variance."
        slips.append((plain / math.sqrt(std), root))
    if cohort is not None and on != "client":
        shares = 'Does each client add noise of this size? noise_on = "client".'
        slips.append((std / clip * math.sqrt(cohort), shares))
        times, where = (cohort, "mean") if on == "sum" else (1 / cohort, "sum")
        hint = f'The noise seems to be on the {where}: noise_on = "{where}".'
        slips.append((plain * times, hint))
        slips.append((plain / times, "It seems to be divided by the cohort size."))
    slips.append((std, "It was not divided by clip_norm."))
    return next(
        (hint for value, hint in slips if math.isclose(printed, value, rel_tol=PRINTED)), ""
    )
