"""A PostgreSQL server on the loopback, for tests and benchmarks, and a bad connection to it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MISSING = "needs initdb of PostgreSQL (apt-get install postgresql)"


def program(name: str) -> str | None:
    """Return the path of a program of the server, which Debian keeps off the search path."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(installed[-1]) if installed else None)


def _as_other_user() -> dict[str, Any]:
    """Return how to start a program: the server refuses to run as root."""
    if os.name != "posix" or os.geteuid():
        return {}
    # The user nobody, and its group, whatever a system calls them.
    return {"user": 65534, "group": 65534, "extra_groups": []}


class Server:
    """A cluster in a folder of its own, which `close` deletes."""

    def __init__(self, folder: str | None = None, *, fsync: bool = False) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="dpacct-pg-", dir=folder))
        if who := _as_other_user():
            shutil.chown(self.home, who["user"], who["group"])
        self.data = self.home / "data"
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port: int = probe.getsockname()[1]
        self._fsync = fsync
        self._run("initdb", "-A", "trust", "-U", "owner", "-E", "UTF8", "--no-sync")
        self.start()

    def url(self, user: str = "owner", port: int = 0, database: str = "postgres") -> str:
        """Return the address of the database, without a ledger."""
        return f"postgresql://{user}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self.port} -h 127.0.0.1 -k {self.home} -F"
        options = options.replace(" -F", "") if self._fsync else options
        self._run("pg_ctl", "-w", "-l", str(self.home / "log"), "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it: ``immediate`` is a crash."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def psql(self, text: str, database: str = "postgres", schema: str = "") -> str:
        """Return what the owner's statements print."""
        text = f'SET search_path = "{schema}"; {text}' if schema else text
        command = [
            "psql",
            "-XAtq",
            "-v",
            "ON_ERROR_STOP=1",
            self.url(database=database),
            "-c",
            text,
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return done.stdout.strip()

    def close(self) -> None:
        """Stop it at once and delete its folder."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self.stop("immediate")
        shutil.rmtree(self.home, ignore_errors=True)

    def _run(self, name: str, *words: str) -> None:
        found = program(name)
        if found is None:
            raise FileNotFoundError(MISSING)
        command = [found, "-D", str(self.data), *words]
        subprocess.run(
            command, check=True, stdout=subprocess.DEVNULL, cwd=self.home, **_as_other_user()
        )


class Proxy:
    """A connection that is cut when ``cut`` says so, of each message of a client or of the server.

    ``cut(direction, number, data)`` is called before a message passes: ``"ask"`` or ``"answer"``.
    It returns True to cut both ends at once, so that this message is lost.
    """

    def __init__(self, port: int, cut: Callable[[str, int, bytes], bool]) -> None:
        self._target, self._cut, self._lock = port, cut, threading.Lock()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.messages = {"ask": 0, "answer": 0}
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no further connection."""
        self._server.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for direction, one, other in (("ask", client, server), ("answer", server, client)):
                threading.Thread(
                    target=self._pass, args=(direction, one, other), daemon=True
                ).start()

    def _pass(self, direction: str, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                with self._lock:
                    self.messages[direction] += 1
                    lost = self._cut(direction, self.messages[direction], data)
                if lost:
                    break
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextmanager
def proxied(port: int, cut: Callable[[str, int, bytes], bool]) -> Generator[Proxy]:
    """Run a proxy for the time of a block."""
    proxy = Proxy(port, cut)
    try:
        yield proxy
    finally:
        proxy.close()


def at_random(share: float, seed: int) -> Callable[[str, int, bytes], bool]:
    """Return a cut of a share of all messages."""
    draws = random.Random(seed)  # noqa: S311 - not for privacy
    return lambda _direction, _number, _data: draws.random() < share


def wait_until(ready: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for a condition."""
    until = time.monotonic() + seconds
    while not ready() and time.monotonic() < until:
        time.sleep(0.01)
