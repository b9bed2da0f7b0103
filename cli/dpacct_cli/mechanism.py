"""What runs, as JSON keys and in words: no number leaves without its sampling and adjacency."""

from __future__ import annotations

from decimal import Decimal

from dpacct.accountant import find_accountant
from dpacct.budget import Spent
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import Adjacency, Full, Poisson, Round, Sampling, Schedule, Uniform
from dpacct.tight.accountant import TightAccountant
from dpacct_cli.options import ReadDelta
from dpacct_cli.render import Row, bracket, down, noise, plain, rate, shown_delta, up
from dpacct_cli.words import in_units

MAX_PHASES_SHOWN = 6

NEIGHBOURS = {
    Adjacency.ADD_REMOVE: "add-remove a client",
    Adjacency.REPLACE_ONE: "replace one client",
    Adjacency.ZERO_OUT: "zero out one client",
}


def single_round(schedule: Schedule) -> Round | None:
    """The round of which the schedule consists, or None where there are several."""
    rounds = schedule.distinct()
    return next(iter(rounds)) if len(rounds) == 1 else None


def common_sampling(schedule: Schedule) -> str | None:
    """The name of the sampling scheme that all rounds share."""
    names = {round_.sampling.name for round_ in schedule.distinct()}
    return names.pop() if len(names) == 1 else None


def phase_list(schedule: Schedule) -> dict[str, object]:
    """The phases as JSON, where one noise multiplier and one rate do not say it all."""
    if single_round(schedule) is not None:
        return {}
    return {
        "phases": [
            {
                "rounds": count,
                "noise_multiplier": round_.noise_multiplier,
                "sampling": round_.sampling.name,
                "sampling_rate": round_.sampling_rate,
            }
            for round_, count in schedule
        ]
    }


def keys(schedule: Schedule) -> dict[str, object]:
    """The JSON keys that say what runs."""
    only = single_round(schedule)
    return {
        "rounds": schedule.rounds,
        "sampling": common_sampling(schedule),
        "sampling_rate": None if only is None else only.sampling_rate,
        "adjacency": str(schedule.adjacency),
        "noise_multiplier": None if only is None else only.noise_multiplier,
    }


def _who(sampling: Sampling, *, ratio_only: bool = False) -> str:
    return in_units(_clients_of(sampling, ratio_only=ratio_only))


def _clients_of(sampling: Sampling, *, ratio_only: bool) -> str:
    match sampling:
        case Poisson(sampling_rate):
            return f"Poisson sampling at rate {rate(sampling_rate)}"
        case Uniform(cohort_size, num_clients):
            if ratio_only:
                return f"a fixed share {rate(sampling.sampling_rate)} without replacement"
            return f"{cohort_size} of {num_clients} clients without replacement"
        case Full():
            return "every client in every round"


def _count(rounds: int) -> str:
    return "1 round" if rounds == 1 else f"{rounds} rounds"


def rows(schedule: Schedule, *, ratio_only: bool = False) -> list[Row]:
    """What runs, in words.

    Args:
        schedule: the rounds.
        ratio_only: a uniform cohort was given by its share, so its size is not known.
    """
    only = single_round(schedule)
    neighbors = in_units(NEIGHBOURS[schedule.adjacency])
    if only is not None:
        who = _who(only.sampling, ratio_only=ratio_only)
        return [Row("mechanism", f"{_count(schedule.rounds)}, {who}, {neighbors}")]
    phases = schedule.phases
    head = f"{_count(schedule.rounds)} in {len(phases)} phases, {neighbors}"
    found = [Row("mechanism", head)]
    found += [
        Row("", f"{_count(count)}, noise {noise(round_.noise_multiplier)}, {_who(round_.sampling)}")
        for round_, count in phases[:MAX_PHASES_SHOWN]
    ]
    if len(phases) > MAX_PHASES_SHOWN:
        found.append(Row("", f"and {len(phases) - MAX_PHASES_SHOWN} more phases"))
    return found


