"""Settings of a run: wrong types and values are refused in words, keywords are written once."""

from __future__ import annotations

import inspect
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dpacct import fl
from dpacct.errors import DpacctError, InvalidParameter, Unsupported
from dpacct.fl.settings import LocalSettings, Settings

USUAL: dict[str, Any] = {
    "rounds": 2,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "sampling": fl.Poisson(0.5),
    "local": fl.SGD(steps=1),
}
TORCH_ADAM = torch.optim.Adam(nn.Linear(1, 1).parameters())

# What people have passed by mistake, by the argument.
MISTAKES: dict[str, list[Any]] = {
    "server": [TORCH_ADAM, torch.optim.Adam, fl.Adam, "adam", 3],
    "method": ["dp-fedavg", fl.DPFedSAM, nn.Linear(1, 1)],
    "local": [0.1, fl.SGD, {"lr": 0.1}, TORCH_ADAM],
    "sampling": ["poisson", 0.1, fl.Poisson, [1, 2]],
    "adjacency": ["neighbor", fl.Poisson(0.1), []],
    "budget": [8, (8, 1e-5), {"epsilon": 8}],
    "noise_multiplier": ["1", -1, [1.0]],
    "delta": ["x", 2, [1e-5]],
    "server_lr": ["x", None, [1]],
    "noise": ["gaussian", 1.0, fl.GaussianNoise],
    "secure_noise": ["yes", 1, None],
    "ledger": [3, [], b"x", True],
    "name": [3, b"x"],
    "accountant": ["prv", 3, None],
    "device": [3.5, "gpu", "cuda:99", []],
    "seed": ["x", 1.5, -1, True],
    "checkpoint": [3, [], True, "", "/"],
    "checkpoint_every": [0, "a", 1.5],
    "rounds": [None, "x", 2.5, 0, [1]],
    "clip_norm": ["x", None, [1], 0, fl.AdaptiveClip(1.0)],
    "bound": [1.0, "clip", fl.Clip],
}
LOCAL_MISTAKES: dict[str, list[Any]] = {
    "vectorize": ["yes", 3],
    "chunk_size": ["a", 0, 2.5],
    "callbacks": [3, print, [print], torch.tensor(1.0)],
    "example": [3, torch.zeros(3)],
    "distributed": ["yes", None],
}


def clients() -> list[fl.ClientData]:
    """Eight clients of four examples."""
    return [fl.ClientData(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)) for _ in range(8)]


def settings_with(name: str, value: object) -> dict[str, Any]:
    without = {"bound": "clip_norm", "budget": "noise_multiplier"}.get(name)
    return {key: given for key, given in USUAL.items() if key != without} | {name: value}


def refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises((InvalidParameter, Unsupported)) as error:
        call()
    assert name in str(error.value)


@pytest.mark.parametrize("name", MISTAKES | LOCAL_MISTAKES)
def test_a_mistaken_argument_of_a_federation_is_refused_by_name(name: str) -> None:
    for value in (MISTAKES | LOCAL_MISTAKES)[name]:
        given = settings_with(name, value)
        words = "clip" if name == "clip_norm" else name.partition("_")[0]
        refused(lambda: fl.Federation(nn.Linear(3, 2), cross_entropy, clients(), **given), words)  # noqa: B023


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistaken_argument_of_a_server_is_refused_by_name(name: str) -> None:
    value = MISTAKES[name][0]
    refused(
        lambda: fl.Server(nn.Linear(3, 2), 8, **settings_with(name, value)), name.partition("_")[0]
    )


@pytest.mark.parametrize("model", ["x", nn.Linear, None, torch.zeros(3)])
def test_what_is_no_model_is_refused(model: Any) -> None:
    refused(lambda: fl.Federation(model, cross_entropy, clients(), **USUAL), "model")
    refused(lambda: fl.Server(model, 8, **USUAL), "model")


@pytest.mark.parametrize("loss", ["x", None, nn.CrossEntropyLoss, [cross_entropy]])
def test_what_is_no_loss_is_refused(loss: Any) -> None:
    refused(lambda: fl.Federation(nn.Linear(3, 2), loss, clients(), **USUAL), "loss")


@pytest.mark.parametrize(
    "people", [3, [], dict(enumerate(clients())), iter(clients()), fl.Examples]
)
def test_what_is_no_population_is_refused(people: Any) -> None:
    refused(lambda: fl.Federation(nn.Linear(3, 2), cross_entropy, people, **USUAL), "clients")


@pytest.mark.parametrize(
    "call",
    [
        lambda: fl.evaluate(nn.Linear(3, 2), cross_entropy, clients()[0], batch_size=0),
        lambda: fl.CSVWriter(3),
        lambda: fl.JSONLinesWriter(None),
        lambda: fl.Examples({"a": 1}),
        lambda: fl.Examples(torch.zeros(2, 3)),
    ],
)
def test_mistakes_beside_a_run_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(DpacctError):
        call()


@pytest.mark.parametrize("path", [3, [], None])
def test_a_checkpoint_is_the_path_of_a_file(path: Any) -> None:
    with fl.Federation(nn.Linear(3, 2), cross_entropy, clients(), **USUAL) as run:
        refused(lambda: run.save(path), "path")
        refused(lambda: run.resume(path), "path")


def test_keywords_are_those_of_the_settings() -> None:
    for kind, settings, first in (
        (fl.Federation, LocalSettings, ["model", "loss", "clients"]),
        (fl.Server, Settings, ["model", "num_clients"]),
    ):
        names = list(inspect.signature(kind).parameters)
        assert names == first + list(inspect.signature(settings).parameters)
        documented = str(Settings.__doc__) + str(LocalSettings.__doc__)
        missing = {name for name in names if f"{name}:" not in documented}
        assert missing <= set(first)


def test_an_unknown_keyword_is_an_error_of_the_federation() -> None:
    given: dict[str, Any] = USUAL | {"round_count": 3}
    with pytest.raises(TypeError, match=r"Federation\.__init__.*'round_count'"):
        fl.Federation(nn.Linear(3, 2), cross_entropy, clients(), **given)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_checkpoint_with_memories_is_for_its_owner_alone(tmp_path: Path) -> None:
    for method, private in ((fl.Scaffold(), True), (fl.DPFedAvg(), False)):
        file = tmp_path / f"{method.name}.checkpoint"
        file.write_bytes(b"old")
        file.chmod(0o644)
        with fl.Federation(
            nn.Linear(3, 2), cross_entropy, clients(), **USUAL, method=method, checkpoint=file
        ) as run:
            assert run.has_private_checkpoint is private
            run.run()
        assert (mode(file) == 0o600) is private
