"""A package imports only packages of lower layers, or itself: the table in docs/architecture.md is
true.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import scmil

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scmil"
LAYERS = {
    package: int(layer)
    for package, layer in re.findall(
        r"^\| `(\w+)(?:\.py|/)` \| (\d+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M
    )
}
MODULES = sorted(SOURCE.rglob("*.py"))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(text: str) -> set[str]:
    """The packages of ours that a module imports, by a full name or by a short one."""
    names = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    parts = [name.split(".") for name in names if name.startswith("scmil.")]
    public = {
        name: place.partition(".")[0]
        for name, place in (scmil._HOME | scmil._PUBLIC_MODULES).items()
    }
    return {public.get(part[1], part[1]) for part in parts} - {"__version__"}


def test_every_package_is_in_the_table_and_no_other() -> None:
    assert {package_of(path) for path in MODULES} - {"__init__"} == set(LAYERS)


def test_the_tree_has_at_most_sixteen_entries() -> None:
    entries = [path for path in SOURCE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 16


@pytest.mark.parametrize(
    "path",
    [p for p in MODULES if package_of(p) != "__init__"],
    ids=lambda p: str(p.relative_to(SOURCE)),
)
def test_imports_go_to_lower_layers(path: Path) -> None:
    package = package_of(path)
    upwards = {
        other
        for other in imports_of(path.read_text())
        if other != package and LAYERS[other] >= LAYERS[package]
    }
    assert not upwards


def test_an_upward_import_is_seen_however_it_is_written() -> None:
    for line in (
        "from scmil.viz import pca",
        "import scmil.viz.pca",
        "from scmil import fit",
        "import scmil.experiment",
    ):
        assert {LAYERS[package] for package in imports_of(line)} <= {6, 7, 8}
    assert imports_of("from scmil import fit") == {"training"}


def test_no_module_has_more_than_400_lines() -> None:
    assert {str(p.relative_to(SOURCE)) for p in MODULES if p.read_text().count("\n") > 400} == set()


def test_fewer_than_30_functions_and_classes_share_their_name() -> None:
    places: dict[str, set[Path]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
                places.setdefault(node.name, set()).add(path)
    special = {"__getattr__", "__dir__"}
    shared = sorted(name for name in places.keys() - special if len(places[name]) > 1)
    assert len(shared) < 30, shared
