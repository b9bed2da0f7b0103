"""The report for a reviewer: the claim, its scope and its assumptions, as blocks of text.

Its sentences are in the templates of `dpacct.report`, and those that depend on the runs here and in
`facts`.

Its contents follow Ponomareva et al. 2023 ("How to DP-fy ML", arXiv:2303.00654). They ask every
report of a private model for setting, unit, adjacency, coverage, accounting with its assumptions,
the guarantee in full, and a way to check it.
"""

from __future__ import annotations

from dpacct.display import chosen, down, line, safe, up
from dpacct.items import count_of, in_words, read_alone
from dpacct.ledger.disk.store import Store
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.events import MAX_DETAILS
from dpacct.ledger.report.facts import promise_of, report_of
from dpacct.ledger.verify import Verification
from dpacct.ledger.writing import above
from dpacct.outputs import LedgerReport, ReleaseKeys, ReportedRun
from dpacct.report.document import Report, bullets, chart, filled, heading, paragraph, table
from dpacct.report.front import (
    LEDGER_ASSUMPTIONS,
    Promise,
    bracket,
    front_page,
    glossary,
    neighbors,
    nothing_promised,
    to_sign,
)

# Keys of a phase that are no part of its round.
_BESIDE = ("rounds", "planned", "releases")
_ANY_STOP = "even if results influenced when to stop"


def verified_report(now: Snapshot, store: Store, reporter: str) -> Report:
    """Return the whole report of a program's version, with a verification of the same entries."""
    facts, found = report_of(now, store, reporter)
    promise = promise_of(now, facts)
    name = str(facts["path"]).replace("\\", "/").rsplit("/", 1)[-1]
    blocks: list[str] = [
        heading(1, f"Privacy report: {line(name)}"),
        *_front(facts, found, promise),
        *(to_sign(LEDGER_ASSUMPTIONS, _signed(facts)) if promise and found.sound else []),
        *_figures(facts, found),
        *glossary(),
    ]
    return Report({**facts}, tuple(blocks), {**facts})


def _front(report: LedgerReport, found: Verification, promise: Promise | None) -> list[str]:
    if not found.sound:
        return nothing_promised(
            "the record of spent rounds is damaged. Restore a sound copy before reading anything."
        )
    if report["epsilon_any_stop"] is None:
        return nothing_promised(report["claim"].replace(", so no guarantee holds", ""))
    if not report["rounds"]:
        return [paragraph("Nothing was released yet, and nothing can be found out.", strong=True)]
    if promise is None:
        return nothing_promised(
            "rounds that had run elsewhere were recorded beyond the budget, which does not hold. "
            "The figures show the spent budget."
        )
    return front_page(promise)


def _figures(report: LedgerReport, found: Verification) -> list[str]:
    """Return the claim in figures, the runs, the accounting and the verification."""
    unit, guarantee = line(report["unit"]), report["guarantee"]
    part = report["part_of_plan"]
    claimed = found.sound and guarantee != "none"
    runs = len(report["runs"])
    scope = f"{report['adjacency'] or 'no adjacency yet'} of one {unit}"
    bounded = any(point["upper"] is not None for point in report["points"])
    budget, both = chosen(report["budget"]["epsilon"], least=True), bracket(**report["epsilon"])
    return filled(
        "ledger.md",
        {
            "chart": chart("Proven epsilon by round, over all runs") if bounded else "",
            "runs": _runs(report),
            "each_run": "\n\n".join(block for run in report["runs"] for block in _one_run(run)),
            "parts": bullets(
                f"Each {unit} belongs to one part of {line(name)} by a public rule: "
                f"{line(', '.join(parts), MAX_DETAILS)}. Releases about different parts cost as "
                f"much as those about the worst part."
                for name, parts in report["partitions"].items()
            ),
            "projects": bullets(
                f"Project {line(project['name'])}, runs {', '.join(map(str, project['runs']))}: "
                f"epsilon {above(project['epsilon'])} by itself."
                for project in report["projects"]
            ),
            "remarks": bullets(found.remarks),
            "unverified": bullets(found.unverified),
        },
        problem="" if found.sound else found.problems[0],
        exposed=found.sound and guarantee == "none",
        rounds=str(report["rounds"]) if claimed else "",
        number=f"{runs} run{'' if runs == 1 else 's'}",
        proven=above(report["epsilon_any_stop"]),
        delta=chosen(report["delta"]),
        scope=f"{scope}, {_ANY_STOP}" if part else scope,
        budget=budget,
        claim=report["claim"] if found.sound else "Restore a sound copy before anything is read.",
        unit=unit,
        neighbors=neighbors(report["adjacency"], unit),
        any_stop=above(report["epsilon_any_stop"]) if part else "",
        part=both if part else "",
        whole="" if part else both,
        limit="" if guarantee == "none" else budget,
        planned=guarantee == "planned",
        added=guarantee == "planned" and bool(report["pure_beside_plans"]),
        chosen=guarantee != "planned",
        promised=up(report["promised_delta"], 4) if report["promised_delta"] else "",
        reserved=up(report["plan_delta"], 4) if report["plan_delta"] else "",
        left=down(report["adaptive_delta"], 4),
        entries=str(found.entries),
        state="sound" if found.sound else "damaged: " + "; ".join(found.problems),
        head=found.head,
        software=line(report["software"]),
        reporter=report["reporter"],
        created=report["created"],
        latest=report["latest"],
    )