def noise_rows(schedule: Schedule, *, clients: int | None, clip_norm: float | None) -> list[Row]:
    """The noise in the units of the sum and of the mean, and what one client can move.

    Args:
        schedule: the rounds; with several distinct ones there is no single noise to speak of.
        clients: the population, if it is known.
        clip_norm: the clip norm, if it is known.
    """
    only = single_round(schedule)
    if only is None:
        return []
    # Decimal, so that 2.4 / 100 is 0.024 and is not rounded up to 0.024001.
    std = Decimal(repr(only.noise_multiplier)) * Decimal(repr(clip_norm or 1.0))
    unit = " x clip norm" if clip_norm is None else ""
    parts = [f"{up(std)}{unit} on the sum"]
    if clients is not None:
        cohort = Decimal(repr(only.sampling_rate)) * clients
        mean = f"{up(std / cohort)}{unit}"
        planned = in_units(f"the planned {plain(float(cohort))} clients")
        parts.append(f"{mean} on the mean of {planned}")
    moved = "2 x clip norm" if clip_norm is None else plain(2.0 * clip_norm)
    found: list[Row] = []
    if clients is not None or clip_norm is not None:
        found.append(Row("noise std", ", ".join([*parts, "per coordinate"])))
    elif schedule.adjacency is Adjacency.REPLACE_ONE:
        found.append(Row("noise std", parts[0]))
    if schedule.adjacency is Adjacency.REPLACE_ONE:
        found.append(Row("", in_units(f"replacing a client moves the sum by up to {moved}")))
    elif schedule.adjacency is Adjacency.ADD_REMOVE and isinstance(only.sampling, Uniform):
        why = in_units("the cohort stays full, so an added client displaces another")
        found.append(Row("", f"{why} and moves the sum by up to {moved}"))
    return found


def noise_keys(
    schedule: Schedule, *, clients: int | None, clip_norm: float | None
) -> dict[str, object]:
    """The JSON keys that a clip norm adds: the noise in its units, on the sum and on the mean."""
    only = single_round(schedule)
    if clip_norm is None or only is None:
        return {}
    # Decimal, as in what is shown.
    std = Decimal(repr(only.noise_multiplier)) * Decimal(repr(clip_norm))
    found: dict[str, object] = {"clip_norm": clip_norm, "noise_std": float(std)}
    if clients is not None:
        found["noise_std_mean"] = float(std / (Decimal(repr(only.sampling_rate)) * clients))
    return found


def accountant_row(schedule: Schedule, delta: float, name: str) -> Row:
    """Which theory proves the number, and for Renyi at which order."""
    engine = find_accountant(name)
    if isinstance(engine, TightAccountant):
        how = engine.game_or_why(schedule, delta)
        return Row("accountant", f"{name}, {how}" if how else name)
    if not isinstance(engine, RenyiAccountant):
        return Row("accountant", name)
    order = engine.best_order(schedule, delta)
    # Near 1 an order is known by its distance from 1.
    shown = f"{order:.4g}" if order >= 1.01 else f"1 + {order - 1:.2g}"
    return Row("accountant", f"{name}, order {shown} won")


def epsilon_row(spent: Spent, origin: str = "", *, lead: str = "", proven: str = "") -> Row:
    """Epsilon beside the delta at which it was computed; there is no other way to show both.

    Args:
        spent: from whoever computed it.
        origin: where delta comes from, if nobody chose it.
        lead: what has to be said before delta.
        proven: by whom, where the proven side alone is shown.
    """
    value = bracket(spent.interval) if not proven else f"{up(spent.upper)} proven"
    by = f"by {proven}, " if proven else ""
    if not origin:
        return Row("epsilon", value, f"  {by}{lead}at delta {plain(spent.delta)}")
    return Row("epsilon", value, f"  {by}{lead}at delta {shown_delta(spent.delta)} ({origin})")


# Without a population nobody can say what delta is small enough, but this is not.
LARGE_DELTA = 1e-3
SMALL_DELTA = 1e-5


def with_moved_delta(note: str, at: ReadDelta) -> str:
    """Return a note, and behind it that --clients does not change the default delta any more."""
    return " ".join(filter(None, (note, at.moved_note)))


def delta_note(delta: float, clients: int | None) -> str:
    """Return a note on a large delta: the one rule of all commands.

    With N clients above 0.1 / N, whoever chose it; without a known N from 1e-3 on. The recommended
    delta is smaller than that.
    """
    exact = Decimal(repr(delta))
    if clients is None:
        if delta < LARGE_DELTA:
            return ""
        return in_units(
            f"delta {plain(delta)} is high. Use --delta {plain(SMALL_DELTA)} or less "
            "(0.1 / clients)."
        )
    if 10 * exact * clients <= 1:
        return ""
    share = shown_delta(float(exact * clients))
    words = f"delta {shown_delta(delta)} is high for {clients:,} clients ({share} / clients). "
    most = float(down(1 / Decimal(10 * clients), 2))
    if most < LARGE_DELTA:
        return in_units(f"{words}Use --delta {plain(most)} or less (0.1 / clients).")
    return in_units(f"{words}Use --delta {plain(SMALL_DELTA)}.")
