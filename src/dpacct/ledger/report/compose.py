"""The report for a reviewer: what is claimed, for what, on which assumptions, as blocks of text.

Its sentences stand here and in `facts`, and for the first page in `dpacct.report`.

What it lists follows what Ponomareva et al. 2023 ("How to DP-fy ML", arXiv:2303.00654) ask of
every report of a private model: setting, unit, adjacency, what is covered, accounting with its
assumptions, the guarantee in full, and how to check it.
"""

from __future__ import annotations

from typing import Any

from dpacct.display import chosen, down, line, up
from dpacct.ledger.disk.store import Store
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.admission import above
from dpacct.ledger.record.events import MAX_DETAILS, round_from_json
from dpacct.ledger.report.facts import promise_of, report_of
from dpacct.ledger.verify import Verification, verify
from dpacct.report.document import Block, Bullets, Chart, Heading, Paragraph, Report, Table
from dpacct.report.front import Promise, front_page, nothing_promised
from dpacct.report.words import (
    LEDGER_ASSUMPTIONS,
    bracket,
    glossary,
    neighbors,
    sampling_words,
    to_sign,
)

# Keys that stand beside a round where its phase is printed.
_BESIDE = ("rounds", "planned", "releases")


def verified_report(now: Snapshot, store: Store, reporter: str) -> Report:
    """Return the whole report of a program's version, with a verification of the same entries."""
    facts = report_of(now, reporter)
    found = verify(now, store)
    return Report(facts, tuple(compose(facts, found, promise_of(now, facts))))


def compose(report: dict[str, Any], found: Verification, promise: Promise | None) -> list[Block]:
    """Return the whole report.

    Args:
        report: what `Ledger.report` returns.
        found: what `Ledger.verify` returned.
        promise: what is promised to people, None where nothing is.
    """
    name = str(report["path"]).replace("\\", "/").rsplit("/", 1)[-1]
    return [
        Heading(1, f"Privacy report: {line(name)}"),
        *_front(report, found, promise),
        *(to_sign(LEDGER_ASSUMPTIONS) if promise and found.sound else []),
        *_claim(report, found),
        *_chart(report),
        *_definition(report),
        *_runs(report),
        *_events(report),
        *_accounting(report),
        *_checking(report, found),
        *glossary(),
    ]


def _chart(report: dict[str, Any]) -> list[Block]:
    if all(point["upper"] is None for point in report["points"]):
        return []
    return [Chart("epsilon_chart", report, "Proven epsilon by round, over all runs")]


def _front(report: dict[str, Any], found: Verification, promise: Promise | None) -> list[Block]:
    if not found.sound:
        return nothing_promised(
            "the record of what was spent is damaged. Restore a sound copy before anything is read."
        )
    if report["epsilon_any_stop"] is None:
        return nothing_promised(
            "rounds ran whose noise did not come from a secret source (a seed was given)."
        )
    if not report["rounds"]:
        return [Paragraph("Nothing was released yet, and nothing can be found out.", strong=True)]
    if promise is None:
        return nothing_promised(
            "rounds that had run elsewhere were recorded beyond the budget, which does not hold. "
            "The figures say what was spent."
        )
    return front_page(promise)


def _claim(report: dict[str, Any], found: Verification) -> list[Block]:
    relation = report["adjacency"] or "no adjacency yet"
    budget = chosen(report["budget"]["epsilon"], least=True)
    runs = len(report["runs"])
    if not found.sound:
        claim = f"This ledger is damaged, and nothing is claimed: {found.problems[0]}."
    elif report["guarantee"] == Guarantee.NONE:
        claim = (
            "No guarantee: rounds ran whose noise did not come from a secret source. "
            "What they released has to be counted as revealed."
        )
    else:
        stop = ", whatever decided when to stop" if report["part_of_plan"] else ""
        claim = (
            f"All {report['rounds']} rounds of {runs} run{'' if runs == 1 else 's'} together: "
            f"epsilon {above(report['epsilon_any_stop'])} at delta {chosen(report['delta'])}, "
            f"{relation} of one {line(report['unit'])}{stop}; the budget is {budget}."
        )
    words = report["claim"] if found.sound else "Restore a sound copy before anything is read."
    return [Heading(2, "The figures", new_page=True), Paragraph(claim, strong=True),
            Paragraph(words)]  # fmt: skip


