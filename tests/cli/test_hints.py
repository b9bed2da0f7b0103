"""What a command suggests promises no less than what it has just said: every hint is followed."""

from __future__ import annotations

import re
import shlex
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from dpacct.display import up
from dpacct_cli import mechanism

SUGGESTED = re.compile(
    r"dpacct ((?:epsilon|compare|ledger) .*?)(?= (?:shows|computes|lists|turns|writes)\b)"
)


class Peer:
    """A stand-in for peers, which take long and promise nothing here."""

    name = "peer"

    def epsilon(self, *_: object) -> float:
        return 1.0

    def call(self, *_: object) -> str:
        return "peer()"


@pytest.fixture(autouse=True)
def _one_quick_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: (Peer(),))


def epsilon_of(data: dict[str, Any]) -> tuple[float, float]:
    """(epsilon, delta) that an answer promises."""
    if "results" in data:
        ours = [row["epsilon"]["upper"] for row in data["results"]
                if row["kind"] == "ours" and row["epsilon"]]  # fmt: skip
        return min(ours), data["delta"]
    if isinstance(data["delta"], dict):
        return data["epsilon"], data["delta"]["upper"]
    return data["epsilon"]["upper"], data["delta"]


MECHANISM = "--rounds 30 --q 0.1"
SETTINGS = [
    f"calibrate --eps 2 {MECHANISM} --clients 5000",
    "calibrate --eps 2 --rounds 3 --clients 70 --sampling full",
    f"epsilon --noise 1.3 {MECHANISM}",
    f"epsilon --noise 1.3 {MECHANISM} --clients 5000 --delta 1e-9",
    "epsilon --noise 3 --rounds 5 --sampling full --clients 12",
    f"delta --noise 1.3 {MECHANISM} --eps 1",
    f"delta --noise 1.3 {MECHANISM} --eps 1 --clients 5000",
    f"compare --noise 1.3 {MECHANISM} --clients 5000",
    "compare --noise 4 --rounds 3 --sampling full --clients 900",
]


@pytest.mark.parametrize("words", SETTINGS)
def test_a_suggested_command_promises_at_least_as_much(dpacct: Any, words: str) -> None:
    ran = dpacct(words)
    found = SUGGESTED.findall(ran.out)
    assert len(found) == 1, ran.out
    said = epsilon_of(dpacct(words, "--json").json)
    followed = epsilon_of(dpacct(found[0], "--json").json)
    assert followed[1] <= said[1]
    assert followed[0] <= said[0] * (1 + 1e-9)
    if not words.startswith("delta"):
        assert "--delta" in found[0]


def test_shuffled_batches_cost_up_to_one_participation_an_epoch(dpacct: Any) -> None:
    words = "epsilon --noise 1 --epochs 2.5 --examples 60000 --batch 256 --delta 1e-6"
    ran = dpacct(words, "--sampling shuffle")
    assert ran.code == 0
    # A part of an epoch, and of a batch, is charged as a whole.
    assert "3 x epoch of 235 steps, shuffled batches" in ran.out
    assert "--sampling allocation or poisson costs far less" in ran.out
    shuffled = dpacct(words, "--sampling shuffle --json").json["epsilon"]
    full = "epsilon --noise 1 --sampling full --rounds 3 --adjacency zero-out --delta 1e-6 --json"
    assert shuffled["upper"] == pytest.approx(dpacct(full).json["epsilon"]["upper"])
    allocated = dpacct(words, "--sampling allocation --json").json["epsilon"]
    assert allocated["upper"] < shuffled["lower"]


# The note on a large delta: one rule for all.


@pytest.mark.parametrize("clients", [1, 2, 3, 12, 99, 100, 101, 997, 1000, 20_000, 70_000, 10**9])
def test_with_a_population_the_edge_is_a_tenth_of_a_client(clients: int) -> None:
    edge = Fraction(1, 10 * clients)
    at = float(f"{float(edge):.17g}")
    below, above = float(edge) * (1 - 1e-12), float(edge) * (1 + 1e-12)
    assert mechanism.delta_note(below, clients) == ""
    assert mechanism.delta_note(above, clients) != ""
    if Fraction(repr(at)) == edge:
        assert mechanism.delta_note(at, clients) == ""


@pytest.mark.parametrize("delta", [0.9, 0.1, 1e-3, 1e-4, 2.3e-7])
@pytest.mark.parametrize("clients", [None, 1, 12, 100, 101, 5000, 10**6, 10**9])
def test_what_is_recommended_is_smaller_and_needs_no_note(
    delta: float, clients: int | None
) -> None:
    note = mechanism.delta_note(delta, clients)
    if not note:
        assert delta < 1e-3 if clients is None else delta * clients <= 0.1
        return
    found = re.search(r"Use --delta (\S+?)(?: or less)?(?: \(0\.1 / clients\))?\.$", note)
    assert found is not None
    assert 0 < float(found[1]) < delta
    assert mechanism.delta_note(float(found[1]), clients) == ""


def test_few_clients_need_the_default_delta() -> None:
    assert "Use --delta 1e-05." in mechanism.delta_note(12**-1.1, 12)
    assert "or less" in mechanism.delta_note(5000**-1.1, 5000)


@pytest.mark.parametrize(
    ("words", "noted"),
    [
        ("--delta 0.3", True),
        ("--delta 9.99e-4", False),
        ("--clients 12", False),
        ("--clients 12 --delta 0.1", True),
        ("--clients 5000 --delta 2e-5", False),
        ("--clients 5000 --delta 2.1e-5", True),
    ],
)
def test_every_command_has_the_same_rule(dpacct: Any, words: str, noted: bool) -> None:  # noqa: FBT001 - a column of the table
    every = ("epsilon --noise 2", "calibrate --eps 2", "compare --noise 2")
    for command in every if words == "--delta 0.3" else every[:1]:
        ran = dpacct(command, MECHANISM, words)
        assert ran.code == 0
        assert ran.err.count("note: delta") == noted
    if noted:
        typed = re.search(r"Use --delta (\S+?)(?: or less.*)?\.$", ran.err.strip())
        assert typed is not None
        assert float(typed[1]) < float(words.rsplit(maxsplit=1)[-1])


# Refusals of a ledger.


def test_commands_that_ledgers_suggest_read_the_same_epsilon(
    dpacct: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = dpacct("ledger init 'a b.ledger' --eps 3").out
    [words] = SUGGESTED.findall(made)
    assert dpacct(words, "-q").out == "0.0\n"
    charged = dpacct("ledger charge 'a b.ledger' --noise 3 --rounds 5 --q 0.1").out
    [words] = SUGGESTED.findall(charged)
    assert shlex.split(words)[:2] == ["ledger", "show"]
    shown = dpacct(words)
    upper = float(dpacct(words, "-q").out)
    assert upper == pytest.approx(float(re.search(r"epsilon +(\S+) proven", charged)[1]), rel=1e-4)  # type: ignore[index]
    [words] = SUGGESTED.findall(shown.out)
    assert dpacct(words).code == 0
    page = Path("report.html").read_text(encoding="utf-8")
    assert up(upper) in page
