"""A second device without hardware: no mixed devices, the bits of the CPU, and counts of a round.

PyTorch lets a program declare a device type and serve each of its kernels in Python. A tensor of
the device here holds one of the CPU, so both compute alike. An operation that mixes devices raises,
as CUDA would. Each kernel, upload, download and wait for the device is counted. All of it runs in
one process of its own: PyTorch learns of the device before the first backward pass, or never.

Private names of PyTorch stand in this file alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils import backend_registration

from dpacct import Budget, fl
from dpacct.fl.privacy.account import Account
from dpacct.ledger import Ledger
from tests.fl.problems import (
    Silent,
    convolutional,
    cross_entropy,
    federation,
    flat,
    make_clients,
    pause,
)

ROOT = Path(__file__).resolve().parents[2]
NAME = "second"
KERNELS, UPLOADS, DOWNLOADS, WAITS = "kernels", "uploads", "downloads", "waits"
COPIES = {"aten::_to_copy", "aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"}
# They give Python a value, or a size that follows from values.
WAITING = {
    "aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero",
    "aten::masked_select", "aten::_unique2", "aten::unique_dim",
}  # fmt: skip
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}
# They launch nothing on a device.
FREE = {"aten::empty", "aten::empty_strided", "aten::empty_like", "aten::new_empty", "aten::detach"}


class SecondDevice:
    """The kernels of the device, with what they count."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._held: dict[int, Tensor] = {}
        backend_registration._setup_privateuseone_for_python_backend(rename=NAME)
        self._libraries = [torch.library.Library(name, "IMPL") for name in ("_", "aten")]
        everything, aten = self._libraries
        everything.fallback(self._serve, "PrivateUse1")
        # PyTorch's own kernels would go before the fallback.
        for full in torch._C._dispatch_get_registrations_for_dispatch_key(
            "CompositeExplicitAutograd"
        ):
            space, _, rest = full.partition("::")
            name, _, kind = rest.partition(".")
            packet = getattr(torch.ops.aten, name, None) if space == "aten" else None
            if name in {"detach", "detach_", "alias", "lift", "lift_fresh"} or packet is None:
                continue
            operator = getattr(packet, kind or "default", None)
            if operator is not None:
                aten.impl(rest, partial(self._serve, operator), "PrivateUse1")

    def _wrapped(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        tensor = torch._C._acc.create_empty_tensor(value.shape, value.dtype)
        self._held[tensor.untyped_storage()._cdata] = value
        return tensor

    def _unwrapped(self, value: Any) -> Any:
        if is_on_device(value):
            return self._held[value.untyped_storage()._cdata]
        if isinstance(value, torch.device) and value.type == NAME:
            return torch.device("cpu")
        return value

    def _serve(self, operator: Any, *args: Any, **options: Any) -> Any:
        """Do the work of an operator on the CPU."""
        name = operator.name().partition(".")[0]
        if name in COPIES:
            return self._copy(name, operator, args, options)
        tensors = list(tensors_of([*args, *options.values()]))
        ours = [tensor for tensor in tensors if is_on_device(tensor)]
        if ours and any(tensor.ndim and not is_on_device(tensor) for tensor in tensors):
            # CUDA takes an index from the host, and copies it.
            if name not in INDEXING:
                raise RuntimeError(f"{name} has tensors of two devices")
            self.counts[UPLOADS] += 1
        masks = name in INDEXING and any(tensor.dtype == torch.bool for tensor in tensors)
        self.counts[WAITS] += name in WAITING or masks
        # CUDA compares values, and then whether all are equal.
        kernels = 2 if name == "aten::equal" else int(not (operator.is_view or name in FREE))
        self.counts[KERNELS] += kernels
        if name in {"aten::view", "aten::_unsafe_view"}:
            return self._wrapped(self._unwrapped(args[0]).reshape(args[1]))
        made = ours or torch.device(options.get("device") or "cpu").type == NAME
        given = [each(self._unwrapped, value) for value in args]
        named = {key: each(self._unwrapped, value) for key, value in options.items()}
        found = operator(*given, **named)
        if not made:
            return found
        # In place: the tensor that was given.
        known = {id(self._unwrapped(tensor)): tensor for tensor in ours}
        return each(lambda x: known[id(x)] if id(x) in known else self._wrapped(x), found)

    def _copy(self, name: str, operator: Any, args: Any, options: Any) -> Any:
        """Copy within a device, or between both."""
        if name == "aten::_to_copy":
            [source], device = args, options.get("device")
            there = source.device.type if device is None else torch.device(device).type
            self._count_copy(is_on_device(source), there == NAME)
            named = options | {"device": torch.device("cpu")}
            found = operator(self._unwrapped(source), **named)
            return self._wrapped(found) if there == NAME else found
        source, target = (args[1], args[0]) if name == "aten::copy_" else (args[0], args[1])
        self._count_copy(is_on_device(source), is_on_device(target))
        self._unwrapped(target).copy_(self._unwrapped(source))
        return target

    def _count_copy(self, before: bool, after: bool) -> None:  # noqa: FBT001 - here and there
        what = {(False, True): UPLOADS, (True, False): DOWNLOADS}.get((before, after), KERNELS)
        self.counts[what] += 1


def each(change: Callable[[Any], Any], value: Any) -> Any:
    """Change a value, or each one of a list."""
    return type(value)(change(v) for v in value) if type(value) in (list, tuple) else change(value)


def tensors_of(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_of(value)


def is_on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == NAME


CLIENTS = make_clients([5, 3, 4, 2, 6, 4])
SETTINGS: dict[str, Any] = {
    "sampling": fl.Poisson(0.5), "noise_multiplier": 1.0, "delta": 1e-3, "rounds": 2, "seed": 5,
    "local": fl.SGD(lr=0.2, epochs=1, batch_size=3),
}  # fmt: skip


def tanh_network(device: str) -> nn.Module:
    """A model with the same weights on every device."""
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator) / 3)
    return model.to(device)


