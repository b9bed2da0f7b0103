"""By which keys hospitals know each other.

Here one script makes them all. Real hospitals each call `new_identity` themselves, keep the secret
key, and give the public one to the others on paper, by telephone, or however the server has no
hand in it.
"""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context

from dpacct.fl.flower import Membership, new_identity


def make(folder: Path, hospitals: int) -> None:
    """Write ``0.secret``, ``0.public`` and so on; only the owner can read a secret file."""
    folder.mkdir(parents=True, exist_ok=True)
    for hospital in range(hospitals):
        secret, public = new_identity()
        place = os.open(folder / f"{hospital}.secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(place, "wb") as file:
            file.write(secret)
        (folder / f"{hospital}.public").write_bytes(public)


def membership(context: Context) -> Membership:
    """Of the hospital that a node is; its configuration says in which folder keys are."""
    folder = Path(str(context.node_config["keys"]))
    secret = (folder / f"{context.node_config['partition-id']}.secret").read_bytes()
    members = {int(path.stem): path.read_bytes() for path in folder.glob("*.public")}
    return Membership(secret, members)
