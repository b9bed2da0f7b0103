"""Checks that members of a method take what the engine gives, and return what it reads.

The rehearsal calls each own member on synthetic values. `Unsupported` names the member that is
wrong, what it returned, and what was expected.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NoReturn, cast

from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.layout import Layout, Params, State, copies
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.privacy.markers import Noised

_PARAMS = "a dictionary with one tensor for each parameter, of its shape"


def check_client(method: Method, loss: Loss, batch: Batch, context: Context) -> None:
    """Call the members that run on a client: one step of one client."""
    params, memory = context.anchor, context.client_state
    if overrides(method, "gradient"):
        _check_params(
            method, "gradient", _asked(method, "gradient", loss, params, batch, context), params
        )
    if overrides(method, "after_step"):
        _check_params(method, "after_step", _asked(method, "after_step", params, context), params)
    delta = Layout.of(params).flatten(params)
    update = _asked(method, "local_update", delta, memory, context)
    if not isinstance(update, Tensor) or update.shape != delta.shape:
        _refuse(method, "local_update", update, f"a tensor of shape {tuple(delta.shape)}")
    if memory is not None:
        checked_state(
            method, "client_state", _asked(method, "client_state", memory, delta, context)
        )


def check_server(method: Method, params: Params, noised: Noised, state: State) -> None:
    """Call the members behind the noise. The rehearsal compares the shapes of their parameters."""
    noised = _asked(method, "post", noised, state)
    if not isinstance(noised, Noised):
        _refuse(method, "post", noised, "noised.map(...) or noised.map_tensors(...)")
    pair = _asked(method, "server", params, noised, state)
    if type(pair) is not tuple or len(cast("tuple[Any, ...]", pair)) != 2:
        _refuse(method, "server", pair, "a pair: the new parameters, and the new server state")
    _check_params(method, "server", pair[0], params, shapes=False)
    checked_state(method, "server", pair[1])


def first_state(method: Method, params: Params) -> State:
    """Return the method's public state before the first round."""
    return copies(checked_state(method, "init", method.init(copies(params))))


def checked_state(method: Method, member: str, returned: Any) -> State:
    """Return the state that a member made, which is a dictionary of tensors."""
    held = cast("State", returned) if isinstance(returned, Mapping) else {"": returned}
    for name, value in held.items():
        if not name or not isinstance(value, Tensor):
            _refuse(method, member, value, "a dictionary of tensors", name)
    return held


def _asked(method: Method, member: str, *given: Any) -> Any:
    """Return the answer of a member, which has to take what it is given."""
    function = getattr(method, member)
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        called = ", ".join(list(inspect.signature(getattr(Method, member)).parameters)[1:])
        rule = f"takes {inspect.signature(function)}. The engine calls {member}({called})."
        raise Unsupported(f"{type(method).__name__}.{member} {rule}") from None
    return function(*given)


def _check_params(
    method: Method, member: str, returned: Any, like: Params, *, shapes: bool = True
) -> None:
    if not isinstance(returned, Mapping):
        _refuse(method, member, returned, _PARAMS)
    held = cast("dict[str, Any]", returned)
    for name, value in like.items():
        entry = held.get(name)
        if not isinstance(entry, Tensor) or (shapes and entry.shape != value.shape):
            _refuse(method, member, entry, f"a tensor of shape {tuple(value.shape)}", name)


def _refuse(method: Method, member: str, returned: Any, expected: str, where: str = "") -> NoReturn:
    shown = f"a tensor of shape {tuple(returned.shape)}" if isinstance(returned, Tensor) else None
    shown = shown or ("nothing" if returned is None else f"a {type(returned).__name__}")
    place = f" for {where}" if where else ""
    raise Unsupported(
        f"{type(method).__name__}.{member} returned {shown}{place}. Expected: {expected}."
    )
