"""What the documents promise exists."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib

import pytest
import typer
from pages import DOCS, LANGUAGES, NAMES, PAGES, ROOT, blocks, commands_in_sentences, lines

import scmil
from scmil.cli import app

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
ROWS = re.findall(
    r"^\| ([^|]+) \| `([\w./-]+)` \| `?([^|`]*)`? \|",
    (ROOT / "docs" / "paper_map.md").read_text(),
    re.M,
)


@pytest.mark.parametrize(("place", "path", "name"), ROWS, ids=[row[0].strip() for row in ROWS])
def test_the_paper_map_points_at_what_is_there(place: str, path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    if name.strip() and path.startswith("src/"):
        module = importlib.import_module(
            path.removeprefix("src/")
            .removesuffix(".py")
            .replace("/", ".")
            .removesuffix(".__init__")
        )
        for part in name.strip().split("."):
            module = getattr(module, part)


def test_the_paper_map_covers_every_equation_table_and_figure() -> None:
    places = " ".join(row[0] for row in ROWS)
    for place in (
        "Eq. (1)",
        "Eq. (2)",
        "Eq. (3)",
        "Eq. (4)",
        "Fig. 1",
        "Fig. 2",
        "Table II",
        "Table III",
    ):
        assert place in places


@pytest.mark.parametrize("page", NAMES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (ROOT / page).parent.joinpath(target).exists(), target


def test_blocks_name_a_language_that_the_tests_know() -> None:
    for page in PAGES:
        for block in blocks(page):
            looks_like_commands = re.search(
                r"^scmil ", block.text, re.M
            ) and block.language not in ("sh", "text")
            assert block.language in LANGUAGES or not (block.language or looks_like_commands), (
                page.name,
                block,
            )


def test_commands_in_blocks_are_run_or_say_why_not() -> None:
    every = [
        line
        for page in PAGES
        for block in blocks(page)
        if block.language == "sh"
        for line in lines(block)
    ]
    skipped = [line for line in every if line.words[0] == "scmil" and line.reason]
    assert len(every) > 50
    assert all(re.match(r"needs \w+ \w+", line.reason, re.I) for line in skipped)
    targets = set(re.findall(r"^([\w./]+):", (ROOT / "Makefile").read_text(), re.M))
    for line in every:
        first, *rest = line.words
        if first == "make":
            assert rest[0] in targets
        elif first == "python" and rest[0].endswith(".py"):
            assert (ROOT / rest[0]).is_file(), rest[0]
        elif first == "pip":
            wanted = re.findall(r"(?:scmil|\.)\[([\w,]+)\]", " ".join(rest))
            assert {extra for group in wanted for extra in group.split(",")} <= set(EXTRAS)


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_sentences_have_these_options(name: str) -> None:
    for words in commands_in_sentences(ROOT / name):
        verb = words[1]
        assert verb in COMMANDS or not verb.isalpha() or verb.isupper(), words
        options = {word.partition("=")[0] for word in words if word.startswith("--")} - {
            "--help",
            "--version",
        }
        if verb in COMMANDS:
            known = {
                spelling
                for given in COMMANDS[verb].params
                for spelling in (*given.opts, *given.secondary_opts)
            }
            assert options <= known, words


def test_extras_in_the_pages_exist() -> None:
    for page in PAGES:
        for group in re.findall(r"scmil\[([\w,]+)\]", page.read_text()):
            assert set(group.split(",")) <= set(EXTRAS), page.name


@pytest.mark.slow
def test_the_page_of_the_benchmarks_says_what_the_results_say() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        from make_benchmarks import filled  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    page = (DOCS / "benchmarks.md").read_text()
    assert filled(page) == page, "the results have changed: python docs/make_benchmarks.py"
    assert filled(page.replace("ABMIL-Gated | 0.", "ABMIL-Gated | 1.")) == page


def test_the_page_of_the_arena_says_what_the_results_say() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        from make_arena import filled, pictures  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    page = (DOCS / "arena.md").read_text()
    assert filled(page) == page, "the results have changed: python docs/make_arena.py"
    assert filled(page.replace("| musk2 | 0.", "| musk2 | 1.")) == page
    for name, picture in pictures().items():
        assert (DOCS / "img" / name).read_text() == picture, f"python docs/make_arena.py: {name}"


def fidelity_page(page: str) -> str:
    sys.path.insert(0, str(DOCS))
    try:
        from make_fidelity import filled  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(DOCS))
    return str(filled(page))


def test_the_page_of_the_fidelity_says_what_the_result_says() -> None:
    page = (DOCS / "fidelity.md").read_text()
    assert fidelity_page(page) == page, "the result has changed: python docs/make_fidelity.py"
    assert fidelity_page(page.replace("`transmil` | `szc", "`transmil` | `xyz")) == page


def test_the_page_of_the_fidelity_has_every_aggregator_of_ours() -> None:
    tables = (DOCS / "fidelity.md").read_text().partition("## Departures")[0]
    named = set(re.findall(r"`([\w-]+)`", "".join(re.findall(r"^\| (`[^|]+)", tables, re.M))))
    ours = {
        name
        for name in scmil.aggregators.names()
        if scmil.aggregators.entry(name).factory.__module__.startswith("scmil.")
    }
    assert named == ours


def test_the_result_of_the_fidelity_is_complete_and_close() -> None:
    from golden_cases import CASES, LAYERS

    files = json.loads((ROOT / "benchmarks" / "results" / "fidelity.json").read_text())["files"]
    assert set(files) == {case.file for case in CASES} | set(LAYERS)
    assert max(max(one["outputs"], one["gradients"]) for one in files.values()) < 1e-5


def test_every_picture_is_made_by_a_command() -> None:
    made = "".join((DOCS / name).read_text() for name in ("make_pictures.py", "make_arena.py"))
    for page in PAGES:
        for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text()):
            path = page.parent / picture
            assert path.is_file(), picture
            assert f'"{path.name}"' in made, f"{picture}: no script makes it"


def test_the_readme_states_the_number_of_aggregators() -> None:
    stated = re.findall(r"`scmil ls` lists the (\d+) aggregators", (ROOT / "README.md").read_text())
    assert [int(number) for number in stated] == [len(scmil.aggregators.names())]


def test_the_changelog_has_this_version() -> None:
    assert f"## {scmil.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_path_of_a_machine_is_in_the_tree() -> None:
    machine = re.compile(r"(?<![\w.])/(tmp|root|home|work)/")
    for path in [*ROOT.glob("*.*"), *(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]:
        if path.is_file() and path.suffix in (".md", ".toml", ".txt", ".py", ".cff"):
            assert not machine.search(path.read_text()), path


def test_the_table_of_evidence_has_the_measured_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from evidence import as_markdown

    measured = json.loads((ROOT / "benchmarks" / "results" / "evidence.json").read_text())
    assert as_markdown(measured["methods"]) in (DOCS / "decisions/0013-evidence.md").read_text()
    every = next(row for row in measured["methods"] if row["method"] == "all")
    for metric in ("froc", "tile_auc", "slide_auc"):
        for other in ("attention", "ratio"):
            assert every["evidence"][metric] >= every[other][metric]
    assert every["models"] == len(measured["runs"]) == 20
    exact = [run for run in measured["runs"] if run["method"] == "exact"]
    assert max(run["largest_error"] for run in exact) < 1e-5
