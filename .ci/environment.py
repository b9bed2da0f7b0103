"""What the environment of this Python lacks, and the lowest versions that are allowed.

`python .ci/environment.py lacks NAME...` prints the requirements of these extras and dependency
groups that are not installed, and dpacct itself if it is not installed from this folder.
`python .ci/environment.py lowest` prints constraints: the lowest version of what dpacct and its
extras `plot` and `report` ask for, and of everything else the version of constraints.txt.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FLOOR = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?>=(?P<version>[\w.]+)")


def requirements(project: dict[str, Any], *names: str) -> list[str]:
    """What dpacct asks for, with some of its extras and groups."""
    known = project["project"]["optional-dependencies"] | project["dependency-groups"]
    found: list[str] = list(project["project"]["dependencies"])
    for part in (known[name] for name in names):
        for each in part:
            # A group may hold another group.
            found += known[each["include-group"]] if isinstance(each, dict) else [each]
    return found


def is_installed(requirement: str) -> bool:
    """Whether some version is there: pip compares versions when it installs."""
    found = FLOOR.match(requirement)
    try:
        return found is not None and bool(metadata.version(found["name"]))
    except metadata.PackageNotFoundError:
        return False


def lacks(project: dict[str, Any], names: list[str]) -> list[str]:
    """The requirements that are not met. An installed copy of dpacct is not what is edited here."""
    missing = [text for text in requirements(project, *names) if not is_installed(text)]
    spec = find_spec("dpacct")
    here = spec is not None and Path(str(spec.origin)).is_relative_to(ROOT / "src")
    return missing if here else ["dpacct from this folder", *missing]


def lowest(project: dict[str, Any], constraints: str) -> list[str]:
    """One line for each package."""
    floors = [FLOOR.match(text) for text in requirements(project, "plot", "report")]
    found = {floor["name"].lower(): floor["version"] for floor in floors if floor}
    pins = [line.partition("==") for line in constraints.splitlines()]
    others = ["".join(pin) for pin in pins if pin[1] and pin[0].lower() not in found]
    return [*(f"{name}=={version}" for name, version in found.items()), *others]


def main() -> None:
    """Print lines, and exit with 1 if something is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    match sys.argv[1:]:
        case ["lacks", *names]:
            lines = lacks(project, names)
        case ["lowest"]:
            lines = lowest(project, (ROOT / "constraints.txt").read_text(encoding="utf-8"))
        case _:
            sys.exit(__doc__)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.exit(bool(lines) and sys.argv[1] == "lacks")


if __name__ == "__main__":
    main()
