"""Flower (flwr) as the network under `fl.Server`: a strategy, and the client's part.

On the server ``PrivateStrategy(fl.Server(...)).start(grid)``. On clients `client_app`, with the
run's local training or a loop of your own. See docs/how-to/flower.md.
"""

from dpacct.packages import import_package

# Before names are imported that an older Flower lacks.
import_package("flwr", "flwr", "1.41", "flower,fl")

from dpacct.fl.flower.clients import client_app, partition_id  # noqa: E402 - see above
from dpacct.fl.flower.strategy import PrivateStrategy  # noqa: E402 - see above
from dpacct.fl.flower.wire import LocalGrid  # noqa: E402 - see above

__all__ = [
    "LocalGrid", "PrivateStrategy", "client_app", "partition_id",
]  # fmt: skip
