"""Clients of twenty examples each; client 1 makes a mistake in rounds 2, 3 and 4."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from dpacct import fl
from dpacct.fl.flower import client_app


def data(context: Context) -> fl.ClientData:
    generator = torch.Generator().manual_seed(context.node_config["partition-id"])
    inputs = torch.randn(20, 6, generator=generator)
    return fl.ClientData(inputs, (inputs[:, 0] > 0).long())


member = client_app(lambda: nn.Linear(6, 3), nn.functional.cross_entropy, data, clip_norm=0.5)
app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    number = int(message.content["dpacct"].get("round", 0))
    client = context.node_config["partition-id"]
    faulty = bool(context.run_config["faults"]) and client == 1
    folder = Path(context.run_config["folder"])
    (folder / f"asked-{client}-{number}").touch()
    if context.run_config["faults"] and (client, number) in ((2, 5), (0, 6)):
        # Somebody is killed meanwhile, once.
        while not (folder / f"go-{number}").exists():
            time.sleep(0.2)
    reply = member(message, context)
    if faulty and number == 2:
        row = torch.full((21,), torch.nan)
        reply.content["dpacct.update"] = ArrayRecord({"row": _array(row)})
    if faulty and number == 3:
        sign = ConfigRecord(dict(reply.content["dpacct"]) | {"round": 2})
        reply.content = RecordDict({**dict(reply.content), "dpacct": sign})
    if faulty and number == 4:
        time.sleep(float(context.run_config["timeout"]) + 15)
    return reply


def _array(row: torch.Tensor):
    from flwr.app import Array

    return Array(row.numpy())