def _definition(report: dict[str, Any]) -> list[Block]:
    unit = line(report["unit"])
    epsilon = [("epsilon [achieved, proven]", _bracket(report["epsilon"]))]
    if report["part_of_plan"]:
        epsilon = [
            ("epsilon, whatever decided when to stop", above(report["epsilon_any_stop"])),
            (
                "epsilon [achieved, proven] only if it was settled in advance to stop here",
                _bracket(report["epsilon"]),
            ),
        ]
    rows = [
        ("unit of privacy", f"one {unit}, with all its data, in all rounds of all runs"),
        ("adjacency", neighbors(report["adjacency"], unit)),
        *epsilon,
        ("delta", chosen(report["delta"])),
        ("budget", f"epsilon {chosen(report['budget']['epsilon'], least=True)} at the same delta"),
        ("setting", "central: a trusted server adds the noise to each sum, once"),
        ("what is covered", "every noisy sum that was committed, and all that is computed of them"),
        ("what is not", "anything computed of the data that did not go through this ledger"),
    ]
    return [Heading(3, "What is claimed"), Table(("", ""), tuple(rows), "What is claimed")]


def _events(report: dict[str, Any]) -> list[Block]:
    items: list[str] = []
    if report["relabelled"]:
        items.append(
            "Rounds that version 0.2 called add-remove are zero-out, at the same epsilon: what "
            "they released also shows how many clients there are."
        )
    items += [f"after round {mark['round']}: {mark['words']}" for mark in report["marks"]]
    for run in report["runs"]:
        items += [
            f"run {run['run']} abandoned the round of entry {item['entry']} before anything was "
            f"drawn: {line(item['reason'], MAX_DETAILS)}"
            for item in run["abandoned"]
        ]
    return [Heading(3, "What happened"), Bullets(tuple(items))] if items else []


def _accounting(report: dict[str, Any]) -> list[Block]:
    items: list[str] = []
    if report["guarantee"] != Guarantee.NONE:
        budget = chosen(report["budget"]["epsilon"], least=True)
        items.append(
            f"The budget, epsilon {budget}, bounds all that is released under this ledger, now and "
            f"later, whatever results have a say in: a round that might exceed it is refused."
        )
    if report["guarantee"] == Guarantee.PLANNED:
        items.append(
            "Accountant: tight composition of the worst-case pair of every round; upper bounds are "
            "proven with rounding errors included, lower bounds achieved by explicit data sets."
        )
    else:
        items.append(
            "Accountant: Renyi odometer over a fixed mixture of orders, valid when rounds are "
            "chosen adaptively and the process stops at any time (a Renyi filter in the sense of "
            "Feldman and Zrnic 2021); no tight epsilons are added up."
        )
    if report["plan_delta"]:
        items.append(
            f"Of delta, {up(report['plan_delta'], 4)} is set aside for the plans that were "
            f"registered first, and {down(report['adaptive_delta'], 4)} is left for rounds outside "
            f"them."
        )
    same = report["rounds_as_if_planned"]
    if same is not None and report["guarantee"] == Guarantee.ADAPTIVE:
        items.append(
            f"For comparison only: had the released rounds been fixed in advance, they would cost "
            f"epsilon {_bracket(same)}. That is no guarantee for rounds chosen as results came "
            f"in."
        )
    return [Heading(3, "Accounting"), Bullets(tuple(items))]


def _checking(report: dict[str, Any], found: Verification) -> list[Block]:
    state = "sound" if found.sound else "damaged: " + "; ".join(found.problems)
    rows = (
        ("verification", f"chain and totals recomputed from {found.entries} entries: {state}"),
        ("head", found.head),
        ("software", f"written by {line(report['software'])}, report by {report['reporter']}"),
        ("first and latest entry", f"{report['created']} to {report['latest']}"),
    )
    blocks: list[Block] = [Heading(3, "Checking it"), Table(("", ""), rows, "How to check it")]
    if found.remarks:
        blocks.append(Bullets(found.remarks))
    blocks.append(
        Paragraph(f"Taken from the entries as they stand there: {'; '.join(found.unverified)}.")
    )
    blocks.append(
        Paragraph(
            "Whoever kept an earlier head can see that nothing before it was changed or dropped: "
            "`dpacct ledger verify FILE --head HASH`."
        )
    )
    return blocks


