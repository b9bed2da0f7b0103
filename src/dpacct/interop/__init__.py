"""Other people's accountants, asked about our schedules: a second opinion beside our own bounds."""

from importlib.util import find_spec

from dpacct.interop.dp_accounting_peers import DpAccountingPld, DpAccountingRdp, to_dp_event
from dpacct.interop.opacus_peers import OpacusPrv, OpacusRdp
from dpacct.interop.peers import Peer

__all__ = [
    "DpAccountingPld",
    "DpAccountingRdp",
    "OpacusPrv",
    "OpacusRdp",
    "Peer",
    "installed_peers",
    "to_dp_event",
]

_BY_PACKAGE: dict[str, tuple[Peer, ...]] = {
    "dp_accounting": (DpAccountingRdp(), DpAccountingPld()),
    "opacus": (OpacusRdp(), OpacusPrv()),
}


def installed_peers() -> tuple[Peer, ...]:
    """The peers whose packages are installed; none of them is imported by asking."""
    return tuple(
        peer
        for package, peers in _BY_PACKAGE.items()
        if find_spec(package) is not None
        for peer in peers
    )
