"""Many pictures on one page, each with a name, a few facts, and a link to the whole of it."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from scmil.report.html.markup import Markup, element
from scmil.report.html.style import STYLE

OWN_STYLE = """
.cards { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); margin: 1.5rem 0; }
.cards figure { margin: 0; border: 1px solid var(--line); border-radius: 8px; overflow: hidden; background: var(--panel); }
.cards img { display: block; width: 100%; height: 15rem; object-fit: contain; background: #fff; }
.cards figcaption { padding: .6rem .8rem .8rem; margin: 0; font-weight: 400; }
.cards figcaption a { font-weight: 600; }
.cards p { margin: .15rem 0 0; font-size: .85rem; }
.badge.wrong { color: var(--down); border-color: var(--down); }
.badge.right { color: var(--up); border-color: var(--up); }
"""


class Card(NamedTuple):
    """A picture: its name, the file it leads to, a small JPEG, and facts; `verdict` is "right", "wrong" or nothing."""

    name: str
    file: str
    jpeg: bytes
    facts: Sequence[str]
    verdict: str = ""


def contact_sheet(
    title: str, about: Sequence[str], cards: Sequence[Card], failed: Sequence[tuple[str, str]] = ()
) -> str:
    """One page without any outside part; names and facts are text, whatever is in them. `failed` are names and causes.

    >>> page = contact_sheet("Maps", [], [Card("<b>", "a b.png", b"", ["tumour"], "wrong")])
    >>> "<b>" in page, 'href="a%20b.png"' in page, "http:" in page
    (False, True, False)
    """
    style = STYLE + OWN_STYLE
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    metas = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
    )
    head = element("head", Markup(metas), element("title", title), element("style", Markup(style)))
    main = element(
        "main",
        element("h1", title),
        *(element("p", text, class_="about") for text in about),
        element("div", *map(_figure, cards), class_="cards"),
        _failures(failed),
    )
    return f"<!doctype html>\n{element('html', head, element('body', main), lang='en')}\n"


def _figure(card: Card) -> Markup:
    data, place = base64.b64encode(card.jpeg).decode(), quote(card.file)
    picture = Markup(f'<img src="data:image/jpeg;base64,{data}" alt="{html.escape(card.name)}" loading="lazy">')
    verdict = element("span", card.verdict, class_=f"badge {card.verdict}") if card.verdict else None
    facts = [element("p", fact) for fact in card.facts]
    words = element("figcaption", element("a", card.name, href=place), " ", verdict, *facts)
    return element("figure", element("a", picture, href=place, tabindex="-1"), words)


def _failures(failed: Sequence[tuple[str, str]]) -> Markup | None:
    if not failed:
        return None
    rows = [element("li", element("b", name), f": {cause}") for name, cause in failed]
    return element("section", element("h2", f"Not drawn ({len(failed)})"), element("ul", *rows, class_="plain"))
