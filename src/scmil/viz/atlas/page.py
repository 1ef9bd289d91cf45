"""The HTML page of an atlas."""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

from scmil.report.html.document import html_document, read_asset
from scmil.report.html.markup import Markup, element
from scmil.viz.atlas.atom import SIGNS, Atlas, Atom, Contribution, Tile, percent, signed
from scmil.viz.atlas.counts import ALIKE

DECISIVE = 10  # atoms per class in the table of contributions
EVIDENCE_FILE = "evidence.csv"


def atlas_page(
    atlas: Atlas,
    files: Mapping[tuple[int, int], str],
    model: str,
    facts: Mapping[str, Any] | None = None,
) -> str:
    """The page: atoms that separate the classes first, unused and duplicate atoms at the end."""
    facts = facts or {}
    title = f"Atlas of atoms: {model}"
    significant = [atom for atom in atlas.ranked if atom.p is not None and atom.p < 0.05]
    body = [
        element("h1", title),
        element("p", _describe_data(atlas), class_="about"),
        element("p", _summarise_atoms(atlas, significant), class_="verdict"),
        element("p", _leakage_caution(facts), class_="warn")
        if atlas.compared and _leakage_caution(facts)
        else None,
        _how_to_read(atlas, facts),
        _decisive_atoms(atlas),
        _search_form(bool(significant)),
        element(
            "div", *(_atom_section(atom, files, atlas, facts) for atom in atlas.ranked), id="atoms"
        ),
        element("p", "No atom matches.", id="nothing", class_="note", hidden="hidden"),
        _unused_and_duplicates(atlas),
        element(
            "footer",
            "Written by scmil. Tables: atlas.csv, atlas.json. Detections for QuPath: folder "
            "qupath. For research use only. Not a medical device.",
        ),
    ]
    return html_document(
        title,
        *body,
        styles=[read_asset(__package__, "page.css")],
        script=read_asset(__package__, "page.js"),
        images="'self' file: data:",
    )


def _describe_data(atlas: Atlas) -> str:
    """How many atoms, tiles, slides and patients there are."""
    counts = ", ".join(f"{count} {name}" for name, count in atlas.compared.items())
    patients = (
        f" Compared patients: {counts}."
        if counts
        else " Classes are not compared, because the slides do not have labels of two classes."
    )
    return f"{len(atlas.atoms)} atoms, {atlas.tiles} tiles of {atlas.slides} slides.{patients}"


def _summarise_atoms(atlas: Atlas, significant: list[Atom]) -> str:
    """How many atoms separate the classes, are not used, or are duplicates."""
    used = len(atlas.ranked)
    rest = f"not used: {len(atlas.dead)}; duplicates of another atom: {len(atlas.duplicates)}."
    if not atlas.compared:
        return (
            f"{used} atoms are in use; {rest} They are sorted by the number of tiles that use them."
        )
    names = " and ".join(atlas.compared)
    if not significant:
        return (
            f"No atom is used significantly differently in {names} slides (p < 0.05 after "
            f"correction for multiple tests). {used} atoms are in use; {rest}"
        )
    return (
        f"{len(significant)} of {used} atoms in use are used significantly differently in {names} "
        f"slides (p < 0.05 after correction for multiple tests); {rest}"
    )


def _leakage_caution(facts: Mapping[str, Any]) -> str:
    """The warning for comparisons on slides of the training and validation splits."""
    if facts.get("held_out") or not facts.get("trained"):
        return ""
    return (
        f"{facts['trained']} of these slides were used to train or to select this model, so its "
        "atoms were fitted to separate them. Differences and p-values describe the model; to draw "
        "conclusions about tissue, use slides that were not used for training: --held-out, or bags "
        "of another cohort."
    )


def _how_to_read(atlas: Atlas, facts: Mapping[str, Any]) -> Markup:
    """The explanation of pictures and numbers."""
    width = facts.get("width_um")
    scale = f" A picture is {width:g} µm wide." if width else ""
    test = "Mann-Whitney" if len(atlas.compared) <= 2 else "Kruskal-Wallis"
    paragraphs = (
        "Sparse coding describes each tile by a few atoms, which are learned patterns, and by "
        "their coefficients, the code. A positive (+) and a negative (−) coefficient of an atom "
        "are two different patterns; the page shows the sign that separates the classes better. "
        "The pictures are the tiles with the largest coefficients, with at most a few tiles per "
        f"slide; the number below a picture is the coefficient.{scale}",
        "Percentages are means over patients of the fraction of tiles that use the atom. The "
        f"interval is a bootstrap over patients, p is that of the {test} test with Holm's "
        "correction for all atoms and both signs. An attention of 1 is that of the average tile. "
        "Two atoms go together if the same tiles use them strongly (cosine similarity of the "
        "codes).",
    )
    return element(
        "details",
        element("summary", "How to read this page"),
        *(element("p", text) for text in paragraphs),
    )


