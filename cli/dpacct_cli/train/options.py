"""The options of `dpacct train`, most of which `dpacct audit` takes as well.

A field of a tuple is one option. The key of an option in settings files is its name with _ for -.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from dpacct_cli import options
from dpacct_cli.options import PRIVACY, WHAT_RUNS, argument, flag, option
from dpacct_cli.train.defaults import DEFAULTS

# Ways of drawing the members of a round.
SAMPLINGS = (Poisson.name, Uniform.name, Full.name, "allocation")

MODELS = (
    "logistic", "cnn-small", "cnn", "cnn-wide", "resnet10", "resnet18", "resnet20", "lstm-small",
    "lstm",
)  # fmt: skip
METHODS = (
    "dp-fedavg", "blur", "blurs", "fed-smp-randk", "fed-smp-topk", "dp-fedsam", "dp-fedsam-topk",
    "dp-fedpgn", "dp-fedpgn-ls", "dp-fed-ls", "fed-alpha-normec", "alpha-normec",
    "fedavg-smoothed", "scaffold", "feddyn", "fedcm",
)  # fmt: skip
SERVERS = ("momentum", "adam")
OPTIMIZERS = ("sgd", "adam")
PRECISIONS = ("float32", "tf32", "bfloat16")
# Headings of the help.
DATA, LOCAL, SETTINGS = "Data and model", "Local training", "Settings"
RECORD, MACHINE = "The run and its record", "Machine and randomness"

MethodName = Annotated[
    str | None,
    argument(
        metavar="[METHOD]",
        known=lambda: METHODS,
        help=f"One of {', '.join(METHODS)}; or package.module:Class, your own method.",
    ),
]
Data = Annotated[str | None, option(
    "--data", metavar="|".join((*DEFAULTS, "FILE.csv", "FILE.npz", "FOLDER")), panel=DATA,
    help="A data set by name, or your own: a table, arrays, or a folder of images for each "
    "class. [default: digits, which needs no download]",
)]  # fmt: skip
DataDir = Annotated[str | None, option(
    "--data-dir", metavar="DIR", panel=DATA,
    help="Folder with the files of --data; default $DPACCT_DATA, or ./data.",
)]  # fmt: skip
Device = Annotated[str | None, option(
    "--device", metavar="cpu|cuda|cuda:K", panel=MACHINE, advanced=True,
    help="Default cuda if there is one.",
)]  # fmt: skip


class Training(NamedTuple):
    """The options that describe the training."""

    data: Data = None
    data_dir: DataDir = None
    label: Annotated[str | None, option(
        "--label", metavar="COLUMN", panel=DATA, advanced=True,
        help="Column of labels of FILE.csv; default label.",
    )] = None  # fmt: skip
    owner: Annotated[str | None, option(
        "--owner", metavar="COLUMN", panel=DATA, advanced=True,
        help="Column of FILE.csv with the person a row belongs to. Each person is a client.",
    )] = None  # fmt: skip
    classes: Annotated[str | None, option(
        "--classes", metavar="A,B,...", panel=DATA, advanced=True,
        help="The labels of FILE.csv, public. By default they are read off the data, which "
        "epsilon does not protect.",
    )] = None  # fmt: skip
    schema: Annotated[str | None, option(
        "--schema", metavar="FILE.toml", panel=DATA,
        help="Meaning of the columns of FILE.csv. Without it, a table with words is not "
        "trained on: dpacct prints a proposal to edit.",
    )] = None  # fmt: skip
    clients: options.ClientsOnly = None
    public_size: Annotated[str | None, option(
        "--public-size", metavar="M", panel=PRIVACY, advanced=True,
        help="A public number of clients (or examples), from which the divisor and every "
        "printed number is made. The run then hides the true number, too (add-remove). "
        "Default: the true number is public (zero-out, at the same epsilon).",
    )] = None  # fmt: skip
    partition: Annotated[str | None, option(
        "--partition", metavar="iid|dirichlet:A|natural", panel=DATA,
        help="How examples become clients. iid: simulated clients, equal shares. dirichlet:A: "
        "simulated clients, label ratios drawn from Dirichlet(A). natural: the writers, roles "
        "or owners of the data (default with --owner).",
    )] = None  # fmt: skip
    examples: Annotated[bool, flag(
        "--examples", panel=DATA,
        help="Protect single examples instead of clients (DP-SGD). A round is a step on a "
        "batch of examples.",
    )] = False  # fmt: skip
    model: Annotated[str | None, option(
        "--model", metavar="|".join(MODELS), help="The model; default by data.", panel=DATA
    )] = None  # fmt: skip
    config: Annotated[str | None, option(
        "--config", metavar="FILE.toml", panel=SETTINGS,
        help="Options from a file, named as here without leading dashes, with _ for -.",
    )] = None  # fmt: skip
    correlated: options.CorrelatedName = None
    bands: options.Bands = None
    separation: options.Separation = None
    rounds: options.Rounds = None
    epochs: options.Epochs = None
    q: options.Rate = None
    cohort: options.Cohort = None
    steps: options.Steps = None
    records: options.Records = None
    sampling: Annotated[str | None, option(
        "--sampling", metavar="|".join(SAMPLINGS), panel=WHAT_RUNS,
        help="How a round picks its clients; default poisson. allocation: each client is in "
        "one random round of every epoch.",
    )] = None  # fmt: skip
    adjacency: Annotated[str | None, option(
        "--adjacency", metavar="|".join(Adjacency), panel=WHAT_RUNS, advanced=True,
        help="When two data sets are neighbors; default replace-one for uniform sampling, "
        "add-remove with --public-size, else zero-out.",
    )] = None  # fmt: skip
    eps: options.Eps = None
    noise: options.Noise = None
    delta: Annotated[str | None, option(
        "--delta", metavar="D", panel=PRIVACY, advanced=True,
        help="Delta; default that of --ledger if it exists, else 1e-05.",
    )] = None  # fmt: skip
    clip_norm: Annotated[str | None, option(
        "--clip-norm", "--clip", metavar="C[,C2,...]", panel=PRIVACY,
        help="Bound on the norm of a client's update, or a bound for each trained tensor.",
    )] = None  # fmt: skip
    adaptive_clip: Annotated[str | None, option(
        "--adaptive-clip", metavar="QUANTILE", panel=PRIVACY, advanced=True,
        help="Let the clip norm follow this quantile of the updates' norms, e.g. 0.5, from "
        "--clip-norm on. The noise covers what the norm learns.",
    )] = None  # fmt: skip
    secure_noise: Annotated[bool, flag(
        "--secure-noise", panel=PRIVACY, advanced=True,
        help="Noise that withstands attacks on its last digits.",
    )] = False  # fmt: skip
    local_optimizer: Annotated[str | None, option(
        "--local-optimizer", metavar="|".join(OPTIMIZERS), panel=LOCAL, advanced=True,
        help="Optimizer of the clients; default sgd.",
    )] = None  # fmt: skip
    local_lr: Annotated[str | None, option(
        "--local-lr", metavar="R", panel=LOCAL, advanced=True,
        help="Learning rate of the clients.",
    )] = None  # fmt: skip
    local_epochs: Annotated[str | None, option(
        "--local-epochs", metavar="E", panel=LOCAL, advanced=True,
        help="Passes over a client's examples.",
    )] = None  # fmt: skip
    local_steps: Annotated[str | None, option(
        "--local-steps", metavar="K", panel=LOCAL, advanced=True,
        help="Local steps, instead of --local-epochs.",
    )] = None  # fmt: skip
    batch_size: Annotated[str | None, option(
        "--batch-size", metavar="B", panel=LOCAL, advanced=True,
        help="Examples in a local step, or all.",
    )] = None  # fmt: skip
    momentum: Annotated[str | None, option(
        "--momentum", metavar="M", panel=LOCAL, advanced=True,
        help="Momentum of local SGD, in [0, 1); default 0.",
    )] = None  # fmt: skip
    weight_decay: Annotated[str | None, option(
        "--weight-decay", metavar="W", panel=LOCAL, advanced=True,
        help="Weight decay of local SGD; default 0.",
    )] = None  # fmt: skip
    lr_decay: Annotated[str | None, option(
        "--lr-decay", metavar="F", panel=LOCAL, advanced=True,
        help="Factor on --local-lr from round to round; default 1.",
    )] = None  # fmt: skip
    max_grad_norm: Annotated[str | None, option(
        "--max-grad-norm", metavar="C", panel=LOCAL, advanced=True,
        help="Bound on the norm of each local gradient; default none.",
    )] = None  # fmt: skip
    server_lr: Annotated[str | None, option(
        "--server-lr", metavar="R", panel=LOCAL, advanced=True,
        help="Factor on the noisy mean; default 1.",
    )] = None  # fmt: skip
    server: Annotated[str | None, option(
        "--server", metavar="|".join(SERVERS), panel=SETTINGS, advanced=True,
        help="Optimizer of the server; default SGD.",
    )] = None  # fmt: skip
    server_assignments: Annotated[list[str] | None, option(
        "--server-set", metavar="NAME=VALUE", panel=SETTINGS, advanced=True,
        help="An option of --server, e.g. beta=0.5.",
    )] = None  # fmt: skip
    assignments: Annotated[list[str] | None, option(
        "--set", metavar="NAME=VALUE", panel=SETTINGS,
        help="An option of the method, e.g. rho=0.5.",
    )] = None  # fmt: skip
    device: Device = None
    seed: Annotated[str | None, option(
        "--seed", metavar="S", panel=MACHINE, advanced=True,
        help="Make the run repeatable. It is then not private: anyone with the seed can "
        "remove the noise.",
    )] = None  # fmt: skip
    public_seed: Annotated[str | None, option(
        "--public-seed", metavar="S", panel=MACHINE, advanced=True,
        help="Seed of the partition and the initial model, which need not be secret; "
        "default 0.",
    )] = None  # fmt: skip
    vectorize: Annotated[str | None, option(
        "--vectorize", metavar="auto|yes|no", panel=MACHINE, advanced=True,
        help="Train clients in groups; default auto, which takes the faster way (with --seed: "
        "yes, since measured times do not repeat).",
    )] = None  # fmt: skip
    precision: Annotated[str | None, option(
        "--precision", metavar="|".join(PRECISIONS), panel=MACHINE, advanced=True,
        help="Numbers of the forward and backward pass; default float32. Bounds, sums and noise "
        "stay exact.",
    )] = None  # fmt: skip


class Record(NamedTuple):
    """The options of a recorded run, which an audit does not have."""

    schedule: options.ScheduleFile = None
    hold_out: Annotated[str | None, option(
        "--hold-out", metavar="S", panel=DATA, advanced=True,
        help="Fraction of clients held out as non-members for dpacct attack, chosen by a hash "
        "of each client's identity.",
    )] = None  # fmt: skip
    ledger: Annotated[str | None, option(
        "--ledger", metavar="FILE", panel=RECORD,
        help="File that records the spent budget; model, report and checkpoint stand beside "
        "it. Default one for each data set: DATA.ledger here, or beside FILE.csv.",
    )] = None  # fmt: skip
    resume: Annotated[
        bool, flag("--resume", help="Continue a run that was stopped.", panel=RECORD)
    ] = False
    run: Annotated[str | None, option(
        "--run", metavar="NAME", panel=RECORD, advanced=True,
        help="The run that --resume continues: the beginning of its file names.",
    )] = None  # fmt: skip
    distributed: Annotated[bool, flag(
        "--distributed", panel=MACHINE, advanced=True,
        help="This process is one of several that torchrun has started, which share the clients.",
    )] = False  # fmt: skip
