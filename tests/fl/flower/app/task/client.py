"""Clients of twenty examples each; client 1 makes a mistake in rounds 2, 3 and 4."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import nn

from dpacct import fl
from dpacct.fl.flower import client_app, wire
from dpacct.fl.training.messages import pack, unpack


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
    if faulty and number in (2, 3):
        facts, groups, _ = unpack(wire.bytes_of(reply, "answer"), torch.device("cpu"))
        if number == 2:
            groups["update"]["row"] = torch.full((21,), torch.nan)
        else:
            # The key of another round.
            facts["key"] = "f00d"
        reply.content = wire.message_of(wire.sign(round=number), answer=pack(facts, groups))
    if faulty and number == 4:
        # Its answer comes in the next round.
        while not (folder / "asked-0-5").exists():
            time.sleep(0.2)
    return reply
