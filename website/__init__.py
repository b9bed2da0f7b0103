"""The documentation site, built by Sphinx from the repository's pages without a network."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