def _decisive_atoms(atlas: Atlas) -> Markup | None:
    """The atoms that contribute most to the logit of each class, with intervals."""
    found = atlas.evidence
    if found is None:
        return None
    tables = []
    for name in atlas.classes:
        rows = [
            element(
                "tr",
                element("td", element("a", each, href=f"#atom-{each[:-1]}")),
                *(element("td", text) for text in _contribution_cells(contribution)),
            )
            for each, contribution in atlas.decisive(name, DECISIVE)
        ]
        header = element("tr", *(element("th", text) for text in ("atom", "mean", "95 % interval")))
        nothing = f"No atom contributes to the logit of {name}, which is constant."
        tables.append(
            element(
                "div",
                element("h3", f"Logit of {name}"),
                element("table", element("thead", header), element("tbody", *rows))
                if rows
                else element("p", nothing, class_="note"),
            )
        )
    how = "exactly" if found.exact else "by integrated gradients"
    text = (
        "The logit of a slide is a constant plus the contributions of all atoms, computed "
        f"{how}: positive contributions raise the logit. Means over {found.patients} patients "
        f"({len(found.slides)} slides), intervals by a bootstrap over patients; the largest "
        f"completeness error is {found.largest_error:.1e}. All slides and atoms: {EVIDENCE_FILE}."
    )
    return element(
        "section",
        element("h2", "Contributions of atoms to the logits"),
        element("p", text, class_="note"),
        element("div", *tables, class_="decisive"),
        id="decisive",
    )


def _contribution_cells(contribution: Contribution) -> tuple[str, str]:
    low, high = contribution.low, contribution.high
    ends = "one patient" if low is None or high is None else f"{signed(low)} to {signed(high)}"
    return signed(contribution.mean), ends


def _search_form(some_significant: bool) -> Markup:
    only = (
        element("label", Markup('<input type="checkbox" id="only"> '), "only p < 0.05")
        if some_significant
        else None
    )
    field = Markup(
        '<input type="search" id="find" placeholder="17, tumour, slide_003" autocomplete="off">'
    )
    return element(
        "form",
        element("label", "Find ", field),
        only,
        element("span", "", id="count", class_="note"),
        class_="find",
        role="search",
    )


def _atom_section(
    atom: Atom, files: Mapping[tuple[int, int], str], atlas: Atlas, facts: Mapping[str, Any]
) -> Markup:
    significant = atom.p is not None and atom.p < 0.05
    slides = " ".join(dict.fromkeys(tile.slide for tile in atom.tiles))
    pictures = [
        _tile_figure(tile, files.get((atom.atom, rank))) for rank, tile in enumerate(atom.tiles)
    ]
    return element(
        "section",
        element(
            "h2",
            f"Atom {atom.name}",
            *([" ", element("span", "significant", class_="badge")] if significant else []),
        ),
        element(
            "div",
            element("p", _sentence_with_links(atom)),
            _class_bars(atom, atlas),
            class_="facts",
        ),
        element("div", *pictures, class_="tiles") if facts.get("pictures", True) else None,
        class_="atom",
        id=f"atom-{atom.atom}",
        data_words=f"{atom.name} {slides} {_most_frequent_class(atom)}".lower(),
        data_atom=atom.atom,
        data_significant=int(significant),
    )


def _most_frequent_class(atom: Atom) -> str:
    """The class whose tiles use an atom most, for the search."""
    return max(atom.by_class, key=lambda name: atom.by_class[name], default="")


def _sentence_with_links(atom: Atom) -> Markup:
    """The sentence, with links to the atoms that it names."""
    text = html.escape(atom.sentence)
    for other in atom.together:
        text = text.replace(f" {other}", f' <a href="#atom-{other.atom}">{other}</a>', 1)
    return Markup(text)


def _tile_figure(tile: Tile, file: str | None) -> Markup:
    description = f"{tile.slide}, x {tile.x}, y {tile.y}"
    code = element("figcaption", f"{tile.code:+.2f}".replace("-", SIGNS[1]))
    if file is None:
        return element(
            "figure", element("div", "not readable", class_="gap"), code, title=description
        )
    image = Markup(
        f'<img src="{html.escape(file)}" alt="{html.escape(description)}" '
        'loading="lazy" width="256" height="256">'
    )
    return element("figure", element("a", image, href=file), code, title=description)


def _class_bars(atom: Atom, atlas: Atlas) -> Markup | None:
    """The fraction of tiles by class, as bars; each atom has its own scale."""
    if not atom.by_class:
        return None
    full = next(full for full in (0.05, 0.1, 0.25, 0.5, 1) if full >= max(atom.by_class.values()))
    rows = []
    for name, share in atom.by_class.items():
        colour = atlas.classes.index(name) % 7
        bar = element("rect", width=f"{100 * share / full:.2f}", height=8, class_=f"f{colour}")
        track = Markup('<rect width="100" height="8" class="track"></rect>')
        drawing = element(
            "svg", track, bar, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true"
        )
        rows += [
            element("span", name),
            drawing,
            element("span", f"{percent(share)} %", class_="share"),
        ]
    return element("div", *rows, class_="bars")


def _unused_and_duplicates(atlas: Atlas) -> Markup:
    same = [
        element("li", f"Atom {atom.atom} duplicates atom {atom.duplicate_of}.")
        for atom in atlas.duplicates
    ]
    numbers = ", ".join(str(atom.atom) for atom in atlas.dead)
    words = (
        "Two atoms are duplicates if the cosine similarity of their columns of the dictionary, or "
        f"the correlation of their codes over all tiles, is above {ALIKE}; the one that is used "
        "more is shown."
    )
    return element(
        "section",
        element("h2", "Unused and duplicate atoms"),
        element(
            "p",
            f"Not used by any tile: {numbers}."
            if numbers
            else "Every atom is used by at least one tile.",
        ),
        element("ul", *same, class_="plain")
        if same
        else element("p", "No two atoms are duplicates."),
        element("p", words, class_="note"),
        id="leftovers",
    )