def run_on(device: str, clients: Any = CLIENTS, **options: Any) -> fl.Federation:
    return federation(tanh_network(device), clients, **(SETTINGS | options))


def trained(device: str, **options: Any) -> Tensor:
    with run_on(device, **options) as run:
        run.run()
        found = [flat(run.model)]
        if "average" in options:
            found.append(flat(run.averaged()))
    return torch.cat(found).cpu()


def served(device: str) -> Tensor:
    """A server whose clients train in a loop of their own."""
    options = SETTINGS | {"clip_norm": 0.5, "method": fl.Scaffold()}
    with fl.Server(tanh_network(device), len(CLIENTS), **options) as run:
        for opened in run:
            for client in opened.workers:
                data = CLIENTS[client]
                with opened.local(client, cross_entropy, steps=1) as local:
                    local.step(data.inputs, data.targets)
            opened.release()
        return flat(run.model).cpu()


def privatized(device: str) -> Tensor:
    """Sums of updates that are long, short, or not finite; the noise is left out."""
    # Long enough for several pieces of a norm.
    deltas = torch.randn(9, 40000, generator=torch.Generator().manual_seed(3)) / 56
    deltas[3], deltas[5, 7] = 1e20, torch.nan
    plan = fl.AggregationPlan(1.0, 0.5, num_clients=9, noise=Silent())
    with (
        tempfile.TemporaryDirectory() as folder,
        Ledger.open(Path(folder) / "a.ledger", Budget(50, 1e-5)) as ledger,
    ):
        found = fl.privatize(deltas.to(device), plan, ledger)
        assert found.device.type == device
        return found.cpu()


def moved_over(first: str, second: str) -> Tensor:
    """A run that stops on one device and goes on on another, with memories and an average."""
    options = {"method": fl.Scaffold(), "average": fl.Average(0.7), "server": fl.Adam(0.1)}
    with tempfile.TemporaryDirectory() as folder:
        options |= {"rounds": 4, "checkpoint": Path(folder) / "run.pt"}
        pause(run_on(first, **options), 2)
        with run_on(second, **options).resume() as run:
            run.run()
            return torch.cat([flat(run.model), flat(run.averaged())]).cpu()


def to_and_from(device: str) -> Tensor:
    """Both ways across; on the CPU, the way of a run that stays."""
    return torch.cat([moved_over("cpu", device), moved_over(device, "cpu")])


