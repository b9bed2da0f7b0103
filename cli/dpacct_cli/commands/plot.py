"""`dpacct plot ...`: charts, as text on the terminal or to files."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import dpacct
from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT, find_accountant
from dpacct.display import escaped
from dpacct.errors import InvalidParameter
from dpacct_cli import options
from dpacct_cli.commands.compare import read_costs, read_entries, read_ways
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions, Text, argument, flag, option
from dpacct_cli.output import LABEL, Force, opened, read_output, write_output
from dpacct_cli.render import to_json
from dpacct_cli.train.options import Data, DataDir, Init

if TYPE_CHECKING:
    from dpacct.pictures import Picture, Setting
    from dpacct_cli.train.job import Job

MOST = 6
# Options with several values whose name stands in a curve's name, the others by their values alone.
LABELS = {"noise_multiplier": "noise", "sampling_rate": "rate", "schedule": "", "sampling": ""}
# Options whose values have commas of their own.
WHOLE = ("release", "runs")
FPR_MARKED = "0.001,0.01,0.1"
NONE = "does not apply to these rounds"

# fmt: off
Accountants = Annotated[str, option("--accountant", "NAME,...", options.PRIVACY,
    f"Theories that prove the bounds; default {DEFAULT_ACCOUNTANT}.", known=lambda: ACCOUNTANTS)]
Target = Annotated[Text, option("--eps", "E", options.PRIVACY, "A budget, drawn as a line.")]
At = Annotated[Text, option("--eps", "E", options.PRIVACY, "An epsilon to mark.")]
Marked = Annotated[str, option("--fpr", "A,...", options.PRIVACY,
    f"False positive rates to mark; default {FPR_MARKED}.")]
Against = Annotated[str, option("--against", "epsilon|round|megabytes", options.OUTPUT,
    "The horizontal axis; default epsilon.")]
ModelFile = Annotated[str, argument("FILE",
    "A model of dpacct train (.model.pt), with its settings file in the same folder.")]
# fmt: on


class DataOptions(NamedTuple):
    """The data of a trained model, if they do not lie beside it."""

    data: Data = None
    data_dir: DataDir = None


class PictureOptions(NamedTuple):
    """The options that say where a picture goes."""

    output: Annotated[Text, option(f"{LABEL} -o", "FILE", options.OUTPUT,
        "Write a .png, .svg or .pdf file instead of text.")] = None  # fmt: skip
    force: Force = False
    as_json: Annotated[bool, flag("--json", options.OUTPUT,
        "Print the data of the picture.")] = False  # fmt: skip

    def file(self, *, curves: bool = True) -> Path | None:
        """Return the file, if a picture can be written there, before anything is computed.

        Without a file, check that the terminal can show ``curves``.
        """
        file = read_output(self.output, force=self.force)
        from dpacct.pictures.drawing import check_packages, format_of

        if file is not None:
            check_packages(format_of(file, LABEL))
        elif curves and not self.as_json:
            check_packages("text")
        return file

    def write(self, picture: Picture, file: Path) -> None:
        """Draw a picture into a file."""
        from dpacct.pictures import Drawing
        from dpacct.pictures.drawing import format_of

        content = Drawing(picture).to_bytes(format_of(file, LABEL))
        write_output(content, file, force=self.force)

    def put(self, picture: Picture) -> None:
        """Draw a picture, and write or print it."""
        from dpacct.pictures import Drawing

        file = self.file(curves=False)
        if file is not None:
            self.write(picture, file)
        if self.as_json:
            print(to_json(picture))
        elif file is not None:
            print(f"{escaped(picture.title)}: {file}")
        else:
            sized = "COLUMNS" in os.environ or sys.stdout.isatty()
            columns = shutil.get_terminal_size().columns if sized else 80
            print(f"\n{Drawing(picture).text(columns)}")


def eps(
    *,
    typed: MechanismOptions,
    delta: options.Delta = None,
    target: Target = None,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    to: PictureOptions,
) -> None:
    """Draw epsilon by round. Values with commas become several curves.

    Examples:
      dpacct plot eps --noise 1,1.5,2 --rounds 300 --q 0.1 --eps 8
      dpacct plot eps --noise 1 --rounds 300 --q 0.1 --accountant tight,rdp -o eps.svg
    """
    to.file()
    budget = None if target is None else validate.target_epsilon(options.number(target))
    at = typed.read_delta(delta)
    to.put(
        dpacct.pictures.epsilon_picture(read_settings(typed, accountant), at.value, target=budget)
    )


def delta(
    *,
    typed: MechanismOptions,
    at: At = None,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    to: PictureOptions,
) -> None:
    """Draw delta against epsilon. Values with commas become several curves.

    Example:
      dpacct plot delta --noise 1 --rounds 300 --q 0.1 --eps 8
    """
    to.file()
    epsilon = None if at is None else validate.epsilon(options.number(at))
    to.put(dpacct.pictures.delta_picture(read_settings(typed, accountant), epsilon))


def tradeoff(
    *,
    typed: MechanismOptions,
    fpr: Marked = FPR_MARKED,
    accountant: Accountants = DEFAULT_ACCOUNTANT,
    to: PictureOptions,
) -> None:
    """Draw the largest true positive rate of an attack against its false positive rate.

    Example:
      dpacct plot tradeoff --noise 1 --rounds 300 --q 0.1
    """
    to.file()
    marked = options.read_rates(fpr)
    to.put(dpacct.pictures.tradeoff_picture(read_settings(typed, accountant), marked))


def rdp(*, typed: MechanismOptions, delta: options.Delta = None, to: PictureOptions) -> None:
    """Draw Renyi divergence by order, with the order that is best at a delta.

    Example:
      dpacct plot rdp --noise 1,2 --rounds 300 --q 0.1
    """
    to.file()
    at = typed.read_delta(delta)
    to.put(dpacct.pictures.rdp_picture(read_settings(typed, "rdp"), at.value))


def schedule(*, typed: MechanismOptions, to: PictureOptions) -> None:
    """Draw noise and sampling rate by round.

    Example:
      dpacct plot schedule --schedule rounds.toml
    """
    to.file()
    typed.refuse_unused_clients()
    to.put(dpacct.pictures.schedule_picture(typed.read_schedule()))


def compare(*, typed: MechanismOptions, delta: options.Delta = None, to: PictureOptions) -> None:
    """Draw epsilon by accountant, with other packages if they are installed.

    Example:
      dpacct plot compare --noise 1 --rounds 300 --q 0.1
    """
    to.file(curves=False)
    at = typed.read_delta(delta)
    typed.refuse_unused_clients()
    plan = typed.read_schedule()
    # dpacct compare says why an accountant does not apply.
    answers = [
        (entry.name, *entry.ends, NONE if entry.epsilon is None else "")
        for entry in read_entries(plan, at.value, dpacct.interop.installed_peers())
    ]
    to.put(dpacct.pictures.compare_picture(plan, at.value, answers))


def samplings(*, typed: MechanismOptions, delta: options.Delta = None, to: PictureOptions) -> None:
    """Draw epsilon of one training job by each way of drawing its batches.

    Example:
      dpacct plot samplings --examples 60000 --batch 600 --epochs 10 --noise 1
    """
    to.file(curves=False)
    at = typed.read_delta(delta)
    ways = read_ways(typed)
    costs = read_costs(ways, at.value)
    answers = [(cost.name, *cost.ends, cost.note) for cost in costs]
    plan = ways[0].schedule
    note = f"{plan.rounds:,} steps of one job, {plan.adjacency}"
    to.put(dpacct.pictures.compare_picture(plan, at.value, answers, note))


def ledger(
    file: Annotated[str, argument("FILE", "The ledger of a data set.")],
    *,
    to: PictureOptions,
) -> None:
    """Draw the spent budget, by round and run.

    Example:
      dpacct plot ledger census.ledger -o spent.png
    """
    to.file()

    with opened(file) as book:
        report = book.report()
    to.put(dpacct.pictures.ledger_picture(report))


def train(
    files: Annotated[str, argument("FILE,...", "Reports of dpacct train (.report.jsonl).")],
    *,
    against: Against = "epsilon",
    to: PictureOptions,
) -> None:
    """Draw accuracy against epsilon, rounds or communication, from the reports of dpacct train.

    Example:
      dpacct plot train one.report.jsonl,two.report.jsonl -o accuracy.png
    """
    to.file()
    if not files:
        raise InvalidParameter("FILE", None, "name a report, or several separated by commas")
    to.put(
        dpacct.pictures.runs_picture(
            [dpacct.pictures.read_run(part.strip(), against) for part in files.split(",")], against
        )
    )


def landscape(model: ModelFile, *, where: DataOptions, to: PictureOptions) -> None:
    """Draw the loss along random directions around a trained model, on its test data.

    Example:
      dpacct plot landscape dp-fedavg-digits.model.pt
    """
    from dpacct.fl import inspect
    from dpacct.fl.models import cross_entropy

    to.file()
    job, _ = _trained(model, **where._asdict())
    lengths = [step / 4 for step in range(-4, 5)]
    tested = job.tested.map(lambda values: values[:1000])
    lines = inspect.losses_on_lines(job.model, cross_entropy, tested, lengths, directions=5)
    means, least = ([f(losses) for losses in zip(*lines, strict=True)] for f in (_mean, min))
    label = "distance, in lengths of the filters; 5 directions, band down to the least loss"
    _put(job, model, to, label, "loss", (lengths, means, least))


def spectrum(
    model: ModelFile, *, where: DataOptions, init: Init = None, to: PictureOptions
) -> None:
    """Draw the Fourier spectrum of the trained changes. White noise is a flat line.

    Example:
      dpacct plot spectrum dp-fedavg-digits.model.pt
    """
    from dpacct.fl import inspect

    to.file()
    job, start = _trained(model, begun=True, init=init, **where._asdict())
    changes = [value.detach().cpu() - start[name] for name, value in job.model.named_parameters()]
    power = inspect.power_spectrum(max(changes, key=lambda change: change.numel()), 64)
    frequencies = [(place + 0.5) / (2 * len(power)) for place in range(len(power))]
    label = "frequency, in cycles a weight, of the largest tensor in its order"
    _put(job, model, to, label, "power", (frequencies, power, None))


def norms(model: ModelFile, *, where: DataOptions, to: PictureOptions) -> None:
    """Draw a histogram of the norms of updates before clipping, of 50 clients of test data.

    Example:
      dpacct plot norms dp-fedavg-digits.model.pt
    """
    from dpacct.fl import inspect
    from dpacct.fl.models import cross_entropy

    to.file()
    job, _ = _trained(model, **where._asdict())
    count = min(50, len(job.tested))
    clients = [job.tested.map(lambda values: values[place::count]) for place in range(count)]  # noqa: B023
    rate = job.keywords["local"].lr if job.keywords["local"] else 1.0
    lengths = inspect.update_norms(job.model, cross_entropy, clients, lr=rate, steps=5)
    edges = [max(lengths) * place / 20 for place in range(21)]
    shares = [sum(a < length <= b for length in lengths) / count for a, b in pairwise(edges)]
    label = f"length of the update in 5 steps of rate {rate:g}"
    _put(job, model, to, label, "share of clients", (edges[1:], shares, None))


def _trained(file: str, *, begun: bool = False, **typed: str | None) -> tuple[Job, dict[str, Any]]:
    """Return the job of a trained model, with its parameters, and if asked those it began with."""
    from dpacct.fl.models import load_parameters
    from dpacct_cli.train.files import SETTINGS
    from dpacct_cli.train.job import build_job
    from dpacct_cli.train.settings import load, looked_at

    beside = Path(f"{file.removesuffix('.model.pt')}{SETTINGS}")
    if not file.endswith(".model.pt") or not beside.is_file():
        rule = f"a model of dpacct train is NAME.model.pt, beside NAME{SETTINGS}"
        raise InvalidParameter("FILE", file, rule)
    settings = replace(load(beside), ledger=None)
    kept = {key: text for key, text in settings.values.items() if begun or key != "init"}
    job = build_job(looked_at(replace(settings, values=kept), beside, typed))
    start = {name: value.detach().cpu().clone() for name, value in job.model.named_parameters()}
    load_parameters(job.model, file)
    return job, start


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _put(
    job: Job, file: str, to: PictureOptions, x: str, y: str, curve: tuple[Any, Any, Any]
) -> None:
    """Draw one curve. A figure computed on private data is called unprotected."""
    guard = "" if job.dataset.test_data == "public" else "unprotected: "
    drawn = (dpacct.pictures.Curve("", *curve),)
    panel = dpacct.pictures.Panel(x, f"{guard}{y}", drawn, from_zero=y != "loss")
    to.put(dpacct.pictures.Picture(f"{Path(file).name}: {y}", (panel,)))


COMMANDS = {
    "eps": eps,
    "delta": delta,
    "tradeoff": tradeoff,
    "rdp": rdp,
    "schedule": schedule,
    "compare": compare,
    "samplings": samplings,
    "ledger": ledger,
    "train": train,
    "landscape": landscape,
    "spectrum": spectrum,
    "norms": norms,
}


def read_settings(typed: MechanismOptions, accountant: str) -> list[Setting]:
    """Return every combination of the values, each named by the values that differ."""
    texts = {"accountant": accountant, **typed.texts}
    lists = {
        field: [text] if field in WHOLE else [part.strip() for part in text.split(",")]
        for field, text in texts.items()
    }
    total = math.prod(map(len, lists.values()))
    if total > MOST:
        raise OptionConflict(
            f"that is {total} settings, and a picture holds {MOST}. Give fewer values, separated "
            "by commas."
        )
    settings: list[Setting] = []
    for values in product(*lists.values()):
        chosen = dict(zip(lists, values, strict=True))
        engine = find_accountant(chosen.pop("accountant"))
        varied = {key: value for key, value in chosen.items() if len(lists[key]) > 1}
        words = [f"{LABELS.get(key, key)} {value}".strip() for key, value in varied.items()]
        words += [engine.name] if len(lists["accountant"]) > 1 else []
        one = typed.but(**chosen)
        one.refuse_unused_clients()
        plan = one.read_schedule()
        settings.append(dpacct.pictures.Setting(", ".join(words), plan, engine.name))
    return settings
