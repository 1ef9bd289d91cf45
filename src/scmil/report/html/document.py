"""A complete HTML document with its style sheets and scripts inside, and the policy that allows
nothing else to run.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files

from scmil.report.html.markup import Markup, element


def read_asset(package: str, name: str) -> str:
    """Read a style sheet or a script that is installed beside the modules of a package.

    >>> read_asset("scmil.report.html", "report.js").splitlines()[0]
    '"use strict";'
    """
    return (files(package) / name).read_text(encoding="utf-8")


def html_document(
    title: str,
    *body: str | None,
    styles: Sequence[str] = (),
    script: str = "",
    images: str = "data:",
) -> str:
    """Return a page that needs no network: the style of all reports, then `styles`, one `script`.

    The Content-Security-Policy allows these styles and this script by their digest, and pictures
    from `images`; everything else is blocked, whatever the names in the body contain.

    >>> page = html_document("<Runs>", element("p", "1 < 2"))
    >>> "<Runs>" in page, "<p>1 &lt; 2</p>" in page, "script-src" in page
    (False, True, False)
    """
    style = "".join([read_asset(__package__, "report.css"), *styles])
    rules = {
        "default-src": "'none'",
        "script-src": _source_digest(script) if script else "",
        "style-src": _source_digest(style),
        "img-src": images,
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    policy = html.escape("; ".join(f"{name} {value}" for name, value in rules.items() if value))
    metas = (
        '<meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,">'
    )
    head = element("head", Markup(metas), element("title", title), element("style", Markup(style)))
    scripts = [element("script", Markup(script))] if script else []
    whole = element("html", head, element("body", element("main", *body), *scripts), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _source_digest(text: str) -> str:
    """The digest of an inline style or script, as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
