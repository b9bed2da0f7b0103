"""`dpacct report`: a page for those who decide, on a ledger, on rounds, or on a claim."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.errors import InvalidParameter
from dpacct_cli import options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, argument, option
from dpacct_cli.output import Force, Output, names_a_file, read_output, write_output
from dpacct_cli.words import spelling, text_of

if TYPE_CHECKING:
    from dpacct.claims import Claim

SUFFIXES = {".html": "html", ".htm": "html", ".md": "md", ".json": "json"}
FORM_NAMES = ("html", "md", "json")
DEFAULT_FORM = "md"
_CLIENT = "client"
_TABLES = (".toml", ".csv", ".json")

Source = Annotated[
    str,
    argument(
        metavar="[FILE]",
        known=options.shipped_ids,
        help="A ledger, a schedule (.toml, .csv, .json), a file of claims, or the id of a claim "
        "that is shipped.",
    ),
]
FormName = Annotated[
    str | None,
    option(
        "--format",
        metavar="|".join(FORM_NAMES),
        help="How the report is written; default by the name of -o, else md.",
    ),
]
Unit = Annotated[
    str | None,
    option("--unit", metavar="WORD", help="Whose data one neighbor lacks; default client."),
]
ClaimId = Annotated[
    str | None,
    option("--claim", metavar="ID", help="Which claim of a file that has several."),
]


class Target(NamedTuple):
    """Where a report goes, and in which form."""

    file: Path | None
    form: str


def read_target(output: str | None, form: str | None, *, as_json: bool, force: bool) -> Target:
    """Where the report goes, if it may, and how it is written; before anything is computed.

    Raises:
        InvalidParameter, OptionConflict: the form is unknown, or the words contradict each other.
    """
    if form is not None and form not in FORM_NAMES:
        raise InvalidParameter("--format", form, f"a report is one of {', '.join(FORM_NAMES)}")
    if as_json and form not in (None, "json"):
        raise conflict(f"--format {form}", "--json")
    asked = "json" if as_json else form
    file = read_output(output, force=force)
    if file is None:
        return Target(None, asked or DEFAULT_FORM)
    by_name = SUFFIXES.get(file.suffix.lower())
    if asked is None and by_name is None:
        rule = "the name of a report ends in .html, .md or .json"
        raise InvalidParameter("--output", output, rule, "--format says it otherwise.")
    if asked is not None and by_name is not None and asked != by_name:
        told = "--json" if as_json else f"--format {asked}"
        raise conflict(told, f"{spelling('--output')} {output}")
    return Target(file, asked or by_name or DEFAULT_FORM)


def report(
    file: Source = "",
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    unit: Unit = None,
    claim: ClaimId = None,
    output: Output = None,
    form: FormName = None,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """A page for those who decide: what is promised, to whom, and what it is worth.

    Its first page is in plain words, with what an attacker can at most find out in people out of a
    thousand; then what is assumed, with a line to sign each; then the figures. Of a ledger, of
    rounds that are planned, or of a claim.

    Examples:
      dpacct report --noise 1.3 --rounds 300 --q 0.1 --unit patient
      dpacct report census.ledger -o privacy.html
      dpacct report rounds.toml --format json
      dpacct report dp-fed-ls-t3-poisson-z2.4
    """
    target = read_target(output, form, as_json=as_json, force=force)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    write = _of_rounds(typed, delta, accountant, unit)
    if file:
        write = _of_file(file, typed, (delta, accountant, unit, claim))
    elif claim is not None:
        raise OptionConflict(f"--claim {claim} needs a file of claims.")
    write_output(write(target.form), target.file, force=force)


def _of_rounds(
    typed: MechanismOptions, delta: str | None, accountant: str, unit: str | None
) -> Callable[[str], str]:
    """What writes the report on rounds in a form."""

    def write(form: str) -> str:
        from dpacct.report import FORMATS, on_schedule

        at = typed.read_delta(delta)
        plan = typed.read_schedule()
        found = on_schedule(
            plan,
            delta=at.value,
            accountant=accountant,
            unit=_CLIENT if unit is None else unit,
            num_units=typed.num_clients,
        )
        return FORMATS[form](found)

    return write


def _of_file(
    file: str, typed: MechanismOptions, more: tuple[str | None, str, str | None, str | None]
) -> Callable[[str], str]:
    """What writes the report on whatever a file holds."""
    delta, accountant, unit, claim = more
    kind = kind_of(file)
    if kind == "schedule":
        if typed.schedule is not None:
            raise conflict(f"--schedule {typed.schedule}", file, "both are schedules")
        if claim is not None:
            raise conflict(f"--claim {claim}", file, "it is a schedule")
        named = MechanismOptions(
            typed.noise, typed.rounds, typed.rate, file, typed.sampling, typed.cohort,
            typed.clients, typed.adjacency, typed.epochs,
        )  # fmt: skip
        return _of_rounds(named, delta, accountant, unit)
    beside = {"--delta": delta, "--accountant": text_of("--accountant")}
    if kind == "ledger":
        beside |= {"--unit": unit, "--claim": claim}
    said = [f"{option} {value}" for option, value in beside.items() if value is not None]
    said = [part for part in (typed.retyped(), *said) if part]
    if said:
        raise conflict(" ".join(said), file, f"the {kind} says it already")
    if kind == "ledger":
        return lambda form: ledger_report(file, form)
    return lambda form: _claim_report(file, claim, unit, form)


def kind_of(file: str) -> str:
    """What a file is: a ledger by its content, a schedule or claims by what they hold."""
    from dpacct.ledger.disk.outputs import is_ledger

    path = Path(file)
    if not names_a_file(file, _TABLES):
        return "claim"
    if is_ledger(path):
        return "ledger"
    if path.suffix.lower() not in _TABLES:
        # What is damaged is told by whoever reads it.
        return "ledger"
    if path.suffix.lower() != ".toml":
        return "schedule"
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError):
        return "schedule"
    return "claim" if {"claim", "source", "statement"} & found.keys() else "schedule"


def ledger_report(file: str, form: str) -> str:
    """The report on a ledger in a form."""
    import json

    from dpacct_cli.ledger.runs import opened

    with opened(file) as ledger:
        if form == "json":
            return json.dumps(ledger.report(), indent=2, allow_nan=False) + "\n"
        return ledger.report_html() if form == "html" else ledger.report_markdown()


def _claim_report(file: str, claim: str | None, unit: str | None, form: str) -> str:
    from dpacct.claims.report import on_claim
    from dpacct.report import FORMATS
    from dpacct_cli.claims.command import read_claims

    found = {one.id: one for one in read_claims(file).claims}
    return FORMATS[form](
        on_claim(_one_of(found, claim, file), unit=_CLIENT if unit is None else unit)
    )


def _one_of(found: dict[str, Claim], wanted: str | None, file: str) -> Claim:
    if wanted is None and len(found) == 1:
        return next(iter(found.values()))
    if wanted in found:
        return found[wanted]
    listed = ", ".join(list(found)[:5]) + (" and more" if len(found) > 5 else "")
    if not found:
        raise InvalidParameter("FILE", file, "it has no claims")
    rule = f"a report is on one claim of {file}, which has {listed}"
    raise InvalidParameter("--claim", wanted, rule)
