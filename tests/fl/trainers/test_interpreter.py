"""What the interpreter plays has the bits of the operations called one by one, or is not used."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from dpacct.fl.tensors import same_numbers
from dpacct.fl.trainers import interpreter
from dpacct.fl.trainers.recorder import Line, Place
from dpacct.fl.trainers.replay import Record, recorded

_torch: Any = torch
optimizes: Callable[[], bool] = _torch._C._get_graph_executor_optimize


def normalized(x: Tensor) -> list[Tensor]:
    return [functional.layer_norm(x, x.shape[1:], eps=1), torch.var_mean(x, dim=0)[1]]


def pieced(x: Tensor) -> list[Tensor]:
    first, *others = x.unbind(0)
    return [torch.stack([*others, first]), torch.cat(torch.split(x, [1, 3]))]


def looked_up(x: Tensor) -> list[Tensor]:
    places = (x > 0).long()
    return [x[:, [0, 2]], x.scatter(1, places, 2.0), x.gather(1, places), x.new_zeros(3) - 0.0]


def numbers(x: Tensor) -> list[Tensor]:
    return [x * 3 - 0.5, 2 / (x**2 + 1), x.clamp(-0.25, None), torch.where(x > 0, x, -1), x // 0.3]


def signed_zeros(x: Tensor) -> list[Tensor]:
    return [1 / (x * 0 + -0.0), torch.full_like(x, -0.0), x.new_tensor(float("inf")) * x]


def types(x: Tensor) -> list[Tensor]:
    return [x.double() * 0.1, (x > 0).sum(0), x.to(torch.bfloat16), x.to(torch.complex64) * 2]


def convolved(x: Tensor) -> list[Tensor]:
    images = x.reshape(1, 1, *x.shape)
    found = functional.conv2d(images, images[:, :, :2, :2], stride=[2, 1])
    return [found, functional.max_pool2d(images, 2, ceil_mode=True), images.mean((2, 3))]


FUNCTIONS = [normalized, pieced, looked_up, numbers, signed_zeros, types, convolved]


def record_of(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> Record:
    _, record = recorded(function, inputs, [], blank=True)
    assert record is not None
    return record


def bits(values: Sequence[Tensor]) -> list[bytes]:
    return [value.flatten().view(torch.uint8).numpy().tobytes() for value in values]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_same_bits(function: Callable[[Tensor], list[Tensor]]) -> None:
    """Of other values than were recorded; types and signs of zeros too."""
    record = record_of(function, torch.zeros(4, 5))
    plain = record.play
    for seed in (1, 2):
        x = torch.randn(4, 5, generator=torch.Generator().manual_seed(seed))
        expected = plain([x])
        assert bits(expected) == bits(function(x))
        record.interpret([x])
        assert record.interpreted
        assert bits(record.play([x])) == bits(expected)
        assert [v.dtype for v in record.play([x])] == [v.dtype for v in expected]


def test_memory_of_all_kinds() -> None:
    """Tensors that are transposed, repeated without a copy, or empty."""

    def product(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
        return [x.t().reshape(-1), x + y, z.sum()]

    given = torch.randn(3, 4).t(), torch.randn(4, 1).expand(4, 3), torch.ones(0, 2)
    record = record_of(product, *given)
    record.interpret(given)
    assert record.interpreted
    assert bits(record.play(given)) == bits(product(*given))


def test_what_it_is_given_is_read_alone() -> None:
    """Comparing writes to made-up tensors, and a record that writes leaves the same behind."""

    def written(x: Tensor, total: Tensor) -> list[Tensor]:
        total.add_(x)
        return [total * 2]

    x, total = torch.ones(3), torch.zeros(3)
    record = record_of(written, x, total)
    assert record.writes
    total.zero_()
    record.interpret([x, total])
    assert same_numbers(total, torch.zeros(3))
    assert record.interpreted
    [found] = record.play([x, total])
    assert same_numbers(found, torch.full((3,), 2.0))
    assert same_numbers(total, torch.ones(3))


def test_optimizing_is_as_it_was() -> None:
    """On this thread and on others, and where an operation fails; off while it plays."""
    seen: list[bool] = []

    def looked(x: Tensor, places: Tensor) -> list[Tensor]:
        return [x[places]]

    given = torch.ones(3), torch.zeros(2, dtype=torch.int64)
    record = record_of(looked, *given)
    record.interpret(given)
    assert record.interpreted

    def play() -> None:
        seen.append(optimizes())
        record.play(given)
        seen.append(optimizes())

    other = threading.Thread(target=play)
    other.start()
    other.join()
    play()
    with pytest.raises((RuntimeError, IndexError), match="out of bounds"):
        record.play([given[0], torch.tensor([0, 3])])
    assert seen == [True] * 4
    assert optimizes()


def test_nothing_is_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is played, and where a program has switched fusing on."""
    inside: list[bool] = []
    before: Any = _torch._C._create_function_from_graph

    def watched(name: str, graph: object) -> Callable[..., Any]:
        function = before(name, graph)

        def play(*given: Tensor) -> Any:
            inside.append(optimizes())
            return function(*given)

        return play

    monkeypatch.setattr(_torch._C, "_create_function_from_graph", watched)
    x = torch.randn(64, 64)
    record = record_of(numbers, x)
    record.interpret([x])
    expected = bits(numbers(x))
    fuses = _torch._C._jit_can_fuse_on_cpu()
    _torch._C._jit_override_can_fuse_on_cpu(True)
    try:
        for _ in range(12):
            assert bits(record.play([x])) == expected
    finally:
        _torch._C._jit_override_can_fuse_on_cpu(fuses)
    assert inside
    assert not any(inside)


