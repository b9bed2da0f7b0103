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
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from shiny import App, Inputs, Outputs, Session, reactive, render, ui

from dpacct import Ledger
from dpacct.ledger import as_place
from dpacct_cli import words
from dpacct_cli.app_page import parts
from dpacct_cli.app_page.calculate import is_quick
from dpacct_cli.app_page.draw import alert, safe

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from socket import socket

    from starlette.types import Receive, Scope, Send

HERE = Path(__file__).parent
LARGEST = 2**24  # Bytes of a part
QUICK = 1.0  # Seconds that a window waits for a number
EVERY = 5.0  # Seconds between looks at the files
PAUSE = 0.2  # Seconds without another request before a process begins
FIRST = {"calculator": "headline", "ledgers": "spent", "sweep": "heat"}  # Where errors are shown
FAILED = alert("This could not be computed.")
Put = Callable[[str, str], Awaitable[None]]


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
    """Computes the parts of a tab, each request in a process. A new request ends the one before.

    The next process starts ahead of its request, because its imports take a second.
    """

    def __init__(self, tab: str, put: Put) -> None:
        self.tab, self.put = tab, put
        self.spare: asyncio.Task[Process] | None = None
        self.asked: asyncio.Task[None] | None = None

    def begin(self, **request: Any) -> None:
        """Compute the parts anew."""
        if self.asked is not None:
            self.asked.cancel()
        self.asked = asyncio.create_task(self._answer({"tab": self.tab, **request}))

    def end(self) -> None:
        """End the processes."""
        if self.asked is not None:
            self.asked.cancel()
        if self.spare is not None:
            self.spare.add_done_callback(lambda started: kill(started.result()))

    async def _answer(self, request: dict[str, Any]) -> None:
        await asyncio.sleep(PAUSE)  # A slider that moves asks again at once.
        self.spare = self.spare or asyncio.create_task(start())
        process = await asyncio.shield(self.spare)
        self.spare = asyncio.create_task(start())
        written, read = cast("StreamWriter", process.stdin), cast("StreamReader", process.stdout)
        written.write(json.dumps(request).encode() + b"\n")
        try:
            while part := await read.readline():
                await self.put(*json.loads(part))
            if await process.wait():
                await self.put(FIRST[self.tab], FAILED)
        finally:
            kill(process)


async def start() -> Process:
    """Return a process of `parts`."""
    # -P: no module of the working folder is imported.
    command = (sys.executable, "-P", "-m", parts.__name__)
    return await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LARGEST)


def kill(process: Process) -> None:
    """End a process, if it has not ended."""
    with suppress(ProcessLookupError):
        process.kill()


def page(ledgers: Sequence[str]) -> str:
    """Return the document, with the names of the ledgers."""
    # The name of an address has no password, unlike its end.
    names = [safe(as_place(file).name) for file in ledgers]
    shown = "".join(f'<option value="{place}">{name}</option>' for place, name in enumerate(names))
    return (HERE / "page.html").read_text(encoding="utf-8").replace("<!--ledgers-->", shown)


def look(ledgers: Sequence[str]) -> list[tuple[int, int]]:
    """Return what changes when a ledger is written to."""
    files = [Path(file + end) for file in ledgers for end in ("", "-wal")]
    stats = [file.stat() for file in files if file.exists()]
    return [(one.st_mtime_ns, one.st_size) for one in stats]


def fields_of(given: Any, tab: str) -> Mapping[str, Any]:
    """Return the fields of a tab that a browser sends. What is no table has none."""
    sent = given[tab]()
    return cast("Mapping[str, Any]", sent) if isinstance(sent, Mapping) else {}


def window(ledgers: Sequence[str], given: Inputs, output: Outputs, session: Session) -> None:
    """Serve a window of the browser."""
    files = reactive.poll(partial(look, ledgers), EVERY)(partial(look, ledgers))

    async def put(name: str, html: str) -> None:
        await session.send_custom_message("part", {"name": name, "html": html})

    def keep(tab: str) -> None:
        worker = Worker(tab, put)
        session.on_ended(worker.end)

        @reactive.effect
        async def answer() -> None:
            request: dict[str, Any] = {"fields": fields_of(given, tab), "ledgers": ledgers}
            if tab == "ledgers":
                files()
            worker.begin(**request)
            if tab == "calculator" and is_quick(request["fields"]):
                computed = asyncio.to_thread(next, parts.calculator(request))
                with suppress(TimeoutError):  # Else the process says it. Other windows go on.
                    await put(*await asyncio.wait_for(computed, QUICK))

    for tab in parts.TABS:
        keep(tab)

    def file() -> str:
        return parts.path_of(ledgers, fields_of(given, "ledgers"))

    # A link that is hidden at first works when it is shown.
    @output(suspend_when_hidden=False)
    @render.download_link(filename=lambda: f"{Path(as_place(file()).name).stem}-report.html")
    async def report() -> AsyncIterator[str]:
        yield await asyncio.to_thread(report_of, file())


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
