"""Messages out, and the answers that come back in time.

Flower's own ``send_and_receive`` looks every three seconds, longer than a small round takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence

from flwr.app import Message
from flwr.serverapp import Grid


def exchange(
    grid: Grid, messages: Sequence[Message], timeout: float, poll: float
) -> Iterator[Message]:
    """Send, and yield one answer to each message as it comes; late ones are never looked for.

    Args:
        grid: of the ServerApp. messages: to nodes.
        timeout: seconds to wait in all, and for which the messages live.
        poll: seconds between looks.
    """
    if not messages:
        return
    end = time.monotonic() + timeout
    for message in messages:
        # Whoever begins after that would train in vain.
        message.metadata.__dict__["_ttl"] = float(math.ceil(timeout) + 1)
    waiting: set[str] = set()
    for message in messages:
        # Alone: whether it is too large for the network must not depend on how many there are.
        waiting |= {number for number in grid.push_messages([message]) if number}
    while waiting:
        for reply in list(grid.pull_messages(list(waiting))):
            if reply.metadata.reply_to_message_id in waiting:
                waiting.remove(reply.metadata.reply_to_message_id)
                yield reply
        if not waiting or time.monotonic() > end:
            return
        time.sleep(poll)
