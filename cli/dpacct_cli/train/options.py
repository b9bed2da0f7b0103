"""The options of `dpacct train` that no other command has."""

from __future__ import annotations

from typing import Annotated

import typer

from dpacct_cli.train.presets import DEFAULTS, PRESETS

MODELS = (
    "logistic",
    "cnn-small",
    "cnn",
    "cnn-wide",
    "resnet10",
    "resnet18",
    "resnet20",
    "lstm-small",
    "lstm",
)

METHODS = (
    "dp-fedavg",
    "blur",
    "blurs",
    "fed-smp-randk",
    "fed-smp-topk",
    "dp-fedsam",
    "dp-fedsam-topk",
    "dp-fedpgn",
    "dp-fedpgn-ls",
    "dp-fed-ls",
    "fed-alpha-normec",
    "alpha-normec",
    "fedavg-smoothed",
    "scaffold",
    "feddyn",
    "fedcm",
)

SERVERS = ("momentum", "adam")

Text = str | None


def _option(*names: str, metavar: str, text: str) -> object:
    return typer.Option(*names, metavar=metavar, help=text, show_default=False)


MethodName = Annotated[
    Text,
    typer.Argument(
        metavar="[METHOD]",
        help=f"One of {', '.join(METHODS)}; or package.module:Class, a method of your own. A run "
        "that goes on knows its own.",
    ),
]
Delta = Annotated[
    Text,
    _option(
        "--delta",
        metavar="D",
        text="Delta; default that of --ledger if it exists, else N^-1.1 for N clients (or "
        "examples).",
    ),
]
Data = Annotated[
    Text,
    _option(
        "--data",
        metavar="|".join((*DEFAULTS, "FILE.csv")),
        text="What to train on; default digits, which need no download.",
    ),
]
DataDir = Annotated[
    Text,
    _option(
        "--data-dir",
        metavar="DIR",
        text="Folder with the files of --data; default $DPACCT_DATA, or ./data.",
    ),
]
Label = Annotated[
    Text, _option("--label", metavar="COLUMN", text="Column of labels of FILE.csv; default label.")
]
Partition = Annotated[
    Text,
    _option(
        "--partition",
        metavar="iid|dirichlet:A|natural",
        text="Who holds which example: dealt out evenly, with label ratios drawn from "
        "Dirichlet(A), or by the writers, roles or owners that the data name.",
    ),
]
Model = Annotated[
    Text, _option("--model", metavar="|".join(MODELS), text="What to train; default by data.")
]
Preset = Annotated[
    Text, _option("--preset", metavar="|".join(PRESETS), text="Settings of published work.")
]
Config = Annotated[
    Text,
    _option(
        "--config",
        metavar="FILE.toml",
        text="Options from a file, named as here without dashes in front, with _ for -.",
    ),
]
Assignments = Annotated[
    list[str] | None,
    _option("--set", metavar="NAME=VALUE", text="An option of the method, e.g. rho=0.5."),
]
Examples = Annotated[
    bool,
    typer.Option(
        "--examples",
        help="Protect single examples instead of clients (DP-SGD): a round is a step on a batch "
        "of them.",
    ),
]
Epochs = Annotated[
    Text,
    _option(
        "--epochs",
        metavar="E",
        text="With --examples, instead of --rounds: how often each takes part on average.",
    ),
]
LocalLr = Annotated[Text, _option("--local-lr", metavar="R", text="Learning rate on the clients.")]
LocalEpochs = Annotated[
    Text, _option("--local-epochs", metavar="E", text="Passes over a client's examples.")
]
LocalSteps = Annotated[
    Text, _option("--local-steps", metavar="K", text="Local steps, instead of --local-epochs.")
]
BatchSize = Annotated[
    Text, _option("--batch-size", metavar="B", text="Examples in one local step.")
]
Momentum = Annotated[
    Text, _option("--momentum", metavar="M", text="Of local SGD, in [0, 1); default 0.")
]
WeightDecay = Annotated[
    Text, _option("--weight-decay", metavar="W", text="Of local SGD; default 0.")
]
LrDecay = Annotated[
    Text,
    _option("--lr-decay", metavar="F", text="Factor on --local-lr from round to round; default 1."),
]
ServerLr = Annotated[
    Text, _option("--server-lr", metavar="R", text="Factor on the noisy mean; default 1.")
]
Server = Annotated[
    Text,
    _option(
        "--server",
        metavar="|".join(SERVERS),
        text="What the server makes of the noisy mean; default the plain step.",
    ),
]
ServerAssignments = Annotated[
    list[str] | None,
    _option("--server-set", metavar="NAME=VALUE", text="An option of --server, e.g. beta=0.5."),
]
EvalEvery = Annotated[
    Text,
    _option(
        "--eval-every",
        metavar="K",
        text="Rounds between looks at the test set; default a tenth of all.",
    ),
]
LedgerFile = Annotated[
    Text,
    _option(
        "--ledger",
        metavar="FILE",
        text="Where to record what is spent; model, report and checkpoint stand beside it. "
        "Default one for each data set: DATA.ledger here, or beside FILE.csv.",
    ),
]
NewLedger = Annotated[
    bool,
    typer.Option(
        "--new-ledger",
        help="A second budget for data that have one. Both epsilons then add up, and nobody "
        "counts that.",
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")]
RunName = Annotated[
    Text,
    _option(
        "--run",
        metavar="NAME",
        text="Which run --resume means: what the names of its files begin with.",
    ),
]
Device = Annotated[
    Text, _option("--device", metavar="cpu|cuda|cuda:K", text="Default cuda where there is one.")
]
Seed = Annotated[
    Text,
    _option(
        "--seed",
        metavar="S",
        text="Repeatable noise and cohorts. Who knows the seed can take the noise off again, "
        "so the run is marked as not private.",
    ),
]
PublicSeed = Annotated[
    Text,
    _option(
        "--public-seed",
        metavar="S",
        text="For what need not be secret: partition and initial model; default 0.",
    ),
]
Vectorize = Annotated[
    Text,
    _option(
        "--vectorize",
        metavar="auto|yes|no",
        text="Train clients side by side; default auto, which measures, and yes with --seed, "
        "since what is measured does not repeat.",
    ),
]
SecureNoise = Annotated[
    bool,
    typer.Option("--secure-noise", help="Noise that withstands attacks on its last digits."),
]
