"""`dpacct report`: a report for reviewers, on a ledger, or on rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct_cli import options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import Advanced, MechanismOptions, Text, argument, flag, option
from dpacct_cli.output import Force, Output, opened, read_output, write_output
from dpacct_cli.render import Page, Row, bracket, on_terminal, plain, show_page, wrapped
from dpacct_cli.words import text_of

if TYPE_CHECKING:
    from dpacct.report import Report

SUFFIXES = {".html": "html", ".htm": "html", ".pdf": "pdf", ".md": "md", ".json": "json"}
FORM_NAMES = ("html", "pdf", "md", "json", "registry", "model-card")

Source = Annotated[str, argument("[FILE]", "A ledger. Without it the report is on planned rounds.")]
# fmt: off
FormName = Annotated[Text, option("--format", "|".join(FORM_NAMES), options.OUTPUT,
    "Format of the report; default by the name of -o, else md. registry: a draft entry of the "
    "OpenDP registry of deployments.")]
Certify = Annotated[bool, flag("--certify", options.OUTPUT,
    "Prove epsilon again by ball arithmetic, and say so.", advanced=True)]
Slack = Annotated[Text, option("--gdp", "SLACK", options.PRIVACY,
    "Also state mu of Gaussian DP with this slack.", advanced=True)]
Unit = Annotated[Text, option("--unit", "WORD", options.PRIVACY,
    "Privacy unit, by which neighbors differ; default client.")]
# fmt: on


class CoverOptions(NamedTuple):
    """The options for the head of the report."""

    title: Annotated[Text, option("--title", "TEXT", options.OUTPUT, "Title.")] = None
    author: Annotated[Text, option("--author", "TEXT", options.OUTPUT, "Author.")] = None
    date: Annotated[Text, option("--date", "TEXT", options.OUTPUT, "Date.")] = None

    def on(self, report: Report) -> Report:
        """Return the report with its cover."""
        return report.with_cover(**{key: text or "" for key, text in self._asdict().items()})


class Target(NamedTuple):
    """Where a report goes, and its format."""

    file: Path | None  # None for stdout
    form: str
    force: bool  # Whether a file may be replaced
    # Show the headline alone, because stdout is a terminal and no format was named
    summary: bool = False

    def write(self, report: Report) -> None:
        """Write a report to its file or to stdout, or show its headline."""
        from dpacct.report import FORMATS

        if self.summary:
            show_page(_summary(report))
            return
        write_output(FORMATS[self.form](report), self.file, force=self.force)


def read_target(output: str | None, form: str | None, *, as_json: bool, force: bool) -> Target:
    """Return the file, if it may be written, and the format, before anything is computed."""
    if form is not None:
        validate.one_of("--format", form, "a report", FORM_NAMES)
    if as_json and form not in (None, "json"):
        raise conflict(f"--format {form}", "--json")
    asked = "json" if as_json else form
    file = read_output(output, force=force)
    by_name = None if file is None else SUFFIXES.get(file.suffix.lower())
    form = asked or by_name or ("md" if file is None else None)
    if form is None:
        rule = "the name of a report ends in .html, .pdf, .md or .json"
        raise InvalidParameter("--output", output, rule, "--format says it otherwise.")
    if form == "pdf" and file is None:
        raise OptionConflict("a PDF goes to a file: -o report.pdf")
    if form == "pdf":
        from dpacct.report.document import pdf_packages

        pdf_packages()
    return Target(file, form, force, file is None and asked is None and on_terminal())


def _summary(report: Report) -> Page:
    """Return the headline and the epsilon of a report, and how to write all of it."""
    rows = wrapped("in short", report.headline)
    spent = report.facts.get("epsilon")
    if spent is not None and spent["upper"] is not None:
        epsilon = bracket(Interval(spent["lower"], spent["upper"]))
        rows.append(Row("epsilon", epsilon, f"  at delta {plain(report.facts['delta'])}"))
    return Page(rows, closing="-o report.html writes the page.", title=report.title)


def report(
    file: Source = "",
    *,
    typed: Annotated[MechanismOptions, Advanced(("cohort_size", "num_clients", "sampling"))],
    delta: options.Delta = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    unit: Unit = None,
    certify: Certify = False,
    gdp: Slack = None,
    output: Output = None,
    form: FormName = None,
    cover: CoverOptions,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a privacy report for reviewers: on a ledger, or on planned rounds.

    The first page states in plain words the guarantee, the protected people and the limits of
    attacks. Then come the assumptions, each with a line to sign, and the figures. A terminal shows
    the headline alone; -o or --format writes all of it.

    Examples:
      dpacct report --noise 1.3 --rounds 300 --q 0.1 --unit patient
      dpacct report census.ledger -o privacy.pdf --author "A. Analyst" --date 2026-11-25
      dpacct report --schedule rounds.toml --format json
    """
    target = read_target(output, form, as_json=as_json, force=force)
    if file:
        beside = {"--delta": delta, "--accountant": text_of("--accountant"), "--unit": unit}
        said = [f"{option} {value}" for option, value in beside.items() if value is not None]
        said = [part for part in (typed.retyped(), *said) if part]
        if gdp is not None:
            why = "its reading is one epsilon, and mu needs all deltas of a plan: --schedule PLAN"
            raise conflict("--gdp", file, why)
        if certify:
            raise conflict("--certify", file, f"dpacct certify {file} proves a ledger again")
        if said:
            raise conflict(" ".join(said), file, "the ledger says it already")
        with opened(file) as ledger:
            document = ledger.report_document()
    else:
        from dpacct.accountant import find_accountant
        from dpacct.report import on_schedule

        document = on_schedule(
            typed.read_schedule(),
            delta=typed.read_delta(delta).value,
            accountant=find_accountant(accountant).name,
            unit="client" if unit is None else unit,
            num_units=typed.num_clients,
            certify=certify,
            gdp_slack=None if gdp is None else options.number(gdp),
        )
    target.write(cover.on(document))
