"""A report: its facts for programs, its blocks for people, in the forms that it is written in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpacct.report.document import Block
from dpacct.report.html import to_html
from dpacct.report.markdown import to_markdown


@dataclass(frozen=True, slots=True)
class Report:
    """What there is to say.

    Attributes:
        facts: as JSON knows them; an epsilon without a bound is null.
        blocks: the page.
    """

    facts: dict[str, Any]
    blocks: tuple[Block, ...]

    def to_html(self) -> str:
        """One page of HTML that needs nothing else."""
        return to_html(self.blocks)

    def to_markdown(self) -> str:
        """The page as Markdown."""
        return to_markdown(self.blocks)

    def to_json(self) -> str:
        """The facts."""
        return json.dumps(self.facts, indent=2, allow_nan=False) + "\n"


#: The forms of a report, each with what writes it.
FORMS: dict[str, Callable[[Report], str]] = {
    "html": Report.to_html,
    "md": Report.to_markdown,
    "json": Report.to_json,
}
