"""The options of `dpacct train`, most of which `dpacct audit` takes as well.

A field of a tuple is one option. The key of an option in settings files is its name with _ for -.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

from dpacct.rounds import Adjacency, Full, Poisson, Uniform
from dpacct_cli import options
from dpacct_cli.options import PRIVACY, WHAT_RUNS, Text, argument, flag, of_key, option
from dpacct_cli.train.defaults import DEFAULTS

# fmt: off
# Ways of drawing the members of a round.
SAMPLINGS = (Poisson.name, Uniform.name, Full.name, "allocation")

MODELS = (
    "logistic", "cnn-small", "cnn", "cnn-wide", "resnet10", "resnet18", "resnet20", "lstm-small",
    "lstm", "vit-base", "roberta-base", "roberta-tiny", "vit-base-lora", "roberta-base-lora",
    "roberta-tiny-lora",
)
METHODS = (
    "dp-fedavg", "blur", "blurs", "fed-smp-randk", "fed-smp-topk", "dp-fedsam", "dp-fedsam-topk",
    "dp-fedpgn", "dp-fedpgn-ls", "dp-fed-ls", "fed-alpha-normec", "alpha-normec",
    "fedavg-smoothed", "scaffold", "feddyn", "fedcm",
)
SERVERS = ("momentum", "adam")
OPTIMIZERS = ("sgd", "adam")
PRECISIONS = ("float32", "tf32", "bfloat16")
# Headings of the help.
DATA, LOCAL, SETTINGS = "Data and model", "Local training", "Settings"
RECORD, MACHINE = "The run and its record", "Machine and randomness"

MethodName = Annotated[Text, argument("[METHOD]",
    f"One of {', '.join(METHODS)}; or package.module:Class, your own method. Several with commas "
    "are compared on public data.",
    known=lambda: METHODS)]
Data = Annotated[Text, option(
    "--data", "|".join((*DEFAULTS, "FILE.csv", "FILE.npz", "FOLDER")), DATA,
    "A data set by name (emnist:letters, svhn:extra, glue:sst2 are parts), or your own: a table, "
    "arrays, a folder of images for each class, or one that Hugging Face datasets has saved. "
    "[default: digits, which needs no download]")]
DataDir = Annotated[Text, option("--data-dir", "DIR", DATA,
    "Folder with the files of --data; default $DPACCT_DATA, or ./data.")]
Init = Annotated[Text, option("--init", "FILE", DATA,
    "Start from the parameters of a file (.pt), which must be public: of an earlier run, or of "
    "another model for all tensors that fit.", advanced=True)]
Device = Annotated[Text, option("--device", "cpu|cuda|cuda:K", MACHINE,
    "Default cuda if there is one.", advanced=True)]


class Training(NamedTuple):
    """The options that describe the training."""

    data: Data = None
    data_dir: DataDir = None
    label: Annotated[Text, option("--label", "COLUMN", DATA,
        "Column of labels of FILE.csv; default label.", advanced=True)] = None
    columns: Annotated[Text, option("--columns", "A[,B]", DATA,
        "Columns of a saved Hugging Face data set to train on: numbers or images, a text, or a "
        "pair of texts. Text needs tokenizer.json of the model in the folder.",
        advanced=True)] = None
    owner: Annotated[Text, option("--owner", "COLUMN", DATA,
        "Column of FILE.csv with the person a row belongs to. Each person is a client.",
        advanced=True)] = None
    classes: Annotated[Text, option("--classes", "A,B,...", DATA,
        "The labels of FILE.csv, public. By default they are read off the data, which epsilon "
        "does not protect.", advanced=True)] = None
    schema: Annotated[Text, option("--schema", "FILE.toml", DATA,
        "Meaning of the columns of FILE.csv. Without it, a table with words is not trained on: "
        "dpacct prints a proposal to edit.")] = None
    clients: Annotated[Text, of_key("num_clients", plain=True)] = None
    public_size: Annotated[Text, option("--public-size", "M", PRIVACY,
        "A public number of clients (or examples), from which the divisor and every printed "
        "number is made. The run then hides the true number, too (add-remove). Default: the true "
        "number is public (zero-out, at the same epsilon).", advanced=True)] = None
    partition: Annotated[Text, option("--partition", "iid|dirichlet:A|natural", DATA,
        "How examples become clients. iid: simulated clients, equal shares. dirichlet:A: "
        "simulated clients, label ratios drawn from Dirichlet(A). natural: the writers, roles or "
        "owners of the data (default with --owner).")] = None
    examples: Annotated[bool, flag("--examples", DATA,
        "Protect single examples instead of clients (DP-SGD). A round is a step on a batch of "
        "examples.")] = False
    model: Annotated[Text, option("--model", "|".join(MODELS), DATA,
        "The model; default by data. vit-base and roberta-base need torchvision and "
        "transformers; -lora trains low-rank changes alone, and needs peft.")] = None
    init: Init = None
    config: Annotated[Text, option("--config", "FILE.toml", SETTINGS,
        "Read options from a file. Their names have no leading dashes, and _ for -.")] = None
    correlated: Annotated[Text, of_key("strategy")] = None
    bands: Annotated[Text, of_key("bands")] = None
    separation: Annotated[Text, of_key("min_separation")] = None
    rounds: options.Rounds = None
    epochs: options.Epochs = None
    q: Annotated[Text, of_key("sampling_rate")] = None
    cohort: Annotated[Text, of_key("cohort_size")] = None
    steps: Annotated[Text, of_key("steps")] = None
    records: Annotated[Text, of_key("records")] = None
    sampling: Annotated[Text, option("--sampling", "|".join(SAMPLINGS), WHAT_RUNS,
        "How a round draws its clients; default poisson. allocation: each client is in one random "
        "round of every epoch.")] = None
    adjacency: Annotated[Text, option("--adjacency", "|".join(Adjacency), WHAT_RUNS,
        "How neighboring data sets differ; default replace-one for uniform sampling, add-remove "
        "with --public-size, else zero-out.", advanced=True)] = None
    eps: options.Eps = None
    noise: Annotated[Text, of_key("noise_multiplier")] = None
    delta: Annotated[Text, option("--delta", "D", PRIVACY,
        "Delta; default that of --ledger if it exists, else 1e-05.", advanced=True)] = None
    clip_norm: Annotated[Text, option("--clip-norm --clip", "C[,C2,...]", PRIVACY,
        "Bound on the norm of a client's update, or a bound for each trained tensor.")] = None
    adaptive_clip: Annotated[Text, option("--adaptive-clip", "QUANTILE", PRIVACY,
        "Let the clip norm follow this quantile of the updates' norms, e.g. 0.5, beginning with "
        "--clip-norm. Epsilon includes the noisy counts that this needs.", advanced=True)] = None
    secure_noise: Annotated[bool, flag("--secure-noise", PRIVACY,
        "Use noise whose last digits reveal nothing.", advanced=True)] = False
    local_optimizer: Annotated[Text, option("--local-optimizer", "|".join(OPTIMIZERS), LOCAL,
        "Optimizer of the clients; default sgd.", advanced=True)] = None
    local_lr: Annotated[Text, option("--local-lr", "R", LOCAL,
        "Learning rate of the clients.", advanced=True)] = None
    local_epochs: Annotated[Text, option("--local-epochs", "E", LOCAL,
        "Passes over a client's examples.", advanced=True)] = None
    local_steps: Annotated[Text, option("--local-steps", "K", LOCAL,
        "Local steps, instead of --local-epochs.", advanced=True)] = None
    batch_size: Annotated[Text, option("--batch-size", "B", LOCAL,
        "Examples in a local step, or all.", advanced=True)] = None
    momentum: Annotated[Text, option("--momentum", "M", LOCAL,
        "Momentum of local SGD, in [0, 1); default 0.", advanced=True)] = None
    weight_decay: Annotated[Text, option("--weight-decay", "W", LOCAL,
        "Weight decay of local SGD; default 0.", advanced=True)] = None
    lr_decay: Annotated[Text, option("--lr-decay", "F", LOCAL,
        "Factor on --local-lr from round to round; default 1.", advanced=True)] = None
    max_grad_norm: Annotated[Text, option("--max-grad-norm", "C", LOCAL,
        "Bound on the norm of each local gradient; default none.", advanced=True)] = None
    server_lr: Annotated[Text, option("--server-lr", "R", LOCAL,
        "Factor on the noisy mean; default 1.", advanced=True)] = None
    server: Annotated[Text, option("--server", "|".join(SERVERS), SETTINGS,
        "Optimizer of the server; default SGD.", advanced=True)] = None
    server_assignments: Annotated[list[str] | None, option("--server-set", "NAME=VALUE", SETTINGS,
        "An option of --server, e.g. beta=0.5.", advanced=True)] = None
    assignments: Annotated[list[str] | None, option("--set", "NAME=VALUE", SETTINGS,
        "An option of the method, e.g. rho=0.5.")] = None
    as_printed: Annotated[bool, flag("--as-printed", SETTINGS,
        "Run the method as its paper prints it, which is not private: epsilon is infinite.",
        advanced=True)] = False
    device: Device = None
    seed: Annotated[Text, option("--seed", "S", MACHINE,
        "Make the run repeatable. It is then not private: anyone with the seed can remove the "
        "noise.", advanced=True)] = None
    public_seed: Annotated[Text, option("--public-seed", "S", MACHINE,
        "Seed of the partition and the initial model, which need not be secret; default 0.",
        advanced=True)] = None
    vectorize: Annotated[Text, option("--vectorize", "auto|yes|no", MACHINE,
        "Train clients in groups; default auto, which takes the faster way (with --seed: yes, "
        "since measured times do not repeat).", advanced=True)] = None
    precision: Annotated[Text, option("--precision", "|".join(PRECISIONS), MACHINE,
        "Numbers of the forward and backward pass; default float32. Bounds, sums and noise stay "
        "exact.", advanced=True)] = None


class Record(NamedTuple):
    """The options of a recorded run, which an audit does not have."""

    schedule: options.ScheduleFile = None
    hold_out: Annotated[Text, option("--hold-out", "S", DATA,
        "Fraction of clients held out as non-members for dpacct attack, chosen by a hash of each "
        "client's identity.", advanced=True)] = None
    validation: Annotated[Text, option("--validation", "S", RECORD,
        "Evaluate on this random fraction of the test examples during training, and on the others "
        "only at the end.", advanced=True)] = None
    evaluate_every: Annotated[Text, option("--evaluate-every", "K", RECORD,
        "Rounds between evaluations; default a tenth of the run.", advanced=True)] = None
    target_accuracy: Annotated[Text, option("--target-accuracy", "A", RECORD,
        "Print the first evaluated round with this accuracy, in (0, 1).", advanced=True)] = None
    train_accuracy: Annotated[bool, flag("--train-accuracy", RECORD,
        "Print the accuracy on training examples, too. It is computed without noise, and epsilon "
        "does not cover it.", advanced=True)] = False
    repeats: Annotated[Text, option("--repeats", "N", RECORD,
        "Train N times on public data, and show mean and deviation. Epsilon is that of one run. "
        "Several methods have 3 runs by default.", advanced=True)] = None
    ledger: Annotated[Text, option("--ledger", "FILE", RECORD,
        "File that records the spent budget. Model, report and checkpoint go to the same folder. "
        "Default: one file for each data set, DATA.ledger here, or beside FILE.csv.")] = None
    ahead: Annotated[Text, option("--ahead", "N", RECORD,
        "Reserve up to N equal rounds in one ledger entry, which saves a disk flush per round; "
        "default 1.", advanced=True)] = None
    resume: Annotated[bool, flag("--resume", RECORD, "Continue a run that was stopped.")] = False
    run: Annotated[Text, option("--run", "NAME", RECORD,
        "The run that --resume continues: the beginning of its file names.", advanced=True)] = None
    distributed: Annotated[bool, flag("--distributed", MACHINE,
        "This process is one of several that torchrun has started, which share the clients.",
        advanced=True)] = False
