from __future__ import annotations

import base64
import hashlib
import html
import re
import tomllib
from pathlib import Path

from scmil.report.html.document import html_document
from scmil.report.html.markup import element

ROOT = Path(__file__).parents[4]


def policy(page: str) -> dict[str, str]:
    [content] = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    rules = (rule.partition(" ") for rule in html.unescape(content).split("; "))
    return {name: value for name, _, value in rules}


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_policy_allows_the_inline_style_and_script_and_nothing_else() -> None:
    page = html_document("Title", element("p", "text"), styles=["p { color: red; }"], script="f();")
    [style] = re.findall(r"<style>(.*?)</style>", page, re.S)
    [script] = re.findall(r"<script>(.*?)</script>", page, re.S)
    assert style.endswith("p { color: red; }")
    assert policy(page) == {
        "default-src": "'none'",
        "script-src": digest(script),
        "style-src": digest(style),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_a_page_without_a_script_allows_no_script() -> None:
    page = html_document("Title", images="'self'")
    assert "script-src" not in policy(page)
    assert "<script" not in page
    assert policy(page)["img-src"] == "'self'"


def test_title_and_text_are_escaped() -> None:
    page = html_document("<b>", element("p", "<script>alert(1)</script>"))
    assert "<b>" not in page
    assert "<script>" not in page


def test_every_style_sheet_and_script_is_package_data() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    source = ROOT / "src" / "scmil"
    patterns = config["tool"]["setuptools"]["package-data"]["scmil"]
    installed = {path for pattern in patterns for path in source.glob(pattern)}
    assets = {path for suffix in ("css", "js", "html") for path in source.rglob(f"*.{suffix}")}
    assert assets
    assert assets <= installed
