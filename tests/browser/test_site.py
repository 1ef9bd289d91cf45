"""The documentation site: it builds without warnings, its search works without a server, and it
loads nothing from other servers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is not installed")
pytest.importorskip("furo", reason="furo is not installed")
pytest.importorskip("myst_parser", reason="myst-parser is not installed")

from chromium import chromium
from pages import DOCS, PAGES


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    command = [
        "-m",
        "sphinx",
        "-q",
        "-W",
        "--keep-going",
        "-d",
        str(site.with_name("trees")),
        str(DOCS),
        str(site),
    ]
    done = subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        env={**os.environ, "NO_COLOR": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return site


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in PAGES:
        if DOCS in page.parents:
            assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file(), page
    assert (
        "Add an aggregator in ten minutes" in (site / "reference" / "contributing.html").read_text()
    )


def test_every_command_and_every_public_name_is_documented(site: Path) -> None:
    import typer

    import scmil
    from scmil.cli import app

    commands = (site / "reference" / "commands.html").read_text()
    for verb in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f'id="scmil-{verb}"' in commands
    names = (site / "reference" / "names.html").read_text()
    for name in scmil._HOME:
        assert f">scmil.{name}<" in names
    for name in scmil._PUBLIC_MODULES:
        assert (site / "reference" / "modules" / f"{name}.html").is_file()


def test_nothing_is_loaded_from_other_servers(site: Path) -> None:
    loads = re.compile(
        r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"'](?:https?:)?//[^\"']+", re.I
    )
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import\s+|url\()[\"']?(?:https?:)?//", style.read_text()), style


def test_search_finds_a_page_without_a_server(site: Path) -> None:
    requests: list[str] = []
    with chromium("--allow-file-access-from-files") as browser:
        page = browser.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "search.html").as_uri() + "?q=microns")
        page.wait_for_selector("#search-results li", timeout=60_000)
        results = page.locator("#search-results li").all_inner_texts()
    assert any("Slides without microns per pixel" in text for text in results)
    assert [url for url in requests if not url.startswith(("file:", "data:"))] == []


def test_a_page_is_as_wide_as_the_window(site: Path) -> None:
    with chromium() as browser:
        page = browser.new_page()
        page.goto((site / "benchmarks.html").as_uri())
        for width in (400, 800, 1010, 1070, 1100, 1170, 1320, 1400, 1900):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") == width
