"""The interface of federated methods. Everything that privacy depends on is the engine's.

The engine runs, in each round::

    reserve -> sample -> [gradient, step, after_step] x K -> local_update -> mask -> bound
        -> sum -> noise -> commit -> post -> server -> report

Rule 1: the members that run on a client (`gradient`, `after_step`, `local_update`, `client_state`)
are pure and use that client alone. So the engine may run them for many clients at once under
`torch.func.vmap`.
Rule 2: the members behind the noise (`post`, `server`) use `Noised` and public state alone.
Rule 3: a method keeps no state of its own. State lives in the dictionaries of tensors passed in.
`dpacct.fl.audit` checks all three by running a method on neighboring sets of clients. An example:
docs/how-to/train-federated.md, "Your own method".

The rehearsal calls each own member on synthetic values (`check_client`, `check_server`).
`Unsupported` names the member that is wrong, what it returned, and what was expected.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout, Noised, Params, State, copies
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import SGD, Batch, LocalAdam
from dpacct.fl.postprocess import keep_largest
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.masks import Dense, Mask
from dpacct.fl.tensors import norm


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The round's broadcast to a client, and its own settings.

    Attributes:
        round: 1, 2, ...
        anchor: the released parameters that local training starts from.
        server_state: the method's public state.
        local: the settings of local training.
        lr: learning rate of each of this client's steps: a number, or a tensor [] under vmap.
        steps: number of this client's local steps, likewise.
        clip_norm: C of the round's bound, which is public.
        client_state: the client's memory before the round, or None for clients without one.
    """

    round: int
    anchor: Params
    server_state: State
    local: SGD
    lr: float | Tensor
    steps: int | Tensor
    clip_norm: float = math.inf
    client_state: State | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Ask for the number of steps that a loop has not said."""
            if name != "steps":
                raise AttributeError(f"a Context has no attribute {name!r}", name=name, obj=self)
            rule, hint = "the method needs it before the first step", "Give steps=len(loader)."
            raise InvalidParameter("steps", None, rule, hint)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cohort:
    """The bounded updates of a round, for `Method.published`. Private.

    Attributes:
        rows: of the members, float64 [c, k]. norms: of their raw updates, float64 [c].
        std: of the charged noise on the sum. clip_norm: C. size: the planned cohort size.
        sizes: how many of the k coordinates each tensor has.
        normals: returns this many standard normal variates.
    """

    rows: Tensor
    norms: Tensor
    std: float
    clip_norm: float
    size: float
    sizes: tuple[int, ...]
    normals: Callable[[int], Tensor]


class Method(Protocol):
    """A federated method. Subclass it as a frozen dataclass and override one to three members.

    Attributes:
        name: as on the command line, e.g. ``dp-fedavg``.
        mask: public choice of coordinates.
        bound: the bound that is part of the method. None leaves it to the user (`Clip`).
        everyone_computes: every client trains and updates its state in every round, and the
            cohort decides only which contributions are summed.
        not_private_because: why no finite epsilon covers this method, or None for a private one.
        as_printed: the release is `published`, and epsilon infinite. printed: why, in words.
    """

    name: str = ""
    mask: Mask = Dense()
    bound: Bound | None = None
    everyone_computes: bool = False
    not_private_because: str | None = None
    as_printed: bool = False
    printed: str = "its release is its own"

    def prepare(self, local: SGD) -> SGD:
        """Return the local training that the method needs, from the one that was asked for.

        Raises:
            InvalidParameter: they contradict each other.
        """
        return local

    def init(self, params: Params) -> State:
        """Return public server state before the first round, independent of any data."""
        del params
        return {}

    def init_client(self, params: Params) -> State | None:
        """Return a client's private state when first needed, or None for clients without memory."""
        del params
        return None

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return the direction of one local step (``params - lr * direction``)."""
        del context
        return loss.gradient(params, batch)

    def after_step(self, params: Params, context: Context) -> Params:
        """Change the local iterate after each step, e.g. by a projection around the anchor."""
        del context
        return params

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """Return the client's update, from its displacement [d] (new minus old) and its memory."""
        del client_state, context
        return delta

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """Return the client's memory after the round.

        It depends on data and broadcasts alone, never on the noise or on the other participants.

        Args:
            client_state: the memory before.
            bounded: the client's own contribution [d] behind its bound.
            context: of the round.
        """
        del bounded, context
        return client_state

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the noisy sum [k] as the authors print it, and the std of its noise.

        It is asked for with ``as_printed`` alone, and divided by the planned cohort size.
        """
        noise = cohort.std * cohort.normals(cohort.rows.shape[1])
        return cohort.rows.sum(dim=0) + noise, cohort.std

    def post(self, noised: Noised, server_state: State) -> Noised:
        """Post-process the release, by `Noised.map` or `Noised.map_tensors`."""
        del server_state
        return noised

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return new parameters and server state. By default params + server_lr * mean."""
        mean = noised.tensors
        moved = {name: value + noised.server_lr * mean[name] for name, value in params.items()}
        return moved, server_state


def overrides(method: Method, member: str) -> bool:
    """Return whether a method has its own version of a member."""
    return getattr(type(method), member, None) is not getattr(Method, member)