def examples(device: str) -> Tensor:
    rows = fl.ClientData(
        torch.cat([client.inputs for client in CLIENTS]),
        torch.cat([client.targets for client in CLIENTS]),
    )
    return trained(device, clients=fl.Examples(rows), local=None, vectorize=True)


def images(device: str) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    clients = [
        fl.ClientData(torch.randn(4, 1, 8, 8, generator=generator), torch.arange(4) % 3)
        for _ in range(4)
    ]
    with federation(convolutional().to(device), clients, **SETTINGS, vectorize=True) as run:
        run.run()
        return flat(run.model).cpu()


def of_method(name: str, vectorize: bool) -> Callable[[str], Tensor]:  # noqa: FBT001 - as there
    return lambda device: trained(device, method=fl.METHODS[name](), vectorize=vectorize)


METHODS = {
    f"{name}, {way}": of_method(name, way == "in groups")
    for name in fl.METHODS
    for way in ("one by one", "in groups")
}
# Daily tests take one part of the methods, in both ways.
PARTS = 11
OTHERS: dict[str, Callable[[str], Tensor]] = {
    "adaptive": partial(trained, bound=fl.AdaptiveClip(0.5, indicator_noise=5.0)),
    "per layer": partial(trained, bound=fl.PerLayerClip((0.3, 0.1, 0.4, 0.2))),
    "secure noise": partial(trained, secure_noise=True),
    "average": partial(trained, average=fl.Average(0.7), server=fl.Momentum(0.5)),
    "server": served, "privatize": privatized, "checkpoints": to_and_from, "examples": examples,
    "images": images,
}  # fmt: skip
# The device here has no strides. So a norm of a transposed gradient is summed in another order.
ROUNDED = ("dp-fedsam,", "dp-fedsam-topk,")

# What a round of six small clients costs at most. A number may fall, and not grow.
BUDGETS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "one by one": (
        {"vectorize": False},
        {KERNELS: 298, UPLOADS: 19, DOWNLOADS: 1, WAITS: 3},
    ),
    "in groups": (
        {"vectorize": True},
        {KERNELS: 203, UPLOADS: 8, DOWNLOADS: 1, WAITS: 3},
    ),
    "memories": (
        {"vectorize": True, "method": fl.Scaffold()},
        {KERNELS: 375, UPLOADS: 9, DOWNLOADS: 2, WAITS: 3},
    ),
}


def differing(name: str) -> str:
    """Return how a case on the device differs from the CPU, or nothing."""
    case = {**METHODS, **OTHERS}[name]
    try:
        one, two = case("cpu"), case(NAME)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    gap = float((one - two).abs().max())
    return "" if gap <= (1e-6 if name.startswith(ROUNDED) else 0.0) else f"off by {gap}"


def costs_of_a_round(device: SecondDevice, options: dict[str, Any]) -> dict[str, int]:
    """Count what the third round of a run takes, without its rehearsal."""
    with run_on(NAME, sampling=fl.Full(), **(options | {"rounds": 3})) as run:
        for report in run:
            if report.round == 2:
                device.counts.clear()
        return dict(device.counts)


def tell(names: Sequence[str]) -> None:
    """Print how these cases differ and what rounds cost, as JSON."""
    torch.set_num_threads(1)
    # Reports do not say what was spent, which takes longer than small rounds.
    Account.spent_so_far = cast("Any", lambda _: float)
    device = SecondDevice()
    costs = {name: costs_of_a_round(device, options) for name, (options, _) in BUDGETS.items()}
    found = {"differing": {name: differing(name) for name in names}, "costs": costs}
    sys.stdout.write(json.dumps(found))


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this PyTorch declares no device in Python",
)
@pytest.mark.sampled(1)
@pytest.mark.parametrize("part", range(PARTS))
def test_a_device_has_the_bits_of_the_cpu_mixes_nothing_and_costs_no_more_than_it_did(part):
    asked = [*OTHERS, *list(METHODS)[part::PARTS]]
    done = subprocess.run(
        [sys.executable, "-m", "tests.fl.test_second_device", *asked],
        cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["differing"] == dict.fromkeys(asked, "")
    for name, (_, budget) in BUDGETS.items():
        costs = found["costs"][name]
        assert all(0 < costs[what] <= most for what, most in budget.items()), (name, costs)


if __name__ == "__main__":
    tell(sys.argv[1:])
