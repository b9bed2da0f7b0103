"""The direction of imports, read from the syntax trees, and the page that follows them."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

import dpacct

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"dpacct": ROOT / "src" / "dpacct", "dpacct_cli": ROOT / "cli" / "dpacct_cli"}

# A room may import from earlier ones, and from itself where that makes no circle. A room is a
# module or a folder directly under its package; those of `ROOMS` are houses of their own.
LAYERS = [
    {"errors"},
    {"validate", "display", "packages", "synonyms"},
    {"rounds", "budget"},
    {"numerics"},
    {"pairs"},
    {"mechanisms", "epochs"},
    {"correlated"},
    {"renyi"},
    {"tight"},
    {"accountant"},
    {"tuning", "sampled", "gaussian_dp"},
    {"items"},
    {"schedules", "outputs"},
    {"risk", "certificates"},
    {"calibration", "report", "empirical"},
    {"ledger", "claims"},
    {"files"},
    {"pictures"},
    {"reproduce"},
    {"dpacct"},  # the public names
    {"fl"},
    {"interop"},
    {"dpacct_cli"},
    {"__main__"},
]
ROOMS = {
    "dpacct.ledger": [
        {"record"},
        {"disk"},
        {"postgres"},
        {"readings"},
        {"writing", "verify"},
        {"run", "report"},
        {"ledger"},
    ],
    "dpacct.fl": [
        {"tensors", "clients", "public"},
        {"layout"},
        {"local", "privacy", "report", "data"},
        {"postprocess", "models"},
        {"methods"},
        {"training", "settings"},
        {"engine"},
        {"federation", "server", "privatize", "auditing"},
        {"flower", "attacks", "inspect"},
    ],
}

# Who may import what from outside the standard library, by room or package.
EVERYWHERE = {"numpy", "scipy"}
ONLY = {
    "torch": {"fl", "interop"},
    "sklearn": {"fl"},
    "pandas": {"fl"},
    "torchvision": {"fl"},
    "PIL": {"fl"},  # Pillow belongs to the extra fl
    "datasets": {"fl"},
    "dp_accounting": {"interop"},
    "opacus": {"interop"},
    "flwr": {"fl", "interop"},
    # Errors of the messages of Flower, which brings it.
    "google": {"fl"},
    "flint": {"certificates"},
    "psycopg": {"ledger"},
    "rich": {"dpacct_cli"},
    "typer": {"dpacct_cli"},
    "shiny": {"dpacct_cli"},
    # Shiny brings these.
    "starlette": {"dpacct_cli"},
    "uvicorn": {"dpacct_cli"},
    "matplotlib": {"pictures"},
    "plotext": {"pictures"},
    "markdown_it": {"report"},
    "fpdf": {"report"},
}
HEAVY = {
    "scipy.stats",
    "scipy.optimize",
    "torch",
    "mpmath",
    "dp_accounting",
    "opacus",
    "flwr",
    "matplotlib",
    "markdown_it",
    "fpdf",
}


def module_name(package: str, folder: Path, file: Path) -> str:
    parts = file.relative_to(folder).with_suffix("").parts
    return ".".join((package, *parts)).removesuffix(".__init__")


def read_sources() -> dict[str, Path]:
    return {
        module_name(package, folder, file): file
        for package, folder in PACKAGES.items()
        for file in sorted(folder.rglob("*.py"))
    }


SOURCES = read_sources()


def unit(module: str) -> str:
    """What the tables above call a module: its first name under dpacct, or its own package."""
    package, _, rest = module.partition(".")
    return rest.split(".")[0] if package == "dpacct" and rest else package


def imported(tree: ast.Module, modules: set[str]) -> Iterator[str]:
    """The names of all modules that a file imports anywhere, lazily or by name too."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(origin), names=names, level=0):
                for alias in names:
                    inner = f"{origin}.{alias.name}"
                    yield inner if inner in modules else origin
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name
            case _:
                pass


@cache
def graph() -> dict[str, set[str]]:
    modules = set(SOURCES)
    found = {
        module: set(imported(ast.parse(file.read_text(encoding="utf-8")), modules))
        for module, file in SOURCES.items()
    }
    # The front names rooms for type checkers alone, and imports each when it is used.
    found["dpacct"] -= {f"dpacct.{room}" for room in dpacct._ROOMS}
    return found


def level_of(module: str, name: str, layers: list[set[str]]) -> int:
    for level, names in enumerate(layers):
        if name in names:
            return level
    pytest.fail(f"{module} is in no layer; say in {Path(__file__).name} who may import {name!r}")


def levels(module: str) -> tuple[int, ...]:
    """How late a module comes: its layer, and in a house with rooms the layer of its room."""
    layer = level_of(module, unit(module), LAYERS)
    for house, rooms in ROOMS.items():
        if module == house:
            return layer, len(rooms)
        if module.startswith(f"{house}."):
            room = module.removeprefix(f"{house}.").partition(".")[0]
            return layer, level_of(module, room, rooms)
    return (layer,)


def is_later(target: str, module: str) -> bool:
    """Whether ``target`` stands behind ``module``, who may therefore not import it."""
    ours, theirs = levels(module), levels(target)
    houses = [house for house in ROOMS if f"{module}.".startswith(f"{house}.")]
    if any(f"{target}.".startswith(f"{house}.") for house in houses):
        return theirs > ours
    return theirs[0] > ours[0]


