"""`dpacct explore`: costs over lists and ranges of settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.errors import InvalidParameter
from dpacct_cli import INTERRUPTED, options, waiting
from dpacct_cli.errors import OptionConflict, conflict, print_line
from dpacct_cli.explore import forms
from dpacct_cli.explore.journal import Journal, open_journal, place_of
from dpacct_cli.explore.sweep import Task, read_tasks
from dpacct_cli.options import OUTPUT, PRIVACY, WHAT_RUNS, MechanismOptions, StyleOptions, option
from dpacct_cli.output import LABEL, Force, read_output, write_bytes
from dpacct_cli.render import Answer, Style, show

SUFFIXES = (".csv", ".json", *forms.PICTURES)
MOST_JOBS = 256

Noises = Annotated[str | None, option(
    "--noise", metavar="Z,...", panel=WHAT_RUNS,
    help="Noise multipliers, e.g. 0.8,1,1.2 or 1..4/0.5.",
)]  # fmt: skip
Counts = Annotated[str | None, option(
    "--rounds", metavar="T,...", panel=WHAT_RUNS,
    help="Numbers of rounds, e.g. 100..1000/100.",
)]  # fmt: skip
Rates = Annotated[str | None, option(
    "--q", metavar="Q,...", panel=WHAT_RUNS,
    help="Sampling rates in (0, 1], e.g. 0.01..0.16*2.",
)]  # fmt: skip
Cohorts = Annotated[str | None, option(
    "--cohort", "--batch", metavar="M,...", panel=WHAT_RUNS,
    help="Cohorts, with --clients, instead of --q.",
)]  # fmt: skip
Deltas = Annotated[
    str | None, option("--delta", metavar="D,...", help="Deltas; default 1e-05.", panel=PRIVACY)
]
Jobs = Annotated[str | None, option(
    "--jobs", metavar="N", panel=OUTPUT, advanced=True,
    help="Number of processes; default as many as processors.",
)]  # fmt: skip
Resume = Annotated[bool, options.flag(
    "--resume", panel=OUTPUT,
    help="Go on with an interrupted sweep of -o.",
)]  # fmt: skip
OutputFile = Annotated[str | None, option(
    LABEL, "-o", metavar="FILE", panel=OUTPUT,
    help="Write a table (.csv, .json) or a chart (.png, .svg, .pdf).",
)]  # fmt: skip


def explore(
    *,
    noise: Noises = None,
    rounds: Counts = None,
    q: Rates = None,
    sampling: options.SamplingName = None,
    cohort: Cohorts = None,
    clients: options.Clients = None,
    adjacency: options.AdjacencyName = None,
    delta: Deltas = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    output: OutputFile = None,
    resume: Resume = False,
    jobs: Jobs = None,
    force: Force = False,
    shown: StyleOptions,
) -> None:
    """Sweep over noise, rounds, sampling rate and delta.

    Every noise is combined with every number of rounds, every rate and every delta. A list is
    1,2,4. A range is 100..1000/100 by steps, or 1..64*2 by factors. A row that cannot be computed
    shows its reason. An interrupted sweep with -o goes on with --resume. -q prints the proven
    epsilons, one a line.

    Examples:
      dpacct explore --noise 0.8,1,1.2 --rounds 100..300/100 --q 0.1
      dpacct explore --noise 1..4*2 --rounds 100 --q 0.01,0.1 -o sweep.csv
    """
    style = shown.style
    typed = MechanismOptions(noise, rounds, q, None, sampling, cohort, clients, adjacency)
    tasks = read_tasks(typed, delta, accountant)
    processes = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if jobs is not None:
        noun = "the number of processes"
        processes = validate.count("--jobs", options.number(jobs), noun, MOST_JOBS)
    target = _target(output, resume=resume, force=force)
    if target is None:
        rows = _computed(tasks, None, processes, output)
        numbers = "\n".join("inf" if row["error"] else repr(row["epsilon_upper"]) for row in rows)
        show(Answer(forms.to_data(rows), numbers, lambda: forms.page(rows)), style)
    else:
        if style is not Style.HUMAN:
            typed_style = "--json" if style is Style.JSON else "-q"
            raise conflict(typed_style, f"-o {output}", "one of them has the rows")
        suffix = target.suffix.lower()
        if suffix in forms.PICTURES:
            forms.check_picture(tasks)
        with open_journal(target, tasks, resume=resume, replace=force) as journal:
            rows = _computed(tasks, journal, processes, output)
            write_bytes(forms.to_bytes(rows, suffix), target, force=force)
            place_of(target).unlink(missing_ok=True)
    failed = [row["error"] for row in rows if row["error"] is not None]
    if failed:
        print_line(
            f"{len(failed)} of {len(rows)} rows could not be computed. The first: {failed[0]}"
        )
        if len(failed) == len(rows):
            raise SystemExit(1)


def _target(output: str | None, *, resume: bool, force: bool) -> Path | None:
    if output is None:
        if resume:
            raise OptionConflict("--resume needs -o, the file of the sweep that was interrupted.")
        return None
    if resume and force:
        raise conflict("--resume", "--force", "one continues, the other starts over")
    if Path(output).suffix.lower() not in SUFFIXES:
        raise InvalidParameter(LABEL, output, f"a sweep ends in one of {', '.join(SUFFIXES)}")
    target = read_output(output, force=force)
    if resume and target is not None and not place_of(target).exists():
        rule = f"there is nothing to go on with: no {place_of(target).name} is there"
        raise InvalidParameter(LABEL, output, rule, "Without --resume it begins.")
    return target


def _computed(
    tasks: list[Task], journal: Journal | None, jobs: int, output: str | None
) -> list[dict[str, Any]]:
    """Return all rows in their order. Each is in the journal as soon as it is known."""
    # Processes take a while to import, and most commands need none.
    from dpacct_cli.explore import workers

    rows = {} if journal is None else dict(journal.rows)
    try:
        for done in workers.results([task for task in tasks if task.place not in rows], jobs):
            rows[done.place] = done.row
            if journal is not None:
                journal.add(done)
            waiting.say("dpacct explore", len(rows), len(tasks))
    except KeyboardInterrupt:
        kept = "With -o FILE its rows would have been kept."
        if journal is not None:
            kept = "No row was ready."
            if journal.rows:
                kept = (
                    f"{len(journal.rows)} of {len(tasks)} rows are kept: the same with --resume "
                    f"goes on (-o {output})."
                )
        print_line(f"interrupted. {kept}")
        raise SystemExit(INTERRUPTED) from None
    return [rows[task.place] for task in tasks]
