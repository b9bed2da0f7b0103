"""`dpacct attack`: membership inference on a checkpoint of `dpacct train`, and its limit."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from dpacct import validate
from dpacct.display import down, up
from dpacct.empirical.confidence import Estimate
from dpacct.empirical.roc import AtRate, Roc, needed_nonmembers
from dpacct.errors import InvalidParameter, Unsupported
from dpacct_cli import options
from dpacct_cli.commands.plot import Dark, PictureOptions, read_rates
from dpacct_cli.errors import conflict
from dpacct_cli.options import StyleOptions, argument, number, option
from dpacct_cli.output import LABEL, Force
from dpacct_cli.render import Answer, Grid, Page, Row, Style, plain, show
from dpacct_cli.train import options as own

if TYPE_CHECKING:
    from pathlib import Path

    from dpacct_cli.commands.attack_target import Limit, People, Target

ATTACKS = ("loss", "lira")
SHADOWS = "16"
THE_ATTACK = "The attack"

Checkpoint = Annotated[
    str,
    argument(metavar="CHECKPOINT", help="Of a run of dpacct train; its settings stand beside it."),
]
AttackName = Annotated[str | None, option(
    "--method", metavar="|".join(ATTACKS), panel=THE_ATTACK,
    help="loss: a small loss makes a member. lira: also the likelihood ratio against shadow "
    "models. Default loss, or lira with --shadows.",
)]  # fmt: skip
ShadowCount = Annotated[str | None, option(
    "--shadows", metavar="N", panel=THE_ATTACK,
    help=f"Shadow models of lira, each trained like the run; default {SHADOWS}.",
)]  # fmt: skip
Most = Annotated[str | None, option(
    "--examples", metavar="N", panel=THE_ATTACK,
    help="Compare clients with about so many examples on each side; default 10000.",
)]  # fmt: skip
Confidence = Annotated[str, option(
    "--confidence", metavar="C", panel=THE_ATTACK,
    help="Confidence of each interval, in (0, 1); default 0.95.",
)]  # fmt: skip
Rates = Annotated[str, option(
    "--fpr", metavar="A,...", panel=THE_ATTACK,
    help="False positive rates in (0, 1) at which attacks are judged; default 0.01,0.001.",
)]  # fmt: skip
PictureFile = Annotated[str | None, option(
    LABEL, "-o", metavar="FILE", panel=options.OUTPUT,
    help="Draw the curves into a .png, .svg or .pdf file.",
)]  # fmt: skip


def attack(
    checkpoint: Checkpoint,
    *,
    data: own.Data = None,
    data_dir: own.DataDir = None,
    method: AttackName = None,
    shadows: ShadowCount = None,
    examples: Most = None,
    fpr: Rates = "0.01,0.001",
    confidence: Confidence = "0.95",
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    device: own.Device = None,
    shown: StyleOptions,
) -> None:
    """Run membership-inference attacks on a trained model, and show their proven limit.

    -q prints the AUC alone, by client if clients can be compared.

    Examples:
      dpacct attack dp-fedavg-digits.checkpoint
      dpacct attack dp-fedavg-digits.checkpoint --shadows 16 -o roc.png
      dpacct attack dp-fedavg-mnist.checkpoint --data mnist --data-dir data --json
    """
    style = shown.style
    if not checkpoint:
        raise InvalidParameter("CHECKPOINT", None, "name a checkpoint of dpacct train")
    count = _shadow_count(method, shadows)
    rates = read_rates(fpr)
    sure = validate.positive_probability(
        "--confidence", number(confidence), "a confidence", below_one=True
    )
    most = validate.count("--examples", number(examples or "10000"), "the number of examples")
    to = PictureOptions(output, dark, force)
    file = to.file()
    if find_spec("torch") is None:
        raise Unsupported(
            "attacks on models need PyTorch, which is not installed: pip install -e '.[fl]'"
        )
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct.fl.attacks import likelihood_attack, loss_attack
    from dpacct.fl.models import cross_entropy
    from dpacct_cli.commands.attack_target import people_of, proven, read_target, shadows_of

    target = read_target(checkpoint, data, {"data_dir": data_dir, "device": device})
    people = people_of(target, most)
    by_client, by_example = proven(target, strangers=people.strangers)
    model, sides = target.job.model, (people.members, people.nonmembers)
    tried = {
        "loss threshold": loss_attack(model, cross_entropy, *sides, confidence=sure, fpr=rates)
    }
    if count:
        trained = shadows_of(target, count)
        tried["likelihood ratio"] = likelihood_attack(
            model, *sides, trained, shadows=count, confidence=sure, fpr=rates
        )
    found: list[Found] = []
    for name, result in tried.items():
        if people.strangers:
            found.append(Found(name, "client", result.clients, by_client))
        found.append(Found(name, "example", result.examples, by_example))
    if file is not None:
        _draw(found, to, file)
    answer = Answer(
        _keys(target, people, by_client, found),
        repr(found[0].roc.auc.value),
        lambda: _page(target, people, by_client, found),
    )
    show(answer, style)
    if file is not None and style is Style.HUMAN:
        print(f"picture: {file}", file=sys.stderr)


def _shadow_count(method: str | None, shadows: str | None) -> int:
    """Return the number of shadow models, 0 for the loss alone."""
    if method not in (None, *ATTACKS):
        raise InvalidParameter("--method", method, f"an attack is one of {', '.join(ATTACKS)}")
    if method == "loss" and shadows is not None:
        raise conflict(f"--shadows {shadows}", "--method loss", "it trains no shadow models")
    if method != "lira" and shadows is None:
        return 0
    noun = "the number of shadow models"
    count = validate.count("--shadows", number(shadows or SHADOWS), noun, 10_000)
    if count < 2:
        raise InvalidParameter("--shadows", count, "a spread takes at least two shadow models")
    return count


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """The result of one attack on one kind of unit, client or example, and its limit."""

    attack: str
    unit: str
    roc: Roc
    limit: Limit

    @property
    def name(self) -> str:
        """The name for curves and rows."""
        return f"{self.attack}, by {self.unit}"

    @property
    def above_limit(self) -> bool:
        """True if an interval lies above the limit, which cannot be on average over trainings."""
        auc, advantage = self.limit.auc, self.limit.advantage
        if auc is None or advantage is None:
            return False
        if self.roc.auc.lower > auc or self.roc.advantage.lower > advantage:
            return True
        most = [(rate, self.limit.tpr(min(rate.fpr_upper, 1.0))) for rate in self.roc.rates]
        return any(limit is not None and rate.tpr.lower > limit for rate, limit in most)

    def needed(self, rate: AtRate) -> int:
        """Return the number of non-members that an FPR takes, or 0 if there are enough."""
        need = needed_nonmembers(rate.asked, self.roc.confidence)
        return need if need > self.roc.nonmembers else 0


def _draw(found: list[Found], to: PictureOptions, file: Path) -> None:
    """Draw the attacks that have the limit of the first one, below it."""
    from dpacct.pictures import roc_picture

    limit = found[0].limit
    curves = [(one.name, one.roc) for one in found if one.limit is limit]
    note = limit.because or "one model; the limit is proven on average over trainings"
    to.write(roc_picture(curves, None if limit.auc is None else limit.tpr, note), file)


def _keys(target: Target, people: People, proven: Limit, found: list[Found]) -> dict[str, object]:
    """Return the keys of --json."""

    def bounded(value: Estimate, limit: float | None) -> dict[str, float | None]:
        return {"value": value.value, "lower": value.lower, "upper": value.upper, "limit": limit}

    attacks: list[dict[str, object]] = []
    for one in found:
        roc, limit = one.roc, one.limit
        rates = [
            {
                "fpr": rate.asked,
                "observed_fpr": rate.fpr,
                "fpr_upper": rate.fpr_upper,
                "tpr": bounded(rate.tpr, limit.tpr(rate.asked)),
            }
            for rate in roc.rates
        ]
        attacks.append(
            {
                "attack": one.attack,
                "unit": one.unit,
                "members": roc.members,
                "nonmembers": roc.nonmembers,
                "auc": bounded(roc.auc, limit.auc),
                "advantage": bounded(roc.advantage, limit.advantage),
                "rates": rates,
                "limit_adjacency": limit.told or None,
                "above_limit": one.above_limit,
            }
        )
    return {
        "method": target.settings.method,
        "data": target.job.dataset.name,
        "model": target.settings.values["model"],
        "rounds": target.rounds,
        "private": proven.auc is not None,
        "not_private_because": proven.because or None,
        "confidence": found[0].roc.confidence,
        "held_out": people.told,
        "held_out_at_random": people.random,
        "held_out_are_strangers": people.strangers,
        "left_out": people.left_out,
        "adjacency": target.job.adjacency,
        "attacks": attacks,
    }


def _page(target: Target, people: People, proven: Limit, found: list[Found]) -> Page:
    rows = [
        Row(
            "AUC" if number == 0 else "",
            up(one.roc.auc.value, 4),
            f"  {_between(one.roc.auc)}, {one.name}: {one.roc.members:,} members, "
            f"{one.roc.nonmembers:,} others",
        )
        for number, one in enumerate(found)
    ]
    rows.append(Row("", "0.5", "  for guessing, or a model without training"))
    if proven.auc is None:
        rows.append(Row("limit", "none", f"  {proven.because}"))
    else:
        units: dict[tuple[float | None, str], list[str]] = {}
        for one in found:
            named = units.setdefault((one.limit.auc, one.limit.because), [])
            named += [f"by {one.unit}"] if f"by {one.unit}" not in named else []
        for (most, because), names in units.items():
            by = " or ".join(names)
            words = f"  AUC of any attack {by}, proven, on average over trainings"
            rows.append(
                Row("limit", "none", f"  {by}: {because}")
                if most is None
                else Row("limit", up(most, 4), words)
            )
    settings, data = target.settings, target.job.dataset.name
    model = f"{settings.values['model']} on {data}, {settings.method}, {target.rounds} rounds"
    held = f"{sum(map(len, people.nonmembers)):,} examples, {people.told}"
    rows += [Row("model", f"{model} of {target.files.stem}"), Row("held out", held)]
    lines: list[list[str]] = []
    for one in found:
        lines.append([one.name, "advantage", *_cells(one.roc.advantage, one.limit.advantage)])
        for rate in one.roc.rates:
            cells = _cells(rate.tpr, one.limit.tpr(rate.asked))
            if one.needed(rate):
                cells[:2] = "n/a", "too few non-members"
            lines.append(["", f"TPR at FPR {plain(rate.asked)}", *cells])
    grid = Grid(["attack", "", "observed", "interval", "proven limit"], lines)
    return Page(rows, grid=grid, remarks=_remarks(people, proven, found))


def _cells(value: Estimate, limit: float | None) -> list[str]:
    return [up(value.value, 4), _between(value), "none" if limit is None else up(limit, 4)]


def _between(value: Estimate) -> str:
    return f"{down(value.lower, 3)} to {up(value.upper, 3)}"


def _remarks(people: People, proven: Limit, found: list[Found]) -> list[str]:
    sure = plain(found[0].roc.confidence)
    alone = f"Each interval holds by itself with confidence {sure}, for this one model."
    dependent = "Examples count as independent, and those of one client rarely are."
    remarks = [f"{alone} {dependent}"]
    if proven.auc is not None:
        remarks.append(
            "The limit holds on average over trainings, for telling clients who took part from "
            "clients who did not, and for their examples. One model may lie above it by chance. "
            "Stronger attacks may find more than these."
        )
    if not people.strangers:
        remarks.append(
            "The held-out examples are of clients who took part, so that clients cannot be "
            "compared, and examples only under the limit for replacing a client."
        )
    if not people.random:
        remarks.append(
            "The test set may differ from the training examples by more than chance. It is then "
            "recognized without any memory, whatever the limit: dpacct train --hold-out 0.2 "
            "keeps clients out at random."
        )
    for one in found:
        coarse = [rate for rate in one.roc.rates if one.needed(rate)]
        if coarse:
            worst = min(coarse, key=lambda rate: rate.asked)
            remarks.append(
                f"n/a: {one.roc.nonmembers:,} held-out {one.unit}s cannot show an FPR of "
                f"{plain(worst.asked)}, which takes {one.needed(worst):,}."
            )
    if any(one.above_limit for one in found):
        remarks.append(
            "An interval lies above the limit. If that is so in other trainings too, with clients "
            "that were kept out at random, the run is not the charged mechanism."
        )
    if people.left_out:
        remarks.append(
            f"{people.left_out:,} held-out examples are a member's, too, and were left out."
        )
    return list(dict.fromkeys(remarks))
