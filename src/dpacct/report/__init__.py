"""Privacy reports for reviewers: what is promised to whom, and what an attacker can find out.

>>> from dpacct import Poisson, Round, report
>>> page = report.on_schedule(300 * Round(1.0, Poisson(0.1)), delta=1e-5, unit="patient")
>>> print(page.to_markdown().splitlines()[0])
# Privacy report: 300 rounds, noise multiplier 1
"""

from dpacct.report.document import FORMATS, Report
from dpacct.report.schedule import on_schedule

__all__ = ["FORMATS", "Report", "on_schedule"]
