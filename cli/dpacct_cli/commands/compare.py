"""`dpacct compare`: our accountants, and installed peers, side by side on one setting."""

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import Interval, Spent
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import NotConverged, Unsupported
from dpacct.packages import install_command
from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct_cli import mechanism, options, outputs, waiting
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions, StyleOptions
from dpacct_cli.outputs import Answered
from dpacct_cli.render import Answer, Grid, Page, Style, down, seconds, show, up
from dpacct_cli.words import called, in_units

# An unusual noise multiplier, so that no cache holds an answer afterwards.
WARM_UP_NOISE = 1.23456789
RELATION = Adjacency.ZERO_OUT
# Why one of our accountants does not apply. Its error names the rounds as Python prints them.
COVERS = {
    "gdp": "it covers full participation only",
    "closed-form": "no published closed form covers these rounds "
    "(docs/derivations/closed-forms.md)",
}


class Way(NamedTuple):
    """A way of drawing batches: its name, what it does, and the job as a schedule."""

    name: str
    words: str
    schedule: Schedule


def compare(*, typed: MechanismOptions, delta: options.Delta = None, shown: StyleOptions) -> None:
    """Compare all accountants, with the time that each one takes.

    dp-accounting and Opacus join if they are installed. --quiet prints the smallest epsilon that
    is proven here. Examples, batch and epochs without --sampling describe a training job: a second
    table shows its cost by each way of drawing the batches.

    Examples:
      dpacct compare --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
      dpacct compare --examples 60000 --batch 600 --epochs 10 --noise 1
    """
    style = shown.style
    at = typed.read_delta(delta)
    plan = typed.read_schedule()
    from dpacct import interop

    # The number alone is ours, so a peer would only cost time.
    peers = () if style is Style.QUIET else interop.installed_peers()
    entries = read_entries(plan, at.value, peers)
    proven = [
        (entry.epsilon.upper, entry.epsilon.lower, entry.name)
        for entry in entries
        if entry.kind == "ours" and entry.epsilon is not None
    ]
    if not proven:
        raise Unsupported(f"no accountant applies: {entries[0].note}")
    upper, lower, best = min(proven, key=lambda one: one[0])
    job = style is not Style.QUIET and describes_job(typed)
    ways = read_ways(typed) if job else []
    costs = read_costs(ways, at.value)
    smallest = Spent(lower, upper, at.value)

    def page() -> Page:
        rows = [
            mechanism.epsilon_row(smallest, proven=best),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
            *mechanism.population_rows(at.value, typed),
        ]
        again = f"{typed.retyped()}{at.retyped} --accountant {best}"
        closing = f"dpacct epsilon {again} shows details of the smallest one."
        if not peers:
            closing = f"{install_command('interop')} adds dp-accounting and Opacus to the table."
        reasons = [f"{entry.shown_name}: {entry.note}" for entry in entries if entry.note]
        note = mechanism.delta_note(at.value, typed.num_clients)
        reasons += [f"{cost.name}: {cost.note}" for cost in costs if cost.note]
        first = f"sampling ({RELATION})"
        proofs = ["proven" if entry.kind == "ours" else "not proven here" for entry in entries]
        calls = [f"{entry.shown_name}: {entry.call}" for entry in entries if entry.call]
        reasons = [*calls, *reasons]
        grids = [_grid("accountant", entries, proofs)]
        if costs:
            grids.append(_grid(first, costs, [way.words for way in ways]))
        return Page(rows, grids, reasons, closing, note)

    data: outputs.Compare = {"results": entries, "delta": at.value, **typed.described(plan)}
    if costs:
        data["samplings"] = [
            outputs.Drawing(
                way.name, way.words, cost.epsilon, str(RELATION), cost.seconds, cost.note
            )
            for way, cost in zip(ways, costs, strict=True)
        ]
    show(Answer(data, repr(smallest.upper), page), style)


