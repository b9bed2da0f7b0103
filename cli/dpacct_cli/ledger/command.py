"""`dpacct ledger ...`: what was spent on a data set, and whether the record of it is sound."""

import json
import re
from typing import Annotated

from dpacct import validate
from dpacct.budget import DEFAULT_DELTA, Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.rounds import Adjacency, Round
from dpacct_cli import options
from dpacct_cli.commands.report import FormName, ledger_report, read_target
from dpacct_cli.ledger import pages as ledger_pages
from dpacct_cli.ledger.runs import File, charge, finish, given, opened
from dpacct_cli.options import MechanismOptions, option
from dpacct_cli.output import Force, Output, has_folder, is_there, read_output, write_output
from dpacct_cli.render import Answer, show

Unit = Annotated[
    str,
    option(
        "--unit",
        metavar="WORD",
        help="Whose data one neighbor lacks; default client.",
    ),
]
Head = Annotated[
    str | None,
    option("--head", metavar="HASH", help="A head hash that was kept elsewhere."),
]
BudgetDelta = Annotated[
    str | None, option("--delta", metavar="D", help="Delta of the budget; default 1e-05.")
]


def init(
    file: File,
    eps: options.Eps = None,
    delta: BudgetDelta = f"{DEFAULT_DELTA:g}",
    adjacency: options.AdjacencyName = None,
    unit: Unit = "client",
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Make the ledger of a data set, with its budget.

    Example:
      dpacct ledger init census.ledger --eps 8 --delta 1e-5
    """
    from dpacct.ledger import Ledger

    style = options.read_style(as_json, quiet)
    epsilon = validate.target_epsilon(options.number(eps))
    budget = Budget(epsilon, validate.delta(options.number(delta)))
    relation = None if adjacency is None else Adjacency.parse(adjacency)
    if is_there(given(file)):
        raise InvalidParameter("FILE", file, "it exists already, and no ledger is ever replaced")
    if not has_folder(file):
        raise InvalidParameter("FILE", file, "there is no such folder")
    with Ledger.open(file, budget, adjacency=relation, unit=unit) as ledger:
        summary = ledger.summary()
    show(Answer(summary, file, lambda: ledger_pages.made(summary)), style)


def show_ledger(file: File, as_json: options.AsJson = False, quiet: options.Quiet = False) -> None:
    """What was spent, by which runs, and what that is worth.

    Example:
      dpacct ledger show census.ledger
    """
    style = options.read_style(as_json, quiet)
    with opened(file) as ledger:
        summary = ledger.summary()
    reading, promise = ledger_pages.reading(summary), summary["epsilon_any_stop"]
    number = "inf" if promise is None else repr(promise)
    show(Answer(summary, number, lambda: ledger_pages.spent(summary, reading)), style)


def verify(
    file: File,
    head: Head = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Recompute the chain, every cost and every total.

    Exit code 1 if anything is wrong. Entries that were dropped from the end leave no trace unless
    a head hash was kept elsewhere: --quiet prints it.

    Example:
      dpacct ledger verify census.ledger
    """
    style = options.read_style(as_json, quiet)
    if head is not None and re.fullmatch("[0-9a-f]{64}", head) is None:
        raise InvalidParameter("--head", head, "a head is 64 hexadecimal digits, 0 to 9 and a to f")
    with opened(file) as ledger:
        found = ledger.verify(head)
    data: dict[str, object] = {
        "sound": found.sound,
        "entries": found.entries,
        "rounds": found.rounds,
        "head": found.head,
        "head_found": found.head_found,
        "problems": list(found.problems),
        "remarks": list(found.remarks),
        "unverified": list(found.unverified),
    }
    show(Answer(data, found.head, lambda: ledger_pages.verified(found)), style)
    if not found.sound:
        raise LedgerError(f"{file}: the ledger is damaged: {found.problems[0]}.")


def report(
    file: File,
    output: Output = None,
    form: FormName = None,
    force: Force = False,
    as_json: options.AsJson = False,
) -> None:
    """A page for those who decide, as `dpacct report FILE` writes it.

    Examples:
      dpacct ledger report census.ledger
      dpacct ledger report census.ledger -o privacy.html
    """
    target = read_target(output, form, as_json=as_json, force=force)
    write_output(ledger_report(given(file), target.form), target.file, force=force)


def remaining(
    file: File,
    noise: options.Noise = None,
    q: options.Rate = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    adjacency: options.AdjacencyName = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """How many more rounds of a kind fit into the budget.

    Example:
      dpacct ledger remaining census.ledger --noise 1.3 --q 0.1
    """
    from dpacct.ledger.record.events import in_adjacency

    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(noise, "1", q, None, sampling, cohort, clients, adjacency)
    with opened(file) as ledger:
        round_ = Round(
            typed.read_noise(), typed.read_sampling(), typed.relation or ledger.adjacency
        )
        round_ = in_adjacency(round_, ledger.adjacency or "")
        chosen, planned = ledger.remaining(round_), ledger.remaining_as_plan(round_)
        summary = ledger.summary()
    reading = ledger_pages.reading(summary)
    data: dict[str, object] = {
        "remaining": chosen,
        "remaining_as_plan": planned,
        "epsilon": summary["epsilon"],
        "budget": summary["budget"],
    }
    page = ledger_pages.left(1 * round_, chosen, planned, summary, reading)
    show(Answer(data, str(chosen), lambda: page), style)


def export(
    file: File, output: Output = None, force: Force = False, as_json: options.AsJson = False
) -> None:
    """Every entry, one JSON object a line; with --json one.

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


COMMANDS = {
    "init": init,
    "show": show_ledger,
    "verify": verify,
    "report": report,
    "remaining": remaining,
    "charge": charge,
    "finish": finish,
    "export": export,
}
