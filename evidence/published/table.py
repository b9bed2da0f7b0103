"""Write the tables of this folder's page: printed privacy settings beside what is proven.

Usage: python evidence/published/table.py [FILE]

FILE is published_numbers.json; without it, the folder named by the environment variable
DPACCT_SHARED is searched for methods/published_numbers.json.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import dpacct
from dpacct import Full, Interval, Poisson, Round, Schedule, Uniform

PAGE = Path(__file__).resolve().with_name("README.md")
BEGIN, END = "<!-- begin generated tables -->", "<!-- end generated tables -->"
ACCOUNTANT = "tight"
PAPERS = {
    "000": "DP-FedPGN",
    "002": "DP-FedSAM",
    "003": "Fed-alpha-NormEC",
    "004": "DP-Fed-LS",
}
IMPLIED_ROUNDS = 300

Entry = dict[str, Any]
Sampling = Poisson | Uniform | Full


def described(entry: Entry) -> Sampling:
    """The sampling scheme in the words of the paper."""
    words = entry["sampling_described"]
    if words.startswith("uniform"):
        return Uniform(entry["cohort_size"], entry["num_clients"])
    return Full() if words.startswith("full") else Poisson(entry["sampling_rate"])


def in_words(sampling: Sampling) -> str:
    """A scheme with the adjacency that its default is, for a table cell."""
    if isinstance(sampling, Uniform):
        return f"{sampling.cohort_size} of {sampling.num_clients}, replace-one"
    return f"{sampling.name}, add-remove"


def spent(schedule: Schedule, delta: float) -> Interval:
    """Epsilon of a schedule by the accountant of this page."""
    return dpacct.epsilon(schedule, delta=delta, accountant=ACCOUNTANT)


def verdict(claim: float | None, bounds: Interval) -> str:
    """Where a printed epsilon stands: above the proven one, below the achieved one, or between."""
    if claim is None:
        return "-"
    if claim >= bounds.upper:
        return "proven"
    return "false" if claim < bounds.lower else "open"


def bracket(bounds: Interval) -> str:
    """Three decimals, rounded outwards."""
    lower, upper = math.floor(1e3 * bounds.lower) / 1e3, math.ceil(1e3 * bounds.upper) / 1e3
    return f"[{lower:.3f}, {upper:.3f}]"


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table, first column left, the others as they come."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def setting(entry: Entry) -> list[object]:
    """The columns that say what ran."""
    return [
        f"`{entry['id']}`",
        PAPERS[entry["paper"]],
        entry["dataset"],
        in_words(described(entry)),
        f"{entry['sampling_rate']:g}",
    ]


def with_rounds(entries: Iterable[Entry]) -> tuple[str, Counter[str]]:
    """The table of settings that are complete, and how often each verdict occurs."""
    head = ["id", "method", "data", "sampling as described", "q", "T", "z", "delta"]
    head += ["printed epsilon", "as described", "verdict", "Poisson add-remove"]
    counts: Counter[str] = Counter()
    rows: list[list[object]] = []
    for entry in entries:
        noise, rounds, delta = entry["noise_multiplier"], entry["rounds"], entry["delta"]
        ours = spent(rounds * Round(noise, described(entry)), delta)
        poisson = spent(rounds * Round(noise, Poisson(entry["sampling_rate"])), delta)
        claim = entry["claimed_epsilon"]
        word = verdict(claim, ours)
        counts[word] += claim is not None
        printed = "not printed" if claim is None else f"{claim:g}"
        ran = [rounds, f"{noise:g}", f"{delta:.3g}"]
        rows.append([*setting(entry), *ran, printed, bracket(ours), word, bracket(poisson)])
    return markdown(head, rows), counts


def most_rounds(
    claim: float, noise: float, sampling: Sampling, delta: float, accountant: str = ACCOUNTANT
) -> int:
    """The largest number of rounds that keeps a printed epsilon; 0 if one is too much."""
    try:
        found = dpacct.calibrate(
            epsilon=claim,
            delta=delta,
            noise_multiplier=noise,
            sampling=sampling,
            accountant=accountant,
            solve="rounds",
        )
    except dpacct.NotConverged:
        return 0
    return found.rounds


def least_noise(
    claim: float, sampling: Sampling, delta: float, accountant: str = ACCOUNTANT
) -> float:
    """The noise multiplier with which `IMPLIED_ROUNDS` rounds keep a printed epsilon."""
    return dpacct.calibrate(
        epsilon=claim,
        delta=delta,
        rounds=IMPLIED_ROUNDS,
        sampling=sampling,
        accountant=accountant,
    ).noise_multiplier


def without_rounds(entries: Iterable[Entry]) -> str:
    """The table of settings whose rounds (or multiplier) are missing in print."""
    head = ["id", "method", "data", "sampling as described", "q", "z", "delta", "printed epsilon"]
    head += ["most rounds at z", f"least z for {IMPLIED_ROUNDS} rounds"]
    head += ["epsilon of the recomputed rounds, as described", "verdict"]
    rows: list[list[object]] = []
    for entry in entries:
        claim, noise, delta = entry["claimed_epsilon"], entry["noise_multiplier"], entry["delta"]
        schemes = Poisson(entry["sampling_rate"]), described(entry)
        rounds = [most_rounds(claim, noise, scheme, delta) for scheme in schemes]
        noises = [least_noise(claim, scheme, delta) for scheme in schemes]
        recomputed = entry["implied_if_multiplier_fixed"]["max_rounds"]
        ours = spent(recomputed * Round(noise, schemes[1]), delta)
        rows.append(
            [
                *setting(entry),
                f"{noise:g}",
                f"{delta:.3g}",
                f"{claim:g}",
                " / ".join(str(n or "none") for n in (recomputed, *rounds)),
                " / ".join(
                    f"{z:.4f}"
                    for z in (
                        entry["implied_if_rounds_fixed"]["noise_multiplier"],
                        *(math.ceil(1e4 * z) / 1e4 for z in noises),
                    )
                ),
                bracket(ours),
                verdict(claim, ours),
            ]
        )
    return markdown(head, rows)


def tables(data: dict[str, Any]) -> str:
    """All that stands between the markers."""
    entries: list[Entry] = data["entries"]
    complete = [entry for entry in entries if entry["rounds"] is not None]
    partial = [entry for entry in entries if entry["rounds"] is None]
    table, counts = with_rounds(complete)
    tally = ", ".join(f"{counts[word]} {word}" for word in ("proven", "open", "false"))
    printed = sum(counts.values())
    first = f"{len(complete)} settings, of which {printed} print an epsilon: {tally}."
    second = (
        f"{len(partial)} settings print an epsilon, and a multiplier without the rounds that go\n"
        "with it. Three numbers in a cell are: recomputed by others (Renyi) for Poisson\n"
        "sampling / ours for Poisson sampling / ours for the sampling as described."
    )
    heads = "### Complete settings", "### Settings without rounds"
    return "\n\n".join([heads[0], first, table, heads[1], second, without_rounds(partial)])


def insert(page: str, generated: str) -> str:
    """A page with the text between its markers replaced."""
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    return f"{before}{BEGIN}\n\n{generated}\n\n{END}{after}"


def find_data(arguments: Sequence[str]) -> Path:
    """The file with the published figures."""
    if arguments:
        return Path(arguments[0])
    folder = os.environ.get("DPACCT_SHARED")
    if not folder:
        raise SystemExit(__doc__)
    return Path(folder) / "methods" / "published_numbers.json"


def main() -> None:
    """Rewrite the page in place."""
    data = json.loads(find_data(sys.argv[1:]).read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(insert(page, tables(data)), encoding="utf-8")


if __name__ == "__main__":
    main()
