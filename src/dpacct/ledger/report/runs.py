"""The runs of a ledger in its report: what each spent by itself, and in which rounds."""

from __future__ import annotations

from typing import Any

from dpacct.display import chosen, line
from dpacct.ledger.record.events import MAX_DETAILS, round_from_json
from dpacct.ledger.record.figures import above
from dpacct.report.document import Block, Bullets, Heading, Paragraph, Table
from dpacct.report.words import bracket, sampling_words

# Keys that stand beside a round where its phase is told.
_BESIDE = ("rounds", "planned", "releases")


def bracket_of(epsilon: dict[str, float | None]) -> str:
    """[achieved, proven]."""
    return bracket(epsilon["lower"], epsilon["upper"])


def runs_section(report: dict[str, Any]) -> list[Block]:
    """The section: a table of all runs, and one of the rounds of each."""
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
        return bracket_of(run["epsilon"])
    return (
        f"{above(run['epsilon_any_stop'])} whatever decided when to stop; "
        f"{bracket_of(run['epsilon'])} if that was settled in advance"
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