def is_ours(module: str) -> bool:
    return module.partition(".")[0] in PACKAGES


def wrong_arrows(imports: dict[str, set[str]]) -> list[str]:
    return [
        f"{module} imports {target}, which comes later"
        for module, targets in imports.items()
        for target in sorted(targets)
        if is_ours(target) and is_later(target, module)
    ]


def foreign_imports(imports: dict[str, set[str]]) -> list[str]:
    found: list[str] = []
    for module, targets in imports.items():
        for target in sorted(targets):
            root = target.partition(".")[0]
            if root in sys.stdlib_module_names or root in EVERYWHERE or is_ours(target):
                continue
            if unit(module) not in ONLY.get(root, set()):
                found.append(f"{module} imports {target}, which it must not know")
    return found


def test_each_layer_imports_only_from_itself_and_from_earlier_ones():
    assert wrong_arrows(graph()) == []


def test_a_wrong_arrow_is_found():
    assert wrong_arrows({"dpacct.pairs.moments": {"dpacct.calibration.calibrate"}}) != []
    assert wrong_arrows({"dpacct.fl.engine.engine": {"dpacct_cli.app"}}) != []
    assert wrong_arrows({"dpacct.ledger.record.entries": {"dpacct.ledger.disk.store"}}) != []
    assert wrong_arrows({"dpacct.fl.methods.fedavg": {"dpacct.fl.engine.ranks"}}) != []
    accepted = {"dpacct.pairs.moments", "dpacct.errors", "dpacct.calibration.goals"}
    assert wrong_arrows({"dpacct.calibration.calibrate": accepted}) == []
    assert wrong_arrows({"dpacct.fl.engine.ranks": {"dpacct.ledger.ledger"}}) == []


def test_an_unknown_module_asks_for_its_layer():
    with pytest.raises(pytest.fail.Exception, match=r"dpacct\.mystery is in no layer"):
        levels("dpacct.mystery")


def test_other_rooms_know_the_ledger_by_its_front_alone():
    inner = {
        module: sorted(target for target in targets if target.startswith("dpacct.ledger."))
        for module, targets in graph().items()
        if not f"{module}.".startswith("dpacct.ledger.")
    }
    assert {module: targets for module, targets in inner.items() if targets} == {}


def test_there_is_no_circle():
    imports = {
        module: {target for target in targets if is_ours(target)}
        for module, targets in graph().items()
    }
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))


def test_only_declared_packages_are_imported_and_only_where_they_belong():
    assert foreign_imports(graph()) == []


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("dpacct.pairs.moments", "torch"),
        ("dpacct.interop.peers", "flask"),
        ("dpacct.rounds", "rich"),
        ("dpacct.fl.engine.engine", "rich.table"),
        ("dpacct.accountant", "dp_accounting"),
        ("dpacct_cli.app", "undeclared"),
    ],
)
def test_a_foreign_import_is_found(module, target):
    assert foreign_imports({module: {target}}) != []


def test_lazy_imports_and_imports_by_name_are_seen():
    text = "def f():\n    import torch\n    return importlib.import_module('opacus.utils')\n"
    assert set(imported(ast.parse(text), set())) == {"torch", "opacus.utils"}


def loaded_by(code: str) -> set[str]:
    """The modules in memory after ``code`` ran in an interpreter of its own."""
    script = f"import sys\n{code}\nprint('\\n'.join(sorted(sys.modules)), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=3600
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize(
    "code", ["import dpacct", "from dpacct.interop import installed_peers\ninstalled_peers()"]
)
def test_nothing_heavy_is_loaded(code):
    loaded = loaded_by(code)
    assert "dpacct" in loaded
    assert sorted(loaded & HEAVY) == []


@pytest.mark.slow
def test_the_plug_in_for_dp_accounting_needs_no_torch():
    pytest.importorskip("dp_accounting")
    loaded = loaded_by("import dpacct.interop.dp_accounting")
    assert sorted(loaded & {"torch", "opacus", "dpacct.fl"}) == []


PAGE = ROOT / "docs" / "explanation" / "how-dpacct-computes.md"
MOST = 8


def walks() -> dict[str, list[str]]:
    """The files of each walk, by its heading."""
    parts = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {
        part.splitlines()[0]: re.findall(r"^\d+\. `([\w/]+\.py)`", part, flags=re.MULTILINE)
        for part in parts
    }


def module_of(file: str) -> str:
    for package, folder in PACKAGES.items():
        if (ROOT / file).is_relative_to(folder):
            return module_name(package, folder, ROOT / file)
    pytest.fail(f"{file} belongs to no package")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("heading", walks())
def test_each_file_imports_the_next(heading):
    files = walks()[heading]
    assert 5 <= len(files) <= MOST
    imports = graph()
    modules = [module_of(file) for file in files]
    for here, following in pairwise(modules):
        # A public name leads to the module that has it.
        fronts = {"dpacct", "dpacct.ledger"} & imports[here]
        found = imports[here].union(*(imports[front] for front in fronts))
        assert following in found, f"{here} does not import {following}"


def test_the_files_that_are_named_beside_a_walk_exist():
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", PAGE.read_text(encoding="utf-8"))
    bases = [ROOT, ROOT / "src" / "dpacct"]
    assert [name for name in named if not any((base / name).exists() for base in bases)] == []
    assert Path(ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").count("## The rooms") == 1
