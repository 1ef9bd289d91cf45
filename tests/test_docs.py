"""What the documents promise exists."""

from __future__ import annotations

import importlib
import re
import textwrap
from pathlib import Path

import pytest

import scmil

ROOT = Path(__file__).parents[1]
ROWS = re.findall(r"^\| ([^|]+) \| `([\w./-]+)` \| `?([^|`]*)`? \|", (ROOT / "docs" / "paper_map.md").read_text(), re.M)


@pytest.mark.parametrize(("place", "path", "name"), ROWS, ids=[row[0].strip() for row in ROWS])
def test_the_paper_map_points_at_what_is_there(place: str, path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    if name.strip() and path.startswith("src/"):
        module = importlib.import_module(
            path.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        )
        for part in name.strip().split("."):
            module = getattr(module, part)


def test_the_paper_map_covers_every_equation_table_and_figure() -> None:
    places = " ".join(row[0] for row in ROWS)
    for place in ("Eq. (1)", "Eq. (2)", "Eq. (3)", "Eq. (4)", "Fig. 1", "Fig. 2", "Table II", "Table III"):
        assert place in places


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_python_in_the_pages_runs(page: str) -> None:
    scope: dict[str, object] = {}
    known = dict(scmil.aggregators.registry._entries)
    try:
        for block in re.findall(r"^ *```python\n(.*?)```", (ROOT / page).read_text(), re.S | re.M):
            exec(compile(textwrap.dedent(block), page, "exec"), scope)
    finally:  # what the page registers is gone again
        scmil.aggregators.registry._entries.clear()
        scmil.aggregators.registry._entries.update(known)


def test_public_names_exist_have_docstrings_and_are_listed() -> None:
    listed = set(re.findall(r"^- `(\w+)`", (ROOT / "docs" / "public_api.md").read_text(), re.M))
    assert listed == set(scmil.__all__) - {"__version__"}
    for name in scmil.__all__:
        thing = getattr(scmil, name)
        assert name == "__version__" or thing.__doc__
    assert set(scmil.__all__) <= set(dir(scmil))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        scmil.nothing


def test_the_changelog_has_this_version() -> None:
    assert f"## {scmil.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    machine = re.compile(r"(?<![\w.])/(tmp|root|home|work)/")
    for path in [*ROOT.glob("*.*"), *(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]:
        if path.is_file() and path.suffix in (".md", ".toml", ".txt", ".py", ".cff"):
            assert not machine.search(path.read_text()), path
