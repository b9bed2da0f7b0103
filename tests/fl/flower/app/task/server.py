"""Seven rounds with everybody; a line of ``rounds.jsonl`` for each.

In rounds 4 and 5 one client of three does not answer. Their time is over when the others have
answered, on fast machines and on slow ones: the clock goes forward by a timeout then.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp
from torch import nn

from dpacct import fl
from dpacct.fl.flower import PrivateStrategy, wire

app = ServerApp()
TIMEOUT = 3600.0


def hurry(grid: Grid) -> None:
    """Count the answers of each round, and let the clock go by them."""
    answers, pull, clock = Counter[object](), grid.pull_messages, time.monotonic

    def counting(numbers: Iterable[str]) -> list[Message]:
        replies = list(pull(numbers))
        answers.update(wire.signed(r).get("round") for r in replies if r.has_content())
        return replies

    grid.pull_messages = counting
    time.monotonic = lambda: clock() + 2 * TIMEOUT * sum(answers[n] >= 2 for n in (4, 5))


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(context.run_config["folder"])
    lines = (folder / "rounds.jsonl").open("a", encoding="utf-8")
    torch.manual_seed(1)
    server = fl.Server(
        nn.Linear(6, 3), num_clients=3, rounds=context.run_config["rounds"],
        clip_norm=0.5, noise_multiplier=1.0, sampling=fl.Full(), local=fl.SGD(lr=0.1),
        checkpoint=folder / "run.pt",
    )  # fmt: skip
    with server:
        if (folder / "run.pt").exists():
            server.resume()
        began = [time.monotonic()]

        def note(report: fl.RoundReport) -> None:
            found = report.diagnostics
            now = time.monotonic()
            line = {"round": report.round, "came": found.cohort_size, "bad": found.dropped_updates}
            lines.write(json.dumps(line | {"seconds": round(now - began[0], 1)}) + "\n")
            lines.flush()
            began[0] = now

        (folder / "server.pid").write_text(str(os.getpid()), encoding="utf-8")
        hurry(grid)
        strategy = PrivateStrategy(server, on_round=note, patience=TIMEOUT)
        strategy.start(grid, timeout=TIMEOUT)
        ended = {"rounds": server.round, "epsilon": server.epsilon.upper}
    (folder / "ended.json").write_text(json.dumps(ended), encoding="utf-8")
