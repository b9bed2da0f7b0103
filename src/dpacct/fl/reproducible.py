"""Matrix products whose bits do not depend on where their factors lie in memory.

Updates that are trained side by side lie behind each other, so that the second one's address
depends on how many there are. Intel's library adds in an order that depends on the address, unless
it is told not to before its first product; on AMD's processors it shows. What a client sends is
compared with what it sends alone wherever that matters, so that another setting, or a product
before this module is imported, costs time and nothing else.
"""

from __future__ import annotations

import os

_VARIABLE = "MKL_CBWR"


def ask_for_reproducible_products() -> None:
    """Ask for the fastest kernels whose bits repeat; a setting of the user's own is kept."""
    os.environ.setdefault(_VARIABLE, "AUTO")
