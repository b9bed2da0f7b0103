"""Settings of a run: wrong types and values are refused in words, keywords are written once."""

from __future__ import annotations

import inspect
import math
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dpacct import Budget, Round, fl
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


def federation(model: Any = None, loss: Any = cross_entropy, people: Any = None, **options: Any):
    model = nn.Linear(3, 2) if model is None else model
    return fl.Federation(model, loss, clients() if people is None else people, **options)


def refused(call: Callable[[], object], name: str) -> None:
    with pytest.raises((InvalidParameter, Unsupported)) as error:
        call()
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"clip_norm": None}, "clip_norm"),
        ({"clip_norm": math.nan}, "clip_norm"),
        ({"bound": fl.Clip(1.0)}, "clip_norm"),
        ({"sampling": 0.1}, "sampling"),
        ({"sampling": fl.Uniform(2, 7)}, "num_clients"),
        ({"noise_multiplier": None}, "budget"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"rounds": 0}, "rounds"),
        ({"seed": 1.5}, "seed"),
        ({"vectorize": "yes"}, "vectorize"),
        ({"chunk_size": 0}, "chunk_size"),
        ({"secure_noise": True, "noise": fl.GaussianNoise()}, "secure_noise"),
        ({"delta": 1e-6, "budget": Budget(1, 1e-5)}, "delta"),
        ({"server_lr": math.inf}, "server_lr"),
        ({"bound": fl.PerLayerClip((1.0,)), "clip_norm": None}, "clip_norms"),
        ({"clip_norm": "median"}, "without noise"),
        ({"sampling": [[0, 1], [2]]}, "public rule"),
        ({"sampling": "cyclic"}, "public rule"),
        ({"noise": fl.NoiseShares(2), "sampling": fl.Poisson(0.5)}, "Poisson"),
        ({"noise": fl.NoiseShares(2), "public_size": 12, "sampling": fl.Full()}, "add-remove"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name_or_with_the_reason(options, name) -> None:
    with pytest.raises((InvalidParameter, Unsupported)) as caught:
        federation(**(USUAL | options))
    if isinstance(caught.value, InvalidParameter):
        assert caught.value.name == name
    else:
        assert name in str(caught.value)


@pytest.mark.parametrize("name", MISTAKES | LOCAL_MISTAKES)
def test_a_mistaken_argument_is_refused_by_name(name: str) -> None:
    words = "clip" if name == "clip_norm" else name.partition("_")[0]
    for value in (MISTAKES | LOCAL_MISTAKES)[name]:
        given = settings_with(name, value)
        refused(lambda: federation(**given), words)  # noqa: B023
        if name in MISTAKES:
            refused(lambda: fl.Server(nn.Linear(3, 2), 8, **given), words)  # noqa: B023


def test_what_is_no_model_loss_or_population_is_refused() -> None:
    for model in ("x", nn.Linear, 3, torch.zeros(3)):
        refused(lambda: federation(model, **USUAL), "model")  # noqa: B023
        refused(lambda: fl.Server(model, 8, **USUAL), "model")  # noqa: B023
    for loss in ("x", None, nn.CrossEntropyLoss, [cross_entropy]):
        refused(lambda: federation(loss=loss, **USUAL), "loss")  # noqa: B023
    for people in (3, [], dict(enumerate(clients())), iter(clients()), fl.Examples):
        refused(lambda: federation(people=people, **USUAL), "clients")  # noqa: B023


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
    with federation(**USUAL) as run:
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
    with pytest.raises(TypeError, match=r"Federation\.__init__.*'round_count'"):
        federation(**(USUAL | {"round_count": 3}))


def test_a_checkpoint_with_memories_is_for_its_owner_alone(tmp_path: Path) -> None:
    for method, private in ((fl.Scaffold(), True), (fl.DPFedAvg(), False)):
        file = tmp_path / f"{method.name}.checkpoint"
        file.write_bytes(b"old")
        file.chmod(0o644)
        with federation(**USUAL, method=method, checkpoint=file) as run:
            assert run.has_private_checkpoint is private
            run.run()
        assert (stat.S_IMODE(file.stat().st_mode) == 0o600) is private


def test_runs_reveal_no_size_of_a_cohort() -> None:
    """The divisor of a run is fixed. Rounds that reveal a size are refused, alone and in a plan."""
    revealing = fl.Poisson(0.5, num_clients=9, reveals_size="sum")
    plan = 2 * Round(1.0, revealing)
    rest = {"clip_norm": 1.0, "adjacency": "zero-out", "local": fl.SGD(steps=1)}
    for given in (
        {"rounds": 2, "noise_multiplier": 1.0, "sampling": revealing},
        {"schedule": plan},
    ):
        with pytest.raises(Unsupported, match=r"reveal no size. Take Poisson\(0.5\)"):
            _ = Settings(**rest, **given).samplings
