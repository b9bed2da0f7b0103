"""The server: it charges each round, sums the bounded updates, and adds the noise."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch.nn.functional import cross_entropy

from dpacct import fl
from dpacct.fl.data import load
from dpacct.fl.flower import PrivateStrategy
from hospitals.task import CLIP_NORM, HOSPITALS, NOISE_MULTIPLIER, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write a line for each round."""
    folder = Path(str(context.run_config["folder"]))
    net, tested = model(), load("digits").test
    server = fl.Server(
        net,
        HOSPITALS,
        rounds=int(context.run_config["rounds"]),
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        sampling=fl.Full(),
        adjacency="zero-out",
        local=fl.SGD(lr=1.0, epochs=5, batch_size=20),
        checkpoint=folder / "run.pt",
    )
    with server, (folder / "rounds.txt").open("a", encoding="utf-8") as lines:
        if (folder / "run.pt").exists():
            server.resume()

        def note(report: fl.RoundReport) -> None:
            inputs, targets = tested.batch(range(len(tested)))
            right = fl.evaluate(net, cross_entropy, fl.ClientData(inputs, targets)).accuracy
            spent, came = report.epsilon.upper, report.diagnostics.cohort_size
            lines.write(
                f"round {report.round} of {report.rounds}: {came} hospitals, "
                f"epsilon {spent:.3f}, accuracy {right:.3f}\n"
            )
            lines.flush()

        PrivateStrategy(server, on_round=note).start(grid, timeout=120)
        lines.write(f"done: epsilon {server.epsilon.upper:.4f} at delta {server.epsilon.delta:g}\n")
