"""`dpacct train`: a federated run on real data, charged for what ran."""

from __future__ import annotations

import shlex
from dataclasses import replace
from importlib.util import find_spec
from typing import Annotated

from dpacct import validate
from dpacct.errors import BudgetExceeded, InvalidParameter, Unsupported
from dpacct_cli import errors, options
from dpacct_cli.errors import OptionConflict, conflict
from dpacct_cli.options import Style, number, option
from dpacct_cli.render import Answer, plain, print_note, show
from dpacct_cli.train import options as own
from dpacct_cli.train import page as train_page
from dpacct_cli.train import step_options as steps
from dpacct_cli.train.files import RunFiles, begin
from dpacct_cli.train.resume import go_on, others_of
from dpacct_cli.train.settings import FREE, KEYS, Settings, combine, refuse_changes
from dpacct_cli.words import about_examples, spelling, text_of

INTERRUPTED = 130


def train(
    method: own.MethodName = None,
    data: own.Data = None,
    data_dir: own.DataDir = None,
    label: own.Label = None,
    owner: own.Owner = None,
    classes: own.Classes = None,
    clients: options.ClientsOnly = None,
    public_size: own.PublicSize = None,
    partition: own.Partition = None,
    hold_out: own.HoldOut = None,
    examples: own.Examples = False,
    model: own.Model = None,
    preset: own.Preset = None,
    config: own.Config = None,
    schedule: options.ScheduleFile = None,
    rounds: options.Rounds = None,
    epochs: own.Epochs = None,
    q: options.Rate = None,
    cohort: options.Cohort = None,
    sampling: options.SamplingName = None,
    adjacency: own.AdjacencyName = None,
    eps: options.Eps = None,
    noise: options.Noise = None,
    delta: own.Delta = None,
    clip_norm: Annotated[
        str | None,
        option(
            "--clip-norm",
            "--clip",
            metavar="C",
            help="Bound on a client's update.",
            panel=options.PRIVACY,
        ),
    ] = None,
    local_lr: steps.LocalLr = None,
    local_total_lr: steps.LocalTotalLr = False,
    local_epochs: steps.LocalEpochs = None,
    local_steps: steps.LocalSteps = None,
    batch_size: steps.BatchSize = None,
    momentum: steps.Momentum = None,
    weight_decay: steps.WeightDecay = None,
    lr_decay: steps.LrDecay = None,
    server_lr: steps.ServerLr = None,
    server: steps.Server = None,
    server_assignments: steps.ServerAssignments = None,
    assignments: own.Assignments = None,
    ledger: own.LedgerFile = None,
    new_ledger: own.NewLedger = False,
    resume: own.Resume = False,
    run: own.RunName = None,
    eval_every: own.EvalEvery = None,
    device: own.Device = None,
    seed: own.Seed = None,
    public_seed: own.PublicSeed = None,
    secure_noise: own.SecureNoise = False,
    vectorize: own.Vectorize = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a model with differential privacy, on your data or a data set by name.

    Unset options default to values tuned for the data set. With -q it prints the test accuracy.

    Examples:
      dpacct train dp-fedavg
      dpacct train dp-fedavg --data mnist --data-dir data --eps 6 --ledger mnist.ledger
      dpacct train dp-fedavg --data cifar10 --partition dirichlet:0.1 --rounds 200
      dpacct train dp-fedavg --preset mnist-logistic --eps 7
      dpacct train dp-fedpgn --set rho=0.1 --set beta=0.5
      dpacct train dp-fedavg --schedule plan.toml --eps 4
      dpacct train dp-fedavg --server adam --server-set lr=0.02
      dpacct train dp-fedavg --examples --batch 128 --epochs 20
      dpacct train dp-fedavg --config run.toml --json
      dpacct train mymethods:Proximal --set strength=0.1
      dpacct train --ledger mnist.ledger --resume
    """
    given = locals()
    style = options.read_style(as_json, quiet)
    typed = {key: given[key] for key in KEYS} | {
        "secure_noise": "yes" if secure_noise else None,
        "examples": "yes" if examples else None,
        "local_total_lr": "yes" if local_total_lr else None,
    }
    refuse_contradictions(ledger, run, new_ledger=new_ledger, resume=resume)
    if method is None and not (resume or examples):
        known = f"a method is one of {', '.join(own.METHODS)}, or package.module:Class"
        raise InvalidParameter("method", None, known)
    optimizer = tuple(server_assignments or ())
    layers = (typed, tuple(assignments or ()), preset, config, optimizer)
    refuse_batch(examples=bool(examples or config or resume))
    # What contradicts itself is refused before anything is looked for.
    settings = combine(method or own.METHODS[0], *layers)
    if find_spec("torch") is None:
        raise Unsupported("training needs PyTorch, which is not installed: pip install -e '.[fl]'")
    if resume:
        begun = go_on(ledger, run, method, data)
        settings = combine(method or begun.settings.method, *layers)
        refuse_changes(begun.settings, settings)
        _run(_moved(begun.settings, settings), begun.files, style, resume=True)
    else:
        files = begin(ledger, settings.method, settings.values["data"], new_ledger=new_ledger)
        _run(settings, files, style, resume=False)


def refuse_contradictions(
    ledger: str | None, run: str | None, *, new_ledger: bool, resume: bool
) -> None:
    """Options that say where a run is recorded, and contradict each other.

    Raises:
        OptionConflict: they do.
    """
    if new_ledger and ledger is not None:
        why = "a ledger that is named is used, or made"
        raise conflict("--new-ledger", f"--ledger {ledger}", why)
    if new_ledger and resume:
        raise conflict("--new-ledger", "--resume", "a run goes on in its own ledger")
    if run is not None and not resume:
        raise OptionConflict(f"--run {run} needs --resume; a new run finds a name by itself.")


def refuse_batch(*, examples: bool) -> None:
    """A batch of examples where clients are sampled.

    Raises:
        OptionConflict: it was typed so.
    """
    if not examples and spelling("--cohort") == "--batch":
        raise OptionConflict(
            f"--batch {text_of('--cohort')} needs --examples; clients are sampled in --cohort, and "
            "train by --batch-size."
        )


def _moved(saved: Settings, typed: Settings) -> Settings:
    """The settings of a run, on the device and with the data folder of today."""
    changed = {key: typed.values[key] for key in FREE if key in typed.chosen}
    # What was a default when the run began is one still: nothing counts as chosen.
    return replace(saved, values={**saved.values, **changed}, chosen=frozenset())


def _run(settings: Settings, files: RunFiles, style: Style, *, resume: bool) -> None:
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct.ledger.terms import known_terms
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.run import open_run, train

    if settings.get("examples"):
        about_examples()
    every = settings.get("eval_every")
    looks = (
        None
        if every is None
        else validate.count("eval_every", number(every), "the rounds between looks")
    )
    terms = known_terms(files.ledger)
    job = build_job(settings, terms)
    others = others_of(files, settings.values["data"])
    notes = [train_page.two_budgets(files.ledger, others)] if others else []
    if terms is not None and terms.note:
        notes.append(terms.note)
    if job.delta.origin.startswith("that of"):
        said = f"delta is {plain(job.delta.value)}, {job.delta.origin}"
        notes.append(f"{said}; --delta was not given.")
    with open_run(job, files, settings, resume=resume) as run:
        if run.has_private_checkpoint:
            notes.append(train_page.private_checkpoint(files.checkpoint))
        _say(style, *notes)
        try:
            outcome = train(run, job, files, style, looks or max(1, run.rounds // 10))
        except BudgetExceeded as refusal:
            raise BudgetExceeded(f"{refusal} {train_page.ways_out(files.ledger)}") from None
    if outcome.interrupted:
        again = f"dpacct train {settings.method} --ledger {shlex.quote(str(files.ledger))} "
        again += f"--run {shlex.quote(files.stem)} --resume"
        errors.print_line(
            f"stopped after round {outcome.rounds} of {outcome.planned}; saved in "
            f"{files.checkpoint}. {again} goes on."
        )
        raise SystemExit(INTERRUPTED)
    answer = Answer(
        train_page.data(settings, job, outcome, files),
        repr(outcome.accuracy),
        lambda: train_page.page(settings, job, outcome, files),
    )
    show(answer, style)


def _say(style: Style, *notes: str | None) -> None:
    """What a person should know before rounds are charged."""
    if style is Style.HUMAN:
        for note in notes:
            if note is not None:
                print_note(note)
