"""`dpacct epsilon --from` of a file that Opacus or dp-accounting wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dpacct as library
from dpacct import Full, Poisson, Round, Uniform, Unsupported
from tests.cli.conftest import Ran
from tests.cli.test_bad_input import assert_refused

PLAN = 100 * Round(1.1, Poisson(0.01)) + 3 * Round(9.0, Full())


def test_a_checkpoint_of_opacus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    accountants = pytest.importorskip("opacus.accountants")
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


def named(value: Any) -> Any:
    """An event as nested objects, as the how-to shows."""
    if hasattr(value, "_asdict"):
        return {key: named(part) for key, part in value._asdict().items()}
    return [named(part) for part in value] if isinstance(value, list) else value


def test_an_event_of_dp_accounting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dp_accounting")
    monkeypatch.chdir(tmp_path)
    from dpacct.interop.dp_accounting import event_of_schedule

    for plan in (PLAN, 2 * Round(9, Uniform(3, 5))):
        event = named(event_of_schedule(plan).to_named_tuple())
        Path("event.json").write_text(json.dumps(event), encoding="utf-8")
        relation = str(plan.adjacency)
        data = Ran(f"epsilon --from event.json --adjacency {relation} --json".split()).json
        spent = library.epsilon(plan, delta=1e-5)
        assert data["epsilon"] == {"lower": spent.lower, "upper": spent.upper}
        assert (data["source"], data["adjacency"]) == ("event", relation)
    Path("bad.json").write_text('{"class_name": "os"}', encoding="utf-8")
    assert_refused(Ran(["epsilon", "--from", "bad.json"]), "'os' is not an event of dp-accounting")
    Path("bad.json").write_text('{"class_name": "GaussianDpEvent", "x": 1}', encoding="utf-8")
    assert_refused(Ran(["epsilon", "--from", "bad.json"]), "GaussianDpEvent", "'x'")


def test_a_damaged_checkpoint_is_rejected_in_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("opacus")
    file = tmp_path / "opacus.pt"
    torch.save({"privacy_accountant_state_dict": {"history": [(1.1, 0.01, 5)]}}, file)
    sound = file.read_bytes()
    for place in range(0, len(sound), 7):
        file.write_bytes(sound[:place] + bytes([sound[place] ^ 0x55]) + sound[place + 1 :])
        ran = Ran(["epsilon", "--from", str(file), "--delta", "1e-5"])
        assert ran.code in (0, 1, 2)
        if ran.code:
            assert_refused(ran, str(file))


RELEASE = {"class_name": "DiscreteLaplaceDpEvent", "noise_parameter": 1.0, "sensitivity": 1}
SAMPLE = {
    "class_name": "TruncatedSubsampledGaussianDpEvent", "dataset_size": 1000,
    "sampling_probability": 0.01, "truncated_batch_size": 30, "noise_multiplier": 2.0,
}  # fmt: skip
MIXTURE = {
    "class_name": "MixtureOfGaussiansDpEvent", "standard_deviation": 2.0, "sensitivities": [0, 1],
    "sampling_probs": [0.9, 0.1],
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "key", "value"),
    [
        *((RELEASE, "sensitivity", value) for value in ("", [], False, {}, -1.0)),
        *((SAMPLE, "truncated_batch_size", value) for value in ("9", None, [], False, -1)),
        *((SAMPLE, "dataset_size", value) for value in ("9", None, {}, -5)),
        *((MIXTURE, "sensitivities", value) for value in (5, "ab", {"0": 1}, [*range(50_000)])),
        *((MIXTURE, "sampling_probs", value) for value in (5, ["a", "b"], [2.0, -1.0])),
    ],
)
def test_an_event_of_somebody_else_is_charged_or_rejected_in_one_line(
    tmp_path: Path, event: dict[str, object], key: str, value: object
) -> None:
    pytest.importorskip("dp_accounting")
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event | {key: value}), encoding="utf-8")
    assert_refused(Ran(["epsilon", "--from", str(file)]), str(file))


def test_a_mixture_of_a_thousand_records_is_the_largest() -> None:
    pytest.importorskip("dp_accounting")
    from dpacct.interop.dp_accounting import event_of_schedule

    with pytest.raises(Unsupported, match="1,000 records of a user, and here are 1,100"):
        event_of_schedule(2 * Round(4, Poisson(1e-4, records=1100)))
