"""The page of everything that a schedule holds, made from the table of items."""

from __future__ import annotations

import inspect

from dpacct.items import NEEDED, RELEASES, ROUND, SAMPLINGS, Item, Key
from dpacct_cli.outputs import NAMES

PAGE = "docs/reference/items.md"
HEAD = """\
# Everything that a schedule holds

The keys of [schedule files](../how-to/schedules.md#files), ledger entries and JSON answers, and
the options of the [command line](command-line.md) with the same meaning. A phase has `rounds` and
the keys of its release. A phase without `mechanism` is a round, with the keys of its sampling.
`{ repeat = 10, schedule = [...] }` repeats phases. `adjacency` belongs to the whole schedule, and
stands in each phase inside a release.
"""
SCHEMAS = """\
## JSON Schemas

`python -m dpacct_cli.outputs NAME` prints the schema of """


def _row(key: Key) -> str:
    default = "" if key.default is NEEDED or key.default is None else f", default {key.default!r}"
    needed = "required" if key.default is NEEDED else "optional"
    option = f"`{key.option.split()[0]}`" if key.option else ""
    return f"| `{key.name}` | {needed}{default} | {option} | {key.help.replace('|', '&#124;')} |"


def section(item: Item, keys: tuple[Key, ...]) -> str:
    """Return the section of one item. The first sentence of its class says what it is."""
    name = item.name or "a round"
    about = (inspect.getdoc(item.kind) or "").partition("\n\n")[0].replace("\n", " ")
    rows = "\n".join(map(_row, keys))
    table = f"| key | | option | meaning |\n|---|---|---|---|\n{rows}" if keys else ""
    return f"### {name}\n\n`{item.kind.__name__}`: {about}\n\n{table}".rstrip()


def text() -> str:
    """Return the whole page."""
    parts = [HEAD.strip(), "## Rounds", section(ROUND, ROUND.keys), "## Samplings of rounds"]
    parts += [section(item, item.keys) for item in SAMPLINGS.values()]
    parts += ["## Other releases", *(section(item, item.keys) for item in RELEASES.values())]
    names = ", ".join(f"`{name}`" for name in NAMES)
    return "\n\n".join([*parts, f"{SCHEMAS}{names}."]) + "\n"
