"""`dpacct attack`: membership inference on a checkpoint of `dpacct train`, and its proven limit.

Rule 1: a checkpoint, its settings, its data and its ledger belong together, or the attack is
rejected: a model on other data would seem to remember no client.
Rule 2: non-members are the clients that --hold-out kept out of the run at random. They differ from
members in membership alone, and the limit is about them.
Rule 3: without a guarantee there is no limit, and the answer gives the reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.display import down, up
from dpacct.empirical.confidence import Estimate
from dpacct.empirical.roc import Roc, needed_nonmembers
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.rounds import Schedule
from dpacct_cli import options, outputs
from dpacct_cli.commands.plot import PictureOptions
from dpacct_cli.errors import conflict, require_torch
from dpacct_cli.options import StyleOptions, Text, argument, option
from dpacct_cli.output import LABEL, Force
from dpacct_cli.render import Answer, Grid, Page, Row, Style, plain, show
from dpacct_cli.train import options as own
from dpacct_cli.train.files import SETTINGS, RunFiles, ledger_of_settings
from dpacct_cli.train.settings import RunSettings, check_folder, load, looked_at

if TYPE_CHECKING:
    from dpacct.fl.clients import ClientData
    from dpacct.fl.data import PartitionedClients
    from dpacct.ledger import Run
    from dpacct_cli.train.job import Job

ARGUMENT, THE_ATTACK, ATTACK = "CHECKPOINT", "The attack", "loss threshold"
# Examples of each side that are compared, in whole clients.
EXAMPLES = 10_000
_SUFFIX = ".checkpoint"

# fmt: off
Checkpoint = Annotated[str, argument(ARGUMENT,
    "Checkpoint of a run of dpacct train, with its settings file in the same folder.")]
Confidence = Annotated[str, option("--confidence", "C", THE_ATTACK,
    "Confidence of each interval, in (0, 1); default 0.95.")]
Rates = Annotated[str, option("--fpr", "A,...", THE_ATTACK,
    "False positive rates in (0, 1) at which attacks are judged; default 0.01,0.001.")]
OwnMethod = Annotated[Text, option("--method", "package.module:Class", THE_ATTACK,
    "Your own method, if the run was trained by it.", advanced=True)]
LedgerAddress = Annotated[Text, option("--ledger", "ADDRESS", THE_ATTACK,
    "The ledger of the run, if it is kept in a database.", advanced=True)]
PictureFile = Annotated[Text, option(f"{LABEL} -o", "FILE", options.OUTPUT,
    "Draw the curves into a .png, .svg or .pdf file.")]
# fmt: on


def attack(
    checkpoint: Checkpoint,
    *,
    data: own.Data = None,
    data_dir: own.DataDir = None,
    ledger: LedgerAddress = None,
    fpr: Rates = "0.01,0.001",
    confidence: Confidence = "0.95",
    output: PictureFile = None,
    force: Force = False,
    device: own.Device = None,
    method: OwnMethod = None,
    shown: StyleOptions,
) -> None:
    """Run membership-inference attacks on a trained model, and show their proven limit.

    Train with --hold-out first: the held-out clients are the non-members. The attack takes a
    client with a small loss for a member. -q prints the AUC by client alone.

    Examples:
      dpacct attack dp-fedavg-digits.checkpoint
      dpacct attack dp-fedavg-digits.checkpoint -o roc.png
      dpacct attack dp-fedavg-mnist.checkpoint --data-dir data --json
    """
    style = shown.style
    if not checkpoint:
        raise InvalidParameter(ARGUMENT, None, "name a checkpoint of dpacct train")
    rates = options.read_rates(fpr)
    sure = validate.positive_probability(
        "--confidence", options.number(confidence), "a confidence", below_one=True
    )
    to = PictureOptions(output, force)
    file = to.file()
    require_torch("attacks on models need")
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct.fl.attacks import loss_attack
    from dpacct.fl.models import cross_entropy

    moved = {"data": data, "data_dir": data_dir, "device": device, "ledger": ledger}
    target = read_target(checkpoint, moved, method)
    members, nonmembers, left_out = read_sides(target)
    limit = limit_of(target)
    result = loss_attack(
        target.job.model, cross_entropy, members, nonmembers, confidence=sure, fpr=rates
    )
    by_unit = {"client": result.clients, "example": result.examples}
    if file is not None:
        from dpacct.pictures import roc_picture

        note = limit.because or "one model; the limit is proven on average over trainings"
        curves = [(f"{ATTACK}, by {unit}", roc) for unit, roc in by_unit.items()]
        to.write(roc_picture(curves, None if limit.auc is None else limit.tpr, note), file)
    found = _data(target, limit, by_unit, left_out)
    number = repr(by_unit["client"].auc.value)
    show(Answer(found, number, lambda: _page(target, limit, found)), style)
    if file is not None and style is Style.HUMAN:
        print(f"picture: {file}", file=sys.stderr)


class Target(NamedTuple):
    """A trained model with its run."""

    path: Path  # The checkpoint
    content: Mapping[str, Any]  # What the checkpoint holds
    # The job's model has the parameters of the checkpoint.
    settings: RunSettings
    files: RunFiles
    job: Job
    rounds: int  # That were released so far


def read_target(text: str, moved: Mapping[str, str | None], method: str | None = None) -> Target:
    """Return the model of a checkpoint, which a method of that name has trained if it is given."""
    from dpacct.fl.engine.checkpoint import load_parameters, read_checkpoint
    from dpacct_cli.train.job import build_job

    path = Path(text)
    if path.suffix != _SUFFIX and path.is_file():
        rule = f"a checkpoint of dpacct train ends in {_SUFFIX}"
        meant = path.with_name(path.name.removesuffix(".model.pt") + _SUFFIX)
        hint = f"Did you mean {meant}?" if meant.is_file() else ""
        raise InvalidParameter(ARGUMENT, text, rule, hint)
    stem = path.name.removesuffix(_SUFFIX)
    beside = path.with_name(stem + SETTINGS)
    if path.is_file() and not beside.is_file():
        rule = f"the settings of its run belong in the same folder, and there is no {beside}"
        hint = "dpacct train writes both; dpacct.fl.attacks takes any model."
        raise InvalidParameter(ARGUMENT, text, rule, hint)
    try:
        content = read_checkpoint(path, "cpu")
        settings = load(beside)
        if method not in (None, settings.method):
            raise conflict(f"--method {method}", str(beside), f"it has {settings.method}")
        # All parameters are those of the checkpoint.
        values = {key: text for key, text in settings.values.items() if key != "init"}
        settings = looked_at(replace(settings, values=values), beside, moved)
        check_folder(settings)
        job = build_job(settings)
        load_parameters(dict(content), path, job.model)
    except InvalidParameter as error:
        if error.name not in ("checkpoint", "resume"):
            raise
        raise InvalidParameter(ARGUMENT, error.value, error.rule, error.hint) from None
    size = re.search(r"(\d+) clients", str(content.get("setting")))
    if size and int(size[1]) != len(job.clients):
        rule = f"its run had {size[1]} clients, and by the settings beside it {len(job.clients)}"
        raise InvalidParameter(ARGUMENT, text, rule, "Have the data changed?")
    done = content.get("round")
    if type(done) is not int or done < 0:
        raise InvalidParameter(ARGUMENT, text, "it does not say how many rounds it holds")
    files = RunFiles.of(ledger_of_settings(beside, settings), stem)
    return Target(path, content, settings, files, job, done)


def read_sides(target: Target) -> tuple[list[ClientData], list[ClientData], int]:
    """Return members, non-members, and how many held-out examples are a member's, too.

    The public seed and the sizes alone choose them.
    """
    import numpy as np

    from dpacct.fl.attacks import without_members
    from dpacct.fl.data import PartitionedClients

    job, seed = target.job, int(target.settings.get("public_seed") or 0)
    clients, outside = job.clients, job.held_out
    if outside is None or not isinstance(clients, PartitionedClients):
        raise Unsupported(
            "the run held no clients out, so there are no non-members that differ from members in "
            "membership alone. dpacct train --hold-out 0.2 keeps some out at random."
        )

    def some(clients: PartitionedClients) -> list[ClientData]:
        order = np.random.default_rng(seed).permutation(len(clients))
        sizes = clients.sizes[order]
        before = np.cumsum(sizes) - sizes
        return [clients[int(client)] for client in sorted(order[before < EXAMPLES])]

    # All clients are looked at, because one that is not compared may have a held-out example.
    everybody = (clients[number] for number in range(len(clients)))
    others = without_members(everybody, some(outside))
    return some(clients), others.clients, others.left_out


class Limit(NamedTuple):
    """The proven bounds on every attack, on average over trainings."""

    # The largest AUC and TPR - FPR of any score, None if nothing is proven
    auc: float | None = None
    advantage: float | None = None
    tpr: Callable[[float], float | None] = lambda _: None  # The largest TPR at an FPR
    because: str = ""  # The reason if nothing is proven
    told: str = ""  # The adjacency, or the mechanism in words


def limit_of(target: Target) -> Limit:
    """Return the limit of the rounds which the checkpoint has learned from, as charged."""
    from dpacct.fl.engine.checkpoint import saved_in
    from dpacct.fl.privacy.account import check_run
    from dpacct.fl.privacy.randomness import SEEDED
    from dpacct.ledger import Ledger, is_there

    path = target.files.ledger
    saved = saved_in(dict(target.content))
    if saved is None:
        # Nothing was charged yet.
        return _limit_of_run(None, 0)
    if not is_there(path):
        return Limit(because=f"its ledger {path} is not there")
    with Ledger.open(path, read_only=True) as ledger:
        holder = f"the checkpoint {target.path}"
        ledger.require(saved.position, holder)
        run = check_run(ledger, saved, str(target.content.get("setting")), holder)
        if run.private:
            return _limit_of_run(run, target.rounds)
    why = run.details.get("not_private_because", SEEDED)
    return Limit(because=f"the run is not private: {why}")


def _limit_of_run(run: Run | None, rounds: int) -> Limit:
    from dpacct.risk.attacks import Attacks
    from dpacct.risk.measures import AnyMechanism, accusations

    schedule, accountant = Schedule(), "tight"
    if run is not None and rounds:
        if run.plan is None or not run.on_plan:
            spent = run.epsilon()
            if not 0.0 < spent.upper < float("inf"):
                return Limit(because="no epsilon is proven for its rounds")
            told = f"any mechanism with epsilon {up(spent.upper)} at delta {plain(spent.delta)}"
            worst = AnyMechanism(spent.upper, spent.delta)
            return Limit(worst.auc(), worst.advantage(), worst.tpr, told=told)
        kinds = run.plan.distinct()
        # The bound of a longer plan also bounds its beginning. Epochs are charged as a whole.
        equal = len(kinds) == 1 and len(run.plan.only_rounds()) == 1
        schedule = rounds * next(iter(kinds)) if equal else run.plan
        accountant = run.accountant
    bounds = accusations(Attacks(schedule, find_accountant(accountant)))
    return Limit(bounds.auc, bounds.advantage, bounds.tpr, told=str(schedule.adjacency))


def _exceeds(roc: Roc, limit: Limit) -> bool:
    """Return True if an interval lies above the limit, which cannot be on average."""
    if limit.auc is None or limit.advantage is None:
        return False
    most = [(rate.tpr.lower, limit.tpr(min(rate.fpr_upper, 1.0))) for rate in roc.rates]
    most += [(roc.auc.lower, limit.auc), (roc.advantage.lower, limit.advantage)]
    return any(bound is not None and lower > bound for lower, bound in most)


def _bounded(value: Estimate, limit: float | None) -> outputs.Limited:
    return outputs.Limited(value.value, value.lower, value.upper, limit)


def _data(target: Target, limit: Limit, rocs: Mapping[str, Roc], left_out: int) -> outputs.Attack:
    attacks = [
        outputs.AttackKeys(
            ATTACK,
            unit,
            roc.members,
            roc.nonmembers,
            auc=_bounded(roc.auc, limit.auc),
            advantage=_bounded(roc.advantage, limit.advantage),
            rates=[
                outputs.ObservedRate(
                    rate.asked, rate.fpr, rate.fpr_upper, _bounded(rate.tpr, limit.tpr(rate.asked))
                )
                for rate in roc.rates
            ],
            limit_adjacency=limit.told or None,
            above_limit=_exceeds(roc, limit),
        )
        for unit, roc in rocs.items()
    ]
    return {
        "method": target.settings.method,
        "data": target.job.dataset.name,
        "model": target.settings.values["model"],
        "rounds": target.rounds,
        "private": limit.auc is not None,
        "not_private_because": limit.because or None,
        "confidence": rocs["client"].confidence,
        "left_out": left_out,
        "adjacency": target.job.adjacency,
        "attacks": attacks,
    }


def _page(target: Target, limit: Limit, data: outputs.Attack) -> Page:
    rows: list[Row] = []
    lines: list[list[str]] = []
    for one in data["attacks"]:
        name = f"{ATTACK}, by {one.unit}"
        sides = f"{one.members:,} members, {one.nonmembers:,} others"
        words = f"  {_between(one.auc)}, {name}: {sides}"
        rows.append(Row("" if rows else "AUC", up(one.auc.value, 4), words))
        lines.append([name, "advantage", *_cells(one.advantage)])
        for rate in one.rates:
            cells = _cells(rate.tpr)
            needed = needed_nonmembers(rate.fpr, data["confidence"])
            if needed > one.nonmembers:
                cells[:2] = "n/a", f"needs {needed:,} non-members"
            lines.append(["", f"TPR at FPR {plain(rate.fpr)}", *cells])
    rows.append(Row("", "0.5", "  for guessing, or a model without training"))
    proven = Row("limit", "none", f"  {limit.because}")
    if limit.auc is not None:
        words = "  AUC of any attack, proven, on average over trainings"
        proven = Row("limit", up(limit.auc, 4), words)
    model = f"{data['model']} on {data['data']}, {data['method']}, {data['rounds']} rounds"
    rows += [proven, Row("model", f"{model} of {target.files.stem}")]
    sure = plain(data["confidence"])
    remarks = [
        f"Each interval holds by itself with confidence {sure}, for this one model.",
        "Examples count as independent, and those of one client rarely are.",
    ]
    if limit.auc is not None:
        remarks.append(
            "One model may lie above the limit by chance. Stronger attacks may find more than this."
        )
    if any(one.above_limit for one in data["attacks"]):
        remarks.append(
            "An interval lies above the limit. If that is so in other trainings too, the run is "
            "not the charged mechanism."
        )
    if left_out := data["left_out"]:
        remarks.append(f"{left_out:,} held-out examples are a member's, too, and were left out.")
    grid = Grid(["attack", "", "observed", "interval", "proven limit"], lines)
    return Page(rows, [grid], remarks=remarks)


def _cells(one: outputs.Limited) -> list[str]:
    return [up(one.value, 4), _between(one), "none" if one.limit is None else up(one.limit, 4)]


def _between(one: outputs.Limited) -> str:
    return f"{down(one.lower, 3)} to {up(one.upper, 3)}"
