"""`dpacct compare`: our accountants, and installed peers, side by side on one setting."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval, Spent
from dpacct.errors import NotConverged, Unsupported
from dpacct.rounds import Round, Schedule
from dpacct_cli import mechanism, options, waiting
from dpacct_cli.options import MechanismOptions
from dpacct_cli.render import Answer, Grid, Page, down, seconds, show, up

# An ordinary noise multiplier that nobody types, so that no cache holds an answer afterwards.
WARM_UP_NOISE = 1.23456789


@dataclass(frozen=True, slots=True)
class Entry:
    """What one accountant answered. A peer gives one number, which is its upper bound.

    ``spent`` is ours alone: what is proven, at the delta that was asked for.
    """

    name: str
    kind: str
    lower: float | None
    upper: float | None
    seconds: float
    note: str
    spent: Spent | None = None


def compare(
    noise: options.Noise = None,
    rounds: options.Rounds = None,
    q: options.Rate = None,
    delta: options.Delta = None,
    schedule: options.ScheduleFile = None,
    sampling: options.SamplingName = None,
    cohort: options.Cohort = None,
    clients: options.Clients = None,
    epochs: options.Epochs = None,
    adjacency: options.AdjacencyName = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Compare all accountants, with the time that each one takes.

    dp-accounting and Opacus join where they are installed. --quiet prints the smallest epsilon
    that is proven here.

    Example:
      dpacct compare --noise 1.36 --rounds 300 --q 0.1 --delta 1e-5
    """
    style = options.read_style(as_json, quiet)
    typed = MechanismOptions(
        noise, rounds, q, schedule, sampling, cohort, clients, adjacency, epochs
    )
    at = typed.read_delta(delta)
    plan = typed.read_schedule()
    from dpacct import interop

    # The number alone is ours, so a peer would only cost time.
    peers = () if style is options.Style.QUIET else interop.installed_peers()
    entries: list[Entry] = []
    for name, engine in ACCOUNTANTS.items():
        waiting.say(f"dpacct compare, {name}")
        entries.append(_measure(name, "ours", engine.epsilon, plan, at.value))
    for peer in peers:
        waiting.say(f"dpacct compare, {peer.name}")
        entries.append(_measure(peer.name, "peer", peer.epsilon, plan, at.value))
    best = min(
        (entry for entry in entries if entry.spent is not None),
        key=lambda entry: math.inf if entry.spent is None else entry.spent.upper,
        default=None,
    )
    if best is None or best.spent is None:
        raise Unsupported(f"no accountant applies: {entries[0].note}")
    smallest = best.spent

    def page() -> Page:
        rows = [
            mechanism.epsilon_row(smallest, proven=best.name),
            *mechanism.rows(plan, ratio_only=typed.ratio_only),
        ]
        again = f"{typed.retyped()}{at.retyped} --accountant {best.name}"
        closing = f"dpacct epsilon {again} shows what the smallest one rests on."
        if not peers:
            closing = "pip install 'dpacct[interop]' adds dp-accounting and Opacus to the table."
        note = mechanism.with_moved_delta(mechanism.delta_note(at.value, typed.num_clients), at)
        return Page(rows, _grid(entries), _reasons(entries), closing, note)

    data: dict[str, object] = {
        "results": [_as_json(entry) for entry in entries],
        "delta": smallest.delta,
        **mechanism.keys(plan),
        **mechanism.phase_list(plan),
    }
    show(Answer(data, repr(smallest.upper), page), style)


def _measure(
    name: str,
    kind: str,
    answer: Callable[[Schedule, float], Interval | float],
    plan: Schedule,
    delta: float,
) -> Entry:
    _warm_up(answer, plan, delta)
    try:
        start = time.perf_counter()
        found = answer(plan, delta)
        elapsed = time.perf_counter() - start
    except (Unsupported, NotConverged) as error:
        return Entry(name, kind, None, None, 0.0, str(error))
    if isinstance(found, Interval):
        spent = Spent.at(delta, found)
        return Entry(name, kind, found.lower, found.upper, elapsed, "", spent)
    if not math.isfinite(found):
        return Entry(name, kind, None, None, elapsed, f"it answers {found}")
    return Entry(name, kind, None, found, elapsed, "")


def _warm_up(answer: Callable[[Schedule, float], object], plan: Schedule, delta: float) -> None:
    """One easy question first, so that imports are not part of the time."""
    first = plan.phases[0].round
    with suppress(Unsupported, NotConverged):
        answer(1 * Round(WARM_UP_NOISE, first.sampling, first.adjacency), delta)


def _as_json(entry: Entry) -> dict[str, object]:
    known = entry.upper is not None
    return {
        "name": entry.name,
        "kind": entry.kind,
        "epsilon": {"lower": entry.lower, "upper": entry.upper} if known else None,
        "seconds": entry.seconds,
        "note": entry.note,
    }


def _grid(entries: list[Entry]) -> Grid:
    lines = [
        [
            _shown_name(entry),
            up(entry.upper),
            "-" if entry.lower is None else down(entry.lower),
            seconds(entry.seconds),
            "proven" if entry.kind == "ours" else "its own claim",
        ]
        for entry in entries
        if entry.upper is not None
    ]
    return Grid(["accountant", "epsilon", "achieved", "time", ""], lines)


def _reasons(entries: list[Entry]) -> list[str]:
    """Why some gave no number."""
    return [f"{_shown_name(entry)}: {entry.note}" for entry in entries if entry.note]


def _shown_name(entry: Entry) -> str:
    return f"dpacct {entry.name}" if entry.kind == "ours" else entry.name
