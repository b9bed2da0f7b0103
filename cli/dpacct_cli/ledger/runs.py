"""`dpacct ledger charge` and `finish`: rounds that ran elsewhere, and runs that will not go on."""

from typing import TYPE_CHECKING, Annotated

from dpacct import validate
from dpacct.errors import BudgetExceeded, InvalidParameter
from dpacct_cli import mechanism, options
from dpacct_cli.ledger import pages as ledger_pages
from dpacct_cli.options import MechanismOptions, argument, flag, option
from dpacct_cli.output import is_there
from dpacct_cli.render import Answer, print_note, show

if TYPE_CHECKING:
    from dpacct.ledger import Ledger

File = Annotated[str, argument(metavar="FILE", help="The ledger of a data set.")]
Name = Annotated[
    str | None,
    option("--name", metavar="NAME", help="What the rounds were; default elsewhere."),
]
OverBudget = Annotated[
    bool,
    flag(
        "--over-budget",
        help="Record rounds that do not fit as well: they have happened. Nothing more is admitted "
        "then.",
    ),
]
RunNumber = Annotated[
    str | None,
    option("--run", metavar="N", help="Its number, as dpacct ledger show lists it."),
]


def given(file: str | None) -> str:
    """The file that was named."""
    if not file:
        raise InvalidParameter("FILE", None, "name the ledger of a data set")
    return file


def opened(file: str, *, read_only: bool = True) -> "Ledger":
    """An existing ledger, by default for looking only."""
    from dpacct.ledger import Ledger

    if not is_there(given(file)):
        raise InvalidParameter("FILE", file, "there is no such file")
    ledger = Ledger.open(file, read_only=read_only)
    if ledger.note:
        print_note(ledger.note)
    return ledger


def charge(
    file: File,
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    name: Name = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    over_budget: OverBudget = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Record rounds that ran elsewhere: spent is spent.

    All of them are recorded, or none; at most 100,000 at once. What does not fit into the budget is
    refused, since it may be a mistake; --over-budget records it. -q prints the epsilon afterwards.

    Example:
      dpacct ledger charge census.ledger --noise 1.3 --rounds 20 --q 0.1 --name notebook
    """
    from dpacct.ledger.record.events import schedule_in_adjacency

    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    plan = typed.read_schedule()
    with opened(file, read_only=False) as ledger:
        try:
            run = ledger.charge(name or "elsewhere", plan, over_budget=over_budget)
        except BudgetExceeded as refusal:
            way = "If they have happened, --over-budget records them."
            raise BudgetExceeded(f"{refusal} {way}") from None
        summary = ledger.summary()
        plan = schedule_in_adjacency(plan, summary["adjacency"])
        data = {"run": run.id, "charged": plan.rounds, **mechanism.keys(plan)}
    data |= {key: summary[key] for key in ("epsilon", "delta", "budget", "guarantee", "path")}
    reading, promise = ledger_pages.reading(summary), summary["epsilon_any_stop"]
    page = ledger_pages.charged(plan, run.id, summary, reading)
    show(Answer(data, "inf" if promise is None else repr(promise), lambda: page), style)


def finish(
    file: File,
    run: RunNumber = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """End a run that will not go on: room that it holds is free again.

    What it has spent stays spent, rounds that a crash lost among it. -q prints how many rounds of
    its plan are free again.

    Example:
      dpacct ledger finish census.ledger --run 1
    """
    style = options.read_style(as_json, quiet)
    number = validate.count("run", options.number(run), "the number of a run")
    with opened(file, read_only=False) as ledger:
        known = len(ledger.runs)
        if number > known:
            there = f"runs are 1 to {known}" if known else "there are no runs"
            raise InvalidParameter("run", number, f"{there} in {file}")
        found = ledger.runs[number - 1]
        freed = found.held
        found.finish()
        summary = ledger.summary()
        page = ledger_pages.finished(found, freed, summary)
    data: dict[str, object] = {"freed": freed, **summary["runs"][number - 1]}
    show(Answer(data, str(freed), lambda: page), style)