def read_entries(plan: Schedule, delta: float, peers: Sequence[Any]) -> list[Answered]:
    """Return the answers of all our accountants, and of these peers."""
    asked: list[Any] = [*ACCOUNTANTS.values(), *peers]
    entries: list[Answered] = []
    for done, engine in enumerate(asked):
        waiting.say(f"dpacct compare: {engine.name}", done, len(asked))
        kind = "ours" if done < len(ACCOUNTANTS) else "peer"
        entries.append(_measure(engine.name, kind, engine, plan, delta))
    return entries


def describes_job(typed: MechanismOptions) -> bool:
    """Return True if the options give examples, batch and epochs, and leave the sampling open."""
    job = ("epochs", "cohort_size", "num_clients")
    others = typed.but(noise_multiplier=None, **dict.fromkeys(job))
    return all(field in typed for field in job) and not others


def read_ways(typed: MechanismOptions) -> list[Way]:
    """Return the ways of drawing the batches of a training job."""
    if not describes_job(typed):
        raise OptionConflict(
            f"a training job is {called('--clients')}, {called('--cohort')}, --epochs and --noise."
        )
    noise = typed.value("noise_multiplier") or validate.noise_multiplier(None)
    rounds, poisson = typed.read_rounds(), typed.read_sampling()
    one = rounds * Round(noise, Poisson(poisson.sampling_rate), RELATION)
    cohort, clients = typed.value("cohort_size"), typed.value("num_clients")
    epochs, steps = math.ceil(typed.value("epochs")), -(-clients // cohort)
    unit, whole = in_units("each client"), f"{epochs} x {steps} steps"
    drawn = in_units(f"exactly {cohort} clients, drawn afresh in each step")
    fixed = rounds * Round(noise, Uniform(cohort, clients), RELATION)
    allocated = epochs * Epoch(noise, steps, adjacency=RELATION)
    shuffled = epochs * ShuffledEpoch(noise, steps, adjacency=RELATION)
    return [
        Way("poisson", f"{unit} joins each step with the same probability", one),
        Way("allocation", f"{unit} in one random step of an epoch ({whole})", allocated),
        Way("uniform", drawn, fixed),
        Way("shuffle", f"a data loader that shuffles ({whole})", shuffled),
    ]


def read_costs(ways: Sequence[Way], delta: float) -> list[Answered]:
    """Return the cost of a job by each way of drawing its batches."""
    costs: list[Answered] = []
    for done, way in enumerate(ways):
        waiting.say(f"dpacct compare: {way.name}", done, len(ways))
        engine = ACCOUNTANTS[DEFAULT_ACCOUNTANT]
        costs.append(_measure(way.name, "peer", engine, way.schedule, delta))
    return costs


def _measure(
    name: str, kind: Literal["ours", "peer"], engine: Any, plan: Schedule, delta: float
) -> Answered:
    # One easy question first, so that imports are not part of the time.
    first = plan.phases[0].round
    easy = first
    if isinstance(first, Round):
        easy = Round(WARM_UP_NOISE, first.sampling, first.adjacency)
    with suppress(Unsupported, NotConverged):
        engine.epsilon(1 * easy, delta)
    try:
        start = time.perf_counter()
        answer = engine.epsilon(plan, delta)
        elapsed = time.perf_counter() - start
    except Unsupported as error:
        why = COVERS.get(name, str(error)) if kind == "ours" else str(error)
        return Answered(name, kind, note=why)
    except NotConverged as error:
        return Answered(name, kind, note=str(error))
    if isinstance(answer, Interval):
        return Answered(name, kind, answer, elapsed)
    if not math.isfinite(answer):
        return Answered(name, kind, seconds=elapsed, note=f"it answers {answer}")
    return Answered(name, kind, Interval(-math.inf, answer), elapsed, call=engine.call(plan))


def _grid(first: str, entries: Sequence[Answered], last: Sequence[str]) -> Grid:
    """Return a table of answers, with a name for the first column and the cells of the last one."""
    lines: list[list[str]] = []
    for entry, cell in zip(entries, last, strict=True):
        if (bracket := entry.epsilon) is not None:
            lower = down(bracket.lower) if math.isfinite(bracket.lower) else "-"
            lines.append([entry.shown_name, up(bracket.upper), lower, seconds(entry.seconds), cell])
    return Grid([first, "epsilon", "achieved", "time", ""], lines)
