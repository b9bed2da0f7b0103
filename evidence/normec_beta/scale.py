"""The published scale, ResNet-20 on CIFAR-10: which runs, when one is given up, their table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from dpacct.display import up
from evidence.normec_beta.grid import FEDAVG, NORMEC, TITLES, setting
from evidence.pages import markdown
from evidence.records import Record, Records, Setting

DATA, CLIENTS, EVERY = "cifar32", 20, 30
# Noise, method, beta, gamma. The most decisive runs come first, since a run takes ten minutes.
CELLS: tuple[tuple[str, str, float, float], ...] = (
    ("none", NORMEC, 0.01, 0.1),
    ("none", NORMEC, 0.1, 0.1),
    ("printed", NORMEC, 0.01, 0.1),
    ("std on D", NORMEC, 0.01, 0.1),
    ("epsilon 8", NORMEC, 0.01, 0.1),
    ("none", NORMEC, 0.001, 0.1),
    ("std on D", NORMEC, 0.1, 0.1),
    ("none", FEDAVG, 0.1, 0.1),
    ("printed", NORMEC, 0.01, 0.01),
    ("std on D", NORMEC, 0.1, 0.01),
    ("epsilon 8", NORMEC, 0.01, 0.01),
    ("std on D", NORMEC, 0.001, 0.1),
)
SEEDS = (1, 2, 3)
# Ten classes: a model that tells nothing is right about once in ten.
CHANCE, LOST_AFTER, LOOKS = 11.0, 120, 3


def scale_settings(records: Records) -> list[Setting]:
    """Return every cell once, then again with fresh noise, shares and starting weights."""
    del records
    return [
        setting(DATA, CLIENTS, noise, method, beta, gamma, run=run)
        for run in SEEDS
        for noise, method, beta, gamma in CELLS
    ]


def lost(history: Sequence[Mapping[str, float]], norms: Sequence[float]) -> bool:
    """Return True if a run has plainly diverged.

    After 120 rounds or more, three looks at it in a row are at chance while its weights grew from
    each to the next, to more than twice the length that they had at the first look of all.

    Args:
        history: the records after every few rounds, with ``round`` and ``accuracy``.
        norms: the length of all weights at the same rounds.
    """
    if len(history) < LOOKS or history[-1]["round"] < LOST_AFTER:
        return False
    at_chance = all(row["accuracy"] <= CHANCE for row in history[-LOOKS:])
    grew = all(later > earlier for earlier, later in pairwise(norms[-LOOKS:]))
    return at_chance and grew and norms[-1] > 2 * norms[0]


def scale_table(records: Records) -> str:
    """Return one row a run: its accuracy at the end, at its best, and its cost."""
    rows = [
        _row(record)
        for noise, method, beta, gamma in CELLS
        for record in sorted(
            (
                record
                for record in records
                if record.matches(data=DATA, noise=noise, method=method, beta=beta, gamma=gamma)
            ),
            key=lambda record: record.setting["run"],
        )
    ]
    header = ["noise", "method", "beta", "gamma", "run", "z", "epsilon", "rounds", "at the end"]
    return markdown([*header, "best seen", "norm of weights"], rows)


def _row(record: Record) -> list[str]:
    wanted, found = record.setting, record.result
    best = max(found["history"], key=lambda row: row["accuracy"])
    ended = found["history"][-1]["round"]
    return [
        str(wanted["noise"]),
        TITLES[wanted["method"]],
        f"{wanted['beta']:g}",
        f"{wanted['gamma']:g}",
        str(wanted["run"]),
        f"{found['noise_multiplier']:.4g}",
        up(found["epsilon"], 4),
        f"{ended}, given up" if "rounds" in found else str(ended),
        f"{found['accuracy']:.2f}",
        f"{best['accuracy']:.2f} ({best['round']})",
        f"{found['norm']:.4g}",
    ]