def _bracket(epsilon: dict[str, float | None]) -> str:
    return bracket(epsilon["lower"], epsilon["upper"])


def _runs(report: dict[str, Any]) -> list[Block]:
    """Return the section on runs: a table of all, and one of the rounds of each."""
    header = ("run", "name", "rounds", "released", "lost", "abandoned", "epsilon", "claim")
    rows: list[tuple[str, ...]] = []
    for run in report["runs"]:
        claim = "none: not private" if not run["private"] else run["guarantee"]
        if run["left_plan"]:
            claim = f"{claim}; left its plan at round {run['left_at']}"
        planned = "" if run["planned_rounds"] is None else f" (plan: {run['planned_rounds']})"
        rows.append(
            (
                str(run["run"]),
                line(run["name"]),
                f"{run['rounds']}{planned}",
                str(run["committed"]),
                str(run["uncommitted"]),
                str(run["abandonments"]),
                _run_epsilon(run),
                claim,
            )
        )
    blocks: list[Block] = [
        Heading(3, "Runs"),
        Table(header, tuple(rows), "Runs, each with its own epsilon"),
        Paragraph(
            "Epsilon of each run is its own, [achieved, proven], by itself; these numbers are not "
            "added up, the total is above. Lost rounds were reserved and never committed (a crash, "
            "or still under way) and count as spent."
        ),
    ]
    for run in report["runs"]:
        blocks += _one_run(run)
    return blocks


def _run_epsilon(run: dict[str, Any]) -> str:
    if not run["part_of_plan"]:
        return _bracket(run["epsilon"])
    return (
        f"{above(run['epsilon_any_stop'])} whatever decided when to stop; "
        f"{_bracket(run['epsilon'])} if that was settled in advance"
    )


def _one_run(run: dict[str, Any]) -> list[Block]:
    header = ("rounds", "noise multiplier", "sampling", "within the plan", "releases")
    rows = tuple(
        (
            str(phase["rounds"]),
            chosen(phase["noise_multiplier"], least=True),
            sampling_words(round_from_json(phase, _BESIDE).sampling),
            _planned_words(run, phase),
            "; ".join(map(_release_words, phase["releases"])) or "the sum",
        )
        for phase in run["phases"]
    )
    blocks: list[Block] = [Heading(4, f"Run {run['run']}: {line(run['name'])}")]
    if rows:
        blocks.append(Table(header, rows, f"Rounds of run {run['run']}"))
    if run["more_rounds"]:
        blocks.append(Paragraph(f"And {run['more_rounds']} more rounds; `export` lists them all."))
    if run["planned_epsilon"] is not None:
        when = "before the first round" if run["planned_first"] else "after other rounds had run"
        blocks.append(
            Paragraph(
                f"The whole plan ({run['planned_rounds']} rounds, registered {when}) costs epsilon "
                f"{above(run['planned_epsilon'])}; that covers stopping early for any reason."
            )
        )
    if run["details"]:
        blocks.append(
            Bullets(
                tuple(
                    line(f"{key}: {value}", MAX_DETAILS)
                    for key, value in sorted(run["details"].items())
                )
            )
        )
    return blocks


def _planned_words(run: dict[str, Any], phase: dict[str, Any]) -> str:
    if run["planned_rounds"] is None:
        return "no plan"
    return "yes" if phase["planned"] else "no"


def _release_words(release: dict[str, Any]) -> str:
    noise = chosen(release["noise_multiplier"], least=True)
    text = f"{line(release['name'])}: noise multiplier {noise}"
    if release["sensitivity"] is not None:
        text += f", sensitivity {chosen(release['sensitivity'])}"
    return text
