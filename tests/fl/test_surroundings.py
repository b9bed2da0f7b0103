"""What a program has switched on around a run: it trains the same, or is refused in words."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from tests.fl.problems import federation, flat, make_clients, perceptron

Around = Callable[[], AbstractContextManager[Any]]


@contextmanager
def wide() -> Generator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def elsewhere() -> Generator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextmanager
def deterministic() -> Generator[None]:
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


SAME: dict[str, Around] = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(mode=True),
    "a device": lambda: torch.device("meta"),
    "a default device": elsewhere,
}
FIXED: dict[str, Around] = {"default dtype": wide, "deterministic mode": deterministic}
HOOKS: dict[str, Around] = {
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
    "save_on_cpu": torch.autograd.graph.save_on_cpu,
}
PATHS = pytest.mark.parametrize(
    ("vectorize", "single"),
    [(False, False), (True, False), (True, True)],
    ids=["one by one", "side by side", "examples"],
)


[WHOLE], PEOPLE = make_clients([40]), make_clients([5, 8, 3, 7])


def run_of(vectorize, single, model: nn.Module, data: Any = WHOLE, **options: Any):
    people: Any = fl.Examples(data) if single else PEOPLE
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


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FIXED)
@PATHS
def test_what_a_model_may_count_on_stays_as_it_was_tried(vectorize, single, name):
    around = FIXED[name]
    expected = trained(vectorize, single, [nullcontext] * 2)
    assert torch.equal(trained(vectorize, single, [around] * 2, around), expected)
    run = run_of(vectorize, single, perceptron(), rounds=3)
    next(iter(run))
    before = run.epsilon
    with around(), pytest.raises(Unsupported, match=f"{name} was .* noise alone"):
        run.run()
    assert run.epsilon == before
    assert run.run()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HOOKS)
@PATHS
def test_hooks_on_what_backward_passes_save_are_refused(vectorize, single, name):
    run = run_of(vectorize, single, perceptron(), rounds=3)
    next(iter(run))
    before = run.epsilon
    with HOOKS[name](), pytest.raises(Unsupported, match="save_on_cpu"):
        run.run()
    assert run.epsilon == before


class Offloading(nn.Linear):
    """Has hooks of its own around its forward."""

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return super().forward(inputs)


def test_a_model_may_use_them_itself():
    report = run_of(False, False, Offloading(6, 3)).run()
    assert report
    assert not report.diagnostics.dropped_updates


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SAME)
def test_a_server_releases_the_same(name: str):
    found: list[Tensor] = []
    for around in (nullcontext, SAME[name]):
        model = perceptron()
        rows = torch.ones(3, sum(p.numel() for p in model.parameters()))
        with (
            around(),
            fl.Server(
                model, 3, rounds=2, clip_norm=1.0, noise_multiplier=1.0, sampling=fl.Full(), seed=3
            ) as server,
        ):
            for opened in server:
                opened.add([0, 1, 2], opened.bound(rows))
                opened.release()
        found.append(flat(model))
    assert torch.equal(*found)


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("name", SAME)
def test_an_audit_sees_the_same(name: str):
    expected = fl.audit(draws=2)
    with SAME[name]():
        assert fl.audit(draws=2) == expected


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_of_inference_mode_is_refused(frozen):
    model = perceptron()
    with torch.inference_mode():
        if frozen:
            model.register_buffer("scale", torch.ones(1))
        else:
            model = perceptron()
    with pytest.raises(Unsupported, match="was made inside torch"):
        run_of(False, False, model)


def test_data_of_inference_mode_train():
    with torch.inference_mode():
        data = fl.ClientData(WHOLE.inputs.clone(), WHOLE.targets.clone())
    models = perceptron(), perceptron()
    for model, people in zip(models, (WHOLE, data), strict=True):
        run_of(True, True, model, people).run()
    assert torch.equal(*map(flat, models))


def test_clients_without_values_are_refused():
    with pytest.raises(InvalidParameter, match="hold values"):
        fl.ClientData(torch.zeros(3, 2, device="meta"), torch.zeros(3))