def _signed(report: LedgerReport) -> str:
    """Return what a signature is for: the ledger, its total, and its end."""
    total = up(report["epsilon_any_stop"] or 0.0)
    budget = (
        f"of the budget {chosen(report['budget']['epsilon'])} at delta {chosen(report['delta'])}"
    )
    at = f"up to the entry of {report['latest']} with head {report['head']}"
    return f"epsilon {total} {budget}, of the ledger {line(str(report['path']))} {at}"


def _runs(report: LedgerReport) -> str:
    header = ("run", "name", "rounds", "released", "lost", "abandoned", "epsilon", "claim")
    rows: list[tuple[str, ...]] = []
    for run in report["runs"]:
        claim = run["guarantee"] if run["private"] else "none: not private"
        if run["left_plan"]:
            claim = f"{claim}; left its plan at round {run['left_at']}"
        epsilon = bracket(**run["epsilon"])
        if run["part_of_plan"]:
            whole = above(run["epsilon_any_stop"])
            epsilon = f"{whole} {_ANY_STOP}; {epsilon} if that was decided in advance"
        planned = "" if run["planned_rounds"] is None else f" (plan: {run['planned_rounds']})"
        counts = (str(run[key]) for key in ("committed", "uncommitted", "abandonments"))
        charged = f"{run['rounds']}{planned}"
        rows.append((str(run["run"]), line(run["name"]), charged, *counts, epsilon, claim))
    return table(header, rows)


def _one_run(run: ReportedRun) -> list[str]:
    """Return a title, the table of rounds, the plan and the details of a run."""
    header = ("rounds", "what each releases", "within the plan", "sums")
    rows: list[tuple[str, ...]] = []
    for phase in run["phases"]:
        planned = "yes" if phase["planned"] else "no"
        planned = "no plan" if run["planned_rounds"] is None else planned
        words = in_words(read_alone(phase, _BESIDE))
        releases = "; ".join(map(_release_words, phase["releases"])) or "the sum"
        rows.append((str(phase["rounds"]), words, planned, releases))
    blocks: list[str] = [heading(4, f"Run {run['run']}: {line(run['name'])}")]
    if rows:
        blocks.append(table(header, rows))
    if run["more_rounds"]:
        more = f"And {run['more_rounds']} more rounds."
        blocks.append(f"{more} `dpacct ledger export FILE` lists them all.")
    if run["planned_epsilon"] is not None and run["planned_rounds"] is not None:
        when = "before the first round" if run["planned_first"] else "after other rounds had run"
        blocks.append(
            paragraph(
                f"The plan of {count_of(run['planned_rounds'], 'round')} costs epsilon "
                f"{above(run['planned_epsilon'])}, even if it is stopped early. It was registered "
                f"{when}."
            )
        )
    details = sorted(run["details"].items())
    if details:
        items = tuple(line(f"{key}: {value}", MAX_DETAILS) for key, value in details)
        blocks.append(bullets(items))
    return blocks


def _release_words(release: ReleaseKeys) -> str:
    noise = safe("noise_multiplier", release["noise_multiplier"])
    text = f"{line(release['name'])}: noise multiplier {noise}"
    if release["sensitivity"] is not None:
        text += f", sensitivity {chosen(release['sensitivity'])}"
    return text
