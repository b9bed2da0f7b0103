"""All commands, each imported when it is looked up: a cold start pays for what it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dpacct_cli.command import Command, Group, imported, members
from dpacct_cli.parameters import Parameter

PROGRAM = "dpacct"
TEXT = """\
Differential privacy accounting for federated learning: every upper bound is proven.

Example:
  dpacct calibrate --eps 8 --rounds 300 --q 0.1

Every command takes --help (with an example) and --json.
"""

# Of each command the module, the function, and the first sentence of its help: that of all of them
# imports none.
COMMANDS = {
    "calibrate": (
        "dpacct_cli.commands.calibrate",
        "calibrate",
        "The noise for a budget or a limit of risk; or the rounds, the rate, or delta.",
    ),
    "epsilon": ("dpacct_cli.commands.spend", "epsilon", "The epsilon that is spent at a delta."),
    "delta": ("dpacct_cli.commands.delta", "delta", "The delta that is spent at an epsilon."),
    "risk": (
        "dpacct_cli.commands.risk",
        "risk",
        "What an attacker can do: advantage, TPR at FPR, belief.",
    ),
    "rdp": (
        "dpacct_cli.commands.rdp",
        "rdp",
        "The Renyi divergence at given orders, of one round unless --rounds says more.",
    ),
    "compare": (
        "dpacct_cli.commands.compare",
        "compare",
        "All accountants side by side, with the time each took.",
    ),
    "report": (
        "dpacct_cli.commands.report",
        "report",
        "A page for those who decide: what is promised, to whom, and what it is worth.",
    ),
    "explore": (
        "dpacct_cli.explore.command",
        "explore",
        "What would be spent, over lists and ranges of settings.",
    ),
    "train": (
        "dpacct_cli.train.command",
        "train",
        "A private run on real data: clients train, the noisy mean of their updates is released.",
    ),
    "audit": (
        "dpacct_cli.audit.command",
        "audit",
        "Is a training run the mechanism that it is charged for? Canaries among its clients tell.",
    ),
    "attack": (
        "dpacct_cli.attack.command",
        "attack",
        "Tells members from others by a trained model, and shows the proven limit beside it.",
    ),
}
# Of each group the module with its commands, and its help.
GROUPS = {
    "ledger": ("dpacct_cli.ledger.command", "The durable record of what was spent on a data set."),
    "claims": ("dpacct_cli.claims.command", "What publications promise, against what is proven."),
    "plot": ("dpacct_cli.plot.command", "Pictures: PNG, SVG or PDF by -o, else as text."),
}


def all_commands(options: Sequence[Parameter] = ()) -> Group:
    """`dpacct` itself, in the order of its help.

    Args:
        options: that stand before a command.
    """
    makers: dict[str, Callable[[], Command | Group]] = {
        name: imported(f"{PROGRAM} {name}", module, function)
        for name, (module, function, _) in COMMANDS.items()
    }
    makers |= {
        name: members(f"{PROGRAM} {name}", text, module) for name, (module, text) in GROUPS.items()
    }
    known = {name: told for name, (*_, told) in {**COMMANDS, **GROUPS}.items()}
    return Group(PROGRAM, TEXT, makers, options, known)
