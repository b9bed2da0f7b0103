"""The README's comparison with other accountants: answers and processor seconds, as Markdown.

`python -m benchmarks.peers` takes about ten minutes, most of them for 300 different rounds in
dp-accounting.
"""

from __future__ import annotations

from collections.abc import Callable

import dpacct
from benchmarks.calibration import BUDGET, RATE, ROUNDS, dp_accounting_noise, opacus_noise, ours
from benchmarks.measure import processor_seconds
from dpacct import Schedule, Uniform
from dpacct.interop import DpAccountingPld, DpAccountingRdp, OpacusPrv, OpacusRdp
from dpacct.rounds import Poisson, Round
from dpacct.schedules.shapes import linear

FIXED = 200 * Round(2.4, Uniform(100, 2000))
DISTINCT = linear(ROUNDS, 1.0, 1.6, Poisson(RATE))


def cell(name: str, call: Callable[[], float], repeats: int = 1) -> str:
    """Return one answer with the time that it took."""
    found, seconds = processor_seconds(call, repeats)
    shown = f"{seconds:.1f} s" if seconds >= 0.1 else f"{1000 * seconds:.0f} ms"
    return f"{name} {found:.5f}, {shown}"


def spent(plan: Schedule) -> float:
    """Return our upper bound of epsilon."""
    return dpacct.epsilon(plan, delta=BUDGET.delta).upper


def main() -> None:
    """Print the table."""
    by_pld, by_rdp, by_prv, by_opacus_rdp = (
        DpAccountingPld(), DpAccountingRdp(), OpacusPrv(), OpacusRdp(),
    )  # fmt: skip
    delta = BUDGET.delta
    rows = [
        [
            f"noise for epsilon 8, {ROUNDS} rounds at rate {RATE}",
            cell("", lambda: ours("tight"), 7),
            "; ".join([
                cell("PLD", dp_accounting_noise, 2),
                cell("RDP", lambda: by_rdp.noise_multiplier(BUDGET, ROUNDS, RATE), 2),
            ]),
            "; ".join([
                cell("PRV", opacus_noise, 2),
                cell("RDP", lambda: by_opacus_rdp.noise_multiplier(BUDGET, ROUNDS, RATE), 2),
            ]),
        ],
        [
            f"epsilon of {ROUNDS} rounds that all differ",
            cell("", lambda: spent(DISTINCT), 3),
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
            "epsilon of 200 rounds, 100 of 2,000 clients",
            cell("", lambda: spent(FIXED), 3),
            cell("RDP", lambda: by_rdp.epsilon(FIXED, delta), 2) + "; PLD: unsupported",
            "unsupported",
        ],
    ]  # fmt: skip
    print("| | dpacct | dp-accounting | Opacus |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(cell.strip() for cell in row) + " |")


if __name__ == "__main__":
    main()
