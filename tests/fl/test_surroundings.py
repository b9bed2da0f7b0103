"""Settings of torch that a program has changed around a run: it trains the same, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from tests.fl.problems import federation, flat, make_clients, perceptron

Around = Callable[[], AbstractContextManager[Any]]


@contextmanager
def switched(switch: Callable[[Any], None], on: Any, off: Any):
    with ExitStack() as stack:
        switch(on)
        stack.callback(switch, off)
        yield


SAME: dict[str, Around] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(mode=True),
    "a device": lambda: torch.device("meta"),
    "a default device": lambda: switched(torch.set_default_device, "meta", None),
}
PATHS = pytest.mark.parametrize(
    ("vectorize", "single"),
    [(False, False), (True, False), (True, True)],
    ids=["one by one", "in groups", "examples"],
)
[WHOLE], CLIENTS = make_clients([40]), make_clients([5, 8, 3, 7])


def run_of(vectorize, single, model: nn.Module, data: Any = WHOLE, **options: Any):
    people: Any = fl.Examples(data) if single else CLIENTS
    local = fl.SGD(lr=1.0) if single else fl.SGD(lr=0.1, epochs=2, batch_size=4)
    return federation(model, people, vectorize=vectorize, seed=3, local=local, **options)


def trained(vectorize, single, rounds: list[Around], at_first: Around = nullcontext) -> Tensor:
    """The model after rounds, each in surroundings of its own."""
    model = perceptron()
    with at_first():
        run = run_of(vectorize, single, model, rounds=len(rounds), method=fl.FedCM())
    reports = iter(run)
    for around in rounds:
        with around():
            assert not next(reports).diagnostics.dropped_updates
    return flat(model)


@pytest.mark.sampled(2)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", SAME)
@PATHS
def test_it_trains_the_same(vectorize, single, name):
    plain, around = [nullcontext] * 3, SAME[name]
    expected = trained(vectorize, single, plain)
    assert torch.equal(trained(vectorize, single, [around] * 3, around), expected)
    assert torch.equal(trained(vectorize, single, [nullcontext, around, nullcontext]), expected)


class Offloading(nn.Linear):
    """Has hooks of its own around its forward."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(inputs)


def test_a_model_may_use_hooks_itself():
    report = run_of(False, False, Offloading(6, 3)).run()
    assert report
    assert not report.diagnostics.dropped_updates


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", SAME)
def test_a_server_releases_and_an_audit_finds_the_same(name: str):
    finals: list[Tensor] = []
    options = {"rounds": 2, "clip_norm": 1.0, "noise_multiplier": 1.0, "sampling": fl.Full()}
    for around in (nullcontext, SAME[name]):
        model = perceptron()
        rows = torch.ones(3, flat(model).numel())
        with around(), fl.Server(model, 3, seed=3, **options) as server:
            for opened in server:
                opened.add([0, 1, 2], opened.bound(rows))
                opened.release()
        finals.append(flat(model))
    assert torch.equal(*finals)
    expected = fl.audit(draws=2)
    with SAME[name]():
        assert fl.audit(draws=2) == expected


def test_tensors_of_inference_mode_train_as_data_and_are_refused_in_a_model():
    with torch.inference_mode():
        model, frozen = perceptron(), torch.ones(1)
        data = fl.ClientData(WHOLE.inputs.clone(), WHOLE.targets.clone())
    other = perceptron()
    other.register_buffer("scale", frozen)
    for made in (model, other):
        with pytest.raises(Unsupported, match="was made inside torch"):
            run_of(False, False, made)
    models = perceptron(), perceptron()
    for trained_model, people in zip(models, (WHOLE, data), strict=True):
        run_of(True, True, trained_model, people).run()
    assert torch.equal(*map(flat, models))
    with pytest.raises(InvalidParameter, match="hold values"):
        fl.ClientData(torch.zeros(3, 2, device="meta"), torch.zeros(3))