def test_threads_at_once() -> None:
    """One graph, played by several threads."""
    x = torch.randn(200, 200)
    record = record_of(normalized, x)
    record.interpret([x])
    expected, found = bits(normalized(x)), list[bool]()

    def play() -> None:
        found.extend(bits(record.play([x])) == expected for _ in range(20))

    threads = [threading.Thread(target=play) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


def test_autocast_around_it_changes_nothing() -> None:
    x = torch.randn(8, 8)

    def product(x: Tensor) -> list[Tensor]:
        return [x @ x]

    record = record_of(product, x)
    record.interpret([x])
    with torch.autocast("cpu"):
        found = record.play([x])
    assert found[0].dtype == torch.float32
    assert bits(found) == bits(product(x))


@pytest.mark.parametrize("missing", ["Graph", "_create_function_from_graph"])
def test_another_torch(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One without an interpreter calls the operations one by one."""
    monkeypatch.delattr(_torch._C, missing)
    x = torch.randn(4, 5)
    record = record_of(numbers, x)
    record.interpret([x])
    assert not record.interpreted
    assert bits(record.play([x])) == bits(numbers(x))


def test_other_bits_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph with another number in it."""
    built = cast("Any", interpreter)._graph

    def other(written: interpreter.Written) -> Any:
        lines = [
            line._replace(arguments=[0.25 if one == 0.5 else one for one in line.arguments])
            for line in written.lines
        ]
        return built(written._replace(lines=lines))

    monkeypatch.setattr(interpreter, "_graph", other)
    x = torch.randn(4, 5)
    record = record_of(numbers, x)
    record.interpret([x])
    assert not record.interpreted
    assert bits(record.play([x])) == bits(numbers(x))


def test_another_operation_of_that_name_is_refused() -> None:
    """The interpreter finds operations by the kinds of what they are given."""
    aten: Any = torch.ops.aten
    arguments = [Place(0), Place(0)]
    line = Line(aten.pow.Tensor_Tensor, arguments, {}, [1], alone=True, writes=False)
    x = torch.ones(3)

    def plain(given: Sequence[Tensor]) -> list[Tensor]:
        return [given[0] ** given[0]]

    own = interpreter.Written([0], [line], [1])
    assert interpreter.interpreted(own, plain, [x]) is not None
    # Written down with a number, of which the interpreter has another operation.
    other = own._replace(lines=[line._replace(arguments=[Place(0), 2])])
    assert interpreter.interpreted(other, lambda given: [given[0] ** 2], [x]) is None
