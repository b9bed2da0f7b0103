"""The options that several commands share: their names, their help, and the style of output.

All values arrive as text, so that the library judges what was typed. Defaults stand in the help
texts, as they may depend on other options.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from dpacct_cli import words
from dpacct_cli.errors import conflict
from dpacct_cli.parameters import flag, option

# Headings of long helps.
PRIVACY, WHAT_RUNS, ACCOUNTING = "Privacy", "What runs", "Accounting"
SCHEMES = (Poisson.name, Uniform.name, Full.name)
# For the commands, which know their values as options.
number = words.number

Eps = Annotated[str | None, option("--eps", metavar="E", help="Epsilon, e.g. 8.", panel=PRIVACY)]
Delta = Annotated[
    str | None,
    option(
        "--delta",
        metavar="D",
        help="Target delta; default 1e-05.",
        panel=PRIVACY,
    ),
]
Rounds = Annotated[
    str | None,
    option("--rounds", metavar="T", help="Number of rounds.", panel=WHAT_RUNS),
]
Rate = Annotated[
    str | None,
    option(
        "--q", metavar="Q", help="Sampling rate in (0, 1]: the share of a round.", panel=WHAT_RUNS
    ),
]
Noise = Annotated[
    str | None,
    option(
        "--noise",
        metavar="Z",
        help="Noise multiplier: std of the noise on the sum / clip norm.",
        panel=WHAT_RUNS,
    ),
]
ScheduleFile = Annotated[
    str | None,
    option(
        "--schedule",
        metavar="FILE",
        help="Rounds from a .toml, .csv or .json file, instead of --rounds, --q and --noise.",
        panel=WHAT_RUNS,
    ),
]
SamplingName = Annotated[
    str | None,
    option(
        "--sampling",
        metavar="|".join(SCHEMES),
        help="How a round picks its clients; default poisson.",
        panel=WHAT_RUNS,
    ),
]
COHORT_HELP = (
    "Clients in a round, with --clients, instead of --q (Poisson: on average; uniform: exactly)."
)
CLIENTS_HELP = "Number of clients in the population."
# Where models are trained centrally, a client is an example and a cohort a batch.
Cohort = Annotated[
    str | None, option("--cohort", "--batch", metavar="M", help=COHORT_HELP, panel=WHAT_RUNS)
]
Clients = Annotated[
    str | None, option("--clients", "--examples", metavar="N", help=CLIENTS_HELP, panel=WHAT_RUNS)
]
CohortOnly = Annotated[
    str | None, option("--cohort", metavar="M", help=COHORT_HELP, panel=WHAT_RUNS)
]
ClientsOnly = Annotated[
    str | None, option("--clients", metavar="N", help=CLIENTS_HELP, panel=WHAT_RUNS)
]
Epochs = Annotated[
    str | None,
    option(
        "--epochs",
        metavar="E",
        help="How often each example takes part on average, instead of --rounds: E / rate "
        "rounds, rounded up.",
        panel=WHAT_RUNS,
    ),
]
AdjacencyName = Annotated[
    str | None,
    option(
        "--adjacency",
        metavar="|".join(Adjacency),
        help="When two data sets are neighbors; default add-remove, for uniform replace-one.",
        panel=WHAT_RUNS,
    ),
]
AccountantName = Annotated[
    str,
    option(
        "--accountant",
        metavar="|".join(ACCOUNTANTS),
        help=f"Which theory proves the bound; default {DEFAULT_ACCOUNTANT}.",
        panel=ACCOUNTING,
    ),
]
Gap = Annotated[
    str | None,
    option(
        "--gap",
        metavar="G",
        help="Relative width of epsilon wanted for cohorts of fixed size, e.g. 0.003; slower.",
        panel=ACCOUNTING,
    ),
]
Clip = Annotated[
    str | None,
    option(
        "--clip",
        "--clip-norm",
        metavar="C",
        help="Clip norm of one client's contribution; the noise is then shown in its units.",
    ),
]
AsJson = Annotated[bool, flag("--json", help="One JSON object on stdout.")]
Quiet = Annotated[bool, flag("--quiet", "-q", help="Print the number alone.")]


def read_gap(text: str | None) -> float | None:
    """What was typed as --gap; the library judges whether it is in range."""
    if text is None:
        return None
    return validate.real("gap", number(text), "a relative gap is a number")


def shipped_ids() -> list[str]:
    """The ids of the claims that are shipped, for whoever completes one."""
    from dpacct.claims import shipped_claims

    return [claim.id for claim in shipped_claims().claims]


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
