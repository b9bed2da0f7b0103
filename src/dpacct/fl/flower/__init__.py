"""Flower (flwr) as the network under `fl.Server`: a strategy, and the clients' half.

On the server ``PrivateStrategy(fl.Server(...)).start(grid)``; on clients `client_app`, or
`private_mod` beside a training loop of one's own. docs/guide/flower.md has it all.
"""

from dpacct.fl.flower.versions import check_flower

check_flower()

from dpacct.fl.flower.clients import client_app, partition_id, private_mod  # noqa: E402 - see above
from dpacct.fl.flower.hidden import HiddenSum  # noqa: E402 - see above
from dpacct.fl.flower.members import Membership, new_identity  # noqa: E402 - see above
from dpacct.fl.flower.strategy import PrivateStrategy  # noqa: E402 - see above

__all__ = [
    "HiddenSum",
    "Membership",
    "PrivateStrategy",
    "client_app",
    "new_identity",
    "partition_id",
    "private_mod",
]
