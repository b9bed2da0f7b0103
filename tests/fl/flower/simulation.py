"""Twenty clients in Flower's simulation runtime; prints a line for each round."""

from __future__ import annotations

import json
import os
import sys
import time

QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
CLIENTS, ROUNDS = 20, 4


def main() -> None:
    """Play, and say who came and how long it took."""
    import torch
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    from torch import nn

    from dpacct import fl
    from dpacct.fl.flower import PrivateStrategy, client_app

    def data(context):
        generator = torch.Generator().manual_seed(context.node_config["partition-id"])
        inputs = torch.randn(20, 6, generator=generator)
        return fl.ClientData(inputs, (inputs[:, 0] > 0).long())

    clients = client_app(lambda: nn.Linear(6, 3), nn.functional.cross_entropy, data)
    app = ServerApp()

    @app.main()
    def serve(grid, context):
        server = fl.Server(
            nn.Linear(6, 3), CLIENTS, rounds=ROUNDS, clip_norm=0.5, noise_multiplier=1.0,
            sampling=fl.Uniform(7, CLIENTS), local=fl.SGD(lr=0.1),
        )  # fmt: skip
        began = [time.monotonic()]

        def note(report):
            now = time.monotonic()
            line = {"round": report.round, "came": report.diagnostics.cohort_size}
            sys.stdout.write(f"{json.dumps(line | {'seconds': round(now - began[0], 2)})}\n")
            sys.stdout.flush()
            began[0] = now

        with server:
            PrivateStrategy(server, on_round=note, poll=0.05).start(grid, timeout=3600)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(app, clients, num_supernodes=CLIENTS, backend_config=resources)


if __name__ == "__main__":
    os.environ.update(QUIET)
    main()
