"""`--one-sample`: all releases on one sample of the clients."""

from __future__ import annotations

from typing import Any


def test_the_command_line_takes_one_sample(dpacct: Any) -> None:
    assert dpacct("epsilon --laplace 0.5 --times 20 --one-sample 0.1 -q").out.startswith("6.0716")
    data = dpacct("epsilon --noise 1 --rounds 3 --q 0.1 --one-sample 0.2 --json").json
    assert data["phases"][0]["mechanism"] == "sampled"
    assert data["phases"][0]["rate"] == 0.2
    whole = "--noise 1 --sampling full --adjacency replace-one --rounds 3"
    ran = dpacct(f"epsilon {whole} --one-sample 0.2")
    assert ran.code == 2
    assert "Choose add-remove or zero-out" in ran.err
