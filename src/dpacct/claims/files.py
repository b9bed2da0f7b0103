"""Claims as data, and their files in TOML: checked, with errors that name claim and reading.

A claim has a stated epsilon, a source, and the possible readings of its text. A value that exists
is valid. Whether a claim holds is decided in `judge.py`.

A file has a table ``[source]`` and a table ``[[claim]]`` for each claim. The mechanism stands in
the claim itself, or in tables ``[[claim.reading]]`` below it, which inherit every key that they do
not set. ``[[statement]]`` holds sentences that were judged by hand.

Rule 1: an unknown key is an error, because a misspelt key would change the verdict.
Rule 2: rounds, sampling, adjacency and noise have no default. If the text leaves one of them open,
each possibility is a reading of its own.
Rule 3: ``mechanism`` names a release beside the rounds, with its parameters in an inline table:
``mechanism = { name = "zcdp", rho = 0.81 }``. Tables ``[[claim.phase]]`` are the phases of a
schedule file. Beside either of them, noise and sampling have no keys of their own.
Rule 4: sampling, mechanisms and phases have the keys of schedule files.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files
from typing import Any, Self, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, located
from dpacct.items import (
    COUNT,
    NUMBER,
    OPTIONS,
    PHASE,
    SAMPLING_KEYS,
    SAMPLINGS,
    check_known,
    read_part,
    read_release,
    read_sampling,
)
from dpacct.outputs import schema_around, single
from dpacct.rounds import (
    Adjacency,
    Full,
    Phase,
    Poisson,
    Release,
    Repeated,
    Round,
    Sampling,
    Schedule,
    Uniform,
)


class Role(StrEnum):
    """The subject of a reading."""

    STATED = "stated"  # the mechanism for which the text computed its epsilon
    RUN = "run"  # the mechanism that its algorithm or code runs


class NoiseBy(StrEnum):
    """The party that adds the noise of a round."""

    SERVER = "server"  # once, to the sum
    CLIENTS = "clients"  # a fixed number of clients add a share each; only their sum is released
    PARTICIPANTS = "participants"  # each client of the cohort, so that larger cohorts add more


class ClipFrom(StrEnum):
    """The origin of the clip norm."""

    CONSTANT = "constant"
    RELEASED = "released"  # a function of earlier releases
    PRIVATE_QUANTILE = "private-quantile"  # a quantile that is released with its own noise
    MEDIAN = "median"  # of the clients' own norms, without noise


class Divisor(StrEnum):
    """The number by which the noisy sum is divided."""

    PLANNED = "planned"  # the expected cohort size
    REALIZED = "realized"  # the size of the cohort that was drawn


@dataclass(frozen=True, slots=True)
class Source:
    """The text that makes the claims. ``link`` leads to it or to its code."""

    name: str
    about: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One mechanism that the text may mean.

    Attributes:
        words: a description of the reading.
        schedule: the charged rounds, and other releases.
        num_clients: the population, if known.
        unprotected: anything released without noise, in words, or empty.
    """

    words: str
    role: Role
    schedule: Schedule
    num_clients: int | None = None
    noise_by: NoiseBy = NoiseBy.SERVER
    clip_from: ClipFrom = ClipFrom.CONSTANT
    divisor: Divisor = Divisor.PLANNED
    unprotected: str = ""

    @property
    def only(self) -> Release | None:
        """The release, if all are of one kind."""
        return single(self.schedule)

    @property
    def population(self) -> int | None:
        """The number of clients, if the sampling or the text gives it."""
        sampling = getattr(self.only, "sampling", None)
        return sampling.num_clients if isinstance(sampling, Uniform) else self.num_clients


