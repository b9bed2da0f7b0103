"""Write the tables of evidence again, or play its runs again.

``python -m evidence`` writes the tables and pictures of all pages from the recorded runs.
``python -m evidence PAGE --replay FOLDER --data-dir DATA`` plays the recorded settings of a page by
the trainer of `dpacct reproduce`, with fresh cohorts and noise, into FOLDER/runs.jsonl.
"""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from dpacct.reproduce import Records
from evidence.pages import EVIDENCE, put_tables
from evidence.replay import PAGES, played, words_of


def main() -> None:
    """Read the command line."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("page", nargs="?", choices=PAGES)
    reading.add_argument("--replay", type=Path, metavar="FOLDER")
    reading.add_argument("--data-dir")
    given = reading.parse_args()
    for name in PAGES if given.page is None else [given.page]:
        recorded = Records(EVIDENCE / name / "runs.jsonl")
        if given.replay is not None:
            given.replay.mkdir(parents=True, exist_ok=True)
            again = Records(given.replay / "runs.jsonl")
            words = {repr(one.setting): own for one in recorded if (own := words_of(one))}
            settings = [one.setting for one in recorded if repr(one.setting) in words]
            again.need(settings, lambda one: played(words[repr(one)], given.replay, given.data_dir))  # noqa: B023
            continue
        module = import_module(f"evidence.{name}.tables")
        put_tables(EVIDENCE / name / "README.md", module.tables(recorded))
        for picture, drawing in getattr(module, "PICTURES", {}).items():
            drawing(recorded).save(EVIDENCE / name / picture, replace=True)


if __name__ == "__main__":
    main()
