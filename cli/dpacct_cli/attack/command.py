"""`dpacct attack`: who was in the training data? Tried on a checkpoint of `dpacct train`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct_cli import options
from dpacct_cli.errors import conflict
from dpacct_cli.options import Style, argument, number, option
from dpacct_cli.output import LABEL, Force, read_output, write_bytes
from dpacct_cli.plot.output import Dark
from dpacct_cli.render import Answer, show
from dpacct_cli.train import options as train_options

if TYPE_CHECKING:
    from pathlib import Path

    from dpacct_cli.attack.page import Found

ATTACKS = ("loss", "lira")
SHADOWS = "16"

Checkpoint = Annotated[
    str,
    argument(metavar="CHECKPOINT", help="Of a run of dpacct train; its settings stand beside it."),
]
AttackName = Annotated[
    str | None,
    option(
        "--method",
        metavar="|".join(ATTACKS),
        help="loss: a small loss makes a member. lira: likelihood ratio against shadow models, "
        "beside it. Default loss; lira where --shadows is given.",
    ),
]
ShadowCount = Annotated[
    str | None,
    option(
        "--shadows",
        metavar="N",
        help=f"Shadow models of lira, each trained like the run; default {SHADOWS}.",
    ),
]
Most = Annotated[
    str | None,
    option(
        "--examples",
        metavar="N",
        help="Look at clients with about so many examples on each side; default 10000.",
    ),
]
Confidence = Annotated[
    str,
    option(
        "--confidence",
        metavar="C",
        help="Of each interval, in (0, 1); default 0.95.",
    ),
]
Rates = Annotated[
    str,
    option(
        "--fpr",
        metavar="A,...",
        help="False positive rates in (0, 1) at which attacks are judged; default 0.01,0.001.",
    ),
]
PictureFile = Annotated[
    str | None,
    option(LABEL, "-o", metavar="FILE", help="Draw the curves into a .png, .svg or .pdf file."),
]


def attack(
    checkpoint: Checkpoint,
    data: train_options.Data = None,
    data_dir: train_options.DataDir = None,
    method: AttackName = None,
    shadows: ShadowCount = None,
    examples: Most = None,
    fpr: Rates = "0.01,0.001",
    confidence: Confidence = "0.95",
    output: PictureFile = None,
    dark: Dark = False,
    force: Force = False,
    device: train_options.Device = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Tells members from others by a trained model, and shows the proven limit beside it.

    -q prints the AUC alone, by client where clients can be compared.

    Examples:
      dpacct attack dp-fedavg-digits.checkpoint
      dpacct attack dp-fedavg-digits.checkpoint --shadows 16 -o roc.png
      dpacct attack dp-fedavg-mnist.checkpoint --data mnist --data-dir data --json
    """
    style = options.read_style(as_json, quiet)
    if not checkpoint:
        raise InvalidParameter("CHECKPOINT", None, "name a checkpoint of dpacct train")
    count = _shadow_count(method, shadows)
    rates = _read_rates(fpr)
    sure = validate.positive_probability(
        "--confidence", number(confidence), "a confidence", below_one=True
    )
    most = validate.count("--examples", number(examples or "10000"), "the number of examples")
    file = read_output(output, force=force)
    if file is not None:
        from dpacct.pictures.drawing import format_of

        format_of(file, LABEL)
    if find_spec("torch") is None:
        raise Unsupported(
            "attacks on models need PyTorch, which is not installed: pip install -e '.[fl]'"
        )
    # PyTorch is imported here, once everything that can be checked without it has been.
    from dpacct.fl.attacks import likelihood_attack, loss_attack
    from dpacct.fl.models import cross_entropy
    from dpacct_cli.attack.limit import proven
    from dpacct_cli.attack.page import Found, keys, page
    from dpacct_cli.attack.people import people_of
    from dpacct_cli.attack.shadows import LikeTheRun, noise_of_run
    from dpacct_cli.attack.target import read_target

    target = read_target(checkpoint, data, {"data_dir": data_dir, "device": device})
    people = people_of(target, most)
    limits = proven(target, strangers=people.strangers)
    tried = {
        "loss threshold": loss_attack(
            target.job.model, cross_entropy, people.members, people.nonmembers,
            confidence=sure, fpr=rates,
        )
    }  # fmt: skip
    if count:
        tried["likelihood ratio"] = likelihood_attack(
            target.job.model,
            people.members,
            people.nonmembers,
            LikeTheRun(target, noise_of_run(target), count),
            shadows=count,
            confidence=sure,
            fpr=rates,
        )
    found: list[Found] = []
    for name, result in tried.items():
        if people.strangers:
            found.append(Found(name, "client", result.clients, limits.clients))
        found.append(Found(name, "example", result.examples, limits.examples))
    if file is not None:
        _draw(found, file, dark=dark, force=force)
    answer = Answer(
        keys(target, people, limits, found),
        repr(found[0].roc.auc.value),
        lambda: page(target, people, limits, found),
    )
    show(answer, style)
    if file is not None and style is Style.HUMAN:
        print(f"picture: {file}", file=sys.stderr)


def _shadow_count(method: str | None, shadows: str | None) -> int:
    """How many shadow models are trained; none for the loss alone."""
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


def _read_rates(text: str) -> list[float]:
    noun = "a false positive rate"
    return [
        validate.positive_probability("fpr", number(part.strip()), noun, below_one=True)
        for part in text.split(",")
    ]


def _draw(found: list[Found], file: Path, *, dark: bool, force: bool) -> None:
    """The attacks whose limit is the first one's, below it."""
    from dpacct.pictures import Drawing, roc_picture
    from dpacct.pictures.drawing import format_of

    limit = found[0].limit
    shown = [(one.name, one.roc) for one in found if one.limit is limit]
    note = "one model; the limit is proven on average over trainings"
    if limit.attacks is None:
        note = limit.because
    picture = roc_picture(shown, None if limit.attacks is None else limit.tpr, note)
    content = Drawing(picture, dark=dark).to_bytes(format_of(file, LABEL))
    write_bytes(content, file, force=force)
