"""One description at every door: a file, a schedule, a ledger, JSON output and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dpacct import Ledger
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import Adjacency, Schedule
from dpacct.schedules import dump_schedule, load_schedule
from tests.strategies import FEWER, plans

ANY = settings(FEWER, suppress_health_check=[HealthCheck.function_scoped_fixture])
# Parts of delta, and then all releases have a charge.
INIT = "ledger init a.ledger --eps 1e6 --delta 0.5 --promised-delta 0.4"


@ANY
@given(data=st.data(), relation=st.sampled_from(Adjacency))
def test_what_is_described_is_what_is_charged_and_what_it_costs(
    data: st.DataObject, relation: Adjacency, dpacct: Any, folder: Path
) -> None:
    plan: Schedule = data.draw(plans(relation, most=3))
    dump_schedule(plan, folder / "plan.json")
    cost = "epsilon --accountant rdp --delta 0.01 --json --schedule"
    printed = dpacct(cost, "plan.json")
    if printed.code:
        # A pair without Renyi divergences, or noise beyond what is computed.
        assert printed.err.startswith("dpacct: ")
        return
    (folder / "printed.json").write_text(printed.out, encoding="utf-8")
    described = load_schedule(folder / "printed.json")
    assert described == plan
    upper = RenyiAccountant().upper_epsilon(described, 0.01)
    assert printed.json["epsilon"]["upper"] == pytest.approx(upper, rel=1e-12)

    (folder / "a.ledger").unlink(missing_ok=True)
    (folder / "a.ledger.witness").unlink(missing_ok=True)
    assert not dpacct(INIT).code
    charged = dpacct("ledger charge a.ledger --over-budget --json --schedule printed.json")
    (folder / "charged.json").write_text(json.dumps(charged.json | {"schema": 1}))
    assert load_schedule(folder / "charged.json") == plan
    with Ledger.open(folder / "a.ledger", read_only=True) as ledger:
        held = ledger.runs[0].plan
    assert held == plan
