"""The options of `dpacct train` about steps: on the clients, and what the server makes of them."""

from __future__ import annotations

from typing import Annotated

from dpacct_cli.options import flag, option, repeated
from dpacct_cli.train.options import SETTINGS, Text

LOCAL_TRAINING = "Local training"
SERVERS = ("momentum", "adam")

LocalLr = Annotated[
    Text,
    option("--local-lr", metavar="R", help="Learning rate on the clients.", panel=LOCAL_TRAINING),
]
LocalTotalLr = Annotated[
    bool,
    flag(
        "--local-total-lr",
        help="--local-lr is that of all steps of a client together.",
        panel=LOCAL_TRAINING,
    ),
]
LocalEpochs = Annotated[
    Text,
    option(
        "--local-epochs", metavar="E", help="Passes over a client's examples.", panel=LOCAL_TRAINING
    ),
]
LocalSteps = Annotated[
    Text,
    option(
        "--local-steps",
        metavar="K",
        help="Local steps, instead of --local-epochs.",
        panel=LOCAL_TRAINING,
    ),
]
BatchSize = Annotated[
    Text,
    option("--batch-size", metavar="B", help="Examples in one local step.", panel=LOCAL_TRAINING),
]
Momentum = Annotated[
    Text,
    option(
        "--momentum", metavar="M", help="Of local SGD, in [0, 1); default 0.", panel=LOCAL_TRAINING
    ),
]
WeightDecay = Annotated[
    Text,
    option("--weight-decay", metavar="W", help="Of local SGD; default 0.", panel=LOCAL_TRAINING),
]
LrDecay = Annotated[
    Text,
    option(
        "--lr-decay",
        metavar="F",
        help="Factor on --local-lr from round to round; default 1.",
        panel=LOCAL_TRAINING,
    ),
]
ServerLr = Annotated[
    Text,
    option(
        "--server-lr",
        metavar="R",
        help="Factor on the noisy mean; default 1.",
        panel=LOCAL_TRAINING,
    ),
]
Server = Annotated[
    Text,
    option(
        "--server",
        metavar="|".join(SERVERS),
        help="Server optimizer; default SGD.",
        panel=SETTINGS,
    ),
]
ServerAssignments = Annotated[
    list[str] | None,
    repeated(
        "--server-set",
        metavar="NAME=VALUE",
        help="An option of --server, e.g. beta=0.5.",
        panel=SETTINGS,
    ),
]
