"""Privacy reports for reviewers: the guarantee, the protected units, and the risk of attacks.

>>> from dpacct import Poisson, Round, report
>>> page = report.on_schedule(300 * Round(1.0, Poisson(0.1)), delta=1e-5, unit="patient")
>>> print(page.to_markdown().splitlines()[0])
# Privacy report: 300 rounds, noise multiplier 1
"""

from collections.abc import Callable

from dpacct.report.document import Report
from dpacct.report.exports import to_model_card, to_registry
from dpacct.report.schedule import on_schedule

__all__ = ["FORMATS", "Report", "on_schedule", "to_model_card", "to_registry"]

#: The formats of a report, each with its writer.
FORMATS: dict[str, Callable[[Report], str | bytes]] = {
    "html": Report.to_html,
    "pdf": Report.to_pdf,
    "md": Report.to_markdown,
    "json": Report.to_json,
    "registry": to_registry,
    "model-card": to_model_card,
}
