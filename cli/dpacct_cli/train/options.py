"""The options of `dpacct train` that no other command has."""

from __future__ import annotations

from typing import Annotated

from dpacct.rounds import Adjacency
from dpacct_cli.options import PRIVACY, WHAT_RUNS, argument, flag, option, repeated
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

# Headings of the help.
DATA_AND_MODEL, SETTINGS = "Data and model", "Settings"
THE_RUN, MACHINE = "The run and its record", "Machine and randomness"

Text = str | None


MethodName = Annotated[
    Text,
    argument(
        metavar="[METHOD]",
        known=lambda: METHODS,
        help=f"One of {', '.join(METHODS)}; or package.module:Class, a method of your own. A run "
        "that goes on knows its own.",
    ),
]
Delta = Annotated[
    Text,
    option(
        "--delta",
        metavar="D",
        help="Delta; default that of --ledger if it exists, else 1e-05.",
        panel=PRIVACY,
    ),
]
Data = Annotated[
    Text,
    option(
        "--data",
        metavar="|".join((*DEFAULTS, "FILE.csv", "FILE.npz", "FOLDER")),
        help="Named data, or your own: a table, arrays, or a folder of images for each class. "
        "[default: digits, which need no download]",
        panel=DATA_AND_MODEL,
    ),
]
DataDir = Annotated[
    Text,
    option(
        "--data-dir",
        metavar="DIR",
        help="Folder with the files of --data; default $DPACCT_DATA, or ./data.",
        panel=DATA_AND_MODEL,
    ),
]
Label = Annotated[
    Text,
    option(
        "--label",
        metavar="COLUMN",
        help="Column of labels of FILE.csv; default label.",
        panel=DATA_AND_MODEL,
    ),
]
Owner = Annotated[
    Text,
    option(
        "--owner",
        metavar="COLUMN",
        help="Column of FILE.csv with the person a row belongs to; each person is a client.",
        panel=DATA_AND_MODEL,
    ),
]
Classes = Annotated[
    Text,
    option(
        "--classes",
        metavar="A,B,...",
        help="The labels of FILE.csv, public. Default those that occur, which is not protected.",
        panel=DATA_AND_MODEL,
    ),
]
AdjacencyName = Annotated[
    Text,
    option(
        "--adjacency",
        metavar="|".join(Adjacency),
        help="When two data sets are neighbors; default replace-one for uniform sampling, "
        "add-remove with --public-size, else zero-out.",
        panel=WHAT_RUNS,
    ),
]
PublicSize = Annotated[
    Text,
    option(
        "--public-size",
        metavar="M",
        help="A public number of clients (or examples), from which the divisor and every printed "
        "number is made. The run then protects the true number, too (add-remove). Default: the "
        "true number is public (zero-out, at the same epsilon).",
        panel=PRIVACY,
    ),
]
Partition = Annotated[
    Text,
    option(
        "--partition",
        metavar="iid|dirichlet:A|natural",
        help="Clients of the run: simulated ones, by dealing out examples evenly or with label "
        "ratios drawn from Dirichlet(A); or the writers, roles or owners that the data name "
        "(default with --owner).",
        panel=DATA_AND_MODEL,
    ),
]
HoldOut = Annotated[
    Text,
    option(
        "--hold-out",
        metavar="S",
        help="Fraction of clients held out as non-members for dpacct attack, chosen by a hash of "
        "each client's identity.",
        panel=DATA_AND_MODEL,
    ),
]
Examples = Annotated[
    bool,
    flag(
        "--examples",
        help="Protect single examples instead of clients (DP-SGD): a round is a step on a batch "
        "of them.",
        panel=DATA_AND_MODEL,
    ),
]
Epochs = Annotated[
    Text,
    option(
        "--epochs",
        metavar="E",
        help="With --examples, instead of --rounds: how often each takes part on average.",
        panel=WHAT_RUNS,
    ),
]
Model = Annotated[
    Text,
    option(
        "--model",
        metavar="|".join(MODELS),
        help="What to train; default by data.",
        panel=DATA_AND_MODEL,
    ),
]
Preset = Annotated[
    Text,
    option(
        "--preset", metavar="|".join(PRESETS), help="Settings of published work.", panel=SETTINGS
    ),
]
Config = Annotated[
    Text,
    option(
        "--config",
        metavar="FILE.toml",
        help="Options from a file, named as here without dashes in front, with _ for -.",
        panel=SETTINGS,
    ),
]
Assignments = Annotated[
    list[str] | None,
    repeated(
        "--set", metavar="NAME=VALUE", help="An option of the method, e.g. rho=0.5.", panel=SETTINGS
    ),
]
EvalEvery = Annotated[
    Text,
    option(
        "--eval-every",
        metavar="K",
        help="Rounds between looks at the test set; default a tenth of all.",
        panel=THE_RUN,
    ),
]
LedgerFile = Annotated[
    Text,
    option(
        "--ledger",
        metavar="FILE",
        help="Where to record what is spent; model, report and checkpoint stand beside it. "
        "Default one for each data set: DATA.ledger here, or beside FILE.csv.",
        panel=THE_RUN,
    ),
]
NewLedger = Annotated[
    bool,
    flag(
        "--new-ledger",
        help="A second budget for data that have one. Both epsilons then add up, and nobody "
        "counts that.",
        panel=THE_RUN,
    ),
]
Resume = Annotated[bool, flag("--resume", help="Go on with a run that was stopped.", panel=THE_RUN)]
RunName = Annotated[
    Text,
    option(
        "--run",
        metavar="NAME",
        help="Which run --resume means: what the names of its files begin with.",
        panel=THE_RUN,
    ),
]
Device = Annotated[
    Text,
    option(
        "--device",
        metavar="cpu|cuda|cuda:K",
        help="Default cuda where there is one.",
        panel=MACHINE,
    ),
]
Seed = Annotated[
    Text,
    option(
        "--seed",
        metavar="S",
        help="Reproducible run. Not private: anyone with the seed can remove the noise, "
        "so the run is marked as not private.",
        panel=MACHINE,
    ),
]
PublicSeed = Annotated[
    Text,
    option(
        "--public-seed",
        metavar="S",
        help="For what need not be secret: partition and initial model; default 0.",
        panel=MACHINE,
    ),
]
Vectorize = Annotated[
    Text,
    option(
        "--vectorize",
        metavar="auto|yes|no",
        help="Train clients side by side; default auto, which measures, and yes with --seed, "
        "since what is measured does not repeat.",
        panel=MACHINE,
    ),
]
SecureNoise = Annotated[
    bool,
    flag("--secure-noise", help="Noise that withstands attacks on its last digits.", panel=MACHINE),
]
