"""Claims as TOML files, and refusals that name the line.

A file has a table ``[source]`` with ``name``, and a table ``[[claim]]`` for each claim. What runs
stands in the claim itself, or in tables ``[[claim.reading]]`` below it, which take over what they
do not say themselves. ``[[statement]]`` holds sentences that were judged by hand.

Rule 1: an unknown key is an error, since a misspelt one would change what is judged.
Rule 2: rounds, sampling, adjacency and noise have no default here: a text says them, or it is read
in one way and another, each a reading of its own.

The noise multiplier of a text, whatever units it uses, and the units that it mixes up.

Here z is the standard deviation of the noise on the *sum* / clip norm C, whatever the adjacency.
A text may give the deviation, or the variance, on the sum, on the mean over the planned cohort, or
of what each client of the cohort adds for itself.

Rule 1: what is given twice must agree to the digits that are printed; where it does not, the slip
that would explain it is named.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, TypeVar, cast

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
from dpacct.rounds import MAX_CLIENTS, Adjacency, Full, Poisson, Round, Sampling, Uniform

# A path holds names of tables and keys, and a number for each table of a list, from 0.
Path = tuple[str | int, ...]

_HEADER = re.compile(r"\s*(\[\[?)\s*([A-Za-z0-9_.\-\s]+?)\s*\]\]?\s*(#.*)?$")
_KEY = re.compile(r"\s*([A-Za-z0-9_\-]+|\"[^\"]*\"|'[^']*')\s*(\.|=)")
_QUOTES = re.compile(r'"""|\'\'\'')


@dataclass(slots=True)
class _Scan:
    found: dict[Path, int] = field(default_factory=dict[Path, int])
    counts: dict[tuple[str | int, ...], int] = field(default_factory=dict[Path, int])
    table: Path = ()
    quote: str = ""

    def header(self, brackets: str, name: str, number: int) -> None:
        parts = [part.strip() for part in name.split(".")]
        path: Path = ()
        for depth, part in enumerate(parts, start=1):
            path = (*path, part)
            if brackets == "[[" and depth == len(parts):
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
        self.table = path
        self.found.setdefault(path, number)

    def quotes(self, line: str) -> None:
        for mark in _QUOTES.findall(line):
            if not self.quote:
                self.quote = mark
            elif self.quote == mark:
                self.quote = ""


def find_lines(text: str) -> Mapping[Path, int]:
    """The line, from 1, of each table and key of a valid TOML text.

    Keys of inline tables, and of tables written with dots, are left out: see `line_of`.
    """
    scan = _Scan()
    for number, line in enumerate(text.splitlines(), start=1):
        if not scan.quote:
            header, key = _HEADER.match(line), _KEY.match(line)
            if header:
                scan.header(header[1], header[2], number)
            elif key:
                scan.found.setdefault((*scan.table, key[1].strip("\"'")), number)
        scan.quotes(line)
    return scan.found


def line_of(lines: Mapping[Path, int], path: Path) -> int:
    """The line of a key, or of the nearest thing around it that has one; 1 at least."""
    while path:
        if path in lines:
            return lines[path]
        path = path[:-1]
    return 1


LONGEST = 600
# What people write for a key, and what it is called here.
MEANT = {
    "sigma": "noise_multiplier",
    "z": "noise_multiplier",
    "noise": "noise_multiplier",
    "std": "noise_std",
    "variance": "noise_variance",
    "q": "sampling_rate",
    "rate": "sampling_rate",
    "steps": "rounds",
    "eps": "epsilon",
    "clients": "num_clients",
    "cohort": "cohort_size",
    "clip": "clip_norm",
    "neighbors": "adjacency",
}
_Choice = TypeVar("_Choice", bound=StrEnum)
_Value = TypeVar("_Value")


