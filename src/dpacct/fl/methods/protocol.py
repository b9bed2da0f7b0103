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
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Protocol

from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import SGD
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.markers import Noised
from dpacct.fl.privacy.masks import Dense, Mask


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
