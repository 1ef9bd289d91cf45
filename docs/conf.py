"""How Sphinx builds the site: `make docs`, or `sphinx-build -W docs build/site`. Generated pages are written first."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import make_reference  # noqa: E402  (beside this file)

import scmil  # noqa: E402

project = "scmil"
author = "the authors of scmil"
copyright = "MIT licence"
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
# Its icon is the only one that furo would draw, and it leads to a repository of ours that need not exist.
html_theme_options = {"top_of_page_buttons": []}

make_reference.write_pages(HERE / "reference")
TO_COME = ("how-to/cluster", "scale", "reliability", "security")  # pages that some versions do not have


def setup(app: Any) -> None:
    """Let every page pass through our hands before it is parsed."""
    app.connect("source-read", prepare)


def prepare(app: Any, page: str, source: list[str]) -> None:
    """Pages that do not exist are not in the table of contents; links that leave docs/ hold on the site too."""
    if page == "index":
        for name in TO_COME:
            if not (HERE / f"{name}.md").exists():
                source[0] = source[0].replace(f"\n{name}\n", "\n")
    folder = (HERE / page).parent
    source[0] = make_reference.at_home(source[0], folder, folder)
