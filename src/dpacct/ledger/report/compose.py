"""The report for a reviewer: the claim, its scope and its assumptions, as blocks of text.

Its sentences are here and in `facts`, and for the first page in `dpacct.report`.

Its contents follow Ponomareva et al. 2023 ("How to DP-fy ML", arXiv:2303.00654). They ask every
report of a private model for setting, unit, adjacency, coverage, accounting with its assumptions,
the guarantee in full, and a way to check it.
"""

from __future__ import annotations

from typing import Any

from dpacct.display import chosen, down, line, up
from dpacct.ledger.disk.store import Store
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.events import MAX_DETAILS, round_from_json
from dpacct.ledger.report.facts import promise_of, report_of
from dpacct.ledger.verify import Verification, verify
from dpacct.ledger.writing import above
from dpacct.report.document import Report, bullets, chart, heading, paragraph, table
from dpacct.report.front import Promise, front_page, nothing_promised
from dpacct.report.words import (
    LEDGER_ASSUMPTIONS,
    bracket,
    glossary,
    neighbors,
    sampling_words,
    to_sign,
)
from dpacct.rounds import Round

# Keys of a phase that are no part of its round.
_BESIDE = ("rounds", "planned", "releases")
_ANY_STOP = "even if results influenced when to stop"
_TIGHT = (
    "Accountant: tight composition of the worst-case pair of every round. Upper bounds are proven, "
    "rounding errors included. Lower bounds are achieved by explicit data sets."
)
_ODOMETER = (
    "Accountant: Renyi odometer over a fixed mixture of orders, valid if rounds are chosen "
    "adaptively and the process stops at any time (a Renyi filter in the sense of Feldman and "
    "Zrnic 2021). No tight epsilons are added up."
)


def verified_report(now: Snapshot, store: Store, reporter: str) -> Report:
    """Return the whole report of a program's version, with a verification of the same entries."""
    facts, found = report_of(now, reporter), verify(now, store)
    promise = promise_of(now, facts)
    name = str(facts["path"]).replace("\\", "/").rsplit("/", 1)[-1]
    blocks: list[str] = [
        heading(1, f"Privacy report: {line(name)}"),
        *_front(facts, found, promise),
        *(to_sign(LEDGER_ASSUMPTIONS) if promise and found.sound else []),
        *_claim(facts, found),
        *_definition(facts),
        *_runs(facts),
        *_accounting(facts),
        *_checking(facts, found),
        *glossary(),
    ]
    return Report(facts, tuple(blocks), facts)


def _front(report: dict[str, Any], found: Verification, promise: Promise | None) -> list[str]:
    if not found.sound:
        return nothing_promised(
            "the record of spent rounds is damaged. Restore a sound copy before reading anything."
        )
    if report["epsilon_any_stop"] is None:
        return nothing_promised(
            "some rounds had noise that did not come from a secret source (a seed was given)."
        )
    if not report["rounds"]:
        return [paragraph("Nothing was released yet, and nothing can be found out.", strong=True)]
    if promise is None:
        return nothing_promised(
            "rounds that had run elsewhere were recorded beyond the budget, which does not hold. "
            "The figures show the spent budget."
        )
    return front_page(promise)


def _claim(report: dict[str, Any], found: Verification) -> list[str]:
    """Return the claim in figures, and the chart."""
    relation = report["adjacency"] or "no adjacency yet"
    runs = len(report["runs"])
    words = report["claim"]
    if not found.sound:
        claim = f"This ledger is damaged, and nothing is claimed: {found.problems[0]}."
        words = "Restore a sound copy before anything is read."
    elif report["guarantee"] == "none":
        claim = (
            "No guarantee: some rounds had noise that did not come from a secret source. "
            "Count their releases as revealed."
        )
    else:
        claim = (
            f"All {report['rounds']} rounds of {runs} run{'' if runs == 1 else 's'} together: "
            f"epsilon {above(report['epsilon_any_stop'])} at delta {chosen(report['delta'])}, "
            f"{relation} of one {line(report['unit'])}"
            f"{f', {_ANY_STOP}' if report['part_of_plan'] else ''}. "
            f"The budget is {_budget(report)}."
        )
    blocks: list[str] = [
        heading(2, "The figures", new_page=True),
        paragraph(claim, strong=True),
        paragraph(words),
    ]
    if any(point["upper"] is not None for point in report["points"]):
        blocks.append(chart("Proven epsilon by round, over all runs"))
    return blocks


def _definition(report: dict[str, Any]) -> list[str]:
    unit, both = line(report["unit"]), bracket(**report["epsilon"])
    epsilon = [("epsilon [achieved, proven]", both)]
    if report["part_of_plan"]:
        epsilon = [
            (f"epsilon, {_ANY_STOP}", above(report["epsilon_any_stop"])),
            ("epsilon [achieved, proven] only if stopping here was decided in advance", both),
        ]
    rows = [
        ("unit of privacy", f"one {unit}, with all its data, in all rounds of all runs"),
        ("adjacency", neighbors(report["adjacency"], unit)),
        *epsilon,
        ("delta", chosen(report["delta"])),
        ("budget", f"epsilon {_budget(report)} at the same delta"),
        ("setting", "central: a trusted server adds the noise to each sum, once"),
        ("what is covered", "every noisy sum that was committed, and all that is computed of them"),
        ("what is not", "anything computed of the data that did not go through this ledger"),
    ]
    return [heading(3, "What is claimed"), table(("", ""), rows)]


