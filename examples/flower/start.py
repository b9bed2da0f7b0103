"""Start a SuperLink and three SuperNodes on this machine, run the app, print what it writes.

In an environment with ``dpacct[flower,fl]``: ``python examples/flower/start.py FOLDER``. The folder
gets the checkpoint, the ledger and the logs. Nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from dpacct.packages import install_command

APP = Path(__file__).resolve().parent
HOSPITALS = 3
SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # The environment is there; Flower need not make another one for the app.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    # How often waiting processes are looked for, in seconds.
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
    "OMP_NUM_THREADS": "1",
}


def tool(name: str) -> str:
    """A program of Flower, beside this Python."""
    found = shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        sys.exit(f"{name} is not there: {install_command('flower,fl')}")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens at."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def main() -> None:
    """Play."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="for the checkpoint, the ledger and the logs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=900, help="to wait, at most")
    given = parser.parse_args()
    folder: Path = given.folder.resolve()
    (folder / "home").mkdir(parents=True, exist_ok=True)
    link, *ports = free_ports(1 + HOSPITALS)
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{link}"\n'
        "insecure = true\n",
        encoding="utf-8",
    )
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *words: str) -> None:
        with (folder / f"{name}.log").open("ab") as log:
            environment = os.environ | SETTINGS | {"PATH": path, "FLWR_HOME": str(folder / name)}
            running.append(
                subprocess.Popen(
                    words, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            )

    try:
        start("superlink", tool("flower-superlink"), "--insecure", "--port", str(link))
        end = time.monotonic() + given.seconds
        while True:
            try:
                socket.create_connection(("127.0.0.1", link), timeout=1).close()
                break
            except OSError:
                if running[0].poll() is not None or time.monotonic() > end:
                    sys.exit(f"the SuperLink does not answer; see {folder / 'superlink.log'}")
                time.sleep(0.2)
        for hospital, port in enumerate(ports):
            start(
                f"hospital{hospital}", tool("flower-supernode"), "--insecure",
                "--superlink", f"127.0.0.1:{link}", "--port", str(port),
                "--node-config", f"partition-id={hospital}",
            )  # fmt: skip
        config = f'folder="{folder}" rounds={given.rounds}'
        environment = os.environ | SETTINGS | {"PATH": path, "FLWR_HOME": str(folder / "home")}
        command = [tool("flwr"), "run", str(APP), "here", "--run-config", config, "--stream"]
        with (folder / "run.log").open("wb") as log:
            run = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        running.append(run)
        follow(folder, run, end)
    finally:
        for each in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()


def follow(folder: Path, run: subprocess.Popen[bytes], end: float) -> None:
    """Print the lines that the server writes, until it is done."""
    shown, written = 0, folder / "rounds.txt"
    while time.monotonic() < end:
        # In this order: what is written last must not be missed.
        over = run.poll() is not None
        lines = written.read_text(encoding="utf-8").splitlines() if written.exists() else []
        for line in lines[shown:]:
            print(line, flush=True)
        shown = len(lines)
        if lines and lines[-1].startswith("done"):
            return
        if over:
            break
        time.sleep(0.5)
    sys.exit(f"the server stopped before it was done; see {folder / 'run.log'}")


if __name__ == "__main__":
    main()
