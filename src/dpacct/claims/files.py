"""Claim files in TOML: read and checked, with errors that name the claim and its reading.

A file has a table ``[source]`` and a table ``[[claim]]`` for each claim. The mechanism stands in
the claim itself, or in tables ``[[claim.reading]]`` below it, which inherit every key that they do
not set. ``[[statement]]`` holds sentences that were judged by hand.

Rule 1: an unknown key is an error, because a misspelt key would change the verdict.
Rule 2: rounds, sampling, adjacency and noise have no default. If the text leaves one of them open,
each possibility is a reading of its own.
Rule 3: ``mechanism`` names a release beside the rounds, with its parameters in an inline table:
``mechanism = { name = "zcdp", rho = 0.81 }``. Then noise and sampling have no keys of their own.
Rule 4: sampling and mechanisms have the keys of schedule files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable
from functools import cache
from importlib.resources import files
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
from dpacct.errors import InvalidParameter, located
from dpacct.items import read_release, read_sampling
from dpacct.rounds import Adjacency, Full, Release, Round, Sampling, Uniform

LONGEST = 600

Table = dict[str, Any]

_TEXTS = frozenset({
    "name", "about", "link", "id", "place", "data", "accountant", "note", "words", "unprotected",
    "text", "why",
})  # fmt: skip
_CHOICES: dict[str, Iterable[str]] = {
    "noise_on": ("sum", "mean", "client"),
    "noise_by": NoiseBy,
    "clip_from": ClipFrom,
    "divisor": Divisor,
    "role": Role,
    "holds": ("yes", "no", "in part"),
}
_SAMPLING = ("sampling", "sampling_rate", "cohort_size")
_NOISE = ("noise_multiplier", "noise_std", "noise_on")
# Keys of rounds alone, and those of any release.
_OF_ROUNDS = (*_SAMPLING, *_NOISE, "clip_norm", "noise_by", "clip_from", "divisor")
_OF_RELEASES = ("rounds", "adjacency", "num_clients", "unprotected", "mechanism")
_MECHANISM = (*_OF_RELEASES, *_OF_ROUNDS)
_CLAIM = ("id", "place", "data", "epsilon", "delta", "accountant", "note", "reading")


def load_claims(path: str | os.PathLike[str]) -> Claims:
    """Read the claims of a TOML file.

    Raises:
        InvalidParameter: the file cannot be read, is not TOML, lacks a key or has a value out of
            range. The message names the file, the claim and its reading.
    """
    file = validate.file_path("path", path)
    return parse_claims(validate.file_text("claims", file, "a claim file"), str(file))


def parse_claims(text: str, name: str) -> Claims:
    """Read claims from TOML text. ``name`` stands for the file in errors, as in `load_claims`."""
    if not isinstance(text, str):
        raise InvalidParameter("text", text, "claims are read from text in TOML")
    try:
        data = validate.toml(text)
    except (ValueError, RecursionError) as error:
        rule = f"it is not valid TOML ({' '.join(str(error).split())})"
        raise InvalidParameter("claims", name, rule) from None
    with located("claims", file=name):
        return _claims(data)


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


def _claims(data: Table) -> Claims:
    _check_known(data, ("source", "claim", "statement"))
    table = data.get("source")
    if not isinstance(table, dict):
        raise _missing("[source]", "it names the text that makes the claims")
    with located("claims", "source: "):
        source = Source(**_checked(cast("Table", table), ("name", "about", "link"), ("name",)))
    claims: dict[str, Claim] = {}
    for number, one in enumerate(_tables(data, "claim"), start=1):
        with located("claims", f"claim {one.get('id', number)!r:.60}: "):
            claim = _claim(one, source)
            if claims.setdefault(claim.id, claim) is not claim:
                raise InvalidParameter("id", None, f"another claim is called {claim.id!r}")
    statements: list[Statement] = []
    keys = ("place", "text", "holds", "why")
    for number, one in enumerate(_tables(data, "statement"), start=1):
        with located("claims", f"statement {number}: "):
            statements.append(Statement(source=source, **_checked(one, keys, keys)))
    if not claims and not statements:
        raise InvalidParameter("claim", None, "there is no claim; each stands below [[claim]]")
    return Claims(tuple(claims.values()), tuple(statements))


def _claim(table: Table, source: Source) -> Claim:
    values = _checked(table, (*_CLAIM, *_MECHANISM), ("id", "place", "delta"))
    readings: list[Reading] = []
    for number, own in enumerate(_tables(table, "reading"), start=1):
        with located("claims", f"reading {number}: "):
            given = _checked(own, ("words", "role", *_MECHANISM))
            readings.append(_reading(_inherited(values, given) | given))
    delta, epsilon = values["delta"], values.get("epsilon")
    return Claim(
        source=source,
        epsilon=None if epsilon is None else validate.target_epsilon(epsilon),
        delta=_delta(delta, values.get("num_clients")),
        delta_words=delta if isinstance(delta, str) else "",
        readings=tuple(readings) or (_reading(_inherited(values, {})),),
        **{key: values[key] for key in _CLAIM if key in _TEXTS and key in values},
    )


def _inherited(claim: Table, own: Table) -> Table:
    """Return the keys that a reading takes from its claim.

    A reading that sets one key of the noise, or of the sampling, inherits no other key of it. A
    reading with a mechanism inherits no key of rounds, and a round no mechanism.
    """
    dropped = {key for group in (_NOISE, _SAMPLING) if own.keys() & set(group) for key in group}
    if "mechanism" in own:
        dropped |= set(_OF_ROUNDS)
    elif own.keys() & set(_OF_ROUNDS):
        dropped.add("mechanism")
    return {key: claim[key] for key in _MECHANISM if key in claim and key not in dropped}


def _reading(given: Table) -> Reading:
    """Return a reading with these checked values, of which the noise follows from them."""
    beside = "mechanism" in given
    for key in ("adjacency",) if beside else ("rounds", "sampling", "adjacency"):
        if key not in given:
            raise _missing(key, "it stands in the claim or in each of its readings")
    adjacency, by_each = Adjacency.parse(given["adjacency"]), given.get("noise_on") == "client"
    if beside:
        for key in _OF_ROUNDS:
            if key in given:
                rule = f"{key} belongs to a round, and this reading has none"
                raise InvalidParameter(key, None, rule)
        release = _release(given["mechanism"], adjacency)
    else:
        sampling = _sampling(given)
        release = Round(_noise_multiplier(given, sampling), sampling, adjacency)
    clients = given.get("num_clients")
    if clients is not None:
        clients = validate.count("num_clients", clients, "the number of clients")
    return Reading(
        words=given.get("words", "as described"),
        role=Role(given.get("role", Role.RUN)),
        rounds=validate.rounds(given.get("rounds", 1)),
        round=release,
        num_clients=clients,
        noise_by=NoiseBy(given.get("noise_by", "participants" if by_each else "server")),
        clip_from=ClipFrom(given.get("clip_from", ClipFrom.CONSTANT)),
        divisor=Divisor(given.get("divisor", Divisor.PLANNED)),
        unprotected=given.get("unprotected", ""),
    )


def _release(table: Any, adjacency: Adjacency) -> Release:
    """Return the release of an inline table."""
    if not isinstance(table, dict) or "name" not in table:
        rule = 'a mechanism is a table such as { name = "zcdp", rho = 0.81 }'
        raise InvalidParameter("mechanism", None, rule)
    return read_release(cast("Table", table), adjacency, called="name")


def _sampling(given: Table) -> Sampling:
    """Return the sampling. The number of clients may stand beside any of them."""
    keys = _SAMPLING if given["sampling"] != Uniform.name else (*_SAMPLING, "num_clients")
    entry = {key: given[key] for key in keys if key in given}
    if given["sampling"] == Full.name and entry.get("sampling_rate") == 1.0:
        del entry["sampling_rate"]
    found = read_sampling(entry)
    if isinstance(found, Uniform) and "cohort_size" not in entry:
        raise _missing("cohort_size", "uniform cohorts have cohort_size and num_clients")
    return found


def _delta(given: float | str, clients: int | None) -> float:
    """Return delta, which may be given in terms of the number of clients."""
    if not isinstance(given, str):
        return validate.delta(given)
    if clients is None:
        raise _missing("num_clients", "delta is given in terms of it")
    power = re.fullmatch(r"num_clients\s*\^\s*-\s*(\d+(?:\.\d+)?)", given.strip())
    over = re.fullmatch(r"(\d+(?:\.\d+)?)\s*/\s*num_clients", given.strip())
    if power:
        return validate.delta(float(clients) ** -float(power[1]))
    if over:
        return validate.delta(float(over[1]) / clients)
    raise InvalidParameter("delta", given, 'it is a number, "num_clients^-1.1" or "1/num_clients"')


def _noise_multiplier(given: Table, sampling: Sampling) -> float:
    """Return z, the standard deviation of the noise on the sum / clip norm.

    The text may give the standard deviation, on the sum, on the mean over the planned cohort, or of
    each client's own share.
    """
    printed, std = given.get("noise_multiplier"), given.get("noise_std")
    if (printed is None) is (std is None):
        rule = "a reading has noise_multiplier, or noise_std with clip_norm"
        raise InvalidParameter("noise_multiplier", printed, rule)
    if std is None:
        return validate.noise_multiplier(printed)
    if "clip_norm" not in given:
        raise _missing("clip_norm", "the noise multiplier is noise_std / clip_norm")
    clip = validate.above_zero("clip_norm", given["clip_norm"], "a clip norm")
    multiplier = validate.above_zero("noise_std", std, "a standard deviation") / clip
    on = given.get("noise_on", "sum")
    if on == "sum":
        return validate.noise_multiplier(multiplier)
    if isinstance(sampling, Uniform):
        cohort = float(sampling.cohort_size)
    elif "num_clients" in given:
        cohort = sampling.sampling_rate * given["num_clients"]
    else:
        raise _missing("num_clients", "noise on the mean, or of each client, needs it")
    # Independent shares add up by their squares.
    return validate.noise_multiplier(multiplier * (cohort if on == "mean" else math.sqrt(cohort)))


# Tables, keys and errors.


def _checked(table: Table, known: Collection[str], needed: Collection[str] = ()) -> Table:
    """Return a table of which all keys are known, with its texts and choices checked."""
    _check_known(table, known)
    for key in needed:
        if key not in table:
            raise _missing(key, "it has to be given")
    found = dict(table)
    for key, value in table.items():
        if key in _TEXTS:
            found[key] = _text(key, value)
        elif key in _CHOICES and value not in list(_CHOICES[key]):
            raise InvalidParameter(key, value, f"it is one of {', '.join(_CHOICES[key])}")
    return found


def _check_known(table: Table, known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            rule = f"{key[:40]!r} is not one of {', '.join(known)}"
            raise InvalidParameter(key, None, rule)


def _tables(data: Table, name: str) -> list[Table]:
    """Return the tables below ``[[name]]``, or an empty list."""
    found: Any = data.get(name, [])
    if not isinstance(found, list) or not all(type(x) is dict for x in cast("list[Any]", found)):
        rule = f"each {name} is a table with two brackets, such as [[claim]] and [[claim.reading]]"
        raise InvalidParameter(name, None, rule)
    return cast("list[Table]", found)


def _text(name: str, value: Any) -> str:
    """Check a text of one paragraph."""
    if not isinstance(value, str) or not value.strip():
        raise InvalidParameter(name, None, f"{name} is text")
    flat = " ".join(value.split())
    if len(flat) > LONGEST or not flat.isprintable():
        raise InvalidParameter(name, None, f"{name} is at most {LONGEST} printable characters")
    return flat


def _missing(key: str, why: str) -> InvalidParameter:
    return InvalidParameter(key, None, f"{key} is missing: {why}")
