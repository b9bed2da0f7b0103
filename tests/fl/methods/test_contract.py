"""A method whose member returns the wrong thing: the message says which, what, and what is read."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dpacct.errors import Unsupported
from dpacct.fl.methods import METHODS
from dpacct.fl.methods.protocol import Method
from tests.fl.problems import federation, linear, make_clients

pytestmark = pytest.mark.usefixtures("uncounted")
CLIENTS = make_clients([4] * 3)


def gives(value: Any) -> Any:
    return lambda *_: value


def without_batch(method: Any, loss: Any, params: Any) -> Any:
    return loss, params, method


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a gradient of one tensor": (
        {"gradient": gives(torch.zeros(3))},
        r"Mine.gradient returned a tensor of shape \(3,\). Expected: a dictionary",
    ),
    "a gradient of another shape": (
        {"gradient": gives({"weight": torch.ones(2), "bias": torch.ones(3)})},
        r"tensor of shape \(2,\) for weight. Expected: a tensor of shape \(3, 6\)",
    ),
    "a gradient that takes no batch": (
        {"gradient": without_batch},
        r"takes \(loss.*, params.*\).* The engine calls gradient\(loss, params, batch, context\)",
    ),
    "a step without return": ({"after_step": gives(None)}, "Mine.after_step returned nothing"),
    "an update of three numbers": (
        {"local_update": lambda *given: given[1][:3]},
        r"Mine.local_update returned a tensor of shape \(3,\). Expected: a tensor of shape \(21,\)",
    ),
    "a memory that is a number": (
        {"init_client": gives({"seen": 0.5})},
        "Mine.init_client returned a float for seen. Expected: a dictionary of tensors",
    ),
    "a memory that is lost": (
        {"init_client": gives({"seen": torch.zeros(())}), "client_state": gives(None)},
        "Mine.client_state returned nothing. Expected: a dictionary of tensors",
    ),
    "a release that is a vector": (
        {"post": lambda *given: given[1].vector},
        r"Mine.post returned a tensor of shape \(21,\). Expected: noised.map",
    ),
    "a release that is a number": (
        {"post": gives(3)},
        "Mine.post returned an int. Expected: noised.map",
    ),
    "a server without state": (
        {"server": lambda *given: given[1]},
        "Mine.server returned a dict. Expected: a pair",
    ),
    "a server that forgets a parameter": (
        {"server": gives(({}, {}))},
        "Mine.server returned nothing for weight",
    ),
    "a state without return": ({"init": gives(None)}, "Mine.init returned nothing"),
}


@pytest.mark.parametrize("vectorize", [False, True], ids=["alone", "together"])
@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer_is_named_before_anything_is_charged(case, vectorize, tmp_path) -> None:
    members, words = WRONG[case]
    method: Any = type("Mine", (Method,), members)()
    path = tmp_path / "run.ledger"
    with pytest.raises(Unsupported, match=words):
        federation(linear(), CLIENTS, method=method, ledger=path, vectorize=vectorize).run()
    assert not path.exists()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_returns_what_the_engine_reads(name: str) -> None:
    with federation(linear(), CLIENTS, method=METHODS[name](), rounds=1) as run:
        assert run.run().round == 1