@dataclass(frozen=True, slots=True)
class Claim:
    """A stated epsilon at a delta, with at least one reading of the mechanism that has it.

    Attributes:
        id: a short name that never changes.
        place: a table, section or page of the source.
        epsilon: the stated epsilon, None if the text gives the setting alone.
        printed: epsilon as the text prints it, with its decimals.
        data: the data set, or empty.
        delta_words: delta as the text gives it, such as ``num_clients^-1.1``, or empty.
        accountant: the method by which the text computed epsilon, or empty.
        note: one or two sentences for readers.
    """

    id: str
    source: Source
    place: str
    epsilon: float | None
    delta: float
    readings: tuple[Reading, ...]
    data: str = ""
    delta_words: str = ""
    printed: str = ""
    accountant: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence about privacy without a figure to compute, judged by hand.

    Attributes:
        text: the sentence.
        holds: "yes", "no" or "in part".
        why: the reason in one or two sentences.
    """

    source: Source
    place: str
    text: str
    holds: str
    why: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims and statements of one or more files."""

    claims: tuple[Claim, ...]
    statements: tuple[Statement, ...] = ()


LONGEST = 600

Table = dict[str, Any]

_TEXTS = (
    "name", "about", "link", "id", "place", "data", "accountant", "note", "words", "unprotected",
    "text", "why",
)  # fmt: skip
_CHOICES: dict[str, Iterable[str]] = {
    "noise_on": ("sum", "mean", "client"),
    "noise_by": NoiseBy,
    "clip_from": ClipFrom,
    "divisor": Divisor,
    "role": Role,
    "holds": ("yes", "no", "in part"),
}
_SAMPLING = ("sampling", *(key for key in SAMPLING_KEYS if key != "num_clients"))
_NOISE = ("noise_multiplier", "noise_std", "noise_on")
# Keys of rounds alone, and those of any release.
_OF_ROUNDS = (*_SAMPLING, *_NOISE, "clip_norm", "noise_by", "clip_from", "divisor")
_OF_RELEASES = ("rounds", "adjacency", "num_clients", "unprotected", "mechanism", "phase")
_MECHANISM = (*_OF_RELEASES, *_OF_ROUNDS)
_CLAIM = ("id", "place", "data", "epsilon", "delta", "accountant", "note", "reading")
_READING = ("words", "role", *_MECHANISM)
# What stands in the place of a round.
_BESIDE = ("mechanism", "phase")
_WHERE = "it stands in the claim or in each of its readings"
_STATEMENT = ("place", "text", "holds", "why")


class _Printed(float):
    """A number with its decimals as they stand in the file."""

    text: str

    def __new__(cls, text: str) -> Self:
        """Return the number, with its text beside it."""
        made = super().__new__(cls, text)
        made.text = text
        return made


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
        data = validate.toml(text, _Printed)
    except (ValueError, RecursionError) as error:
        rule = f"it is not valid TOML ({' '.join(str(error).split())})"
        raise InvalidParameter("claims", name, rule) from None
    with located("claims", file=name):
        return _claims(data)


@cache
def shipped_claims() -> Claims:
    """Return all claims and statements of the package, in the order of their files."""
    folder = files("dpacct.claims") / "published"
    shipped = [
        parse_claims(file.read_text(encoding="utf-8"), file.name)
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".toml")
    ]
    return Claims(
        tuple(claim for one in shipped for claim in one.claims),
        tuple(statement for one in shipped for statement in one.statements),
    )


def _claims(data: Table) -> Claims:
    check_known(data, ("source", "claim", "statement"))
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
    for number, one in enumerate(_tables(data, "statement"), start=1):
        with located("claims", f"statement {number}: "):
            statements.append(Statement(source=source, **_checked(one, _STATEMENT, _STATEMENT)))
    if not claims and not statements:
        raise InvalidParameter("claim", None, "it has no claim; each is a table [[claim]]")
    return Claims(tuple(claims.values()), tuple(statements))


