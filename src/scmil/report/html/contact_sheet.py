"""A page of thumbnails, each with a name, a few facts, and a link to the full picture."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote

from scmil.report.html.document import html_document, read_asset
from scmil.report.html.markup import Markup, element


class Thumbnail(NamedTuple):
    """A thumbnail: name, linked file, small JPEG, facts; `verdict` is "right", "wrong" or empty;
    `links` are texts and further files.
    """

    name: str
    file: str
    jpeg: bytes
    facts: Sequence[str]
    verdict: str = ""
    links: Sequence[tuple[str, str]] = ()


def contact_sheet(
    title: str,
    about: Sequence[str],
    thumbnails: Sequence[Thumbnail],
    failed: Sequence[tuple[str, str]] = (),
) -> str:
    """Return a self-contained page; `failed` are names and causes.

    >>> page = contact_sheet("Maps", [], [Thumbnail("<b>", "a b.png", b"", ["tumour"], "wrong")])
    >>> "<b>" in page, 'href="a%20b.png"' in page, "http:" in page
    (False, True, False)
    """
    return html_document(
        title,
        element("h1", title),
        *(element("p", text, class_="about") for text in about),
        element("div", *map(_thumbnail_figure, thumbnails), class_="cards"),
        _failures(failed),
        styles=[read_asset(__package__, "contact_sheet.css")],
    )


def _thumbnail_figure(card: Thumbnail) -> Markup:
    data, place = base64.b64encode(card.jpeg).decode(), quote(card.file)
    picture = Markup(
        f'<img src="data:image/jpeg;base64,{data}" alt="{html.escape(card.name)}" loading="lazy">'
    )
    verdict = (
        element("span", card.verdict, class_=f"badge {card.verdict}") if card.verdict else None
    )
    facts = [element("p", fact) for fact in card.facts]
    facts += [element("p", element("a", text, href=quote(file))) for text, file in card.links]
    words = element("figcaption", element("a", card.name, href=place), " ", verdict, *facts)
    return element("figure", element("a", picture, href=place, tabindex="-1"), words)


def _failures(failed: Sequence[tuple[str, str]]) -> Markup | None:
    if not failed:
        return None
    rows = [element("li", element("b", name), f": {cause}") for name, cause in failed]
    return element(
        "section", element("h2", f"Failed ({len(failed)})"), element("ul", *rows, class_="plain")
    )
