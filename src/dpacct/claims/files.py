"""Claims as TOML files, and refusals that name the line.

A file has a table ``[source]`` with ``name``, and a table ``[[claim]]`` for each claim. What runs
stands in the claim itself, or in tables ``[[claim.reading]]`` below it, which take over what they
do not say themselves. ``[[statement]]`` holds sentences that were judged by hand.

Rule 1: an unknown key is an error, since a misspelt one would change what is judged.
Rule 2: rounds, sampling, adjacency and noise have no default here: a text says them, or it is read
in one way and another, each a reading of its own.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

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
from dpacct.claims.lines import Path as KeyPath
from dpacct.claims.lines import find_lines, line_of
from dpacct.claims.noise import CLIENT, NOISE_KEYS, check_sensitivity, read_noise
from dpacct.claims.tables import Reader, invalid
from dpacct.errors import InvalidParameter
from dpacct.rounds import MAX_CLIENTS, Adjacency, Full, Poisson, Round, Sampling, Uniform

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

    def claim(self, table: dict[str, Any], source: Source, path: KeyPath) -> Claim:
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

    def reading(self, common: dict[str, Any], own: dict[str, Any], path: KeyPath) -> Reading:
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

    def statement(self, table: dict[str, Any], source: Source, path: KeyPath) -> Statement:
        self.known(table, STATEMENT_KEYS, path)
        for key in STATEMENT_KEYS:
            if key not in table:
                self.refuse(path, f"{key} is missing in this statement")
        texts = {key: self.text(table, key, path) for key in STATEMENT_KEYS}
        if texts["holds"] not in HOLDS:
            self.refuse((*path, "holds"), f"holds is one of {', '.join(HOLDS)}")
        return Statement(source=source, **texts)

    def clients(self, table: dict[str, Any], path: KeyPath) -> int:
        noun, given = "the number of clients", table["num_clients"]
        return self.number(lambda: validate.count("num_clients", given, noun, MAX_CLIENTS), path)

    def delta(self, table: dict[str, Any], path: KeyPath) -> tuple[float, str]:
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
