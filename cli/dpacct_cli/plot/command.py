"""The commands of `dpacct plot`."""

from dpacct_cli.plot import curves, single

COMMANDS = {
    "eps": curves.eps,
    "delta": curves.delta,
    "tradeoff": curves.tradeoff,
    "rdp": curves.rdp,
    "schedule": single.schedule,
    "compare": single.compare,
    "ledger": single.ledger,
    "train": single.train,
}