def _runs(report: dict[str, Any]) -> list[str]:
    """Return the section on runs: a table of all, and one of the rounds of each."""
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
    blocks: list[str] = [
        heading(3, "Runs"),
        table(header, rows),
        paragraph(
            "Epsilon of each run is its own, [achieved, proven]. These numbers are not added up: "
            "the total is above. Lost rounds were reserved and never committed (a crash, or still "
            "under way) and count as spent."
        ),
    ]
    for run in report["runs"]:
        blocks += _one_run(run)
    return blocks


def _one_run(run: dict[str, Any]) -> list[str]:
    header = ("rounds", "noise multiplier", "sampling", "within the plan", "releases")
    rows: list[tuple[str, ...]] = []
    for phase in run["phases"]:
        planned = "yes" if phase["planned"] else "no"
        planned = "no plan" if run["planned_rounds"] is None else planned
        item = round_from_json(phase, _BESIDE)
        sampling = sampling_words(item.sampling) if isinstance(item, Round) else repr(item)
        noise: float | None = phase.get("noise_multiplier")
        level = "-" if noise is None else chosen(noise, least=True)
        releases = "; ".join(map(_release_words, phase["releases"])) or "the sum"
        rows.append((str(phase["rounds"]), level, sampling, planned, releases))
    blocks: list[str] = [heading(4, f"Run {run['run']}: {line(run['name'])}")]
    if rows:
        blocks.append(table(header, rows))
    if run["more_rounds"]:
        blocks.append(paragraph(f"And {run['more_rounds']} more rounds. `export` lists them all."))
    if run["planned_epsilon"] is not None:
        when = "before the first round" if run["planned_first"] else "after other rounds had run"
        blocks.append(
            paragraph(
                f"The whole plan ({run['planned_rounds']} rounds, registered {when}) costs epsilon "
                f"{above(run['planned_epsilon'])}, which covers stopping early for any reason."
            )
        )
    details = sorted(run["details"].items())
    if details:
        items = tuple(line(f"{key}: {value}", MAX_DETAILS) for key, value in details)
        blocks.append(bullets(items))
    return blocks


def _release_words(release: dict[str, Any]) -> str:
    noise = chosen(release["noise_multiplier"], least=True)
    text = f"{line(release['name'])}: noise multiplier {noise}"
    if release["sensitivity"] is not None:
        text += f", sensitivity {chosen(release['sensitivity'])}"
    return text


def _accounting(report: dict[str, Any]) -> list[str]:
    items: list[str] = []
    if report["guarantee"] != "none":
        items.append(
            f"The budget, epsilon {_budget(report)}, bounds all that is released under this "
            f"ledger, now and later, even if results influence later rounds: a round that might "
            f"exceed it is rejected."
        )
    items.append(_TIGHT if report["guarantee"] == "planned" else _ODOMETER)
    if report["promised_delta"]:
        items.append(
            f"Of delta, {up(report['promised_delta'], 4)} is set aside for promises of "
            f"(epsilon, delta)-DP, whose loss may be infinite with probability delta."
        )
    if report["relabelled"]:
        items.append(
            "Rounds that version 0.2 called add-remove are zero-out, at the same epsilon: their "
            "releases also show the number of clients."
        )
    for name, parts in report["partitions"].items():
        items.append(
            f"Each {line(report['unit'])} belongs to one part of {line(name)} by a public rule: "
            f"{line(', '.join(parts), MAX_DETAILS)}. Releases about different parts cost as much "
            f"as those about the worst part."
        )
    items += [
        f"Project {line(project['name'])}, runs {', '.join(map(str, project['runs']))}: "
        f"epsilon {above(project['epsilon'])} by itself."
        for project in report["projects"]
    ]
    if report["plan_delta"]:
        items.append(
            f"Of delta, {up(report['plan_delta'], 4)} is reserved for the plans that were "
            f"registered first, and {down(report['adaptive_delta'], 4)} is left for unplanned "
            f"rounds."
        )
    return [heading(3, "Accounting"), bullets(tuple(items))]


def _checking(report: dict[str, Any], found: Verification) -> list[str]:
    state = "sound" if found.sound else "damaged: " + "; ".join(found.problems)
    rows = (
        ("verification", f"chain and totals recomputed from {found.entries} entries: {state}"),
        ("head", found.head),
        ("software", f"written by {line(report['software'])}, report by {report['reporter']}"),
        ("first and latest entry", f"{report['created']} to {report['latest']}"),
    )
    return [
        heading(3, "Checking it"),
        table(("", ""), rows),
        *([bullets(found.remarks)] if found.remarks else []),
        paragraph(f"Taken from the entries without a check: {'; '.join(found.unverified)}."),
        paragraph(
            "An earlier head that was kept elsewhere shows that no entry before it was changed or "
            "dropped: `dpacct ledger verify FILE --head HASH`."
        ),
    ]


def _budget(report: dict[str, Any]) -> str:
    return chosen(report["budget"]["epsilon"], least=True)
