"""The report for a reviewer: what is claimed, for what, on which assumptions, as blocks of text.

Every sentence of it stands here, but for the claim itself (`claims`).

What it lists follows what Ponomareva et al. 2023 ("How to DP-fy ML", arXiv:2303.00654) ask of
every report of a private model: setting, unit, adjacency, what is covered, accounting with its
assumptions, the guarantee in full, and how to check it.
"""

from __future__ import annotations

from typing import Any

from dpacct.display import chosen, down, line, up
from dpacct.ledger.readings import Guarantee, Readings
from dpacct.ledger.record.events import MAX_DETAILS
from dpacct.ledger.record.figures import above, below
from dpacct.ledger.report.document import Block, Bullets, Heading, Paragraph, Picture, Table
from dpacct.ledger.report.summary import report_of
from dpacct.ledger.verify import Verification, verify

ADJACENCY_WORDS = {
    "add-remove": "two data sets are neighbors if one has one {unit} more",
    "replace-one": "two data sets are neighbors if one {unit} is another one",
    "zero-out": "two data sets are neighbors if the contribution of one {unit} is zero in one",
}

ASSUMPTIONS: tuple[str, ...] = (
    "Every access to the data went through this ledger, tuning and discarded runs included.",
    (
        "The contribution of one unit to each sum, all tensors together, was at most the stated "
        "sensitivity; the noise was Gaussian with the stated multiplier of it."
    ),
    "Cohorts were drawn afresh in each round as stated, and stayed secret.",
    "Noise and cohorts came from a secret source that is random enough.",
    "What ran next was decided from released values and public knowledge alone.",
    "The file is the one that was written: nobody replaced it by an older or another one.",
)


def bracket(epsilon: dict[str, float | None]) -> str:
    """[achieved, proven]."""
    if epsilon["upper"] is None:
        return "none"
    return f"[{below(epsilon['lower'])}, {above(epsilon['upper'])}]"


def sampling_words(phase: dict[str, Any]) -> str:
    """Who takes part in a round."""
    match phase["sampling"]:
        case "poisson":
            return f"Poisson, rate {chosen(phase['sampling_rate'])}"
        case "uniform":
            return f"{phase['cohort_size']} of {phase['num_clients']} without replacement"
        case _:
            return "everybody"


def verified_report(now: Readings) -> list[Block]:
    """The whole report, with a verification of the same entries."""
    return compose(report_of(now), verify(now.book))


def compose(report: dict[str, Any], found: Verification) -> list[Block]:
    """The whole report.

    Args:
        report: what `Ledger.report` returns.
        found: what `Ledger.verify` returned.
    """
    return [
        *_claim(report, found),
        Picture(report),
        *_definition(report),
        *_runs(report),
        *_events(report),
        *_accounting(report),
        *_assumptions(),
        *_checking(report, found),
    ]


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
    name = str(report["path"]).replace("\\", "/").rsplit("/", 1)[-1]
    words = report["claim"] if found.sound else "Restore a sound copy before anything is read."
    return [Heading(1, f"Privacy report: {line(name)}"), Paragraph(claim, strong=True),
            Paragraph(words)]  # fmt: skip


def _definition(report: dict[str, Any]) -> list[Block]:
    unit, relation = line(report["unit"]), report["adjacency"]
    neighbors = ADJACENCY_WORDS.get(relation, "not fixed yet").replace("{unit}", unit)
    epsilon = [("epsilon [achieved, proven]", bracket(report["epsilon"]))]
    if report["part_of_plan"]:
        epsilon = [
            ("epsilon, whatever decided when to stop", above(report["epsilon_any_stop"])),
            (
                "epsilon [achieved, proven] only if it was settled in advance to stop here",
                bracket(report["epsilon"]),
            ),
        ]
    rows = [
        ("unit of privacy", f"one {unit}, with all its data, in all rounds of all runs"),
        ("adjacency", f"{relation or 'none yet'}: {neighbors}"),
        *epsilon,
        ("delta", chosen(report["delta"])),
        ("budget", f"epsilon {chosen(report['budget']['epsilon'], least=True)} at the same delta"),
        ("setting", "central: a trusted server adds the noise to each sum, once"),
        ("what is covered", "every noisy sum that was committed, and all that is computed of them"),
        ("what is not", "anything computed of the data that did not go through this ledger"),
    ]
    return [Heading(2, "What is claimed"), Table(("", ""), tuple(rows))]


def _runs(report: dict[str, Any]) -> list[Block]:
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
        Heading(2, "Runs"),
        Table(header, tuple(rows)),
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
        return bracket(run["epsilon"])
    return (
        f"{above(run['epsilon_any_stop'])} whatever decided when to stop; "
        f"{bracket(run['epsilon'])} if that was settled in advance"
    )


def _one_run(run: dict[str, Any]) -> list[Block]:
    header = ("rounds", "noise multiplier", "sampling", "within the plan", "releases")
    rows = tuple(
        (
            str(phase["rounds"]),
            chosen(phase["noise_multiplier"], least=True),
            sampling_words(phase),
            _planned_words(run, phase),
            "; ".join(map(_release_words, phase["releases"])) or "the sum",
        )
        for phase in run["phases"]
    )
    blocks: list[Block] = [Heading(3, f"Run {run['run']}: {line(run['name'])}")]
    if rows:
        blocks.append(Table(header, rows))
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


def _events(report: dict[str, Any]) -> list[Block]:
    items = [f"after round {mark['round']}: {mark['words']}" for mark in report["marks"]]
    for run in report["runs"]:
        items += [
            f"run {run['run']} abandoned the round of entry {item['entry']} before anything was "
            f"drawn: {line(item['reason'], MAX_DETAILS)}"
            for item in run["abandoned"]
        ]
    return [Heading(2, "What happened"), Bullets(tuple(items))] if items else []


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
            f"epsilon {bracket(same)}. That is no guarantee for rounds chosen as results came in."
        )
    return [Heading(2, "Accounting"), Bullets(tuple(items))]


def _assumptions() -> list[Block]:
    return [Heading(2, "What is assumed"), Bullets(ASSUMPTIONS)]


def _checking(report: dict[str, Any], found: Verification) -> list[Block]:
    state = "sound" if found.sound else "damaged: " + "; ".join(found.problems)
    rows = (
        ("verification", f"chain and totals recomputed from {found.entries} entries: {state}"),
        ("head", found.head),
        ("software", f"written by {line(report['software'])}, report by {report['reporter']}"),
        ("first and latest entry", f"{report['created']} to {report['latest']}"),
    )
    blocks: list[Block] = [Heading(2, "Checking it"), Table(("", ""), rows)]
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
