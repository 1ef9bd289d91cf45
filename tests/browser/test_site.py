"""The site: it builds without a warning, every page is reached, search works from the files alone, nobody else is asked."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is not installed")
pytest.importorskip("furo", reason="furo is not installed")
pytest.importorskip("myst_parser", reason="myst-parser is not installed")

from pages import DOCS, PAGES

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OPTIONS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
OPTIONS += ["--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    words = ["-m", "sphinx", "-q", "-W", "--keep-going", "-d", str(site.with_name("trees")), str(DOCS), str(site)]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip() == ""
    return site


def test_every_page_is_on_the_site(site: Path) -> None:
    for page in PAGES:
        if DOCS in page.parents:
            assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file(), page
    assert "Add an aggregator in ten minutes" in (site / "reference" / "contributing.html").read_text()


def test_every_command_and_every_public_name_has_its_place(site: Path) -> None:
    import typer

    import scmil
    from scmil.cli import app

    commands = (site / "reference" / "commands.html").read_text()
    for verb in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert f'id="scmil-{verb}"' in commands
    names = (site / "reference" / "names.html").read_text()
    for name in scmil._HOME:
        assert f">scmil.{name}<" in names
    for room in scmil._ROOMS:
        assert (site / "reference" / "rooms" / f"{room}.html").is_file()


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?(?:src|href)=[\"'](?:https?:)?//[^\"']+", re.I)
    for page in site.rglob("*.html"):
        assert not loads.search(page.read_text()), page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:@import\s+|url\()[\"']?(?:https?:)?//", style.read_text()), style


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_search_finds_a_page_without_a_server(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    asked: list[str] = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto((site / "search.html").as_uri() + "?q=microns")
        page.wait_for_selector("#search-results li", timeout=60_000)
        found = page.locator("#search-results li").all_inner_texts()
        browser.close()
    assert any("My slides have no microns per pixel" in text for text in found)
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
