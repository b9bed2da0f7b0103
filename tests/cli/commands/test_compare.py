"""`dpacct compare`: ours and theirs side by side, refusals with their reasons."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest

import dpacct as library
from dpacct.accountant import ACCOUNTANTS
from dpacct.errors import Unsupported
from dpacct.rounds import Schedule

WORDS = "compare --noise 1.36 --rounds 300 --q 0.1"
WARM_UP_SECONDS = 0.3


@dataclass(frozen=True)
class FakePeer:
    name: str
    answer: float = 8.5
    reason: str = ""
    slow_start: bool = False

    def epsilon(self, schedule: Schedule, _delta: float) -> float:
        if self.reason:
            raise Unsupported(self.reason)
        if self.slow_start and schedule.rounds == 1:
            time.sleep(WARM_UP_SECONDS)
        return self.answer


PEERS = (
    FakePeer("peer one", slow_start=True),
    FakePeer("peer two", reason="it knows no such rounds"),
    FakePeer("peer three", answer=float("inf")),
)


@pytest.fixture(autouse=True)
def peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: PEERS)


def by_name(data: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in data["results"]}


def test_json_holds_everybody(dpacct: Any) -> None:
    data = dpacct(WORDS, "--json").json
    assert set(data) == {
        "results", "delta", "rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier",
    }  # fmt: skip
    names = [entry["name"] for entry in data["results"]]
    assert names == [*ACCOUNTANTS, "peer one", "peer two", "peer three"]
    for entry in data["results"]:
        assert set(entry) == {"name", "kind", "epsilon", "seconds", "note"}
    entries = by_name(data)
    assert {entries[name]["kind"] for name in ACCOUNTANTS} == {"ours"}
    expected = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert names[0] == "tight"
    assert entries["tight"]["epsilon"] == {"lower": expected.lower, "upper": expected.upper}
    assert entries["tight"]["seconds"] > 0
    assert entries["tight"]["epsilon"]["upper"] < entries["rdp"]["epsilon"]["upper"]
    assert entries["gdp"]["epsilon"] is None
    assert entries["gdp"]["note"]


def test_a_peer_that_refuses_is_shown_with_its_reason(dpacct: Any) -> None:
    entries = by_name(dpacct(WORDS, "--json").json)
    assert entries["peer one"] | {"seconds": 0} == {
        "name": "peer one",
        "kind": "peer",
        "epsilon": {"lower": None, "upper": 8.5},
        "seconds": 0,
        "note": "",
    }
    assert entries["peer two"]["epsilon"] is None
    assert entries["peer two"]["note"] == "it knows no such rounds"
    assert entries["peer three"]["epsilon"] is None
    assert "inf" in entries["peer three"]["note"]


def test_refusals_speak_of_the_rounds_that_were_asked_for(dpacct: Any) -> None:
    assert "1.36" in by_name(dpacct(WORDS, "--json").json)["closed-form"]["note"]
    wide = by_name(dpacct("compare --noise 9 --rounds 30 --q 0.01 --json").json)
    assert wide["closed-form"]["epsilon"] is not None


def test_importing_a_peer_is_not_part_of_its_time(dpacct: Any) -> None:
    assert by_name(dpacct(WORDS, "--json").json)["peer one"]["seconds"] < WARM_UP_SECONDS


def test_human_output_is_a_table(dpacct: Any) -> None:
    text = dpacct(WORDS).text
    first = next(line for line in text.splitlines() if line.strip())
    assert "proven" in first
    assert "at delta 1e-05" in first
    assert "by tight" in first
    for name in ["dpacct tight", "dpacct rdp", "peer one"]:
        assert f"\n  {name}  " in text
    assert "\n  dpacct gdp: " in text
    assert "\n  peer two: it knows no such rounds" in text
    assert " ms" in text


def test_without_peers_the_table_says_how_to_get_them(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: ())
    assert "'.[interop]'" in dpacct(WORDS).text


def test_quiet_is_the_smallest_that_is_proven(dpacct: Any) -> None:
    entries = dpacct(WORDS, "--json").json["results"]
    ours = [e["epsilon"]["upper"] for e in entries if e["kind"] == "ours" and e["epsilon"]]
    assert dpacct(WORDS, "-q").text == f"{min(ours)!r}\n"


def test_full_participation_has_two_exact_accountants(dpacct: Any) -> None:
    words = "compare --noise 5 --rounds 10 --sampling full"
    entries = by_name(dpacct(words, "--json").json)
    tight, gdp, rdp = (entries[name]["epsilon"]["upper"] for name in ("tight", "gdp", "rdp"))
    assert tight == pytest.approx(gdp, rel=1e-11)
    assert tight < 0.99 * rdp
    assert "by rdp" not in dpacct(words).text


def test_schedule_file(dpacct: Any, schedule_file: str) -> None:
    data = dpacct("compare", "--schedule", schedule_file, "--json").json
    assert data["rounds"] == 300
    assert len(data["phases"]) == 2


def test_real_peers_agree(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    from dpacct.interop import DpAccountingPld, DpAccountingRdp

    peers = {"rdp": DpAccountingRdp(), "tight": DpAccountingPld()}
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: tuple(peers.values()))
    entries = by_name(dpacct(WORDS, "--json").json)
    for name, peer in peers.items():
        ours, theirs = entries[name]["epsilon"]["upper"], entries[peer.name]["epsilon"]["upper"]
        assert ours <= theirs <= 1.01 * ours