def _claim(table: Table, source: Source) -> Claim:
    values = _checked(table, (*_CLAIM, *_MECHANISM), ("id", "place", "delta"))
    readings: list[Reading] = []
    for number, own in enumerate(_tables(table, "reading"), start=1):
        with located("claims", f"reading {number}: "):
            given = _checked(own, _READING)
            readings.append(_reading(_inherited(values, given) | given))
    delta, epsilon = values["delta"], values.get("epsilon")
    return Claim(
        source=source,
        epsilon=None if epsilon is None else validate.target_epsilon(epsilon),
        delta=_delta(delta, values.get("num_clients")),
        delta_words=delta if isinstance(delta, str) else "",
        printed=epsilon.text if isinstance(epsilon, _Printed) else "",
        readings=tuple(readings) or (_reading(_inherited(values, {})),),
        **{key: values[key] for key in _CLAIM if key in _TEXTS and key in values},
    )


def _inherited(claim: Table, own: Table) -> Table:
    """Return the keys that a reading takes from its claim.

    A reading that sets one key of the noise, or of the sampling, inherits no other key of it. One
    with a mechanism or with phases inherits no key of rounds, and a round neither of them.
    """
    dropped = {key for group in (_NOISE, _SAMPLING) if own.keys() & set(group) for key in group}
    if own.keys() & {*_BESIDE}:
        dropped |= {*_OF_ROUNDS, *_BESIDE, "rounds"}
    elif own.keys() & set(_OF_ROUNDS):
        dropped |= {*_BESIDE}
    return {key: claim[key] for key in _MECHANISM if key in claim and key not in dropped}


def _reading(given: Table) -> Reading:
    """Return a reading with these checked values."""
    if "adjacency" not in given:
        raise _missing("adjacency", _WHERE)
    clients = given.get("num_clients")
    if clients is not None:
        clients = validate.count("num_clients", clients, "the number of clients")
    return Reading(
        words=given.get("words", "as described"),
        role=Role(given.get("role", Role.RUN)),
        schedule=_schedule(given, Adjacency.parse(given["adjacency"])),
        num_clients=clients,
        noise_by=_noise_by(given),
        clip_from=ClipFrom(given.get("clip_from", ClipFrom.CONSTANT)),
        divisor=Divisor(given.get("divisor", Divisor.PLANNED)),
        unprotected=given.get("unprotected", ""),
    )


def _schedule(given: Table, adjacency: Adjacency) -> Schedule:
    """Return what runs: phases, another release, or rounds whose noise follows from the values."""
    beside = next((key for key in _BESIDE if key in given), None)
    for key in (*_OF_ROUNDS, *_BESIDE, "rounds") if beside else ():
        if key in given and key != beside and (key, beside) != ("rounds", "mechanism"):
            rule = f"{key} belongs to a round, and this reading has a {beside}"
            raise InvalidParameter(key, None, rule)
    if beside == "phase":
        parts: list[Phase | Repeated] = []
        for number, entry in enumerate(_tables(given, "phase"), start=1):
            with located("claims", f"phase {number}: "):
                parts.append(read_part(entry, adjacency))
        return Schedule(parts)
    if beside:
        table = given["mechanism"]
        if not isinstance(table, dict) or "name" not in table:
            rule = 'a mechanism is a table such as { name = "zcdp", rho = 0.81 }'
            raise InvalidParameter("mechanism", None, rule)
        release = read_release(cast("Table", table), adjacency, called="name")
        return validate.rounds(given.get("rounds", 1)) * release
    for key in ("rounds", "sampling"):
        if key not in given:
            raise _missing(key, _WHERE)
    sampling = _sampling(given)
    round_ = Round(_noise_multiplier(given, sampling), sampling, adjacency)
    return validate.rounds(given["rounds"]) * round_


def _sampling(given: Table) -> Sampling:
    """Return the sampling. The number of clients may stand beside any of them.

    If it is given and stays, a realized divisor and noise of each participant have a bound: they
    reveal the size of the cohort (docs/derivations/revealed-sizes.md).
    """
    needs_clients = given["sampling"] == Uniform.name or {"max_cohort", "reveals_size"} & {*given}
    keys = (*_SAMPLING, "num_clients") if needs_clients else _SAMPLING
    entry = {key: given[key] for key in keys if key in given}
    if given["sampling"] == Full.name and entry.get("sampling_rate") == 1.0:
        del entry["sampling_rate"]
    sampling = read_sampling(entry)
    if isinstance(sampling, Uniform) and "cohort_size" not in entry:
        raise _missing("cohort_size", "uniform cohorts have cohort_size and num_clients")
    plain = isinstance(sampling, Poisson) and sampling.is_plain and sampling.sampling_rate < 1.0
    if not ("num_clients" in given and plain and _reveals(given)):
        return sampling
    return replace(sampling, num_clients=given["num_clients"], reveals_size=_reveals(given))


