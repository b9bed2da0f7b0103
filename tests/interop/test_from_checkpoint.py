"""`dpacct epsilon --from` of a checkpoint that Opacus wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpacct as library
from dpacct import Poisson, Round
from tests.cli.conftest import Ran
from tests.cli.test_bad_input import assert_refused

torch = pytest.importorskip("torch")
accountants = pytest.importorskip("opacus.accountants")


def test_a_checkpoint_of_opacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    state = {"module_state_dict": {"w": torch.zeros(2)}}
    for kind in (accountants.RDPAccountant, accountants.PRVAccountant):
        theirs = kind()
        for _ in range(40):
            theirs.step(noise_multiplier=1.1, sample_rate=0.01)
        torch.save(state | {"privacy_accountant_state_dict": theirs.state_dict()}, "run.pt")
        data = Ran(["epsilon", "--from", "run.pt", "--json"]).json
        ours = library.epsilon(40 * Round(1.1, Poisson(0.01)), delta=1e-5)
        assert data["epsilon"] == {"lower": ours.lower, "upper": ours.upper}
        assert (data["source"], data["adjacency"]) == ("checkpoint", "zero-out")
    assert "zero out one example" in Ran(["epsilon", "--from", "run.pt"]).text
    torch.save(state, "other.pt")
    assert_refused(Ran(["epsilon", "--from", "other.pt"]), "'other.pt'; it has no history")
    theirs.step(noise_multiplier=0.0, sample_rate=0.01)
    torch.save({"privacy_accountant_state_dict": theirs.state_dict()}, "loud.pt")
    loud = Ran(["epsilon", "--from", "loud.pt"])
    assert (loud.code, loud.out) == (1, "")
    assert "no finite epsilon" in loud.err
