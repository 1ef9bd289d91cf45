"""Sphinx configuration: `make docs`, or `sphinx-build -W docs build/site`.

The reference pages are generated before the build.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import make_reference  # noqa: E402  (in the same folder)

import scmil  # noqa: E402

project = "scmil"
author = "scmil contributors"
project_copyright = "MIT licence"
release = version = scmil.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3  # links such as page.md#a-heading
smartquotes = False  # --mag is not –mag
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"scmil {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_show_copyright = False
# furo would link to the source of each page in a public repository, which need not exist.
html_theme_options = {"top_of_page_buttons": []}

make_reference.write_pages(HERE / "reference")


def setup(app: Any) -> None:
    """Rewrite the links of every page before it is parsed."""
    app.connect("source-read", rewrite_links)


def rewrite_links(app: Any, page: str, source: list[str]) -> None:
    """Make links to files outside docs/ work on the site."""
    folder = (HERE / page).parent
    source[0] = make_reference.relocate_links(source[0], folder, folder)