def invalid(name: str, rule: str, hint: str = "") -> InvalidParameter:
    """The refusal of a file of claims."""
    return InvalidParameter("claims", name, rule, hint)


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads tables of one file.

    Attributes:
        name: of the file.
        lines: on which its keys stand.
    """

    name: str
    lines: Mapping[Path, int]

    def refuse(self, path: Path, rule: str, hint: str = "") -> NoReturn:
        """Refuse what stands at a path."""
        raise invalid(self.name, f"line {line_of(self.lines, path)}: {rule}", hint) from None

    def tables(self, data: dict[str, Any], key: str, path: Path) -> list[dict[str, Any]]:
        """The tables ``[[key]]``; none where there are none."""
        found = data.get(key, [])
        named = ".".join(str(part) for part in (*path, key) if isinstance(part, str))
        if not isinstance(found, list):
            self.refuse((*path, key), f"each {key} stands below [[{named}]], with two brackets")
        tables = cast("list[Any]", found)
        if not all(isinstance(table, dict) for table in tables):
            self.refuse((*path, key), f"each {key} stands below [[{named}]], with two brackets")
        return cast("list[dict[str, Any]]", tables)

    def known(self, table: dict[str, Any], keys: tuple[str, ...], path: Path) -> None:
        """Refuse a key that nobody knows."""
        for key in table:
            if key not in keys:
                meant = MEANT.get(key.lower())
                if meant in keys:
                    hint = f"Did you mean {meant}?"
                    self.refuse((*path, key), f"{key[:40]!r} is not known here", hint)
                self.refuse((*path, key), f"{key[:40]!r} is not one of {', '.join(keys)}")

    def text(self, table: dict[str, Any], key: str, path: Path) -> str:
        """A text of one paragraph."""
        value = table[key]
        if not isinstance(value, str) or not value.strip():
            self.refuse((*path, key), f"{key} is text")
        flat = " ".join(value.split())
        if len(flat) > LONGEST or not flat.isprintable():
            self.refuse((*path, key), f"{key} is at most {LONGEST} printable characters")
        return flat

    def choice(
        self, table: dict[str, Any], key: str, kind: type[_Choice], default: _Choice, path: Path
    ) -> _Choice:
        """One of a few words."""
        if key not in table:
            return default
        try:
            return kind(table[key])
        except ValueError:
            known = ", ".join(kind)
            self.refuse((*path, key), f"{key} is {shown(table[key])}; it is one of {known}")

    def number(self, read: Callable[[], _Value], path: Path) -> _Value:
        """What ``read`` returns; its refusal, with the line of the key that it names."""
        try:
            return read()
        except InvalidParameter as error:
            said = error.rule if error.value is None else f"{error.name} is {shown(error.value)}"
            rule = said if error.value is None else f"{said}; {error.rule}"
            place = (*path, error.name)
            if place not in self.lines and (*path[:2], error.name) in self.lines:
                place = (*path[:2], error.name)
            self.refuse(place, rule, error.hint)


NOISE_KEYS = ("noise_multiplier", "noise_std", "noise_variance", "noise_on", "clip_norm")
CLIENT = "client"
# Half a unit of the second digit that is printed.
_PRINTED = 5e-3
_ON = ("sum", "mean", CLIENT)


def read_noise(given: Mapping[str, Any], sampling: Sampling, num_clients: int | None) -> float:
    """The noise multiplier z that a table of a claim means.

    Args:
        given: with some of `NOISE_KEYS`.
        sampling, num_clients: who takes part; what a mean is over.
    Raises:
        InvalidParameter: none is given, a value is out of range, or two contradict each other.
    """
    printed = given.get("noise_multiplier")
    multiplier = None if printed is None else validate.noise_multiplier(printed)
    deviation = _deviation(given)
    if deviation is None:
        if multiplier is None:
            rule = "a noise multiplier is missing: std of the noise on the sum / clip norm"
            hint = "Give it, or noise_std (or noise_variance) with clip_norm."
            raise InvalidParameter("noise_multiplier", None, rule, hint)
        return multiplier
    if "clip_norm" not in given:
        rule = "clip_norm is missing: the noise multiplier is the noise std / clip_norm"
        raise InvalidParameter("clip_norm", None, rule)
    clip = validate.above_zero("clip_norm", given["clip_norm"], "a clip norm")
    on = given.get("noise_on", "sum")
    if on not in _ON:
        raise InvalidParameter("noise_on", on, "noise is on the sum, on the mean or of each client")
    cohort = _planned_cohort(sampling, num_clients)
    if on != "sum" and cohort is None:
        rule = "noise on the mean, or of each client, needs the number of clients"
        raise InvalidParameter("noise_on", on, rule, "Give num_clients.")
    computed = deviation / clip * _times(on, cohort)
    if multiplier is None:
        return validate.noise_multiplier(computed)
    if not math.isclose(multiplier, computed, rel_tol=_PRINTED):
        slip = _slip(
            multiplier, deviation, clip, cohort, on, from_variance="noise_std" not in given
        )
        rule = f"{_source(given)} / clip_norm is {computed:.6g}"
        if on != "sum":
            how = "on the mean of" if on == "mean" else "times the root of"
            rule = f"{rule}, {how} {cohort:g} clients"
        raise InvalidParameter("noise_multiplier", multiplier, rule, slip)
    # Of two figures that differ in digits that are not printed, the one that protects less.
    return min(multiplier, validate.noise_multiplier(computed))


def check_sensitivity(given: Mapping[str, Any], sampling: Sampling, adjacency: Adjacency) -> None:
    """Refuse a sensitivity that does not go with the adjacency.

    Args:
        given: may hold ``sensitivity``, how far one client can move the sum, beside ``clip_norm``.
    Raises:
        InvalidParameter: it is not C, or 2 C, as it should be.
    """
    if "sensitivity" not in given:
        return
    if "clip_norm" not in given:
        rule = "a sensitivity is compared with the clip norm, which is missing"
        raise InvalidParameter("sensitivity", given["sensitivity"], rule)
    clip = validate.above_zero("clip_norm", given["clip_norm"], "a clip norm")
    found = validate.above_zero("sensitivity", given["sensitivity"], "a sensitivity")
    displaces = isinstance(sampling, Uniform) and adjacency is Adjacency.ADD_REMOVE
    times = 2.0 if adjacency is Adjacency.REPLACE_ONE or displaces else 1.0
    if math.isclose(found, times * clip, rel_tol=_PRINTED):
        return
    why = "a cohort that stays full lets a client displace another" if displaces else str(adjacency)
    rule = f"under {why} one client moves the sum by up to {times:g} x clip_norm, {times * clip:g}"
    hint = ""
    if math.isclose(found, (3.0 - times) * clip, rel_tol=_PRINTED):
        hint = f"That is {3.0 - times:g} x clip_norm, as under another adjacency."
    raise InvalidParameter("sensitivity", found, rule, hint)


def _deviation(given: Mapping[str, Any]) -> float | None:
    if "noise_std" in given and "noise_variance" in given:
        std = validate.above_zero("noise_std", given["noise_std"], "a standard deviation")
        variance = validate.above_zero("noise_variance", given["noise_variance"], "a variance")
        if not math.isclose(std * std, variance, rel_tol=2 * _PRINTED):
            rule = f"the square of noise_std is {std * std:.6g}"
            hint = "Is one of them the other?" if math.isclose(std, variance) else ""
            raise InvalidParameter("noise_variance", variance, rule, hint)
        return min(std, math.sqrt(variance))
    if "noise_std" in given:
        return validate.above_zero("noise_std", given["noise_std"], "a standard deviation")
    if "noise_variance" in given:
        variance = validate.above_zero("noise_variance", given["noise_variance"], "a variance")
        return math.sqrt(variance)
    return None


def _times(on: str, cohort: float | None) -> float:
    """The noise on the sum over that of the text: independent shares add up by their squares."""
    if on == "sum" or cohort is None:
        return 1.0
    return cohort if on == "mean" else math.sqrt(cohort)


def _source(given: Mapping[str, Any]) -> str:
    return "noise_std" if "noise_std" in given else "the root of noise_variance"


def _planned_cohort(sampling: Sampling, num_clients: int | None) -> float | None:
    if isinstance(sampling, Uniform):
        return float(sampling.cohort_size)
    return None if num_clients is None else sampling.sampling_rate * num_clients


def _slip(
    printed: float,
    std: float,
    clip: float,
    cohort: float | None,
    on: str,
    *,
    from_variance: bool,
) -> str:
    """The mix-up of units that explains why two figures of one noise differ, or nothing."""
    count = _times(on, cohort)
    plain = std / clip * count
    squared = "The variance was divided by clip_norm; its root belongs there."
    if from_variance:
        squared = squared[:-1] + ", or it is a standard deviation: name it noise_std."
    explanations = [
        (plain / 2, "It was divided by the sensitivity 2 x clip_norm; here it is by clip_norm."),
        (2 * plain, "It was divided by half the clip norm; here it is by clip_norm itself."),
        (std * std / clip * count, squared),
        (plain * plain, "It looks like a variance: its root fits."),
    ]
    if not from_variance:
        root = "noise_std looks like a variance: name it noise_variance."
        explanations.append((math.sqrt(std) / clip * count, root))
    if cohort is not None and on != CLIENT:
        shares = f'Does each client add noise of this size? noise_on = "{CLIENT}".'
        explanations.append((std / clip * math.sqrt(cohort), shares))
        other = plain * cohort if on == "sum" else plain / cohort
        where = "mean" if on == "sum" else "sum"
        explanations.append((other, f'The noise seems to be on the {where}: noise_on = "{where}".'))
        away = plain / cohort if on == "sum" else plain * cohort
        explanations.append((away, "It seems to be divided by the cohort size."))
    explanations.append((std, "It was not divided by clip_norm."))
    for value, words in explanations:
        if math.isclose(printed, value, rel_tol=_PRINTED):
            return words
    return ""


SOURCE_KEYS = ("name", "about", "link")
RUN_KEYS: tuple[str, ...] = (
    "rounds",
    "sampling",
    "sampling_rate",
    "cohort_size",
    "num_clients",
    "adjacency",
    *NOISE_KEYS,
    "sensitivity",
    "noise_by",
    "clip_from",
    "divisor",
    "unprotected",
)
CLAIM_KEYS = ("id", "place", "data", "epsilon", "delta", "accountant", "note", "reading")
READING_KEYS = ("words", "role")
STATEMENT_KEYS = ("place", "text", "holds", "why")
HOLDS = ("yes", "no", "in part")
_POWER = re.compile(r"num_clients\s*\^\s*-\s*(\d+(?:\.\d+)?)")
_OVER = re.compile(r"(\d+(?:\.\d+)?)\s*/\s*num_clients")


def load_claims(path: str | os.PathLike[str]) -> Claims:
    """The claims in a TOML file.

    Raises:
        InvalidParameter: the file cannot be read, is no TOML, lacks something, or says something
            impossible; the message names the file and the line.
    """
    file = validate.file_path("path", path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise invalid(str(file), f"it cannot be read ({reason})") from None
    except UnicodeDecodeError:
        raise invalid(str(file), "a claim file is text in UTF-8") from None
    return parse_claims(text, str(file))


def parse_claims(text: str, name: str) -> Claims:
    """As `load_claims`, of a text that is called ``name``."""
    if not isinstance(text, str):
        raise InvalidParameter("text", text, "claims are read from text in TOML")
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise invalid(name, f"it is not valid TOML ({' '.join(str(error).split())})") from None
    return _Reader(name, find_lines(text)).claims(data)


# What no reading leaves out.
_ALWAYS = {
    "rounds": "how many there are",
    "sampling": "one of poisson, uniform, full",
    "adjacency": "one of add-remove, replace-one, zero-out",
}


@dataclass(frozen=True, slots=True)
class _Reader(Reader):
    """Reads claims."""

    def claims(self, data: dict[str, Any]) -> Claims:
        self.known(data, ("source", "claim", "statement"), ())
        source = self.source(data)
        claims = [
            self.claim(table, source, ("claim", number))
            for number, table in enumerate(self.tables(data, "claim", ()))
        ]
        seen: set[str] = set()
        for number, claim in enumerate(claims):
            if claim.id in seen:
                self.refuse(("claim", number, "id"), f"another claim is called {claim.id!r}")
            seen.add(claim.id)
        statements = tuple(
            self.statement(table, source, ("statement", number))
            for number, table in enumerate(self.tables(data, "statement", ()))
        )
        if not claims and not statements:
            self.refuse((), "there is no claim; each stands below [[claim]]")
        return Claims(tuple(claims), statements)

    def source(self, data: dict[str, Any]) -> Source:
        table = data.get("source")
        if not isinstance(table, dict):
            self.refuse(("source",), "[source] is missing; it names the text that makes the claims")
        found = cast("dict[str, Any]", table)
        self.known(found, SOURCE_KEYS, ("source",))
        texts = {key: self.text(found, key, ("source",)) for key in SOURCE_KEYS if key in found}
        if "name" not in texts:
            self.refuse(("source",), "name is missing; it names the text that makes the claims")
        return Source(**texts)

    def claim(self, table: dict[str, Any], source: Source, path: Path) -> Claim:
        self.known(table, (*CLAIM_KEYS, *RUN_KEYS), path)
        for key in ("id", "place", "delta"):
            if key not in table:
                self.refuse(path, f"{key} is missing in this claim")
        delta, words = self.delta(table, path)
        common = {key: value for key, value in table.items() if key in RUN_KEYS}
        below = self.tables(table, "reading", path)
        readings = [
            self.reading(common, own, (*path, "reading", n)) for n, own in enumerate(below)
        ] or [self.reading(common, {}, path)]
        epsilon = None
        if "epsilon" in table:
            epsilon = self.number(lambda: validate.target_epsilon(table["epsilon"]), path)
        texts = {
            key: self.text(table, key, path)
            for key in ("place", "data", "accountant", "note")
            if key in table
        }
        return Claim(
            id=self.text(table, "id", path),
            source=source,
            epsilon=epsilon,
            delta=delta,
            delta_words=words,
            readings=tuple(readings),
            line=line_of(self.lines, path),
            **texts,
        )

    def reading(self, common: dict[str, Any], own: dict[str, Any], path: Path) -> Reading:
        self.known(own, (*READING_KEYS, *RUN_KEYS), path)
        given = _without_what_is_said_again(common, own) | {
            key: value for key, value in own.items() if key in RUN_KEYS
        }
        where = path if own else path[:2]
        for key, values in _ALWAYS.items():
            if key not in given:
                rule = f"{key} is missing: {values}, in the claim or in each of its readings"
                self.refuse(where, rule)
        clients = None
        if "num_clients" in given:
            clients = self.clients(given, where)
        sampling = self.number(lambda: _sampling(given), where)
        relation = self.number(lambda: Adjacency.parse(given["adjacency"]), where)
        self.number(lambda: check_sensitivity(given, sampling, relation), where)
        noise = self.number(lambda: read_noise(given, sampling, clients), where)
        who = NoiseBy.PARTICIPANTS if given.get("noise_on") == CLIENT else NoiseBy.SERVER
        return Reading(
            words=self.text(own, "words", path) if "words" in own else "as described",
            role=self.choice(own, "role", Role, Role.RUN, path),
            rounds=self.number(lambda: validate.rounds(given["rounds"]), where),
            round=Round(noise, sampling, relation),
            num_clients=clients,
            noise_by=self.choice(given, "noise_by", NoiseBy, who, where),
            clip_from=self.choice(given, "clip_from", ClipFrom, ClipFrom.CONSTANT, where),
            divisor=self.choice(given, "divisor", Divisor, Divisor.PLANNED, where),
            unprotected=self.text(given, "unprotected", where) if "unprotected" in given else "",
            line=line_of(self.lines, where),
        )

    def statement(self, table: dict[str, Any], source: Source, path: Path) -> Statement:
        self.known(table, STATEMENT_KEYS, path)
        for key in STATEMENT_KEYS:
            if key not in table:
                self.refuse(path, f"{key} is missing in this statement")
        texts = {key: self.text(table, key, path) for key in STATEMENT_KEYS}
        if texts["holds"] not in HOLDS:
            self.refuse((*path, "holds"), f"holds is one of {', '.join(HOLDS)}")
        return Statement(source=source, **texts)

    def clients(self, table: dict[str, Any], path: Path) -> int:
        noun, given = "the number of clients", table["num_clients"]
        return self.number(lambda: validate.count("num_clients", given, noun, MAX_CLIENTS), path)

    def delta(self, table: dict[str, Any], path: Path) -> tuple[float, str]:
        given = table["delta"]
        if not isinstance(given, str):
            return self.number(lambda: validate.delta(given), path), ""
        if "num_clients" not in table:
            self.refuse((*path, "delta"), "delta in terms of num_clients needs num_clients beside")
        count = float(self.clients(table, path))
        power, over = _POWER.fullmatch(given.strip()), _OVER.fullmatch(given.strip())
        if power is None and over is None:
            ways = 'a number, "num_clients^-1.1" or "1/num_clients"'
            self.refuse((*path, "delta"), f"delta is {given!r}; it is {ways}")
        value = count ** -float(power[1]) if power else float(over[1]) / count if over else 0.0
        return self.number(lambda: validate.delta(value), path), given


# Keys that say the same thing: a reading that has one of them does not take over the others.
_INSTEAD = (
    {"noise_multiplier", "noise_std", "noise_variance", "noise_on"},
    {"sampling", "sampling_rate", "cohort_size"},
)


def _without_what_is_said_again(common: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    dropped: set[str] = set()
    for keys in _INSTEAD:
        if keys & own.keys():
            dropped |= keys
    return {key: value for key, value in common.items() if key not in dropped}


def _sampling(given: Mapping[str, Any]) -> Sampling:
    name = given["sampling"]
    rate, cohort = given.get("sampling_rate"), given.get("cohort_size")
    clients = given.get("num_clients")
    if name == Full.name:
        if cohort is not None or rate not in (None, 1, 1.0):
            raise InvalidParameter("sampling", name, "everybody takes part, so it has no rate")
        return Full()
    if name == Poisson.name:
        if cohort is not None:
            rule = "Poisson cohorts have no fixed size; say sampling_rate"
            raise InvalidParameter("cohort_size", cohort, rule)
        if rate is None:
            raise InvalidParameter("sampling_rate", None, "sampling_rate is missing, for poisson")
        return Poisson(cast("float", rate))
    if name == Uniform.name:
        if cohort is None or clients is None:
            missing = "cohort_size" if cohort is None else "num_clients"
            raise InvalidParameter(missing, None, f"{missing} is missing, for uniform")
        uniform = Uniform(cast("int", cohort), cast("int", clients))
        if (
            rate is not None
            and abs(validate.sampling_rate(rate) / uniform.sampling_rate - 1) > 1e-3
        ):
            rule = f"cohort_size / num_clients is {uniform.sampling_rate:g}"
            raise InvalidParameter("sampling_rate", rate, rule, "One of them is enough.")
        return uniform
    rule = f"a sampling scheme is one of {Poisson.name}, {Uniform.name}, {Full.name}"
    raise InvalidParameter("sampling", name, rule)
