"""The atlas of a model as a folder: a page to look at, a table, pictures, classes for QuPath, and JSON for the viewer.

    atlas/index.html              the page; it needs nothing but this folder
    atlas/atlas.csv               a row an atom
    atlas/atlas.json              the same for programs, see below
    atlas/tiles/<atom>/<k>.jpg    the tiles that use an atom most, k from 0
    atlas/qupath/<slide>.geojson  every tile a detection, its class the strongest atom of the tile

`atlas.json` has `format`, `model`, `classes`, `slides`, `tiles`, `compared` (how many patients of each class were compared),
`held_out` (whether only slides were compared that the model has not learned from), `ranked` (numbers of the atoms in the
order of the page), and `atoms`, by number, each with

    atom, sign          its number, and the sign "+" or "−" of the codes that all other entries are about
    used, opposite      share of all tiles that use it with this sign, and with the other one
    strength            mean |code| where it is used
    by_class            {class: mean over patients of the share of tiles that use it}
    use_by_class        {class: share of its uses that are in slides of the class}
    compared            the class that the difference is about, against all others
    difference, low, high, p    of the shares, its 95 % interval, and p corrected for all atoms and signs; null without labels
    attention           mean attention of the tiles that use it, weighted by |code|; 1 is the average tile
    together            up to three numbers of atoms that the same tiles use, and
    together_signs      their signs
    dead, duplicate_of  whether no tile uses it; the number of the atom that says the same, or null
    sentence            all of this in words
    tiles               [{slide, x, y, side, code, file}]: level-0 pixels; file is null where the slide could not be read
"""

from __future__ import annotations

import base64
import colorsys
import hashlib
import html
import io
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.viz.atlas import ALIKE, SIGNS, Atlas, Atom, Tile, build_atlas, percent
from scmil.errors import DataError, OptionError, SlideError
from scmil.core.extras import need
from scmil.core.files import csv_bytes, printable, utf8, write_atomically
from scmil.outputs import Outputs
from scmil.report.html.markup import Markup, element
from scmil.report.html.style import STYLE
from scmil.slides.readers import Damaged
from scmil.slides.readers.by_pillow import opened_picture
from scmil.studies import load_study, score_folder
from scmil.core.jobs.work import Ledger, one_of_many, safe_name

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.tile_scores import Scores, ScoreSet
    from scmil.slides import Slide

FORMAT = "scmil-atlas-1"
STAGE = "atlas"
PAGES = ("atlas.csv", "index.html", "atlas.json")
SIZE_PX = 256  # of a picture, where the model does not know the size of its tiles
WRITERS = 8  # a file is on the disk before the next is written, and thousands of files would wait for each other
IDS = uuid.UUID("b0a1c1f4-64e4-5b8e-9d51-2f8f0a3e6d17")
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Made:
    """The folder of an atlas, its numbers, and the slides that failed with their causes."""

    out: Path
    atlas: Atlas
    failed: dict[str, str]


