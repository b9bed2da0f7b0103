"""`dpacct train`: a federated run on real data, charged for what ran."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpacct import validate
from dpacct.errors import Unsupported
from dpacct_cli import errors, mechanism, options
from dpacct_cli import train_options as own
from dpacct_cli.options import Style, number
from dpacct_cli.render import Answer, Page, Row, bracket, down, noise, plain, seconds, show
from dpacct_cli.terminal import orderly_interrupts
from dpacct_cli.train_files import RunFiles, begin, go_on
from dpacct_cli.train_settings import FREE, Settings, combine, load, refuse_changes

if TYPE_CHECKING:
    from dpacct_cli.train_job import Job
    from dpacct_cli.train_run import Outcome

INTERRUPTED = 130


def train(
    method: own.MethodName,
    data: own.Data = None,
    data_dir: own.DataDir = None,
    label: own.Label = None,
    clients: options.Clients = None,
    partition: own.Partition = None,
    model: own.Model = None,
    preset: own.Preset = None,
    config: own.Config = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    cohort: options.Cohort = None,
    sampling: options.SamplingName = None,
    adjacency: options.AdjacencyName = None,
    eps: options.Eps = None,
    noise: options.Noise = None,
    delta: options.Delta = None,
    clip_norm: Annotated[
        str | None,
        typer.Option("--clip-norm", "--clip", metavar="C", help="Bound on a client's update."),
    ] = None,
    local_lr: own.LocalLr = None,
    local_epochs: own.LocalEpochs = None,
    local_steps: own.LocalSteps = None,
    batch_size: own.BatchSize = None,
    momentum: own.Momentum = None,
    weight_decay: own.WeightDecay = None,
    lr_decay: own.LrDecay = None,
    server_lr: own.ServerLr = None,
    assignments: own.Assignments = None,
    ledger: own.LedgerFile = None,
    resume: own.Resume = False,
    eval_every: own.EvalEvery = None,
    device: own.Device = None,
    seed: own.Seed = None,
    public_seed: own.PublicSeed = None,
    secure_noise: own.SecureNoise = False,
    vectorize: own.Vectorize = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """A federated run on real data: clients train, the noisy mean of their updates is released.

    What is not said is chosen to suit the data. -q prints the test accuracy alone.

    Examples:
      dpacct train dp-fedavg
      dpacct train dp-fedavg --data mnist --data-dir data --eps 6 --ledger mnist.ledger
      dpacct train dp-fedavg --data cifar10 --partition dirichlet:0.1 --rounds 200
      dpacct train dp-fedavg --preset mnist-logistic --eps 7
      dpacct train dp-fedpgn --set rho=0.1 --set beta=0.5
      dpacct train dp-fedavg --config run.toml --json
      dpacct train dp-fedavg --ledger mnist.ledger --resume
    """
    style = options.read_style(as_json, quiet)
    typed = {
        "data": data,
        "data_dir": data_dir,
        "label": label,
        "clients": clients,
        "partition": partition,
        "model": model,
        "rounds": rounds,
        "q": q,
        "cohort": cohort,
        "sampling": sampling,
        "adjacency": adjacency,
        "eps": eps,
        "noise": noise,
        "delta": delta,
        "clip_norm": clip_norm,
        "local_lr": local_lr,
        "local_epochs": local_epochs,
        "local_steps": local_steps,
        "batch_size": batch_size,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "lr_decay": lr_decay,
        "server_lr": server_lr,
        "eval_every": eval_every,
        "device": device,
        "seed": seed,
        "public_seed": public_seed,
        "secure_noise": "yes" if secure_noise else None,
        "vectorize": vectorize,
    }
    settings = combine(method, typed, tuple(assignments or ()), preset, config)
    if find_spec("torch") is None:
        raise Unsupported(
            "training needs PyTorch, which is not installed: pip install 'dpacct[fl]'"
        )
    name = Path(settings.values["data"]).stem
    if resume:
        files = go_on(ledger, method, name)
        saved = load(files.settings)
        refuse_changes(saved, settings)
        settings = _moved(saved, settings)
    else:
        files = begin(ledger, method, name)
    _run(settings, files, style, resume=resume)


def _moved(saved: Settings, typed: Settings) -> Settings:
    """The settings of a run, on the device and with the data folder of today."""
    changed = {key: typed.values[key] for key in FREE if key in typed.chosen}
    return Settings(
        saved.method,
        {**saved.values, **changed},
        frozenset(saved.values),
        saved.method_options,
        saved.data_options,
    )


def _run(settings: Settings, files: RunFiles, style: Style, *, resume: bool) -> None:
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct_cli.train_job import build_job
    from dpacct_cli.train_run import open_run, train

    every = settings.get("eval_every")
    looks = (
        None
        if every is None
        else validate.count("eval_every", number(every), "the rounds between looks")
    )
    job = build_job(settings)
    with orderly_interrupts(), open_run(job, files, settings.dump(), resume=resume) as run:
        outcome = train(run, job, files, style, looks or max(1, run.rounds // 10))
    if outcome.interrupted:
        again = f"dpacct train {settings.method} --ledger {shlex.quote(str(files.ledger))} --resume"
        errors.print_line(
            f"stopped after round {outcome.rounds} of {outcome.planned}; saved in "
            f"{files.checkpoint}. {again} goes on."
        )
        raise typer.Exit(INTERRUPTED)
    answer = Answer(
        _data(settings, job, outcome, files),
        repr(outcome.accuracy),
        lambda: _page(settings, job, outcome, files),
    )
    show(answer, style)


def _data(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> dict[str, Any]:
    spent = outcome.epsilon
    private = outcome.not_private_because is None
    return {
        "method": settings.method,
        "data": job.dataset.name,
        "model": settings.values["model"],
        "rounds": outcome.rounds,
        "epsilon": {
            # JSON has no infinity: null where nothing is promised.
            "lower": spent.lower if private else None,
            "upper": spent.upper if private else None,
            "target": None if job.budget is None else job.budget.epsilon,
        },
        "delta": job.delta.value,
        "noise_multiplier": outcome.noise_multiplier,
        "clip_norm": outcome.clip_norm,
        "sampling": job.sampling.name,
        "sampling_rate": job.sampling.sampling_rate,
        "adjacency": job.adjacency or str(job.sampling.default_adjacency),
        "test_accuracy": outcome.accuracy,
        "seconds": outcome.seconds,
        "ledger": str(files.ledger),
        "private": private,
        "not_private_because": outcome.not_private_because,
        "stopped_because": outcome.stopped_because,
        "clients": len(job.clients),
        "partition": settings.values["partition"],
        "model_file": str(files.model),
        "report": str(files.report),
        "checkpoint": str(files.checkpoint),
    }


def _page(settings: Settings, job: Job, outcome: Outcome, files: RunFiles) -> Page:
    from dpacct.rounds import Round

    if outcome.not_private_because is None:
        spent = Row("epsilon", bracket(outcome.epsilon), f"  at {job.delta.in_words}")
    else:
        spent = Row("epsilon", "infinite", outcome.not_private_because)
    plan = max(outcome.rounds, 1) * Round(outcome.noise_multiplier, job.sampling, job.adjacency)
    z = noise(outcome.noise_multiplier)
    rows = [
        Row(
            "test accuracy",
            down(outcome.accuracy, 4),
            f"of {len(job.tested):,} examples that no client holds",
        ),
        spent,
        *mechanism.rows(plan),
        Row("noise multiplier", z, f"std of the noise on the sum / clip norm "
            f"{plain(outcome.clip_norm)}"),
        Row("training", f"{settings.values['model']} on {job.dataset.name}, {len(job.clients):,} "
            f"clients ({settings.values['partition']}), {seconds(outcome.seconds)}"),
        Row("ledger", str(files.ledger)),
        Row("model", str(files.model)),
        Row("report", str(files.report), "  one line a round; raw norms in it are not private"),
    ]  # fmt: skip
    if outcome.stopped_because is not None:
        rows.insert(2, Row("stopped early", outcome.stopped_because))
    note = mechanism.delta_note(job.delta.value, job.delta.chosen, len(job.clients))
    closing = f"dpacct ledger show {shlex.quote(str(files.ledger))} lists what was spent."
    return Page(rows, closing=closing, note=note)
