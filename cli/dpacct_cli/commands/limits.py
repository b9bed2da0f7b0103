"""What a calibration may not exceed: an epsilon, or the risk of an attack."""

from typing import Annotated, TypedDict, cast

from dpacct import validate
from dpacct_cli import options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import option


class Limit(TypedDict):
    """What may not be exceeded, as the library takes it."""

    epsilon: float | None
    advantage: float | None
    tpr: float | None
    fpr: float | None


Advantage = Annotated[
    str | None,
    option(
        "--advantage",
        metavar="A",
        help="Instead of --eps: the largest TPR - FPR that any attack may reach, e.g. 0.1.",
        panel=options.PRIVACY,
    ),
]
TruePositives = Annotated[
    str | None,
    option(
        "--tpr",
        metavar="B",
        help="Instead of --eps, with --fpr: the largest true positive rate of any attack.",
        panel=options.PRIVACY,
    ),
]
FalsePositives = Annotated[
    str | None,
    option(
        "--fpr",
        metavar="A",
        help="The false positive rate at which --tpr holds.",
        panel=options.PRIVACY,
    ),
]


def read_limit(eps: str | None, advantage: str | None, tpr: str | None, fpr: str | None) -> Limit:
    """What was typed; the library judges whether it is in range, epsilon before all else."""
    if eps is not None:
        validate.target_epsilon(options.number(eps))
    limits = {"--eps": eps, "--advantage": advantage, "--tpr": tpr}
    given = [f"{option} {text}" for option, text in limits.items() if text is not None]
    if len(given) > 1:
        raise conflict(given[1], given[0], "a calibration has one target")
    if fpr is not None and tpr is None:
        raise OptionConflict(
            f"--fpr {fpr} needs --tpr, the true positive rate that is allowed there."
        )
    typed = {"epsilon": eps, "advantage": advantage, "tpr": tpr, "fpr": fpr}
    return cast("Limit", {name: options.number(text) for name, text in typed.items()})
