"""The options that several commands share: their names, their help, and the style of output.

All values arrive as text, so that the library judges what was typed. Defaults stand in the help
texts: some releases of Typer print theirs with a stray backslash.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from dpacct_cli import words
from dpacct_cli.errors import conflict

SCHEMES = (Poisson.name, Uniform.name, Full.name)
# For the commands, which know their values as options.
number = words.number

Eps = Annotated[str | None, typer.Option("--eps", metavar="E", help="Epsilon, e.g. 8.")]
Delta = Annotated[
    str | None,
    typer.Option(
        "--delta", metavar="D", help="Delta; default 1e-05, or N^-1.1 when --clients N is given."
    ),
]
Rounds = Annotated[
    str | None,
    typer.Option("--rounds", metavar="T", help="Number of rounds.", show_default=False),
]
Rate = Annotated[
    str | None,
    typer.Option("--q", metavar="Q", help="Sampling rate in (0, 1]: the share of a round."),
]
Noise = Annotated[
    str | None,
    typer.Option(
        "--noise", metavar="Z", help="Noise multiplier: std of the noise on the sum / clip norm."
    ),
]
ScheduleFile = Annotated[
    str | None,
    typer.Option(
        "--schedule",
        metavar="FILE",
        help="Rounds from a .toml, .csv or .json file, instead of --rounds, --q and --noise.",
    ),
]
SamplingName = Annotated[
    str | None,
    typer.Option(
        "--sampling",
        metavar="|".join(SCHEMES),
        help="How a round picks its clients; default poisson.",
    ),
]
COHORT_HELP = (
    "Clients in a round, with --clients, instead of --q (Poisson: on average; uniform: exactly)."
)
CLIENTS_HELP = "Number of clients in the population."
# Where models are trained centrally, a client is an example and a cohort a batch.
Cohort = Annotated[str | None, typer.Option("--cohort", "--batch", metavar="M", help=COHORT_HELP)]
Clients = Annotated[
    str | None, typer.Option("--clients", "--examples", metavar="N", help=CLIENTS_HELP)
]
CohortOnly = Annotated[str | None, typer.Option("--cohort", metavar="M", help=COHORT_HELP)]
ClientsOnly = Annotated[str | None, typer.Option("--clients", metavar="N", help=CLIENTS_HELP)]
Epochs = Annotated[
    str | None,
    typer.Option(
        "--epochs",
        metavar="E",
        help="How often each example takes part on average, instead of --rounds: E / rate "
        "rounds, rounded up.",
    ),
]
AdjacencyName = Annotated[
    str | None,
    typer.Option(
        "--adjacency",
        metavar="|".join(Adjacency),
        help="When two data sets are neighbors; default add-remove, for uniform replace-one.",
    ),
]
AccountantName = Annotated[
    str,
    typer.Option(
        "--accountant",
        metavar="|".join(ACCOUNTANTS),
        help=f"Which theory proves the bound; default {DEFAULT_ACCOUNTANT}.",
        show_default=False,
    ),
]
Gap = Annotated[
    str | None,
    typer.Option(
        "--gap",
        metavar="G",
        help="Relative width of epsilon wanted for cohorts of fixed size, e.g. 0.003; slower.",
    ),
]
Clip = Annotated[
    str | None,
    typer.Option(
        "--clip",
        "--clip-norm",
        metavar="C",
        help="Clip norm of one client's contribution; the noise is then shown in its units.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the number alone.")]


def read_gap(text: str | None) -> float | None:
    """What was typed as --gap; the library judges whether it is in range."""
    if text is None:
        return None
    return validate.real("gap", number(text), "a relative gap is a number")


class Style(Enum):
    """How a command answers."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


def read_style(as_json: bool, quiet: bool) -> Style:
    """The style of output."""
    if as_json and quiet:
        raise conflict(words.spelling("--quiet"), "--json")
    if as_json:
        return Style.JSON
    return Style.QUIET if quiet else Style.HUMAN
