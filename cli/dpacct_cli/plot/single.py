"""`dpacct plot schedule|compare|ledger|train`: pictures of one thing."""

from __future__ import annotations

from typing import Annotated

from dpacct.accountant import ACCOUNTANTS
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct_cli import options, waiting
from dpacct_cli.options import MechanismOptions, argument
from dpacct_cli.output import Force
from dpacct_cli.plot.output import Dark, PictureData, PictureFile, read_target

# dpacct compare says why.
NONE = "does not apply to these rounds"

Ledger = Annotated[str, argument(metavar="FILE", help="The ledger of a data set.")]
Reports = Annotated[
    str, argument(metavar="FILE,...", help="Reports of dpacct train (.report.jsonl).")
]


def schedule(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """Noise and sampling rate over the rounds of a schedule.

    Example:
      dpacct plot schedule --schedule rounds.toml
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    from dpacct.pictures import schedule_picture

    to.put(schedule_picture(typed.read_schedule()))


def compare(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """Epsilon by all accountants, and by other packages where they are installed.

    Example:
      dpacct plot compare --noise 1 --rounds 300 --q 0.1
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    at = typed.read_delta(delta)
    plan = typed.read_schedule()
    from dpacct import interop
    from dpacct.pictures import compare_picture

    answers: list[tuple[str, float | None, float | None, str]] = []
    for name, engine in ACCOUNTANTS.items():
        waiting.say(f"dpacct plot compare, {name}")
        try:
            found = engine.epsilon(plan, at.value)
            answers.append((name, found.lower, found.upper, ""))
        except (Unsupported, NotConverged):
            answers.append((name, None, None, NONE))
    for peer in interop.installed_peers():
        waiting.say(f"dpacct plot compare, {peer.name}")
        try:
            answers.append((peer.name, None, peer.epsilon(plan, at.value), ""))
        except (Unsupported, NotConverged):
            answers.append((peer.name, None, None, NONE))
    to.put(compare_picture(plan, at.value, answers))


def ledger(
    file: Ledger,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """What a ledger says was spent, over its rounds and by run.

    Example:
      dpacct plot ledger census.ledger -o spent.png
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    from dpacct.pictures import ledger_picture
    from dpacct_cli.output import opened

    with opened(file) as book:
        report = book.report()
    to.put(ledger_picture(report))


def train(
    files: Reports,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """Accuracy over epsilon of runs, from the reports that dpacct train writes.

    Example:
      dpacct plot train one.report.jsonl,two.report.jsonl -o accuracy.png
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    if not files:
        raise InvalidParameter("FILE", None, "name a report, or several separated by commas")
    from dpacct.pictures import read_run, runs_picture

    to.put(runs_picture([read_run(part.strip()) for part in files.split(",")]))