def make_atlas(
    model: str | Path,
    bags: BagSet,
    out: str | Path | None = None,
    *,
    slides: str | Path | None = None,
    tiles: int = 10,
    per_slide: int = 3,
    held_out: bool = False,
    seed: int = 0,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Made:
    """Make the atlas of a model over a cohort; by default into `maps/atlas` of the model's folder.

    Slides are scored first, unless they are. Classes are compared by the labels of `bags`; with `held_out`, only on slides
    that the model has neither learned from nor been chosen on. Pictures are cut from the `slides`, a folder; without it
    there are none. A slide that fails is written down in `failures.csv`, and the others go on. Files of `out` that this
    did not write are rejected, unless `overwrite`.
    """
    network, study = load_study(model)
    dictionary = getattr(network.refine, "dictionary", None)
    if dictionary is None:
        raise OptionError(
            f"{model} has no sparse coding, so there are no atoms. Train a model that has: scmil train BAGS LABELS --sc"
        )
    out = Path(model) / "maps" / "atlas" if out is None else Path(out)
    sources = None if slides is None else _sources(slides)
    scored = score_folder(model, bags, device=device, progress=_told(progress, "scoring", len(bags)))
    scores = _Some(scored.scores, [id for id in bags.ids if id in scored.scores])
    seen = {id for part, ids in study["split"].items() if part != "test" for id in ids}
    labels = {id: None if held_out and id in seen else label for id, label in zip(bags.ids, bags.labels)}
    atlas = build_atlas(
        scores,
        dictionary.detach().cpu().numpy(),
        labels=labels,
        patients=dict(zip(bags.ids, bags.patients)),
        tiles=tiles,
        per_slide=per_slide,
        seed=seed,
        progress=_told(progress, "counting", len(scores)),
    )
    failed = {**scored.failed, **atlas.failed}
    size_px = study["contract"].get("size_px") or SIZE_PX
    outputs = Outputs(out, STAGE, overwrite)
    outputs.check(*(out / name for name in PAGES), *(_qupath_file(out, id) for id in scores))
    digests = {id: slide.get("slide_digest") for id, slide in scored.scores.page["slides"].items()}
    files, unread = _cut(atlas, sources, digests, outputs, size_px, progress) if sources is not None else ({}, {})
    failed |= unread | _write_qupath(scores, outputs, _told(progress, "writing for QuPath", len(scores)))
    _remember(out, scores, failed)
    trained = sum(id in seen for id in scores)
    facts = {"held_out": held_out, "trained": trained, "pictures": slides is not None, "width_um": _width(scores)}
    _write(outputs, atlas, files, scored.scores.page, facts)
    return Made(out, atlas, failed)


class _Some(Mapping[str, "Scores"]):
    """Some slides of a folder of scores, read when they are asked for."""

    def __init__(self, scores: ScoreSet, ids: list[str]) -> None:
        self.scores, self.ids = scores, ids

    def __getitem__(self, id: str) -> Scores:
        return self.scores[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __len__(self) -> int:
        return len(self.ids)


def _told(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda done: progress(what, done, total)


def _remember(out: Path, scores: Mapping[str, Scores], failed: Mapping[str, str]) -> None:
    """Bring the ledger up to date: what failed, and what is made good."""
    ledger = Ledger(out)
    before = {failure.slide for failure in ledger.read() if failure.stage == STAGE}
    for id, cause in failed.items():
        ledger.add(id, STAGE, cause)
    for id in before.intersection(scores).difference(failed):
        ledger.clear(id, STAGE)


def _width(scores: Mapping[str, Scores]) -> float | None:
    """The width of a tile in microns, if all slides that are looked at agree on it."""
    widths = set()
    for id in list(scores)[:20]:
        try:
            slide = scores[id]
        except DataError:  # it is in the ledger already
            continue
        widths.add(None if slide.slide_mpp is None else round(slide.side * slide.slide_mpp, 1))
    return widths.pop() if len(widths) == 1 else None


# ----------------------------------------------------------------------------------------------------------- pictures


def _sources(slides: str | Path) -> dict[str, Path]:
    from scmil.encoding.cohort import find_cohort
    from scmil.bags.labels import slide_id

    return {slide_id(source.id): source.path for source in find_cohort(slides)}


def _cut(
    atlas: Atlas,
    sources: Mapping[str, Path],
    digests: Mapping[str, str | None],
    outputs: Outputs,
    size_px: int,
    progress: Progress | None,
) -> tuple[dict[tuple[int, int], str], dict[str, str]]:
    """Cut the pictures of all atoms, slide by slide; their files by atom and rank, and the slides that failed."""
    from scmil.bags.labels import slide_id
    from scmil.slides import open_slide
    from scmil.viz.drawing.background import check_slide

    wanted: dict[str, list[tuple[int, int, Tile]]] = {}
    for atom in atlas.atoms:
        for rank, tile in enumerate(atom.tiles):
            wanted.setdefault(tile.slide, []).append((atom.atom, rank, tile))
    files: dict[tuple[int, int], str] = {}
    failed: dict[str, str] = {}
    out = outputs.folder
    outputs.check(*(out / _file(*place[:2]) for places in wanted.values() for place in places), marked=_is_marked)
    for done, (id, places) in enumerate(sorted(wanted.items()), start=1):
        with one_of_many(id, failed):
            digest = digests.get(id)
            if slide_id(id) not in sources:
                raise DataError(f"slide {id!r} is not below the folder of slides. Add it, or name another folder.")
            # Places and edges are level-0 pixels, so a pixel is the unit here, whatever it measures in microns.
            with open_slide(sources[slide_id(id)], mpp=1.0) as slide:
                check_slide(slide, digest)  # also if all pictures are there: they may be of the slide that was replaced
                missing = [
                    place for place in places if not _is_kept(out / _file(*place[:2]), place[2], size_px, digest)
                ]
                _cut_some(slide, missing, size_px, out, digest)
            files |= {place[:2]: _file(*place[:2]) for place in places}
        if progress:
            progress("cutting pictures", done, len(wanted))
    return files, failed


def _file(atom: int, rank: int) -> str:
    return f"tiles/{atom}/{rank}.jpg"


def _mark(tile: Tile, size_px: int, slide_digest: str | None) -> bytes:
    """What a picture says of itself, in its comment: so that one of another place or slide is not taken for this one."""
    return json.dumps([tile.slide, tile.x, tile.y, tile.side, size_px, slide_digest]).encode()


def _mark_of(path: Path) -> bytes:
    try:
        with opened_picture(path, "JPEG") as picture:
            return bytes(picture.info.get("comment", b""))
    except (Damaged, SlideError, OSError, TypeError, ValueError):  # not there, or not a picture
        return b""


def _is_kept(path: Path, tile: Tile, size_px: int, slide_digest: str | None) -> bool:
    return _mark_of(path) == _mark(tile, size_px, slide_digest)


def _is_marked(path: Path) -> bool:
    """Whether a picture says of itself that it is of an atlas, also of one of an earlier version."""
    try:
        return [type(part) for part in json.loads(_mark_of(path))][:5] == [str, int, int, float, int]
    except (TypeError, ValueError):
        return False


def _cut_some(slide: Slide, places: list[tuple[int, int, Tile]], size_px: int, out: Path, digest: str | None) -> None:
    """Cut pictures from one slide; a tile that many atoms use is read once."""
    pictures: dict[tuple[int, int], bytes] = {}
    for _, _, tile in places:
        if (tile.x, tile.y) not in pictures:
            pixels = slide.read((tile.x, tile.y), size_px, tile.side / size_px)
            content = io.BytesIO()
            image = need("PIL.Image", "slides").fromarray(pixels)
            image.save(content, "JPEG", quality=88, comment=_mark(tile, size_px, digest))
            pictures[tile.x, tile.y] = content.getvalue()

    def write(place: tuple[int, int, Tile]) -> None:
        atom, rank, tile = place
        write_atomically(out / _file(atom, rank), pictures[tile.x, tile.y])

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(write, places))


# ------------------------------------------------------------------------------------------------------------- QuPath


def _qupath_file(out: Path, id: str) -> Path:
    return out / "qupath" / f"{safe_name(id)}.geojson"


def _write_qupath(
    scores: Mapping[str, Scores], outputs: Outputs, progress: Callable[[int], None] | None
) -> dict[str, str]:
    failed: dict[str, str] = {}
    for done, id in enumerate(scores, start=1):
        with one_of_many(id, failed):
            outputs.write(_qupath_file(outputs.folder, id), atoms_geojson(scores[id]))
        if progress:
            progress(done)
    return failed


def atoms_geojson(scores: Scores) -> bytes:
    """The tiles of a slide for QuPath: detections, their class the strongest atom, scores as measurements.

    >>> from scmil.models.tile_scores import _small_bag, _small_model, score_bag
    >>> page = json.loads(atoms_geojson(score_bag(_small_model(), _small_bag(), ("normal", "tumour"))))
    >>> feature = page["features"][0]
    >>> feature["properties"]["objectType"], sorted(feature["properties"]["measurements"])
    ('detection', ['attention ratio', 'code', 'lambda', 'probability tumour', 'sparsity'])
    """
    if scores.codes is None:
        raise OptionError(f"slide {scores.id!r} has no codes: the model has no sparse coding. Train one with --sc.")
    named = {"attention ratio": "ratio", f"probability {scores.classes[-1]}": "probability", "sparsity": "sparsity"}
    named |= {"lambda": "lambda"} if scores.lam is not None else {}
    measured = {name: scores.of(kind) for name, kind in named.items()}
    features = []
    for tile, (x, y) in enumerate(scores.xy.tolist()):
        atoms, values = scores.codes.row(tile)
        numbers = {name: float(f"{column[tile]:.6g}") for name, column in measured.items()}
        properties: dict[str, Any] = {"objectType": "detection"}
        if len(atoms):
            strongest = int(np.abs(values).argmax())
            atom, code = int(atoms[strongest]), float(values[strongest])
            name = f"Atom {atom}{SIGNS[code < 0]}"
            properties["classification"] = {"name": name, "color": list(_colour(atom, code < 0))}
            numbers = {"code": round(code, 4), **numbers}
        properties["measurements"] = numbers
        features.append(
            {
                "type": "Feature",
                "id": str(uuid.uuid5(IDS, printable(f"{scores.id} {x} {y} {tile}"))),
                "geometry": {"type": "Polygon", "coordinates": [_square(x, y, scores.side)]},
                "properties": properties,
            }
        )
    text = json.dumps({"type": "FeatureCollection", "features": features}, ensure_ascii=False, allow_nan=False)
    return utf8(text)


def _square(x: int, y: int, side: float) -> list[list[float]]:
    right, bottom = x + side, y + side
    return [[x, y], [right, y], [right, bottom], [x, bottom], [x, y]]


def _colour(atom: int, negative: bool) -> tuple[int, ...]:
    """A colour for each atom; steps of the golden ratio keep neighbours apart. The two signs differ in lightness."""
    shade = colorsys.hls_to_rgb(atom * 0.6180339887 % 1, 0.35 if negative else 0.6, 0.75)
    return tuple(round(255 * channel) for channel in shade)


# ------------------------------------------------------------------------------------------------- JSON, table and page


def _write(
    outputs: Outputs,
    atlas: Atlas,
    files: Mapping[tuple[int, int], str],
    about: Mapping[str, Any],
    facts: Mapping[str, Any],
) -> None:
    rows = [_row(atom, files) for atom in atlas.atoms]
    page = {
        "format": FORMAT,
        "model": about["model"],
        "model_sha256": about["model_sha256"],
        "classes": list(atlas.classes),
        "slides": atlas.slides,
        "tiles": atlas.tiles,
        "compared": dict(atlas.compared),
        "held_out": facts["held_out"],
        "ranked": [atom.atom for atom in atlas.ranked],
        "atoms": rows,
    }
    contents = (
        _table(rows, atlas.classes),
        utf8(write_page(atlas, files, about["model"], facts)),
        utf8(json.dumps(page, ensure_ascii=False, allow_nan=False) + "\n"),
    )
    for name, content in zip(PAGES, contents, strict=True):
        outputs.write(outputs.folder / name, content)


def _row(atom: Atom, files: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    """An atom as `atlas.json` has it."""
    tiles = [{**tile._asdict(), "file": files.get((atom.atom, rank))} for rank, tile in enumerate(atom.tiles)]
    plain = ("atom", "sign", "used", "opposite", "strength", "compared", "difference", "low", "high", "p", "attention")
    return {
        **{name: getattr(atom, name) for name in plain},
        "by_class": dict(atom.by_class),
        "use_by_class": dict(atom.use_by_class),
        "together": [partner.atom for partner in atom.together],
        "together_signs": [partner.sign for partner in atom.together],
        "dead": atom.dead,
        "duplicate_of": atom.duplicate_of,
        "sentence": atom.sentence,
        "tiles": tiles,
    }


def _table(rows: list[dict[str, Any]], classes: tuple[str, ...]) -> bytes:
    plain = ("atom", "sign", "used", "opposite", "strength", "attention", "compared", "difference", "low", "high", "p")
    shares = [f"used_{name}" for name in classes] + [f"use_in_{name}" for name in classes]
    table: list[list[Any]] = [[*plain, *shares, "together", "dead", "duplicate_of", "sentence"]]
    for row in rows:
        together = " ".join(f"{atom}{sign}" for atom, sign in zip(row["together"], row["together_signs"]))
        by_class = [row[key].get(name) for key in ("by_class", "use_by_class") for name in classes]
        table.append(
            [
                *(row[name] for name in plain),
                *by_class,
                together,
                int(row["dead"]),
                row["duplicate_of"],
                row["sentence"],
            ]
        )
    return csv_bytes(table)


def write_page(
    atlas: Atlas, files: Mapping[tuple[int, int], str], model: str, facts: Mapping[str, Any] | None = None
) -> str:
    """The page: first the atoms that tell the classes apart, at the end the dead and the duplicates."""
    facts = facts or {}
    title = f"Atlas of atoms: {model}"
    told = [atom for atom in atlas.ranked if atom.p is not None and atom.p < 0.05]
    body = [
        element("h1", title),
        element("p", _counted(atlas), class_="about"),
        element("p", _verdict(atlas, told), class_="verdict"),
        element("p", _caution(facts), class_="warn") if atlas.compared and _caution(facts) else None,
        _how_to_read(atlas, facts),
        _search(bool(told)),
        element("div", *(_card(atom, files, atlas, facts) for atom in atlas.ranked), id="atoms"),
        element("p", "No atom fits.", id="nothing", class_="note", hidden="hidden"),
        _leftovers(atlas),
        element("footer", "Written by scmil. Tables: atlas.csv, atlas.json. For QuPath: the folder qupath."),
    ]
    whole = element("body", element("main", *body), element("script", Markup(SCRIPT)))
    return f"<!doctype html>\n{element('html', _head(title), whole, lang='en')}\n"


def _head(title: str) -> Markup:
    policy = (
        f"default-src 'none'; script-src {_digest(SCRIPT)}; style-src {_digest(STYLE + LOOK)}; img-src 'self' file:; "
        "base-uri 'none'; form-action 'none'"
    )
    metas = (
        f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    return element("head", Markup(metas), element("title", title), element("style", Markup(STYLE + LOOK)))


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _counted(atlas: Atlas) -> str:
    counts = ", ".join(f"{count} {name}" for name, count in atlas.compared.items())
    patients = f" Compared: patients, {counts}." if counts else " The slides have no labels of two classes to compare."
    return f"{len(atlas.atoms)} atoms, {atlas.tiles} tiles of {atlas.slides} slides.{patients}"


def _verdict(atlas: Atlas, told: list[Atom]) -> str:
    alive = len(atlas.ranked)
    rest = f"dead: {len(atlas.dead)}; saying the same as another: {len(atlas.duplicates)}."
    if not atlas.compared:
        return f"{alive} atoms are in use; {rest} They are sorted by how many tiles use them."
    names = " and ".join(atlas.compared)
    if not told:
        return f"No atom tells {names} apart beyond chance, after correction. {alive} atoms are in use; {rest}"
    return f"{len(told)} of {alive} atoms in use tell {names} apart beyond chance (p < 0.05 after correction); {rest}"


def _caution(facts: Mapping[str, Any]) -> str:
    if facts.get("held_out") or not facts.get("trained"):
        return ""
    return (
        f"{facts['trained']} of these slides have trained or chosen this model, so its atoms were made to tell them apart. "
        "Take differences and p as a description of the model; for a claim about tissue use slides that it has not seen: "
        "--held-out, or bags of another cohort."
    )


def _how_to_read(atlas: Atlas, facts: Mapping[str, Any]) -> Markup:
    width = facts.get("width_um")
    scale = f" A picture is {width:g} µm wide." if width else ""
    test = "Mann-Whitney" if len(atlas.compared) <= 2 else "Kruskal-Wallis"
    words = (
        "A tile is described by a few atoms, each with a code. An atom that is added (+) and one that is taken away (−) are "
        "two patterns: an atom is shown with the sign that tells the classes apart better. Its pictures are the tiles that "
        f"use it most, the strongest first, at most a few of one slide; the number below is the code.{scale}",
        "Percentages are means over patients of the share of tiles that use the atom. The interval is a bootstrap over "
        f"patients, p is that of {test}, corrected (Holm) for all atoms and both signs. Attention 1 is that of the average "
        "tile. Atoms go together if the same tiles use them strongly (cosine of the codes).",
    )
    return element("details", element("summary", "How to read this page"), *(element("p", text) for text in words))


def _search(some_told: bool) -> Markup:
    only = element("label", Markup('<input type="checkbox" id="only"> '), "only p < 0.05") if some_told else None
    field = Markup('<input type="search" id="find" placeholder="17, tumour, slide_003" autocomplete="off">')
    return element(
        "form", element("label", "Find ", field), only, element("span", "", id="count", class_="note"),
        class_="find", role="search",
    )  # fmt: skip


def _card(atom: Atom, files: Mapping[tuple[int, int], str], atlas: Atlas, facts: Mapping[str, Any]) -> Markup:
    told = atom.p is not None and atom.p < 0.05
    slides = " ".join(dict.fromkeys(tile.slide for tile in atom.tiles))
    pictures = [_picture(tile, files.get((atom.atom, rank))) for rank, tile in enumerate(atom.tiles)]
    return element(
        "section",
        element("h2", f"Atom {atom.name}", *([" ", element("span", "tells apart", class_="badge")] if told else [])),
        element("div", element("p", _linked(atom)), _bars(atom, atlas), class_="facts"),
        element("div", *pictures, class_="tiles") if facts.get("pictures", True) else None,
        class_="atom", id=f"atom-{atom.atom}", data_words=f"{atom.name} {slides} {_mostly(atom)}".lower(),
        data_atom=atom.atom, data_told=int(told),
    )  # fmt: skip


def _mostly(atom: Atom) -> str:
    """The class whose tiles use an atom most: the one by which people look for it."""
    return max(atom.by_class, key=lambda name: atom.by_class[name], default="")


def _linked(atom: Atom) -> Markup:
    """The sentence, with links to the atoms that go together with this one."""
    text = html.escape(atom.sentence)
    for other in atom.together:
        text = text.replace(f" {other}", f' <a href="#atom-{other.atom}">{other}</a>', 1)
    return Markup(text)


def _picture(tile: Tile, file: str | None) -> Markup:
    told = f"{tile.slide}, x {tile.x}, y {tile.y}"
    code = element("figcaption", f"{tile.code:+.2f}".replace("-", SIGNS[1]))
    if file is None:
        return element("figure", element("div", "not readable", class_="gap"), code, title=told)
    image = Markup(f'<img src="{html.escape(file)}" alt="{html.escape(told)}" loading="lazy" width="256" height="256">')
    return element("figure", element("a", image, href=file), code, title=told)


def _bars(atom: Atom, atlas: Atlas) -> Markup | None:
    """The share of tiles in each class, as bars; the scale is the atom's own, so the numbers stand beside them."""
    if not atom.by_class:
        return None
    full = next(full for full in (0.05, 0.1, 0.25, 0.5, 1) if full >= max(atom.by_class.values()))
    rows = []
    for name, share in atom.by_class.items():
        colour = atlas.classes.index(name) % 7
        bar = element("rect", width=f"{100 * share / full:.2f}", height=8, class_=f"f{colour}")
        track = Markup('<rect width="100" height="8" class="track"></rect>')
        drawing = element("svg", track, bar, viewBox="0 0 100 8", preserveAspectRatio="none", aria_hidden="true")
        rows += [element("span", name), drawing, element("span", f"{percent(share)} %", class_="share")]
    return element("div", *rows, class_="bars")


def _leftovers(atlas: Atlas) -> Markup:
    same = [element("li", f"Atom {atom.atom} says the same as atom {atom.duplicate_of}.") for atom in atlas.duplicates]
    numbers = ", ".join(str(atom.atom) for atom in atlas.dead)
    words = (
        "Two atoms say the same if their columns of the dictionary, or their codes over all tiles, have a cosine or "
        f"correlation beyond {ALIKE}; the one that is used more is shown."
    )
    return element(
        "section",
        element("h2", "Dead and duplicate atoms"),
        element("p", f"No tile uses: {numbers}." if numbers else "Every atom is used by some tile."),
        element("ul", *same, class_="plain") if same else element("p", "No two atoms say the same."),
        element("p", words, class_="note"),
        id="leftovers",
    )  # fmt: skip


LOOK = """
.find { position: sticky; top: 0; z-index: 5; display: flex; flex-wrap: wrap; align-items: center; gap: .5rem 1.5rem;
  margin: 1.25rem 0; padding: .6rem 0; background: var(--paper); border-bottom: 1px solid var(--line); }
.find input[type=search] { font: inherit; color: inherit; background: var(--panel); border: 1px solid var(--line);
  border-radius: 6px; padding: .3rem .6rem; width: 16rem; max-width: 70vw; }
.atom { scroll-margin-top: 4rem; }
.atom[hidden] { display: none; }
.atom h2 { margin: 1.75rem 0 .25rem; }
.facts { display: grid; grid-template-columns: minmax(0, 1fr) minmax(14rem, 20rem); gap: .5rem 2.5rem; align-items: start; }
.bars { display: grid; grid-template-columns: auto minmax(4rem, 1fr) 3.5rem; gap: .3rem .6rem; align-items: center;
  font-size: .85rem; margin-top: .6rem; }
.bars svg { height: .6rem; }
.bars .share { text-align: right; font-variant-numeric: tabular-nums; }
.track { fill: var(--line); opacity: .5; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(6.6rem, 1fr)); gap: .5rem; margin: .6rem 0 0; }
.tiles figure { margin: 0; }
.tiles img, .gap { display: block; width: 100%; height: auto; aspect-ratio: 1; border-radius: 4px; background: var(--panel); }
.gap { display: grid; place-items: center; color: var(--muted); font-size: .75rem; border: 1px dashed var(--line); }
.tiles figcaption { font-weight: 400; font-size: .75rem; color: var(--muted); margin: .1rem 0 0;
  font-variant-numeric: tabular-nums; }
@media (max-width: 48rem) { .facts { grid-template-columns: minmax(0, 1fr); } }
@media print { .find { display: none; } .atom { break-inside: avoid; } }
"""

SCRIPT = """
"use strict";
const cards = [...document.querySelectorAll(".atom")];
const find = document.getElementById("find"), only = document.getElementById("only");
const show = () => {
  const words = find.value.toLowerCase().replace(/^atom\\s*/, "").split(/\\s+/).filter(Boolean);
  let count = 0;
  for (const card of cards) {
    const fits = words.every((word) => /^\\d+$/.test(word) ? card.dataset.atom === word : card.dataset.words.includes(word));
    card.hidden = !(fits && (!only || !only.checked || card.dataset.told === "1"));
    count += card.hidden ? 0 : 1;
  }
  document.getElementById("count").textContent = count + " of " + cards.length + " atoms";
  document.getElementById("nothing").hidden = count > 0;
};
find.addEventListener("input", show);
find.form.addEventListener("submit", (event) => event.preventDefault());
if (only) only.addEventListener("change", show);
show();
"""
