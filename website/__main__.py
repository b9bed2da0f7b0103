"""`python -m website`: build the site into build/site/html, with warnings as errors."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from website import ROOT
from website.source import write


def main() -> None:
    """Put the pages together, and let Sphinx build them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT / "build" / "site")
    folder: Path = parser.parse_args().into.resolve()
    write(folder / "source")
    sphinx = import_module("sphinx.cmd.build").main
    words = ["-b", "html", "-q", "-W", "--keep-going", "-c", str(Path(__file__).parent)]
    sys.exit(sphinx([*words, str(folder / "source"), str(folder / "html")]))


if __name__ == "__main__":
    main()
