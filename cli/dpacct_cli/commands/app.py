"""`dpacct app`: a calculator, the ledgers of this machine and sweeps, as a page in the browser."""

from __future__ import annotations

import socket
import webbrowser
from typing import Annotated

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.packages import import_package
from dpacct_cli import options, waiting
from dpacct_cli.options import Text, argument, flag, option
from dpacct_cli.output import opened

FIRST_PORT, LAST_PORT = 1024, 65535
USUAL_PORT = 8765

# fmt: off
Ledgers = Annotated[list[str] | None, argument("[LEDGER]...", "Ledgers to show.")]
Port = Annotated[Text, option("--port", "N", "",
    f"The port; default {USUAL_PORT}, or a free one if that is taken.")]
NoOpen = Annotated[bool, flag("--no-open", "", "Do not open the page in a browser.")]
# fmt: on


def app(*, ledgers: Ledgers = None, port: Port = None, no_open: NoOpen = False) -> None:
    """Open a page with a calculator, ledgers and sweeps.

    The page is for this machine alone: it listens on 127.0.0.1, and loads nothing from elsewhere.
    Ledgers are read, never written. Ctrl-C ends it.

    Examples:
      dpacct app
      dpacct app registry.ledger survey.ledger
      dpacct app --port 9000 --no-open
    """
    files = ledgers or []
    for file in files:
        opened(file).close()
    import_package("shiny", "shiny", "1.8", "app")
    import_package("matplotlib", "matplotlib", "3.8", "app")
    from dpacct_cli.app_page.serve import serve

    with listen(port) as listening:
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        waiting.end()
        print(f"dpacct app: {address} (Ctrl-C ends it)", flush=True)
        if not no_open:
            webbrowser.open(address)
        serve(files, listening)


def listen(port: str | None) -> socket.socket:
    """Return a socket of this machine that listens at a port, or at a free one without it."""
    asked = USUAL_PORT
    if port is not None:
        asked = validate.count("port", options.number(port), "a port", LAST_PORT)
        if asked < FIRST_PORT:
            rule = f"a port is a whole number from {FIRST_PORT} to {LAST_PORT}"
            raise InvalidParameter("port", asked, rule)
    try:
        return socket.create_server(("127.0.0.1", asked))
    except OSError as error:
        if port is None:
            return socket.create_server(("127.0.0.1", 0))
        why = error.strerror or "unknown reason"
        hint = "Without --port, a free one is taken."
        raise InvalidParameter("port", asked, f"it is not free ({why})", hint) from None
