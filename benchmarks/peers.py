"""The README's comparison with other accountants: answers and processor seconds, as Markdown.

Each answer is computed once in a fresh copy of a process that has imported everything, so that no
accountant profits from its caches. `python -m benchmarks.peers` takes about five minutes, most of
them for 300 different rounds in dp-accounting and Opacus.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from importlib import import_module

import dpacct
from benchmarks.calibration import BUDGET, RATE, ROUNDS, dp_accounting_noise, opacus_noise, ours
from benchmarks.measure import processor_seconds
from dpacct import Schedule, Uniform
from dpacct.interop import DpAccountingPld, DpAccountingRdp, OpacusPrv, OpacusRdp
from dpacct.rounds import Poisson, Round
from dpacct.schedules.shapes import linear

FIXED = 200 * Round(2.4, Uniform(100, 2000))
DISTINCT = linear(ROUNDS, 1.0, 1.6, Poisson(RATE))


def cell(name: str, call: Callable[[], float]) -> str:
    """Return one answer with the processor time that it took."""
    context = multiprocessing.get_context("fork")
    near, far = context.Pipe()
    child = context.Process(target=lambda: far.send(processor_seconds(call, 1)))
    child.start()
    found, seconds = near.recv()
    child.join()
    shown = f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds:.2f} s"
    return f"{name} {found:.5f}, {shown}"


def spent(plan: Schedule) -> float:
    """Return our upper bound of epsilon."""
    return dpacct.epsilon(plan, delta=BUDGET.delta).upper


def main() -> None:
    """Print the table."""
    for module in ("dp_accounting.pld", "dp_accounting.rdp", "opacus.accountants.utils"):
        import_module(module)
    by_pld, by_rdp, by_prv, by_opacus_rdp = (
        DpAccountingPld(), DpAccountingRdp(), OpacusPrv(), OpacusRdp(),
    )  # fmt: skip
    delta = BUDGET.delta
    rows = [
        [
            f"noise for epsilon 8, {ROUNDS} rounds at rate {RATE}",
            cell("", lambda: ours("tight")),
            "; ".join([
                cell("PLD", dp_accounting_noise),
                cell("RDP", lambda: by_rdp.noise_multiplier(BUDGET, ROUNDS, RATE)),
            ]),
            "; ".join([
                cell("PRV", opacus_noise),
                cell("RDP", lambda: by_opacus_rdp.noise_multiplier(BUDGET, ROUNDS, RATE)),
            ]),
        ],
        [
            f"epsilon of {ROUNDS} rounds that all differ",
            cell("", lambda: spent(DISTINCT)),
            "; ".join([
                cell("PLD", lambda: by_pld.epsilon(DISTINCT, delta)),
                cell("RDP", lambda: by_rdp.epsilon(DISTINCT, delta)),
            ]),
            "; ".join([
                cell("PRV", lambda: by_prv.epsilon(DISTINCT, delta)),
                cell("RDP", lambda: by_opacus_rdp.epsilon(DISTINCT, delta)),
            ]),
        ],
        [
            "epsilon of 200 rounds, 100 of 2,000 clients, noise 2.4, replace-one",
            cell("", lambda: spent(FIXED)),
            "; ".join([
                cell("RDP, noise 1.2", lambda: by_rdp.epsilon(FIXED, delta)),
                # It is called with twice the noise, which is half of what it needs.
                cell("RDP, noise 2.4", lambda: by_rdp.epsilon(FIXED.scale_noise(2.0), delta)),
                "PLD: unsupported",
            ]),
            "unsupported",
        ],
    ]  # fmt: skip
    print("| | dpacct | dp-accounting | Opacus |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(cell.strip() for cell in row) + " |")


if __name__ == "__main__":
    main()
