"""Several settings in one picture: values separated by commas, in all their combinations."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from dpacct.accountant import find_accountant
from dpacct_cli.errors import OptionConflict
from dpacct_cli.options import MechanismOptions

if TYPE_CHECKING:
    from dpacct.pictures import Setting

MOST = 6
LABELS = {"noise": "noise", "rate": "rate", "rounds": "rounds", "schedule": "", "sampling": ""}


def read_settings(typed: MechanismOptions, accountant: str) -> list[Setting]:
    """Every combination of what was typed, each under the name of what tells it apart.

    Raises:
        OptionConflict: there are more than a picture can hold.
    """
    from dpacct.pictures import Setting

    lists = {name: _parts(getattr(typed, name)) for name in LABELS}
    accountants = [part or "" for part in _parts(accountant)]
    total = len(accountants)
    for parts in lists.values():
        total *= len(parts)
    if total > MOST:
        raise OptionConflict(
            f"that is {total} settings, and a picture holds {MOST}. Give fewer values, separated "
            "by commas."
        )
    found: list[Setting] = []
    for name in accountants:
        find_accountant(name)
        for values in product(*lists.values()):
            chosen = dict(zip(lists, values, strict=True))
            one = typed._replace(**chosen)
            varied = {key: value for key, value in chosen.items() if len(lists[key]) > 1}
            label = _label(varied, name if len(accountants) > 1 else "")
            found.append(Setting(label, one.read_schedule(), name))
    return found


def _parts(text: str | None) -> list[str | None]:
    return [None] if text is None else [part.strip() for part in text.split(",")]


def _label(varied: Mapping[str, str | None], accountant: str) -> str:
    words = [f"{LABELS[key]} {value}".strip() for key, value in varied.items()]
    return ", ".join([*words, accountant] if accountant else words)
