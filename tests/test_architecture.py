"""A module imports only lower layers of ours, or its own room: the table in docs/architecture.md is true."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scmil"
LAYERS = {
    room: int(layer)
    for room, layer in re.findall(
        r"^\| `(\w+)(?:\.py|/)` \| (\d+) \|", (ROOT / "docs" / "architecture.md").read_text(), re.M
    )
}
MODULES = sorted(SOURCE.rglob("*.py"))


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "scmil":
            parts = node.module.split(".")
            rooms |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return {room for room in rooms if (SOURCE / room).is_dir() or (SOURCE / f"{room}.py").is_file()}


def test_every_room_is_in_the_table() -> None:
    assert {room_of(path) for path in MODULES} - {"__init__"} == set(LAYERS)


@pytest.mark.parametrize(
    "path", [p for p in MODULES if room_of(p) != "__init__"], ids=lambda p: str(p.relative_to(SOURCE))
)
def test_imports_go_down(path: Path) -> None:
    room = room_of(path)
    upwards = {other for other in imports_of(path) if other != room and LAYERS[other] >= LAYERS[room]}
    assert not upwards