def moves_plainly(method: Method) -> bool:
    """Return whether post-processing and server step are those of `Method`."""
    own = (method.post, method.server)
    return [getattr(member, "__func__", None) for member in own] == [Method.post, Method.server]


_PARAMS = "a dictionary with one tensor for each parameter, of its shape"


def check_client(method: Method, loss: Loss, batch: Batch, context: Context) -> None:
    """Call the members that run on a client: one step of one client."""
    params, memory = context.anchor, context.client_state
    steps = {"gradient": (loss, params, batch, context), "after_step": (params, context)}
    for member, given in steps.items():
        if overrides(method, member):
            _check_params(method, member, _asked(method, member, *given), params)
    delta = Layout.of(params).flatten(params)
    update = _asked(method, "local_update", delta, memory, context)
    if not isinstance(update, Tensor) or update.shape != delta.shape:
        _refuse(method, "local_update", update, f"a tensor of shape {tuple(delta.shape)}")
    if memory is not None:
        after = _asked(method, "client_state", memory, delta, context)
        checked_state(method, "client_state", after)


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
    kind = type(returned).__name__
    article = "an" if kind[0] in "aeio" else "a"
    shown = shown or ("nothing" if returned is None else f"{article} {kind}")
    place = f" for {where}" if where else ""
    raise Unsupported(
        f"{type(method).__name__}.{member} returned {shown}{place}. Expected: {expected}."
    )


# The name of the vector [d] that a client remembers.
MEMORY = "memory"


def whole_norm(tensors: Params) -> Tensor:
    """Return the Euclidean norm of all tensors together, shape (). May run under vmap."""
    return norm(torch.stack([norm(value) for value in tensors.values()]))


def step_along(tensors: Params, radius: float) -> Params:
    """Return a step of norm ``radius`` along all tensors together, or zero if they are all zero."""
    length = whole_norm(tensors)
    scale = torch.where(length > 0, radius / length, 0.0)
    return {name: scale * value for name, value in tensors.items()}


def steps_taken(steps: int | Tensor) -> int | Tensor:
    """Return the number of local steps, 1 for a client that takes none (for divisions)."""
    return steps.clamp(min=1) if isinstance(steps, Tensor) else max(steps, 1)


def steps_with_momentum(steps: int | Tensor, momentum: float) -> float | Tensor:
    """Return W, by which K equal directions d move the parameters: -lr W d (1 if K is 0).

    The velocity of step k is (1 + mu + ... + mu^{k-1}) d, and W is the sum over k = 1 ... K.
    """
    taken = steps_taken(steps)
    if not momentum:
        return taken
    rest = 1 - momentum
    return taken / rest - momentum * (1 - momentum**taken) / rest**2


def one_if_any(steps: int | Tensor) -> int | Tensor:
    """Return 1 for a client that takes local steps, 0 for one that takes none."""
    return steps.clamp(max=1) if isinstance(steps, Tensor) else min(steps, 1)


def zeros(params: Params) -> State:
    """Return zeros in the shapes of the parameters."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def memory_tensors(context: Context) -> Params:
    """Return the client's memory in the shapes of the parameters."""
    if context.client_state is None:
        return zeros(context.anchor)
    return Layout.of(context.anchor).unflatten(context.client_state[MEMORY])


class ZeroState(Method):
    """A method with a server state of zeros at first, in the shapes of the parameters."""

    def init(self, params: Params) -> State:
        """Return zeros."""
        return zeros(params)


class ZeroMemory(ZeroState):
    """A method that also has clients remember a vector [d], zero at first."""

    def init_client(self, params: Params) -> State | None:
        """Return a memory as long as the parameters, zero."""
        return {MEMORY: torch.cat([torch.zeros_like(v).flatten() for v in params.values()])}


def largest_of_each(cohort: Cohort, fraction: float) -> tuple[Tensor, float]:
    """Return the sum over clients that keep the largest coordinates of their own noisy updates."""
    count, size = cohort.rows.shape
    own = cohort.std / math.sqrt(cohort.size)
    noisy = cohort.rows + own * cohort.normals(count * size).view(count, size)
    return keep_largest(noisy, cohort.sizes, fraction).sum(dim=0), own * math.sqrt(count)


class PlainSteps(Method):
    """A method that reads sums of directions off displacements: these are lr times such a sum.

    Attributes:
        takes_momentum: the method's formulas hold with local momentum as well.
    """

    takes_momentum = False

    def prepare(self, local: SGD) -> SGD:
        """Return the local training, or reject settings that rescale or bound its steps."""
        rescaled = {
            "local": isinstance(local, LocalAdam),
            "momentum": local.momentum > 0 and not self.takes_momentum,
            "total_lr": local.total_lr,
            "max_grad_norm": local.max_grad_norm is not None,
        }
        for name, given in rescaled.items():
            if given:
                value = "LocalAdam" if name == "local" else getattr(local, name)
                rule = f"{self.name} reads sums of gradients off displacements, which this changes"
                raise InvalidParameter(name, value, rule, "Take fl.SGD without it.")
        return local
