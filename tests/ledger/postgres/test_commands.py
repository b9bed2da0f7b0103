"""Every command takes an address in place of a file, and shows no password."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.postgres_server import Server
from dpacct import Ledger, LedgerError
from dpacct.ledger.postgres.address import Address
from dpacct_cli.__main__ import main
from ledgers import BUDGET

ROUNDS = "--noise 3 --rounds 20 --q 0.1"


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], address: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command line in which ``A`` is the address, with a password."""
    typed = address.replace("owner@", "owner:hunter2@")

    def run(line: str, code: int = 0) -> str:
        words = [typed if word == "A" else word for word in line.split()]
        monkeypatch.setattr("sys.argv", ["dpacct", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert (end.value.code or 0) == code, err
        assert "hunter2" not in out + err
        return out if code == 0 else err

    return run


def test_a_ledger_from_init_to_report(say: Any, address: str):
    assert address in say("ledger init A --eps 8")
    assert "it exists already" in say("ledger init A --eps 8", 2)
    say(f"ledger charge A {ROUNDS} --name notebook")
    assert float(say("ledger charge A --laplace 0.1 -q")) < 1
    assert json.loads(say(f"ledger remaining A {ROUNDS} --json"))["remaining"] > 10
    assert json.loads(say("ledger show A --json"))["rounds"] == 21
    assert "sound" in say("ledger verify A")
    assert "# Privacy report" in say("ledger report A")
    assert len(say("ledger export A").splitlines()) == 3
    assert "0.7" in say("epsilon --from A -q")
    assert "runs are 1 to 2" in say("ledger finish A --run 9", 2)
    with Ledger.open(address) as ledger:
        ledger.start_run("left", 5 * ledger.runs[0].plan)  # pyright: ignore[reportOperatorIssue]
    assert say("ledger finish A --run 3 -q").strip() == "100"


def test_teams_quotas_and_requests(say: Any, server: Server, address: str):
    server.psql("DROP ROLE IF EXISTS intern; CREATE ROLE intern LOGIN")
    say("ledger init A --eps 8")
    say("ledger grant A intern --as requester --team records")
    say("ledger quota A records --eps 0.15")
    place = f"{server.url('intern')}#{Address.parse(address).name}"
    for number in ("1", "2"):
        assert say(f"ledger request {place} --laplace 0.1 --name age -q").strip() == number
    assert json.loads(say("ledger approve A --json"))["waiting"][1]["asked_by"] == "intern"
    assert "grant" in say(f"ledger approve {place} 1", 1)
    say("ledger approve A 1")
    assert "quota of team records" in say("ledger approve A 2", 1)
    assert "no such request" in say("ledger approve A 9", 2)
    (team,) = json.loads(say("ledger quota A --json"))["teams"]
    assert (team["team"], team["quota"], round(team["epsilon"], 9)) == ("records", 0.15, 0.1)
    say("ledger grant A intern --as none")
    assert "may not read" in say(f"ledger show {place}", 1)
    server.psql("DROP ROLE intern")


@pytest.mark.parametrize(
    "line",
    [
        "ledger show postgresql://ann:hunter2@127.0.0.1:1/x#y",
        "ledger show postgresql://ann:hunter2@127.0.0.1/x",
        "train dp-fedavg --ledger postgresql://ann:hunter2@127.0.0.1:1/x#y --eps 8 --rounds 1",
    ],
)
def test_no_refusal_shows_a_password(say: Any, line: str):
    assert say(line, 2 if line.endswith("/x") else 1)


def test_teams_need_a_database(tmp_path: Path):
    with (
        Ledger.open(tmp_path / "a.ledger", BUDGET) as ledger,
        pytest.raises(LedgerError, match="postgresql://"),
    ):
        ledger.organization.teams()


@pytest.mark.needs("torch", "sklearn")
def test_training_charges_a_database_and_goes_on(
    say: Any, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    options = "--eps 8 --rounds 2 --clients 40 --q 0.5 --local-steps 1"
    said = json.loads(say(f"train dp-fedavg --ledger A {options} --json"))
    assert said["ledger"] == address
    (settings,) = tmp_path.glob("*.settings.json")
    assert json.loads(settings.read_text())["ledger"] == address
    with Ledger.open(address) as ledger:
        assert (ledger.rounds, ledger.runs[0].finished) == (2, True)
    assert f"finished: {Address.parse(address).name}" in say("train --ledger A --resume", 2)
