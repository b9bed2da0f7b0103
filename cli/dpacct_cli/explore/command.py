"""`dpacct explore`: what would be spent, over lists and ranges of settings."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT
from dpacct.errors import InvalidParameter
from dpacct.rounds import Poisson
from dpacct_cli import options, waiting
from dpacct_cli.errors import OptionConflict, conflict, print_line
from dpacct_cli.explore import forms
from dpacct_cli.explore.grid import Fixed, Sweep, Typed, read_sweep
from dpacct_cli.explore.journal import Journal, open_journal, place_of
from dpacct_cli.explore.rows import Task
from dpacct_cli.options import flag, option
from dpacct_cli.output import LABEL, Force, read_output, write_bytes
from dpacct_cli.render import Answer, show, to_json
from dpacct_cli.terminal import INTERRUPTED

PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = (".csv", ".json", *PICTURES)
MOST_JOBS = 256
BAR = 24

Noises = Annotated[
    str | None,
    option("--noise", metavar="Z,...", help="Noise multipliers, e.g. 0.8,1,1.2 or 1..4/0.5."),
]
Counts = Annotated[
    str | None,
    option("--rounds", metavar="T,...", help="Numbers of rounds, e.g. 100..1000/100."),
]
Rates = Annotated[
    str | None,
    option("--q", metavar="Q,...", help="Sampling rates in (0, 1], e.g. 0.01..0.16*2."),
]
Cohorts = Annotated[
    str | None,
    option("--cohort", "--batch", metavar="M,...", help="Cohorts, with --clients, instead of --q."),
]
Deltas = Annotated[
    str | None,
    option("--delta", metavar="D,...", help="Deltas; default 1e-05."),
]
Jobs = Annotated[
    str | None,
    option("--jobs", metavar="N", help="Processes; default as many as processors."),
]
Resume = Annotated[
    bool, flag("--resume", help="Go on with the rows that an interrupted sweep has kept.")
]
OutputFile = Annotated[
    str | None,
    option(
        LABEL,
        "-o",
        metavar="FILE",
        help="Write there: .csv, .json, or a picture (.png, .svg, .pdf).",
    ),
]


def explore(
    noise: Noises = None,
    rounds: Counts = None,
    q: Rates = None,
    delta: Deltas = None,
    sampling: options.SamplingName = None,
    cohort: Cohorts = None,
    clients: options.Clients = None,
    adjacency: options.AdjacencyName = None,
    accountant: options.AccountantName = DEFAULT_ACCOUNTANT,
    output: OutputFile = None,
    resume: Resume = False,
    jobs: Jobs = None,
    force: Force = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """What would be spent, over lists and ranges of settings.

    Every noise with every number of rounds, every rate and every delta. A list is 1,2,4; a range is
    100..1000/100 by steps, or 1..64*2 by factors. What cannot be computed is a row with its reason.
    Interrupted with -o, it goes on with --resume. -q prints the proven epsilons, one a line.

    Examples:
      dpacct explore --noise 0.8,1,1.2 --rounds 100..300/100 --q 0.1
      dpacct explore --noise 1..4*2 --rounds 100 --q 0.01,0.1 -o sweep.csv
    """
    style = options.read_style(as_json, quiet)
    fixed = Fixed(sampling or Poisson.name, clients, adjacency, accountant)
    sweep = read_sweep(Typed(noise, rounds, q, cohort, delta), fixed)
    processes = _jobs(jobs)
    target = _target(output, resume=resume, force=force)
    if target is not None and style is not options.Style.HUMAN:
        raise conflict("--json" if as_json else "-q", f"-o {output}", "one of them has the rows")
    if target is not None and target.suffix.lower() in PICTURES:
        from dpacct_cli.explore import picture

        picture.check(sweep)
    with _journal(target, sweep, resume=resume, replace=force) as journal:
        rows = _computed(sweep, journal, processes, output)
        if target is not None:
            write_bytes(_content(rows, target.suffix.lower()), target, force=force)
            place_of(target).unlink(missing_ok=True)
    if target is None:
        numbers = "\n".join(_number(row) for row in rows)
        show(Answer(forms.to_data(rows), numbers, lambda: forms.page(rows)), style)
    _tell_failures(rows)


def _number(row: dict[str, Any]) -> str:
    return "inf" if row["epsilon_upper"] is None else repr(row["epsilon_upper"])


def _jobs(text: str | None) -> int:
    if text is None:
        return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)
    return validate.count("--jobs", options.number(text), "the number of processes", MOST_JOBS)


def _target(output: str | None, *, resume: bool, force: bool) -> Path | None:
    if output is None:
        if resume:
            raise OptionConflict("--resume needs -o, the file of the sweep that was interrupted.")
        return None
    if resume and force:
        raise conflict("--resume", "--force", "one goes on, the other begins anew")
    if Path(output).suffix.lower() not in SUFFIXES:
        raise InvalidParameter(LABEL, output, f"a sweep ends in one of {', '.join(SUFFIXES)}")
    target = read_output(output, force=force)
    if resume and target is not None and not place_of(target).exists():
        rule = f"there is nothing to go on with: no {place_of(target).name} is there"
        raise InvalidParameter(LABEL, output, rule, "Without --resume it begins.")
    return target


def _journal(target: Path | None, sweep: Sweep, *, resume: bool, replace: bool) -> Any:
    if target is None:
        return nullcontext()
    return _told(target, open_journal(target, sweep, resume=resume, replace=replace))


@contextmanager
def _told(target: Path, opened: Any) -> Generator[Journal]:
    """What the machine refuses, in the words of the option."""
    try:
        with opened as journal:
            yield journal
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise InvalidParameter(LABEL, str(target), f"it cannot be written ({reason})") from None


def _computed(
    sweep: Sweep, journal: Journal | None, jobs: int, output: str | None
) -> list[dict[str, Any]]:
    """All rows in their order; each is in the journal as soon as it is known."""
    # Processes take a while to import, and most commands need none.
    from dpacct_cli.explore.workers import results

    rows = {} if journal is None else dict(journal.rows)
    left = [
        Task(index, sweep.fixed, setting)
        for index, setting in enumerate(sweep.settings)
        if index not in rows
    ]
    try:
        for done in results(left, jobs):
            rows[done.index] = done.row
            if journal is not None:
                journal.add(done)
            waiting.say(f"dpacct explore {progress(len(rows), len(sweep.settings))}")
    except KeyboardInterrupt:
        kept = "With -o FILE its rows would have been kept."
        if journal is not None and not journal.rows:
            kept = "No row was ready."
        elif journal is not None:
            kept = f"{len(journal.rows)} of {len(sweep.settings)} rows are kept: the same with"
            kept += f" --resume goes on (-o {output})."
        print_line(f"interrupted. {kept}")
        raise SystemExit(INTERRUPTED) from None
    return [rows[index] for index in range(len(sweep.settings))]


def progress(done: int, total: int) -> str:
    """A bar, and how many rows are done."""
    filled = BAR * done // total
    return f"[{'#' * filled}{'.' * (BAR - filled)}] {done} of {total} rows"


def _content(rows: list[dict[str, Any]], suffix: str) -> bytes:
    if suffix == ".csv":
        return forms.to_csv(rows).encode()
    if suffix == ".json":
        return f"{to_json(forms.to_data(rows))}\n".encode()
    from dpacct.pictures import Drawing
    from dpacct_cli.explore import picture

    return Drawing(picture.picture_of(rows)).to_bytes(suffix[1:])


def _tell_failures(rows: list[dict[str, Any]]) -> None:
    """One line where rows could not be computed; an error where none could."""
    failed = [row for row in rows if row["error"] is not None]
    if not failed:
        return
    reason = (
        f"{len(failed)} of {len(rows)} rows could not be computed. The first: {failed[0]['error']}"
    )
    print_line(reason)
    if len(failed) == len(rows):
        raise SystemExit(1)
