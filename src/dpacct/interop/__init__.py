"""Plug-ins for other libraries, each imported by its name, and their accountants as peers.

`dpacct.interop.opacus`, `dpacct.interop.dp_accounting`, `dpacct.interop.jax_privacy` and
`dpacct.interop.flower` give these libraries the accountant of dpacct. `peers` runs their
accountants on schedules of dpacct.
"""

from dpacct.interop.peers import (
    DpAccountingPld,
    DpAccountingRdp,
    OpacusPrv,
    OpacusRdp,
    Peer,
    installed_peers,
    to_dp_event,
)

__all__ = [
    "DpAccountingPld", "DpAccountingRdp", "OpacusPrv", "OpacusRdp", "Peer", "installed_peers",
    "to_dp_event",
]  # fmt: skip
