"""SuperLink, ServerApp and three SuperNodes as processes of their own on loopback, offline.

``python -m tests.fl.flower.processes FOLDER`` plays the table of faults and prints it.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

ROOT = Path(__file__).resolve().parents[3]
APP = Path(__file__).with_name("app")
CLIENTS = 3
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at, below those that systems give to others by themselves."""
    ports = set[int]()
    while len(ports) < count:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.add(port)
    return list(ports)


class Deployment:
    """The processes, each in a session of its own, with their logs in a folder.

    Args:
        folder: empty; ledger, checkpoint and logs go there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._link, *self._ports = free_ports(1 + CLIENTS)
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        home.mkdir(parents=True)
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "here"\n\n[superlink.here]\n'
            f'address = "127.0.0.1:{self._link}"\ninsecure = true\n',
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        self._start("superlink", "flower-superlink", "--insecure", "--port", str(self._link))
        self._listening(self._link)
        for client in range(CLIENTS):
            self.start_node(client)
        return self

    def __exit__(self, *reason: object) -> None:
        for name in list(self._running):
            self.kill(name)

    def start_node(self, client: int) -> None:
        """A SuperNode; its id is a new one each time."""
        address = f"127.0.0.1:{self._link}"
        self._start(
            f"node{client}", "flower-supernode", "--insecure", "--superlink", address,
            "--port", str(self._ports[client]), "--node-config", f"partition-id={client}",
        )  # fmt: skip

    def kill(self, name: str) -> None:
        """With -9, and whatever it started."""
        found = self._running.pop(name)
        os.killpg(found.pid, signal.SIGKILL)
        found.wait()

    def run(self, **config: object) -> None:
        """``flwr run``, which returns when the run has been taken up."""
        config = {"folder": str(self.folder)} | config
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in config.items())
        command = [self._tool("flwr"), "run", str(APP), "here", "--run-config", words]
        subprocess.run(
            command, check=True, env=self._env("home"), capture_output=True, timeout=3600
        )

    def wait(self, name: str, seconds: float = 3600.0) -> Path:
        """Until a file is there.

        Raises:
            TimeoutError: it is not; with the end of the logs.
        """
        path, end = self.folder / name, time.monotonic() + seconds
        while not path.exists():
            if time.monotonic() > end:
                logs = [p.read_text(errors="replace")[-1500:] for p in self.folder.glob("*.log")]
                raise TimeoutError(f"{name} did not appear.\n" + "\n---\n".join(logs))
            time.sleep(0.1)
        return path

    def rounds(self) -> list[dict[str, float]]:
        """What the server said of each round."""
        lines = (self.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line) for line in lines]

    def _start(self, name: str, tool: str, *words: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                [self._tool(tool), *words], stdout=log, stderr=log, env=self._env(name),
                start_new_session=True,
            )  # fmt: skip

    def _env(self, home: str) -> dict[str, str]:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        modules = os.pathsep.join(str(ROOT / part) for part in ("src", "cli"))
        own = {"PATH": path, "PYTHONPATH": modules, "FLWR_HOME": str(self.folder / home)}
        return os.environ | QUIET | own

    def _listening(self, port: int, seconds: float = 3600.0) -> None:
        end = time.monotonic() + seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.2)
            else:
                return

    @staticmethod
    def _tool(name: str) -> str:
        found = shutil.which(name, path=str(Path(sys.executable).parent))
        if found is None:
            raise FileNotFoundError(f"{name} is not beside {sys.executable}")
        return found


def play(folder: Path) -> list[dict[str, float]]:
    """All faults in one run, in rounds 2 to 6."""
    with Deployment(folder) as found:
        found.run()
        found.wait("asked-2-5")
        found.kill("node2")
        (folder / "go-5").touch()
        found.start_node(2)
        found.wait("asked-0-6")
        server = int((folder / "server.pid").read_text(encoding="utf-8"))
        os.kill(server, signal.SIGKILL)
        (folder / "go-6").touch()
        found.run()
        found.wait("ended.json")
        return found.rounds()


if __name__ == "__main__":
    for played in play(Path(sys.argv[1])):
        sys.stdout.write(f"{json.dumps(played)}\n")
