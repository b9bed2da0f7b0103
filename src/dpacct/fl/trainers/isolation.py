"""What clients are shown, and what each of them must leave as it was.

Rule 1: clients are shown copies. What is released lies in storage that none of them can reach.
Rule 2: what one client leaves behind, the next one would train on, and so would send more than its
own bounded contribution. After each client (side by side: each chunk) all that it was shown is
compared with what it was, and a change is refused before anything is released.
"""

from __future__ import annotations

from dataclasses import replace

from dpacct.errors import Unsupported
from dpacct.fl.guards.seals import Seal, broken_ones
from dpacct.fl.layout import copies
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.trainers.tasks import Broadcast

_ON_CLIENTS = ("gradient", "after_step", "local_update", "client_state")
_REASON = "it would reach the next client, or the release, past the bound"


class Isolation:
    """One chunk of clients, and what they are shown; as a context it ends with a check.

    Args:
        broadcast: of the round; no client gets to see its own tensors.
        loss: with the model. method: None where the model is looked at by itself.

    Attributes:
        shown: the broadcast in copies, for clients.
        watch: of model, loss and method; the same one as long as they hold what they held.
    """

    def __init__(self, broadcast: Broadcast, loss: LocalLoss, method: Method | None) -> None:
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        self.shown = replace(broadcast, anchor=anchor, server_state=server)
        self._replica = loss.replica
        self._anchor = Seal(anchor, broadcast.anchor)
        self._server = Seal(server, broadcast.server_state)
        self._model = loss.replica.seal()
        others = suspects(method)
        self._method = next(iter(others), "")
        hooked = method is not None and any(overrides(method, name) for name in _ON_CLIENTS)
        self._suspect = f"{self._method}, or " if hooked else ""
        self.watch = loss.replica.watch(others, [*anchor.values(), *server.values()])

    def __enter__(self) -> Broadcast:
        return self.shown

    def __exit__(self, *reason: object) -> None:
        """Check, whatever happened inside."""
        self.check()

    def check(self) -> None:
        """Refuse a client that changed what it was shown.

        Raises:
            Unsupported: the layer, the loss or the method, and what it changed.
        """
        name, public, own = broken_ones([self._anchor, self._server, self._model])
        if name is not None:
            raise Unsupported(
                f"{self._suspect}{self._replica.owner(name)} writes to the parameter {name} in "
                f"place while a client trains; {_REASON}"
            )
        if public is not None:
            raise Unsupported(
                f"{self._method} writes to its server state {public!r} in place while a client "
                f"trains; {_REASON}"
            )
        if own is not None:
            raise Unsupported(
                f"{self._suspect}{self._replica.owner(own)} changes its {own} while a client "
                f"trains; such a value is neither bounded nor noised, and {_REASON}"
            )
        name = self.watch.changed()
        if name is not None:
            raise Unsupported(
                f"{name} changes while a client trains; {_REASON}. Keep nothing between calls"
            )


def suspects(method: Method | None) -> dict[str, object]:
    """What is watched beside model and loss, by what an error calls it."""
    return {} if method is None else {f"the method {method.name or type(method).__name__}": method}
