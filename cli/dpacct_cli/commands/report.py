"""`dpacct report`: a page for reviewers, on a ledger, on rounds, or on a claim."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.errors import InvalidParameter
from dpacct_cli import options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import MechanismOptions, argument, option
from dpacct_cli.output import Force, Output, names_a_file, opened, read_output, write_output
from dpacct_cli.words import spelling, text_of

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
        "--format", metavar="|".join(FORM_NAMES), panel=options.OUTPUT,
        help="Form of the report; default by the name of -o, else md.",
    ),
]  # fmt: skip
Unit = Annotated[
    str | None,
    option(
        "--unit", metavar="WORD", panel=options.WHAT_RUNS, advanced=True,
        help="Privacy unit, by which neighbors differ; default client.",
    ),
]  # fmt: skip
ClaimId = Annotated[
    str | None,
    option(
        "--claim", metavar="ID", panel=options.FIND, advanced=True,
        help="Claim to report on, of a file that has several.",
    ),
]  # fmt: skip


class Target(NamedTuple):
    """The file of a report, None for stdout, and its form."""

    file: Path | None
    form: str


def read_target(output: str | None, form: str | None, *, as_json: bool, force: bool) -> Target:
    """Return the place and the form of a report, before anything is computed.

    Raises:
        InvalidParameter, OptionConflict: the form is unknown, or two options contradict each other.
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
    *,
    typed: MechanismOptions,
    delta: options.Delta = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    unit: Unit = None,
    claim: ClaimId = None,
    output: Output = None,
    form: FormName = None,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a privacy report for reviewers: the guarantee, its unit, and the risk it leaves.

    The first page is in plain words, with the most that an attacker can find out. The assumptions
    follow, with a line to sign each, and then the figures. A report is on a ledger, on planned
    rounds or on a claim.

    Examples:
      dpacct report --noise 1.3 --rounds 300 --q 0.1 --unit patient
      dpacct report census.ledger -o privacy.html
      dpacct report rounds.toml --format json
      dpacct report dp-fed-ls-t3-poisson-z2.4
    """
    target = read_target(output, form, as_json=as_json, force=force)
    kind = kind_of(file) if file else "schedule"
    if kind == "schedule":
        if claim is not None:
            reason = conflict(f"--claim {claim}", file, "it is a schedule")
            raise reason if file else OptionConflict(f"--claim {claim} needs a file of claims.")
        if file and typed.schedule is not None:
            raise conflict(f"--schedule {typed.schedule}", file, "both are schedules")
        if file:
            typed = typed._replace(schedule=file)
        text = _of_rounds(typed, delta, accountant, unit, target.form)
    else:
        beside = {"--delta": delta, "--accountant": text_of("--accountant")}
        if kind == "ledger":
            beside |= {"--unit": unit, "--claim": claim}
        said = [f"{option} {value}" for option, value in beside.items() if value is not None]
        if said := [part for part in (typed.retyped(), *said) if part]:
            raise conflict(" ".join(said), file, f"the {kind} says it already")
        if kind == "ledger":
            text = ledger_report(file, target.form)
        else:
            text = _of_claim(file, claim, unit, target.form)
    write_output(text, target.file, force=force)


def _of_rounds(
    typed: MechanismOptions, delta: str | None, accountant: str, unit: str | None, form: str
) -> str:
    from dpacct.report import FORMATS, on_schedule

    at = typed.read_delta(delta)
    found = on_schedule(
        typed.read_schedule(),
        delta=at.value,
        accountant=accountant,
        unit=_CLIENT if unit is None else unit,
        num_units=typed.num_clients,
    )
    return FORMATS[form](found)


def kind_of(file: str) -> str:
    """Return "ledger", "schedule" or "claim", by the content of a file."""
    from dpacct.ledger.disk.outputs import is_ledger

    path = Path(file)
    if not names_a_file(file, _TABLES):
        return "claim"
    if is_ledger(path):
        return "ledger"
    if path.suffix.lower() not in _TABLES:
        # Its reader reports any damage.
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
    """Return the report on a ledger in a form."""
    import json

    with opened(file) as ledger:
        if form == "json":
            return json.dumps(ledger.report(), indent=2, allow_nan=False) + "\n"
        return ledger.report_html() if form == "html" else ledger.report_markdown()


def _of_claim(file: str, wanted: str | None, unit: str | None, form: str) -> str:
    from dpacct.claims.report import on_claim
    from dpacct.report import FORMATS
    from dpacct_cli.commands.claims import read_claims

    found = {one.id: one for one in read_claims(file).claims}
    if not found:
        raise InvalidParameter("FILE", file, "it has no claims")
    if wanted is None and len(found) == 1:
        wanted = next(iter(found))
    if wanted not in found:
        listed = ", ".join(list(found)[:5]) + (" and more" if len(found) > 5 else "")
        rule = f"a report is on one claim of {file}, which has {listed}"
        raise InvalidParameter("--claim", wanted, rule)
    return FORMATS[form](on_claim(found[wanted], unit=_CLIENT if unit is None else unit))
