"""Tables of papers as files: their runs, kept and judged beside the printed values.

`dpacct reproduce` plays them. See docs/how-to/reproduce-a-table.md.
"""

from dpacct.reproduce.records import Record, Records, is_history, spread
from dpacct.reproduce.table import (
    Cell,
    OrderClaim,
    PaperTable,
    load_table,
    parse_table,
    shipped_names,
    shipped_table,
)
from dpacct.reproduce.verdict import Judged, JudgedCell, JudgedClaim, judge, picture

__all__ = [
    "Cell", "Judged", "JudgedCell", "JudgedClaim", "OrderClaim", "PaperTable", "Record", "Records",
    "is_history", "judge", "load_table", "parse_table", "picture", "shipped_names", "shipped_table",
    "spread",
]  # fmt: skip