def _noise_by(given: Table) -> NoiseBy:
    by_each = given.get("noise_on") == "client"
    return NoiseBy(given.get("noise_by", "participants" if by_each else "server"))


def _reveals(given: Table) -> str:
    """Return what has the fixed noise if it reveals the size of a Poisson cohort, or ""."""
    if _noise_by(given) is NoiseBy.PARTICIPANTS:
        return "client"
    if given.get("divisor") != Divisor.REALIZED:
        return ""
    return "mean" if given.get("noise_on") == "mean" else "sum"


def _delta(given: float | str, clients: int | None) -> float:
    """Return delta, which may be given in terms of the number of clients."""
    if not isinstance(given, str):
        return validate.delta(given)
    if clients is None:
        raise _missing("num_clients", "delta is given in terms of it")
    clients = validate.count("num_clients", clients, "the number of clients")
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


def claims_schema() -> dict[str, Any]:
    """Return the JSON Schema of a file of claims."""

    def table(keys: Collection[str], needed: Collection[str], **more: Any) -> dict[str, Any]:
        properties = {key: _key_schema(key) for key in keys} | more
        closed = {"additionalProperties": False, "required": [*needed]}
        return {"type": "object", "properties": properties, **closed}

    def several(of: dict[str, Any]) -> dict[str, Any]:
        return {"type": "array", "items": of}

    readings = several(table(_READING, ()))
    claim = table((*_CLAIM, *_MECHANISM), ("id", "place", "delta"), reading=readings)
    statement = table(_STATEMENT, _STATEMENT)
    source = table(("name", "about", "link"), ("name",))
    whole = {"source": source, "claim": several(claim), "statement": several(statement)}
    return schema_around("A file of claims", table((), ("source",), **whole))


def _key_schema(key: str) -> dict[str, Any]:
    """Return the schema of the value of a key."""
    forms: dict[str, Any] = {
        "sampling": {"enum": [*SAMPLINGS]},
        "adjacency": {"enum": [*map(str, Adjacency)]},
        "delta": {"type": ["number", "string"]},
        "phase": {"type": "array", "items": PHASE},
        "mechanism": {"type": "object", "required": ["name"]},
        "rounds": COUNT.schema,
    }
    if key in _TEXTS:
        return {"type": "string"}
    if key in _CHOICES:
        return {"enum": [*map(str, _CHOICES[key])]}
    return forms.get(key) or dict((OPTIONS[key].form if key in OPTIONS else NUMBER).schema)


# Tables, keys and errors.


def _checked(table: Table, known: tuple[str, ...], needed: Collection[str] = ()) -> Table:
    """Return a table of which all keys are known, with its texts and choices checked."""
    check_known(table, known)
    for key in needed:
        if key not in table:
            raise _missing(key, "it has to be given")
    checked = dict(table)
    for key, value in table.items():
        if key in _TEXTS:
            checked[key] = _text(key, value)
        elif key in _CHOICES and value not in list(_CHOICES[key]):
            raise InvalidParameter(key, value, f"it is one of {', '.join(_CHOICES[key])}")
    return checked


def _tables(data: Table, name: str) -> list[Table]:
    """Return the tables below ``[[name]]``, or an empty list."""
    tables: Any = data.get(name, [])
    if not isinstance(tables, list) or not all(type(x) is dict for x in cast("list[Any]", tables)):
        rule = f"each {name} is a table with two brackets, such as [[claim]] and [[claim.reading]]"
        raise InvalidParameter(name, None, rule)
    return cast("list[Table]", tables)


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
