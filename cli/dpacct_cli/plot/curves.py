"""`dpacct plot eps|delta|tradeoff|rdp`: curves, of several settings in one picture."""

from __future__ import annotations

from typing import Annotated

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct_cli import options
from dpacct_cli.options import MechanismOptions, option
from dpacct_cli.output import Force
from dpacct_cli.plot.output import Dark, PictureData, PictureFile, read_target

FPR_MARKED = "0.001,0.01,0.1"
SEVERAL = "; several, separated by commas, are drawn beside each other."

Noise = Annotated[str | None, option("--noise", metavar="Z,...", help=f"Noise multiplier{SEVERAL}")]
Rounds = Annotated[
    str | None, option("--rounds", metavar="T,...", help=f"Number of rounds{SEVERAL}")
]
Rate = Annotated[str | None, option("--q", metavar="Q,...", help=f"Sampling rate{SEVERAL}")]
Schedules = Annotated[
    str | None,
    option("--schedule", metavar="FILE,...", help=f"Files of rounds{SEVERAL}"),
]
Accountants = Annotated[
    str,
    option(
        "--accountant",
        metavar="NAME,...",
        known=lambda: ACCOUNTANTS,
        help=f"Which theory proves the bound; default {DEFAULT_ACCOUNTANT}{SEVERAL}",
    ),
]
Target = Annotated[str | None, option("--eps", metavar="E", help="A budget, drawn as a line.")]
At = Annotated[str | None, option("--eps", metavar="E", help="An epsilon, to be marked.")]
Marked = Annotated[
    str,
    option(
        "--fpr",
        metavar="A,...",
        help=f"False positive rates to be marked; default {FPR_MARKED}.",
    ),
]


def eps(
    noise: Noise = None,
    rounds: Rounds = None,
    q: Rate = None,
    delta: options.Delta = None,
    target: Target = None,
    schedule: Schedules = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """Epsilon over rounds, with its bracket.

    Examples:
      dpacct plot eps --noise 1,1.5,2 --rounds 300 --q 0.1 --eps 8
      dpacct plot eps --noise 1 --rounds 300 --q 0.1 --accountant tight,rdp -o eps.svg
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    budget = None if target is None else validate.target_epsilon(options.number(target))
    at = typed.read_delta(delta)
    from dpacct.pictures import epsilon_picture
    from dpacct_cli.plot.settings import read_settings

    to.put(epsilon_picture(read_settings(typed, accountant), at.value, target=budget))


def delta(
    noise: Noise = None,
    rounds: Rounds = None,
    q: Rate = None,
    at: At = None,
    schedule: Schedules = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """Delta over epsilon.

    Example:
      dpacct plot delta --noise 1 --rounds 300 --q 0.1 --eps 8
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    epsilon = None if at is None else validate.epsilon(options.number(at))
    from dpacct.pictures import delta_picture
    from dpacct_cli.plot.settings import read_settings

    to.put(delta_picture(read_settings(typed, accountant), epsilon))


def tradeoff(
    noise: Noise = None,
    rounds: Rounds = None,
    q: Rate = None,
    fpr: Marked = FPR_MARKED,
    schedule: Schedules = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    as_json: PictureData = False,
) -> None:
    """How often an attack succeeds, given how often it errs.

    Example:
      dpacct plot tradeoff --noise 1 --rounds 300 --q 0.1
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    noun = "a false positive rate"
    marked = [
        validate.positive_probability("fpr", options.number(part.strip()), noun, below_one=True)
        for part in fpr.split(",")
    ]
    from dpacct.pictures import tradeoff_picture
    from dpacct_cli.plot.settings import read_settings

    to.put(tradeoff_picture(read_settings(typed, accountant), marked))


def rdp(
    noise: Noise = None,
    rounds: Rounds = None,
    q: Rate = None,
    delta: options.Delta = None,
    schedule: Schedules = None,
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
    """Renyi curves, with the order that is best at a delta.

    Example:
      dpacct plot rdp --noise 1,2 --rounds 300 --q 0.1
    """
    to = read_target(output, force=force, dark=dark, as_json=as_json)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    at = typed.read_delta(delta)
    from dpacct.pictures import rdp_picture
    from dpacct_cli.plot.settings import read_settings

    to.put(rdp_picture(read_settings(typed, "rdp"), at.value))
