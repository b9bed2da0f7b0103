"""`dpacct audit`: train with canaries, and see what the releases say of them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct_cli import options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import number, option
from dpacct_cli.render import Answer, Page, show
from dpacct_cli.train import options as trained
from dpacct_cli.train.command import refuse_batch
from dpacct_cli.train.settings import KEYS, Settings, combine, load
from dpacct_cli.words import about_examples

FAULTY = 1
# Heading of the help.
THE_AUDIT = "The audit"

Canaries = Annotated[
    str | None,
    option(
        "--canaries",
        metavar="N",
        help="How many clients are planted, each in or out by a coin; default 200.",
        panel=THE_AUDIT,
    ),
]
SingleRound = Annotated[
    str | None,
    option(
        "--single-round",
        metavar="N",
        help="Instead of a whole run: its first round, N times with one client more and N times "
        "without. Assumes nothing of the noise; try 1000.",
        panel=THE_AUDIT,
    ),
]
Error = Annotated[
    str,
    option(
        "--error",
        metavar="P",
        help="Probability that a sound run is called faulty; default 1e-6.",
        panel=THE_AUDIT,
    ),
]
Others = Annotated[
    str,
    option(
        "--others",
        metavar="WAY",
        help="The other clients, or examples: silent (default), or heard, which hides canaries "
        "among what is trained.",
        panel=THE_AUDIT,
    ),
]
Confidence = Annotated[
    str,
    option(
        "--confidence",
        metavar="P",
        help="Of the epsilons that are shown; default 0.95.",
        panel=THE_AUDIT,
    ),
]
SettingsFile = Annotated[
    str | None,
    option(
        "--run",
        metavar="FILE",
        help="The settings of a run, as `dpacct train` leaves them beside its ledger.",
        panel=THE_AUDIT,
    ),
]


def audit(
    method: trained.MethodName = None,
    run: SettingsFile = None,
    canaries: Canaries = None,
    single_round: SingleRound = None,
    others: Others = "silent",
    error: Error = "1e-6",
    confidence: Confidence = "0.95",
    data: trained.Data = None,
    data_dir: trained.DataDir = None,
    clients: options.ClientsOnly = None,
    partition: trained.Partition = None,
    examples: trained.Examples = False,
    model: trained.Model = None,
    preset: trained.Preset = None,
    config: trained.Config = None,
    rounds: options.Rounds = None,
    epochs: trained.Epochs = None,
    q: options.Rate = None,
    cohort: options.Cohort = None,
    sampling: options.SamplingName = None,
    adjacency: trained.AdjacencyName = None,
    public_size: trained.PublicSize = None,
    eps: options.Eps = None,
    noise: options.Noise = None,
    delta: trained.Delta = None,
    assignments: trained.Assignments = None,
    device: trained.Device = None,
    secure_noise: trained.SecureNoise = False,
    vectorize: trained.Vectorize = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Test a training run for privacy bugs, using canaries.

    Exit code 1 where something contradicts the charge. -q prints passed or failed.

    Examples:
      dpacct audit dp-fedavg
      dpacct audit dp-fedavg --rounds 20 --noise 1 --sampling full
      dpacct audit dp-fedpgn --set rho=0.1 --data mnist --data-dir data
      dpacct audit mymethods:Proximal --json
      dpacct audit dp-fedavg --noise 1 --single-round 1000
      dpacct audit dp-fedavg --examples --batch 128 --rounds 50
      dpacct audit --run mnist.dp-fedavg-1.settings.json
    """
    given = locals()
    style = options.read_style(as_json, quiet)
    typed = {key: given.get(key) for key in KEYS} | {
        "secure_noise": "yes" if secure_noise else None,
        "examples": "yes" if examples else None,
    }
    layers = (tuple(assignments or ()), preset, config)
    refuse_batch(examples=bool(examples or config))
    settings = _settings(method, run, typed, layers)
    if settings.get("examples"):
        about_examples()
    if single_round is not None and canaries is not None:
        why = "there is one client more, and no canaries"
        raise conflict(f"--canaries {canaries}", f"--single-round {single_round}", why)
    planted = validate.count("canaries", number(canaries or "200"), "the number of canaries")
    repeated = (
        None
        if single_round is None
        else validate.count("single_round", number(single_round), "how often a round is repeated")
    )
    wrong = validate.positive_probability("error", number(error), "an error", below_one=True)
    sure = validate.positive_probability(
        "confidence", number(confidence), "a confidence", below_one=True
    )
    if find_spec("torch") is None:
        raise Unsupported("an audit trains, which needs PyTorch: pip install -e '.[fl]'")
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct_cli.audit import job as jobs
    from dpacct_cli.audit import page as pages

    if repeated is not None:
        one, known = jobs.round_job(settings, repeated, others, wrong, sure)
        passed, keys = one.passed, pages.round_data(settings, known, one)

        def page() -> Page:
            return pages.round_page(settings, known, one)
    else:
        found, job = jobs.audit_job(settings, planted, others, wrong, sure)
        passed, keys = found.passed, pages.data(settings, job, found)

        def page() -> Page:
            return pages.page(settings, job, found)

    show(Answer(keys, "passed" if passed else "failed", page), style)
    if not passed:
        raise SystemExit(FAULTY)


def _settings(
    method: str | None,
    run: str | None,
    typed: dict[str, str | None],
    layers: tuple[tuple[str, ...], str | None, str | None],
) -> Settings:
    """What is audited: the settings of a run, or what is typed."""
    if run is None:
        if method is None and not typed["examples"]:
            known = f"a method is one of {', '.join(trained.METHODS)}, or package.module:Class"
            raise InvalidParameter("method", None, known)
        return combine(method or trained.METHODS[0], typed, *layers)
    said = [key for key, value in typed.items() if value is not None]
    if method is not None or said or any(layers):
        other = method or (
            f"--{said[0].replace('_', '-')}" if said else "--set, --preset, --config"
        )
        raise OptionConflict(f"--run {run} says all that {other} would; drop one of them.")
    return load(Path(run))
