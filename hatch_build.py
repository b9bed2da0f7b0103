"""The long description of an archive: README.md with the addresses of a release for its own links.

An index shows the page without the files beside it. The address is `Repository` of `project.urls`,
and a placeholder until there is one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PLACEHOLDER = "REPOSITORY"
# A Markdown link or picture, with the place of a file: no address, no heading of the page itself.
LINK = re.compile(r"(?P<picture>!?)(?P<text>\[[^]]*\])\((?P<place>(?!\w+:|#)[^)\s]+)\)")


def absolute(page: str, repository: str, version: str) -> str:
    """Return a page whose links lead to the files of a version in the repository."""

    def address(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        place = f"{repository}/{kind}/v{version}/{link['place']}"
        return f"{link['picture']}{link['text']}({place})"

    return LINK.sub(address, page)


class LongDescription(MetadataHookInterface):
    """Hatchling's hook for metadata."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the readme."""
        repository: str = metadata.get("urls", {}).get("Repository", PLACEHOLDER)
        page = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = absolute(page, repository, metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
