"""A record as one graph, which TorchScript's interpreter plays: no Python between operations.

From Python an operation costs a few microseconds, and Python's lock, for which threads that play at
once wait. The interpreter goes through all of them without either.

Rule 1: the same operations on the same operands in the same order. Each node of a graph has the
schema that was written down, and nothing is optimized: that is switched off for the thread while it
plays. Rule 2: before a graph is used, its bits are compared with those of the operations called one
by one, on made-up tensors; where they differ, or where this torch has no such interpreter, those
are called.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dpacct.fl.tensors import same_numbers
from dpacct.fl.trainers.recorder import Line, Place

Play = Callable[[Sequence[Tensor]], list[Tensor]]
_torch: Any = torch
_core: Any = _torch._C  # noqa: SLF001 - it has the interpreter, which torch names nowhere else
_NEEDED = (
    "Graph",
    "_create_function_from_graph",
    "_get_graph_executor_optimize",
    "_set_graph_executor_optimize",
)
# How graphs write these down.
_FORMATS: dict[Any, int] = {
    torch.contiguous_format: 0,
    torch.preserve_format: 1,
    torch.channels_last: 2,
    torch.channels_last_3d: 3,
}


class _Unwritten(Exception):
    """There is no graph of this."""


class Written(NamedTuple):
    """Operations on numbered tensors.

    Attributes:
        given: places of tensors that are there before.
        lines: the operations.
        outputs: places of the results.
    """

    given: Sequence[int]
    lines: Sequence[Line]
    outputs: Sequence[int]


def interpreted(written: Written, plain: Play, like: Sequence[Tensor]) -> Play | None:
    """How it is played by the interpreter; None where it cannot be, or where the bits are others.

    Args:
        written: what to play. plain: the same, one operation after the other.
        like: tensors of the forms of those that are given; their values are not looked at.
    """
    play = _built(written)
    return play if play is not None and _alike(plain, play, like) else None


def _built(written: Written) -> Play | None:
    if not all(hasattr(_core, name) for name in _NEEDED):
        return None
    try:
        graph, constants = _graph(written)
        function = _core._create_function_from_graph("played", graph)  # noqa: SLF001
    except (_Unwritten, RuntimeError, TypeError):
        return None

    def play(tensors: Sequence[Tensor]) -> list[Tensor]:
        before = _core._get_graph_executor_optimize()  # noqa: SLF001 - of this thread
        _core._set_graph_executor_optimize(False)  # noqa: FBT003, SLF001
        try:
            return list(function(*tensors, *constants))
        finally:
            _core._set_graph_executor_optimize(before)  # noqa: SLF001

    return play


def _alike(plain: Play, play: Play, like: Sequence[Tensor]) -> bool:
    """Whether both give the same bits, and leave the same in what they were given. Rule 2."""
    found: list[list[Tensor]] = []
    for one in (plain, play):
        given = [_made_up(value) for value in like]
        try:
            found.append([*one(given), *given])
        except (RuntimeError, IndexError, ValueError):
            return False
    return all(map(same_numbers, *found))


def _made_up(like: Tensor) -> Tensor:
    """Numbers that follow no data, in memory as those."""
    length = 1 + sum((n - 1) * step for n, step in zip(like.shape, like.stride(), strict=True))
    return counted(like.new_empty(length if like.numel() else 0)).as_strided(
        like.shape, like.stride()
    )


def counted(like: Tensor) -> Tensor:
    """Any numbers, or zeros and ones where those may stand for classes.

    Zeros alone off the CPU: a class that does not exist would stop a device for good.
    """
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    classes = 2 if like.device.type == "cpu" else 1
    return (places.sin() if like.is_floating_point() else places % classes).to(like)


def _graph(written: Written) -> tuple[Any, list[Tensor]]:
    """A graph, and tensors that it is given behind the others: Python's numbers as tensors.

    Raises:
        _Unwritten: it would not be the same.
    """
    graph = _core.Graph()
    values: dict[int, Any] = {place: graph.addInput() for place in written.given}
    constants: list[Tensor] = []
    # Nobody writes to what stands for a number, if there is no writing to what was there before.
    still = not any(line.writes for line in written.lines)
    for line in written.lines:
        numbers = _has_numbers_for_tensors(line)
        if numbers and still and not line.uses():
            [place] = line.results
            values[place] = graph.addInput()
            constants.append(line.operation(*line.arguments, **line.named))
            continue
        schema = line.operation._schema  # noqa: SLF001 - torch has no other way to it
        operands = [
            _operand(graph, _argument(line, n, one), one.type, values)
            for n, one in enumerate(schema.arguments)
        ]
        node = graph.create(schema.name, operands, len(schema.returns))
        graph.insertNode(node)
        # For a number torch has the same operation once more.
        same = node.schema() == str(schema)
        if not same and not (numbers and node.schema().startswith(f"{schema.name}.Scalar(")):
            raise _Unwritten
        results = _results(graph, node, len(line.results), schema.returns)
        values.update(zip(line.results, results, strict=True))
    outputs = [values[place] for place in written.outputs]
    whole = graph.create("prim::TupleConstruct", outputs, 1)
    graph.insertNode(whole)
    whole.output().setType(_core.TupleType([_core.TensorType.get()] * len(outputs)))
    graph.registerOutput(whole.output())
    return graph, constants


def _results(graph: Any, node: Any, count: int, declared: Sequence[Any]) -> list[Any]:
    """The tensors that an operation gives; some give them in a list.

    Raises:
        _Unwritten: it gives something else.
    """
    kinds = [str(one.type) for one in declared]
    if kinds == ["List[Tensor]"]:
        node.output().setType(_core.ListType.ofTensors())
        node = graph.create("prim::ListUnpack", [node.output()], count)
        graph.insertNode(node)
    elif kinds != ["Tensor"] * count:
        raise _Unwritten
    return list(node.outputs())


def _argument(line: Line, number: int, declared: Any) -> Any:
    """Of an operation, as it was passed or as it is by default."""
    if number < len(line.arguments):
        return line.arguments[number]
    return line.named.get(declared.name, declared.default_value)


def _has_numbers_for_tensors(line: Line) -> bool:
    declared = line.operation._schema.arguments  # noqa: SLF001 - as above
    return any(
        str(one.type) == "Tensor" and isinstance(_argument(line, n, one), int | float)
        for n, one in enumerate(declared)
    )


def _operand(graph: Any, value: Any, kind: Any, values: dict[int, Any]) -> Any:
    """An argument as a value of the graph."""
    if kind.kind() == "OptionalType" and value is not None:
        kind = kind.getElementType()
    if isinstance(value, Place):
        return values[value.number]
    # A list of numbers is one constant; an empty one would not say of what it is.
    if isinstance(value, list) and not _are_numbers(cast("list[Any]", value)):
        inner = kind.getElementType()
        parts = [_operand(graph, one, inner, values) for one in cast("list[Any]", value)]
        node = graph.create("prim::ListConstruct", parts, 1)
        graph.insertNode(node)
        node.output().setType(kind)
        return node.output()
    if isinstance(value, torch.memory_format):
        value = _FORMATS[value]
    if str(kind) == "float" and isinstance(value, int):
        value = float(value)
    return graph.insertConstant(value)


def _are_numbers(values: list[Any]) -> bool:
    return bool(values) and all(isinstance(one, int | float) for one in values)
