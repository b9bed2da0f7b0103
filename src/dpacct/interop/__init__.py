"""Plug-ins for other libraries, each imported by its name: ours in theirs.

`dpacct.interop.opacus`, `dpacct.interop.dp_accounting`, `dpacct.interop.jax_privacy` and
`dpacct.interop.flower`.
"""

from typing import TYPE_CHECKING, NoReturn

if not TYPE_CHECKING:

    def __getattr__(name: str) -> NoReturn:
        gone = {"DpAccountingPld", "DpAccountingRdp", "OpacusPrv", "OpacusRdp", "Peer"}
        if name in gone | {"installed_peers", "to_dp_event"}:
            raise ImportError(
                f"{name} is gone: ask the library itself, with the event that "
                "dpacct.interop.dp_accounting.event_of_schedule returns"
            )
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
