"""`dpacct compare`: ours and theirs side by side, refusals with their reasons."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import pytest

import dpacct as library
from dpacct.accountant import ACCOUNTANTS
from dpacct.epochs import Epoch, ShuffledEpoch
from dpacct.errors import Unsupported
from dpacct.rounds import Poisson, Round, Schedule, Uniform

WORDS = "compare --noise 1.36 --rounds 300 --q 0.1"
WARM_UP_SECONDS = 3600.0


class Clock:
    """The clock, which a peer puts forward by what it seems to take."""

    ahead, seconds = 0.0, time.perf_counter

    @classmethod
    def now(cls) -> float:
        return cls.seconds() + cls.ahead


class FakePeer(NamedTuple):
    name: str
    answer: float = 8.5
    reason: str = ""
    slow_start: bool = False

    def epsilon(self, schedule: Schedule, _delta: float) -> float:
        if self.reason:
            raise Unsupported(self.reason)
        if self.slow_start and schedule.rounds == 1:
            Clock.ahead += WARM_UP_SECONDS
        return self.answer

    def call(self, schedule: Schedule) -> str:
        return f"{self.name} of {schedule.rounds}"


PEERS = (
    FakePeer("peer one", slow_start=True),
    FakePeer("peer two", reason="it knows no such rounds"),
    FakePeer("peer three", answer=float("inf")),
)


def use(monkeypatch: pytest.MonkeyPatch, *peers: Any) -> None:
    monkeypatch.setattr("dpacct.interop.installed_peers", lambda: peers)
    monkeypatch.setattr("time.perf_counter", Clock.now)


def by_name(data: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry for entry in data["results"]}


def test_json_holds_all_accountants_and_peers(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, *PEERS)
    data = dpacct(WORDS, "--json").json
    rounds = {"rounds", "sampling", "sampling_rate", "adjacency", "noise_multiplier", "phases"}
    assert set(data) == {"results", "delta"} | rounds
    entries = by_name(data)
    assert list(entries) == [*ACCOUNTANTS, "peer one", "peer two", "peer three"]
    for entry in data["results"]:
        assert set(entry) == {"name", "kind", "epsilon", "seconds", "note", "call"}
    assert {entries[name]["kind"] for name in ACCOUNTANTS} == {"ours"}
    expected = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert entries["tight"]["epsilon"] == {"lower": expected.lower, "upper": expected.upper}
    assert entries["tight"]["seconds"] > 0
    assert entries["tight"]["epsilon"]["upper"] < entries["rdp"]["epsilon"]["upper"]
    # A refusal has its reason, which is about the rounds that were asked for.
    assert entries["gdp"]["epsilon"] is entries["peer two"]["epsilon"] is None
    assert "full participation" in entries["gdp"]["note"]
    assert entries["rdp"]["epsilon"]["upper"] < entries["closed-form"]["epsilon"]["upper"]
    assert entries["peer two"]["note"] == "it knows no such rounds"
    assert entries["peer three"]["epsilon"] is None
    assert "inf" in entries["peer three"]["note"]
    # Importing a peer is not part of its time.
    assert entries["peer one"].pop("seconds") < WARM_UP_SECONDS
    known = {"lower": None, "upper": 8.5}
    assert entries["peer one"] == {
        "name": "peer one", "kind": "peer", "epsilon": known, "note": "", "call": "peer one of 300",
    }  # fmt: skip
    assert {name for name, entry in entries.items() if entry["call"]} == {"peer one"}


def test_pages_and_the_number_alone(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    assert "adds dp-accounting and Opacus to the table." in dpacct(WORDS).text
    use(monkeypatch, *PEERS)
    text = dpacct(WORDS).text
    first = next(line for line in text.splitlines() if line.strip())
    assert first.split()[-5:] == ["by", "tight,", "at", "delta", "1e-05"]
    for name in ["dpacct tight", "dpacct rdp", "peer one"]:
        assert f"\n  {name}  " in text
    # The reason is a sentence, without the rounds as Python prints them.
    assert "\n  dpacct gdp: it covers full participation only\n" in text
    assert "Round(" not in text
    assert "\n  peer two: it knows no such rounds" in text
    assert "\n  peer one: peer one of 300\n" in text
    ours = library.epsilon(noise_multiplier=1.36, rounds=300, sampling_rate=0.1, delta=1e-5)
    assert float(dpacct(WORDS, "-q").text) <= ours.upper


def test_other_rounds(dpacct: Any, schedule_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch)
    wide = by_name(dpacct("compare --noise 9 --rounds 30 --q 0.01 --json").json)
    assert wide["closed-form"]["epsilon"] is not None
    words = "compare --noise 5 --rounds 10 --sampling full"
    entries = by_name(dpacct(words, "--json").json)
    refused = dpacct("compare --noise 0.5 --rounds 3 --q 0.5").text
    assert "dpacct closed-form: no published closed form covers these rounds" in refused
    assert "Poisson(" not in refused
    tight, gdp, rdp = (entries[name]["epsilon"]["upper"] for name in ("tight", "gdp", "rdp"))
    assert tight == pytest.approx(gdp, rel=1e-11)
    assert tight < 0.99 * rdp
    assert "by rdp" not in dpacct(words).text
    data = dpacct("compare", "--schedule", schedule_file, "--json").json
    assert (data["rounds"], len(data["phases"])) == (300, 2)


JOB = "compare --examples 200 --batch 20 --epochs 3 --noise 2 --delta 1e-5"


def test_a_training_job_is_shown_by_each_sampling(
    dpacct: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    data = dpacct(JOB, "--json").json
    found = {row["sampling"]: row["epsilon"] for row in data["samplings"]}
    assert list(found) == ["poisson", "allocation", "uniform", "shuffle"]
    assert {row["adjacency"] for row in data["samplings"]} == {"zero-out"}
    wanted = {
        "poisson": 30 * Round(2.0, Poisson(0.1), "zero-out"),
        "allocation": 3 * Epoch(2.0, 10),
        "uniform": 30 * Round(2.0, Uniform(20, 200), "zero-out"),
        "shuffle": 3 * ShuffledEpoch(2.0, 10),
    }
    for name, schedule in wanted.items():
        spent = library.epsilon(schedule, delta=1e-5)
        assert found[name]["upper"] == pytest.approx(spent.upper, rel=1e-9)
        assert found[name]["lower"] == pytest.approx(spent.lower, rel=1e-9)
    assert found["allocation"]["upper"] < found["uniform"]["lower"] < found["shuffle"]["upper"]
    text = dpacct(JOB).text
    assert "each example in one random step of an epoch (3 x 10 steps)" in text
    # Steps that do not divide are rounded up, and said.
    text = dpacct("compare --examples 205 --batch 20 --epochs 2.5 --noise 2").text
    assert "(3 x 11 steps)" in text


@pytest.mark.parametrize("more", [" --sampling uniform", " --sampling poisson", ""])
def test_other_settings_have_no_such_table(
    dpacct: Any, more: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch)
    job = JOB + more if more else "compare --noise 2 --rounds 3 --q 0.1"
    assert "samplings" not in dpacct(job, "--json").json


@pytest.mark.slow
def test_real_peers_agree(dpacct: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    from dpacct.interop import DpAccountingPld, DpAccountingRdp

    peers = {"rdp": DpAccountingRdp(), "tight": DpAccountingPld()}
    use(monkeypatch, *peers.values())
    entries = by_name(dpacct(WORDS, "--json").json)
    for name, peer in peers.items():
        ours, theirs = entries[name]["epsilon"]["upper"], entries[peer.name]["epsilon"]["upper"]
        assert ours <= theirs <= 1.01 * ours
