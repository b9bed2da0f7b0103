"""`dpacct ledger ...`: the spent budget of a data set, and checks of its record."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from typing import Annotated, Any, cast

from dpacct import validate
from dpacct.budget import DEFAULT_DELTA, Budget, Spent
from dpacct.display import down, line
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.items import noun_of
from dpacct.outputs import LedgerRun, LedgerSummary, mechanism_of
from dpacct.rounds import AccountantName, Adjacency
from dpacct_cli import mechanism, options, outputs
from dpacct_cli.commands.report import CoverOptions, FormName, Unit, read_target
from dpacct_cli.options import MechanismOptions, StyleOptions, Text, argument, flag, option
from dpacct_cli.output import (
    Force,
    Output,
    given,
    has_folder,
    is_there,
    opened,
    read_output,
    write_output,
)
from dpacct_cli.render import Answer, Grid, Page, Row, bracket, plain, show, up

File = Annotated[str, argument("FILE", "The ledger of a data set.")]
# fmt: off
BudgetDelta = Annotated[str, option("--delta", "D", options.PRIVACY,
    "Delta of the budget; default 1e-05.")]
Head = Annotated[Text, option("--head", "HASH", "", "A head hash that was kept elsewhere.")]
Name = Annotated[Text, option("--name", "NAME", "", "Name of the run; default elsewhere.")]
AllEntries = Annotated[bool, flag("--all", "",
    "Verify all entries, and not only those since the latest verification.")]
OverBudget = Annotated[bool, flag("--over-budget", "",
    "Record rounds that already ran, even if they exceed the budget. The ledger then admits no "
    "further round.", advanced=True)]
Project = Annotated[Text, option("--project", "NAME", "",
    "Group of runs that this run belongs to.", advanced=True)]
Part = Annotated[Text, option("--part", "NAME=PART", "",
    "Part of the data that it uses, e.g. country=DE. A partition costs as much as its worst part.",
    advanced=True)]
ChargedBy = Annotated[str, option("--accountant", "pairs|tight", "",
    "How plans are charged; default pairs. tight charges cohorts of fixed size as calibrate does, "
    "and requires that no client remembers whether it took part.", advanced=True)]
PromisedDelta = Annotated[str, option("--promised-delta", "D", options.PRIVACY,
    "Part of delta for promises with a delta of their own, such as (epsilon, delta)-DP. If it is "
    "all of delta, the ledger takes only promises and pure releases.", advanced=True)]
Partition = Annotated[list[str] | None, option("--partition", "NAME=PART,PART,...", options.PRIVACY,
    "Parts of the data. A public rule assigns each client to one of them. Repeatable.",
    advanced=True)]
Address = Annotated[str, argument("ADDRESS", "postgresql://USER@HOST/DATABASE#NAME, a ledger.")]
Role = Annotated[str, argument("ROLE", "A role of the database: a person, or a group of them.")]
Right = Annotated[str, option("--as", "reader|requester|writer|approver|none", "",
    "What the role is allowed to do; default writer.")]
Teams = Annotated[list[str] | None, option("--team", "TEAM", "",
    "Team that pays for what the role charges; default one of its name. Repeatable.")]
OneTeam = Annotated[Text, option("--team", "TEAM", "", "Team that pays; default the only one.")]
Team = Annotated[str, argument("TEAM", "A team, to set its quota.")]
RequestNumber = Annotated[str, argument("NUMBER", "The request to approve.")]
RunNumber = Annotated[Text, option("--run", "N", "",
    "Number of the run, as dpacct ledger show lists it.")]
# fmt: on

# The guarantee of a ledger, in words.
CLAIMS = {
    "added": "all but pure releases were planned first: the tight accountant, plus their epsilons",
    "planned": "every round was planned before the first one: the tight accountant applies",
    "adaptive": "rounds were chosen as results came in: the Renyi odometer, valid for any choice",
}


def init(
    file: File,
    *,
    eps: options.Eps = None,
    delta: BudgetDelta = f"{DEFAULT_DELTA:g}",
    adjacency: options.AdjacencyName = None,
    unit: Unit = None,
    promised_delta: PromisedDelta = "0",
    partition: Partition = None,
    shown: StyleOptions,
) -> None:
    """Make the ledger of a data set, with its budget.

    Example:
      dpacct ledger init census.ledger --eps 8 --delta 1e-5
    """
    from dpacct.ledger import Ledger
    from dpacct.ledger import is_there as ledger_is_there

    style = shown.style
    epsilon = validate.target_epsilon(options.number(eps))
    budget = Budget(epsilon, validate.delta(options.number(delta)))
    relation = None if adjacency is None else Adjacency.parse(adjacency)
    if ledger_is_there(file) if validate.is_address(given(file)) else is_there(file):
        raise InvalidParameter("FILE", file, "it exists already, and no ledger is ever replaced")
    if not has_folder(file):
        raise InvalidParameter("FILE", file, "there is no such folder")
    rule = "a part of delta is a number"
    aside = validate.real("promised_delta", options.number(promised_delta), rule)
    kept: dict[str, Any] = {"unit": "client" if unit is None else unit, "promised_delta": aside}
    kept["partitions"] = dict(map(_read_partition, partition or ()))
    with Ledger.open(file, budget, adjacency=relation, **kept) as ledger:
        summary = ledger.summary()
    rows = [Row("ledger", summary["path"]), _budget_row(summary), _unit_row(summary)]
    note = mechanism.delta_note(summary["budget"]["delta"], None)
    page = Page(rows, closing=_show_again(summary), note=note)
    show(Answer(summary, summary["path"], lambda: page), style)


def show_ledger(file: File, *, shown: StyleOptions) -> None:
    """Show what was spent, by which runs, and the guarantee of each.

    Example:
      dpacct ledger show census.ledger
    """
    style = shown.style
    with opened(file) as ledger:
        summary = ledger.summary()
    show(Answer(summary, spent_number(summary), lambda: spent_page(summary)), style)


def verify(
    file: File, *, head: Head = None, all_entries: AllEntries = False, shown: StyleOptions
) -> None:
    """Recompute the chain, every cost and every total.

    It continues after the entry that was verified last, or with --all begins with the first. Exit
    code 1 if anything is wrong. Only --head, the hash that -q prints, shows if the end is missing.

    Example:
      dpacct ledger verify census.ledger
    """
    style = shown.style
    if head is not None and re.fullmatch("[0-9a-f]{64}", head) is None:
        raise InvalidParameter("--head", head, "a head is 64 hexadecimal digits, 0 to 9 and a to f")
    # A copy from elsewhere has no witness: all of it is verified, and nothing is written.
    here = os.path.exists(f"{given(file)}.witness")  # noqa: PTH110 - pathlib raises
    try:
        ledger = opened(file, read_only=not here)
    except LedgerError:
        here, ledger = False, opened(file)
    with ledger:
        checked = ledger.verify(head, all_entries=all_entries or not here, keep=here)
    data: outputs.LedgerVerify = {
        "sound": checked.sound,
        "entries": checked.entries,
        "rounds": checked.rounds,
        "head": checked.head,
        "head_found": checked.head_found,
        "problems": list(checked.problems),
        "remarks": list(checked.remarks),
        "unverified": list(checked.unverified),
    }
    count = f"{checked.entries} entries, {checked.rounds} rounds charged"
    rows = [
        Row("ledger", "sound" if checked.sound else "damaged", count),
        Row("head", checked.head),
    ]
    closing = ""
    if checked.head_found is not None:
        where = "in the chain" if checked.head_found else "not in the chain"
        rows.append(Row("", f"the head you kept is {where}"))
    elif checked.sound:
        closing = "Store the head elsewhere: --head HASH then exposes a truncated file."
    page = Page(rows, remarks=[*checked.problems, *checked.remarks], closing=closing)
    show(Answer(data, checked.head, lambda: page), style)
    if not checked.sound:
        raise LedgerError(f"{ledger.path}: the ledger is damaged: {checked.problems[0]}.")


def report(
    file: File,
    *,
    output: Output = None,
    form: FormName = None,
    cover: CoverOptions,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """Write a report for reviewers, as dpacct report FILE does.

    Examples:
      dpacct ledger report census.ledger
      dpacct ledger report census.ledger -o privacy.html
    """
    target = read_target(output, form, as_json=as_json, force=force)
    with opened(file) as ledger:
        target.write(cover.on(ledger.report_document()))


def remaining(
    file: File,
    *,
    typed: MechanismOptions,
    accountant: ChargedBy = "pairs",
    shown: StyleOptions,
) -> None:
    """Count how many more rounds, or other releases, of a kind fit into the budget.

    Examples:
      dpacct ledger remaining census.ledger --noise 1.3 --q 0.1
      dpacct ledger remaining census.ledger --laplace 0.1
    """
    from dpacct.ledger import schedule_in_adjacency

    style = shown.style
    typed.refuse_unused_clients()
    with opened(file) as ledger:
        plan = typed.at_least_once().read_schedule(ledger.adjacency)
        plan = schedule_in_adjacency(plan, ledger.adjacency or "")
        chosen = ledger.remaining_one_by_one(plan)
        planned = ledger.remaining_as_plan(plan, cast("AccountantName", accountant))
        after = None if not planned else ledger.would_read(plan, cast("AccountantName", accountant))
        summary = ledger.summary()
    data: outputs.LedgerRemaining = {
        "remaining": planned,
        "remaining_as_plan": planned,
        "remaining_one_by_one": chosen,
        "would_read": None if after is None else outputs.Ends(lower=after.lower, upper=after.upper),
        "epsilon": summary["epsilon"],
        "budget": summary["budget"],
        **mechanism_of(plan),
    }
    noun = f"{noun_of(plan)}s"
    noun = noun if plan.rounds == 1 else f"runs of {plan.rounds} {noun}"
    rows = [Row("remaining", str(planned), f"more such {noun}, planned or charged at once")]
    if planned > chosen:
        rows.append(Row("", str(chosen), "if they are chosen one by one, as results come in"))
    if after is not None:
        rows.append(Row("would read", up(after.upper), "epsilon after one of them"))
    rows += [*mechanism.rows(plan), *_spent_rows(summary), _budget_row(summary)]
    if summary["held"]:
        rows.append(Row("", "epsilon reserved for plans is not available"))
    show(Answer(data, str(planned), lambda: Page(rows)), style)


def charge(
    file: File,
    *,
    typed: MechanismOptions,
    name: Name = None,
    project: Project = None,
    part: Part = None,
    accountant: ChargedBy = "pairs",
    over_budget: OverBudget = False,
    shown: StyleOptions,
) -> None:
    """Charge releases: rounds that ran elsewhere, a statistic, a promise.

    All of them are recorded in one entry, or none. Releases that exceed the budget may be a
    mistake and are rejected. --over-budget records them. -q prints the epsilon afterwards.

    Examples:
      dpacct ledger charge census.ledger --noise 1.3 --rounds 20 --q 0.1 --name notebook
      dpacct ledger charge census.ledger --laplace 0.1 --name "age histogram"
    """
    from dpacct.ledger import schedule_in_adjacency

    style = shown.style
    typed.refuse_unused_clients()
    with opened(file, read_only=False) as ledger:
        plan = typed.read_schedule(ledger.adjacency)
        given_too: dict[str, Any] = {"project": project or "", "part": part or ""}
        given_too["accountant"] = accountant
        try:
            run = ledger.charge(name or "elsewhere", plan, over_budget=over_budget, **given_too)
        except BudgetExceeded as refusal:
            way = "If they have happened, --over-budget records them."
            raise BudgetExceeded(f"{refusal} {way}") from None
        summary = ledger.summary()
        plan = schedule_in_adjacency(plan, summary["adjacency"] or "")
    data: outputs.LedgerCharge = {
        "run": run.id,
        "charged": plan.rounds,
        **mechanism_of(plan),
        "epsilon": summary["epsilon"],
        "delta": summary["delta"],
        "budget": summary["budget"],
        "guarantee": summary["guarantee"],
        "path": summary["path"],
    }
    noun = noun_of(plan) if plan.rounds == 1 else f"{noun_of(plan)}s"
    rows = [
        Row("charged", str(plan.rounds), f"{noun}, as run {run.id}"),
        *mechanism.rows(plan),
        *_spent_rows(summary),
        _budget_row(summary),
    ]
    page = Page(rows, closing=_show_again(summary))
    show(Answer(data, spent_number(summary), lambda: page), style)


def _read_partition(text: str) -> tuple[str, list[str]]:
    """Return the name and the parts of a partition as typed."""
    name, equals, parts = text.partition("=")
    if not equals:
        raise InvalidParameter("--partition", text, "a partition is NAME=PART,PART,...")
    return name.strip(), [part.strip() for part in parts.split(",")]


def finish(file: File, *, run: RunNumber = None, shown: StyleOptions) -> None:
    """End a run that will not go on, so that its planned rounds are free again.

    Spent rounds stay spent, also interrupted ones. -q prints how many planned rounds are free.

    Example:
      dpacct ledger finish census.ledger --run 1
    """
    style = shown.style
    number = validate.count("run", options.number(run), "the number of a run")
    with opened(file, read_only=False) as ledger:
        known = len(ledger.runs)
        if number > known:
            there = f"runs are 1 to {known}" if known else "there are no runs"
            raise InvalidParameter("run", number, f"{there} in {ledger.path}")
        ended = ledger.runs[number - 1]
        freed = ended.held
        ended.finish()
        summary = ledger.summary()
        spent, lost = ended.rounds, ended.rounds - ended.committed
        title = line(ended.name, 40)
    data: outputs.LedgerFinish = {"freed": freed, **summary["runs"][number - 1]}
    unreleased = f"; {lost} of them reserved and never released" if lost else ""
    rows = [
        Row("finished", f"run {number}", title),
        Row("free again", str(freed), "rounds of its plan that were still to come"),
        Row("spent", str(spent), f"rounds, which stay spent{unreleased}"),
    ]
    page = Page(rows, closing=_show_again(summary))
    show(Answer(data, str(freed), lambda: page), style)


def export(
    file: File, *, output: Output = None, force: Force = False, as_json: options.AsJson = False
) -> None:
    """Write every entry, one JSON object a line, or with --json a single object.

    Example:
      dpacct ledger export census.ledger -o census.jsonl
    """
    target = read_output(output, force=force)
    with opened(file) as ledger:
        if as_json:
            text = json.dumps({"schema": 1, "entries": list(ledger.export())}, indent=2) + "\n"
        else:
            text = "".join(f"{json.dumps(entry)}\n" for entry in ledger.export())
    write_output(text, target, force=force)


def grant(
    file: Address,
    role: Role,
    *,
    right: Right = "writer",
    team: Teams = None,
    shown: StyleOptions,
) -> None:
    """Give a role of the database one right to a ledger, in place of earlier ones.

    reader reads, verifies and exports. requester may ask. writer charges for its teams. approver
    also approves what others ask. none takes all rights away.

    Examples:
      dpacct ledger grant postgresql://db.example/health#census vision --team vision
      dpacct ledger grant postgresql://db.example/health#census auditor --as reader
    """
    with opened(file, read_only=False) as ledger:
        teams = ledger.organization.grant(role, cast("Any", right), team or ())
        data: outputs.LedgerGrant = {"role": role, "right": right, "teams": list(teams)}
        rows = [Row("granted", right, f"to {role}")]
        rows += [Row("team", name) for name in teams if name]
    show(Answer(data, right, lambda: Page(rows)), shown.style)


def quota(file: Address, team: Team = "", *, eps: options.Eps = None, shown: StyleOptions) -> None:
    """List the teams of a ledger, or cap the epsilon of one.

    A quota caps what the runs of a team have spent and hold, read by the adaptive bound.

    Examples:
      dpacct ledger quota postgresql://db.example/health#census
      dpacct ledger quota postgresql://db.example/health#census vision --eps 2
    """
    with opened(file, read_only=False) as ledger:
        if team:
            ledger.organization.set_quota(team, options.number(eps))
        elif eps is not None:
            raise InvalidParameter("TEAM", None, "--eps caps one team: name it")
        teams = ledger.organization.teams()
    data: outputs.LedgerQuota = {
        "teams": [{"team": one.team, "quota": one.quota, "epsilon": one.epsilon} for one in teams]
    }
    lines = [
        [line(one.team, 40), "-" if one.quota is None else plain(one.quota), up(one.epsilon)]
        for one in teams
    ]
    page = Page([], [Grid(["team", "quota", "spent and held"], lines)], title="Teams")
    show(Answer(data, "\n".join(one.team for one in teams), lambda: page), shown.style)


def request(
    file: Address,
    *,
    typed: MechanismOptions,
    name: Name = None,
    team: OneTeam = None,
    part: Part = None,
    accountant: ChargedBy = "pairs",
    shown: StyleOptions,
) -> None:
    """Ask for releases, which another person approves. -q prints the number of the request.

    Example:
      dpacct ledger request postgresql://db.example/health#census --laplace 0.1 --name histogram
    """
    typed.refuse_unused_clients()
    with opened(file, read_only=False) as ledger:
        plan = typed.read_schedule(ledger.adjacency)
        number = ledger.organization.request(
            name or "request", plan, team=team or "", part=part or "",
            accountant=cast("AccountantName", accountant),
        )  # fmt: skip
        shown_path = shlex.quote(str(ledger.path))
    data: outputs.LedgerRequest = {"request": number, **mechanism_of(plan)}
    rows = [Row("request", str(number), "waits for approval"), *mechanism.rows(plan)]
    page = Page(rows, closing=f"dpacct ledger approve {shown_path} {number} charges it.")
    show(Answer(data, str(number), lambda: page), shown.style)


def approve(file: Address, number: RequestNumber = "", *, shown: StyleOptions) -> None:
    """List the requests that wait, or charge one that another role asked for.

    Examples:
      dpacct ledger approve postgresql://db.example/health#census
      dpacct ledger approve postgresql://db.example/health#census 3
    """
    with opened(file, read_only=False) as ledger:
        if number:
            asked = validate.count("request", options.number(number), "the number of a request")
            run, summary = ledger.organization.approve(asked), ledger.summary()
            data: outputs.LedgerApprove = {"approved": asked, "run": run.id, "waiting": []}
            rows = [Row("charged", f"request {asked}", f"as run {run.id}"), *_spent_rows(summary)]
            page = Page([*rows, _budget_row(summary)], closing=_show_again(summary))
        else:
            waiting = [one for one in ledger.organization.requests() if one.approved_by is None]
            lines = [
                [str(one.id), line(one.team, 20), line(one.asked_by, 20), line(one.name, 40),
                 repr(one.schedule)]
                for one in waiting
            ]  # fmt: skip
            kept: list[outputs.WaitingRequest] = [
                {"request": one.id, "team": one.team, "name": one.name, "asked_by": one.asked_by}
                for one in waiting
            ]
            data = {"approved": None, "run": None, "waiting": kept}
            grids = [Grid(["request", "team", "asked by", "name", "releases"], lines)]
            page = Page([], grids if lines else [], closing="" if lines else "No request waits.")
    quiet = "\n".join(str(one["request"]) for one in data["waiting"]) or str(data["run"] or "")
    show(Answer(data, quiet, lambda: page), shown.style)


COMMANDS = {
    "init": init,
    "show": show_ledger,
    "verify": verify,
    "report": report,
    "remaining": remaining,
    "charge": charge,
    "finish": finish,
    "export": export,
    "grant": grant,
    "quota": quota,
    "request": request,
    "approve": approve,
}


def spent_number(summary: LedgerSummary) -> str:
    """Return the epsilon that holds even if results influenced when to stop."""
    promise = summary["epsilon_any_stop"]
    return "inf" if promise is None else repr(promise)


def _spent_rows(summary: LedgerSummary) -> list[Row]:
    """Return the epsilon of all runs. The epsilon of whole plans comes first."""
    lower, upper = summary["epsilon"]["lower"], summary["epsilon"]["upper"]
    spent = Spent(lower or 0.0, math.inf if upper is None else upper, summary["delta"])
    if not math.isfinite(spent.upper):
        return [Row("epsilon", "none", "  whatever the delta")]
    rows = [mechanism.epsilon_row(spent)]
    if summary["part_of_plan"]:
        any_stop = summary["epsilon_any_stop"]
        whole = Spent(spent.lower, math.inf if any_stop is None else any_stop, spent.delta)
        rows = [
            mechanism.epsilon_row(whole, lead="even if results influenced when to stop, "),
            Row("", bracket(spent.interval), "  only if stopping here was decided in advance"),
        ]
    if spent.upper > summary["budget"]["epsilon"]:
        rows.append(Row("", "more than the budget: no further round is admitted"))
    return rows


def _budget_row(summary: LedgerSummary) -> Row:
    budget = summary["budget"]
    return Row("budget", plain(budget["epsilon"]), f"at delta {plain(budget['delta'])}")


def _unit_row(summary: LedgerSummary) -> Row:
    relation = summary["adjacency"] or "adjacency of the first round"
    return Row("unit", f"one {line(summary['unit'], 40)}, {relation}")


def _show_again(summary: LedgerSummary) -> str:
    return f"dpacct ledger show {shlex.quote(summary['path'])} shows the spent budget."


def spent_page(summary: LedgerSummary) -> Page:
    """Return the page on the spent budget of all runs of a ledger."""
    runs = len(summary["runs"])
    rows = [
        *_spent_rows(summary),
        _budget_row(summary),
        _unit_row(summary),
        Row("rounds", str(summary["rounds"]), f"charged, in {runs} run{'s' * (runs != 1)}"),
        Row("claim", _guarantee(summary)),
    ]
    if summary["plan_delta"]:
        left = down(summary["adaptive_delta"], 2)
        rows.append(Row("", f"delta reserved for unplanned rounds: {left}"))
    if summary["promised_delta"]:
        left = down(max(0.0, summary["promised_delta_left"]), 2)
        rows.append(Row("", f"delta left for promises: {left} of {summary['promised_delta']:g}"))
    if summary["verified"]:
        rows.append(Row("verified", f"up to entry {summary['verified']} of {summary['entries']}"))
    for project in summary["projects"]:
        spent = "none" if project["epsilon"] is None else up(project["epsilon"])
        of = f"{project['rounds']} rounds, {project['name']}"
        rows.append(Row("project", spent, f"epsilon by itself, {of}"))
    lines = [
        [
            str(run["run"]),
            line(run["name"], 40),
            str(run["committed"]),
            str(run["uncommitted"]),
            "-" if run["planned_rounds"] is None else str(run["planned_rounds"]),
            "none" if run["epsilon_any_stop"] is None else up(run["epsilon_any_stop"]),
            _run_claim(run),
            run["project"],
            run["part"],
        ]
        for run in summary["runs"]
    ]
    header = ["run", "name", "released", "not committed", "planned", "epsilon", "claim"]
    header += ["project", "part"]
    # What is the same in all runs, as it mostly is, takes no column.
    dull = {"not committed": {"0"}, "project": {""}, "part": {""}}
    kept = [n for n, name in enumerate(header) if {row[n] for row in lines} != dull.get(name)]
    header, lines = [header[n] for n in kept], [[row[n] for n in kept] for row in lines]
    closing = (
        f"dpacct ledger report {shlex.quote(summary['path'])} -o report.html writes a page for a "
        "reviewer."
    )
    grids = [Grid(header, lines)] if lines else []
    epsilon = summary["epsilon_any_stop"]
    used = None if epsilon is None else epsilon / summary["budget"]["epsilon"]
    return Page(rows, grids, closing=closing, title="Budget spent", used=used)


def _guarantee(summary: LedgerSummary) -> str:
    if not summary["rounds"]:
        return "nothing ran yet"
    if summary["part_of_plan"]:
        slots = summary["slots"]
        return (
            f"{slots['used']} of {slots['planned']} planned rounds are charged; if results "
            "influence when to stop, the whole plan counts"
        )
    added = summary["guarantee"] == "planned" and summary["pure_beside_plans"]
    return CLAIMS.get("added" if added else summary["guarantee"]) or summary["claim"]


def _run_claim(run: LedgerRun) -> str:
    if not run["private"]:
        return "none, not private"
    finished = ", finished" if run["finished"] else ""
    if run["part_of_plan"]:
        return f"planned{finished}, {up(run['epsilon']['upper'] or 0.0)} if decided in advance"
    if run["left_plan"]:
        return f"{run['guarantee']}, left its plan"
    return f"{run['guarantee']}{finished}"
