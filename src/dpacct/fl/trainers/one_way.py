"""All clients side by side go one way: no operation tells the program about one of them.

An operation side by side is that of all clients. What it raises, and what the host reads of its
result, would let one client's data decide how all are trained. Rule 1: what is raised is raised
again in the end, whoever catches it: a model, a method, a hook, a backward pass. Rule 2: only what
holds nothing of a client may be read. Rule 3: operations that mix clients are refused. All of that
is seen below `torch.func.vmap`, where operations arrive whatever calls them: scripts, backward
passes, code that modes do not see. Watched, PyTorch also takes those formulas of gradients that do
not look at values (of `prod`, at who has a zero).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpacct.fl.trainers.failures import Noted
from dpacct.fl.trainers.host_reads import asks_host, may_ask_host

_torch: Any = torch
_aten: Any = _torch.ops.aten
_functorch: Any = _torch._C._functorch  # noqa: SLF001 - it has no public name
_LOOKUPS = (_aten.embedding,)
_FILLS = (_aten.index_fill, _aten.index_fill_)
_MIXING = frozenset({*_LOOKUPS, *_FILLS})


class OneWay(TorchDispatchMode):
    """Around `vmap` over clients or examples and its backward pass.

    Attributes:
        asked: what Python gives the function of torch that it calls now; None where the call is
            not Python's, or not seen.
        own_rows: whether what is looked up now is within a client's own table.
        failures: of operations, and of functions.
    """

    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.asked: object = None
        self.own_rows = False
        self.failures = Noted()

    def __exit__(self, *raised: object) -> None:
        """Raise what an operation raised, if it was passed over."""
        super().__exit__(*raised)  # pyright: ignore[reportUnknownMemberType]
        if raised[0] is None:
            self.failures.tell()

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Do it, unless it is refused.

        Raises:
            RuntimeError: it may mix clients, or show the host one of them.
        """
        del types
        with self.failures:
            if _is_suspect(func):
                self._judge(func, args)
            return func(*args, **(kwargs or {}))

    def _judge(self, func: Any, args: tuple[Any, ...]) -> None:
        packet = func.overloadpacket
        if packet in _FILLS:
            raise RuntimeError("index_fill side by side may write to the rows of others")
        if packet in _LOOKUPS and not self.own_rows:
            raise RuntimeError("a table looked up past torch's functions shows the rows of others")
        if asks_host(func, args) and (self.asked is None or _is_anybodys(self.asked)):
            raise RuntimeError(f"what the host reads of {packet} side by side is that of all")


@cache
def _is_suspect(func: Any) -> bool:
    return func.overloadpacket in _MIXING or may_ask_host(func)


def _is_anybodys(values: object) -> bool:
    """Whether tensors among these are those of clients."""
    found: list[Any] = tree_leaves(values)
    return any(_is_batched(value) for value in found if isinstance(value, Tensor))


def _is_batched(value: Tensor) -> bool:
    while _functorch.is_functorch_wrapped_tensor(value):
        if _functorch.is_batchedtensor(value):
            return True
        value = _functorch.get_unwrapped(value)
    return False
