"""The server of the page: Shiny behind a wrapper that answers the page itself alone.

Rule 1: it listens on 127.0.0.1. Host and Origin of each request, WebSockets too, name that place.
Another name of this machine (DNS rebinding) and the pages of other sites get nothing.
Rule 2: a browser names a ledger by its place on the command line. Ledgers are opened for reading.
Rule 3: the page loads nothing from elsewhere, and its policy (CSP) says so to the browser.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE, Process
from base64 import b64encode
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    MutableMapping,
    Sequence,
)  # fmt: skip
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from shiny import App, Inputs, Outputs, Session, reactive, render, ui

from dpacct import InvalidParameter, Ledger
from dpacct.ledger import as_place
from dpacct_cli import words
from dpacct_cli.app_page import parts
from dpacct_cli.app_page.calculate import is_quick
from dpacct_cli.app_page.draw import safe

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from socket import socket

HERE = Path(__file__).parent
LARGEST = 2**24  # Bytes of a part
QUICK = 1.0  # Seconds that a window waits for a number
EVERY = 5.0  # Seconds between looks at the files
END = b"null\n"
FIRST = {"calculator": "headline", "ledgers": "spent", "sweep": "heat"}  # Where errors are shown
FAILED = '<div role="alert"><p class="wrong">This could not be computed.</p></div>'
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class OnlyHere:
    """The wrapper of Rule 1, with the headers of Rule 3."""

    def __init__(self, inner: App, document: str, port: int) -> None:
        names = [f"{name}:{port}" for name in ("127.0.0.1", "localhost")]
        self.inner = inner
        self.hosts = {name.encode() for name in names}
        self.origins = {f"http://{name}".encode() for name in names}
        # Shiny has a script inside the page.
        inside = re.findall(r"<script>(.*?)</script>", document, flags=re.DOTALL)
        digests = (b64encode(sha256(script.encode()).digest()).decode() for script in inside)
        hashes = [f"'sha256-{digest}'" for digest in digests]
        policy = (
            "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
            f"script-src 'self' {' '.join(hashes)}; "
            f"connect-src 'self' {' '.join(f'ws://{name}' for name in names)}; "
            "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
        )
        self.headers = [
            (b"content-security-policy", policy.encode()),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-store"),
        ]

    def is_ours(self, scope: Scope) -> bool:
        """Return True for a request of the page itself, or of its address typed in."""
        hosts, origins = (
            [value for name, value in scope["headers"] if name == wanted]
            for wanted in (b"host", b"origin")
        )
        # A browser names the origin of every WebSocket, but not of an address typed in.
        named = len(origins) == 1 or (scope["type"] == "http" and not origins)
        return len(hosts) == 1 and named and {*hosts} <= self.hosts and {*origins} <= self.origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""

        async def sent(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self.headers]
            await send(message)

        if scope["type"] not in ("http", "websocket") or self.is_ours(scope):
            await self.inner(scope, receive, sent)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await sent({"type": "http.response.start", "status": 403})
            await send({"type": "http.response.body", "body": b"This page is for its own machine."})


class Worker:
    """The process of a tab, which computes its parts. A new request ends the one before."""

    def __init__(self, tab: str, put: Callable[[str, str], Awaitable[None]]) -> None:
        self.tab, self.put = tab, put
        self.started: asyncio.Task[Process] | None = None
        self.asked: asyncio.Task[None] | None = None
        self.busy = False

    def begin(self, fields: Any, **more: str) -> None:
        """Compute the parts anew."""
        self.end(only_busy=True)
        self.started = self.started or asyncio.create_task(start())
        request = json.dumps({"tab": self.tab, "fields": fields, **more}).encode()
        self.asked = asyncio.create_task(self._ask(self.started, request))

    def end(self, *, only_busy: bool = False) -> None:
        """End the request and the process, or ``only_busy`` a process that computes."""
        if self.asked is not None:
            self.asked.cancel()
        if self.started is not None and (self.busy or not only_busy):
            if self.started.done():
                kill(self.started)
            else:
                self.started.add_done_callback(kill)
            self.started, self.busy = None, False

    async def _ask(self, started: asyncio.Task[Process], request: bytes) -> None:
        process = await asyncio.shield(started)
        written, read = cast("StreamWriter", process.stdin), cast("StreamReader", process.stdout)
        self.busy = True
        written.write(request + b"\n")
        try:
            while (answer := await read.readline()) != END:
                await self.put(*json.loads(answer))
            self.busy = False
        except ValueError:  # It has ended, or a part is too large. The next request has another.
            self.started, self.busy = None, False
            kill(started)
            await self.put(FIRST[self.tab], FAILED)


async def start() -> Process:
    """Return a process of `parts` that is ready."""
    # -P: no module of the working folder is imported.
    command = (sys.executable, "-P", "-m", parts.__name__)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LARGEST)
    await cast("StreamReader", process.stdout).readline()
    return process


def kill(started: asyncio.Task[Process]) -> None:
    """End a process that was started."""
    if not started.cancelled():
        with suppress(ProcessLookupError):
            started.result().kill()


def page(ledgers: Sequence[str]) -> str:
    """Return the document, with the names of the ledgers."""
    # The name of an address has no password, unlike its end.
    names = [safe(as_place(file).name) for file in ledgers]
    shown = "".join(f'<option value="{place}">{name}</option>' for place, name in enumerate(names))
    return (HERE / "page.html").read_text(encoding="utf-8").replace("<!--ledgers-->", shown)


def path_of(ledgers: Sequence[str], fields: Any) -> str:
    """Return the ledger that a browser names (Rule 2)."""
    place = fields.get("ledger")
    if place not in map(str, range(len(ledgers))):
        raise InvalidParameter("ledger", place, "it is not one of those of dpacct app")
    return ledgers[int(place)]


def look(ledgers: Sequence[str]) -> list[tuple[int, int]]:
    """Return what changes when a ledger is written to."""
    files = [Path(file + end) for file in ledgers for end in ("", "-wal")]
    stats = [file.stat() for file in files if file.exists()]
    return [(one.st_mtime_ns, one.st_size) for one in stats]


def window(  # noqa: C901 - the functions of a session stand inside each other
    ledgers: Sequence[str], given: Inputs, output: Outputs, session: Session
) -> None:
    """Serve a window of the browser."""
    csv = ""

    async def put(name: str, html: str) -> None:
        nonlocal csv
        if name == "csv":
            csv = html
        else:
            await session.send_custom_message("part", {"name": name, "html": html})

    workers = {tab: Worker(tab, put) for tab in parts.TABS}
    files = reactive.poll(partial(look, ledgers), EVERY)(partial(look, ledgers))

    @reactive.effect
    async def calculator() -> None:
        request = {"fields": given.calculator()}
        workers["calculator"].begin(**request)
        if is_quick(**request):
            computed = asyncio.to_thread(next, parts.calculator(request))
            with suppress(TimeoutError):  # Else the process says it. Other windows go on.
                await put(*await asyncio.wait_for(computed, QUICK))

    @reactive.effect
    def sweep() -> None:
        workers["sweep"].begin(given.sweep())

    @reactive.effect
    async def read() -> None:
        fields = given.ledgers()
        files()
        try:
            workers["ledgers"].begin(fields, path=path_of(ledgers, fields))
        except InvalidParameter as error:
            await put("spent", parts.alert(error))

    # A link that is hidden at first works when it is shown.
    always = output(suspend_when_hidden=False)

    @always
    @render.download_link(filename="sweep.csv")
    def table() -> Iterator[str]:
        yield csv

    @always
    @render.download_link(
        filename=lambda: (
            f"{Path(as_place(path_of(ledgers, given.ledgers())).name).stem}-report.html"
        )
    )
    async def report() -> AsyncIterator[str]:
        yield await asyncio.to_thread(report_of, path_of(ledgers, given.ledgers()))

    for worker in workers.values():
        session.on_ended(worker.end)


def report_of(file: str) -> str:
    """Return the report on a ledger."""
    with Ledger.open(file, read_only=True) as ledger:
        return ledger.report_html()


def make(ledgers: Sequence[str], port: int) -> OnlyHere:
    """Return the page about these ledgers as an application (ASGI) for a server at this port."""
    words.about_examples()
    files = {f"/{name}": HERE / name for name in ("app.css", "app.js")}
    app = App(ui.page_html(page(ledgers)), partial(window, ledgers), static_assets=files)
    document = cast("Mapping[str, str]", app.ui)["html"]
    return OnlyHere(app, document, port)


def serve(ledgers: Sequence[str], listening: socket) -> None:
    """Serve the page until Ctrl-C."""
    app = make(ledgers, listening.getsockname()[1])
    config = uvicorn.Config(app, log_level="warning", ws_max_size=2**20)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[listening])
