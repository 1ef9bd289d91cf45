"""The paper's PCA figure: tiles as each model sees them, in two principal components, side by side.

Of a model with sparse coding these are its codes, of ILRA what its low-rank layers give to the pooling, of any other model
the embeddings. One drawing is made of a few kinds of marks, and written as SVG and as PNG.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scmil.errors import BagError, DataError, ShapeError
from scmil.core.extras import need
from scmil.core.files import csv_bytes, utf8
from scmil.stats.metrics import auc_many
from scmil.outputs import Outputs
from scmil.report.html.markup import Markup, element
from scmil.report.html.plots import axis_over
from scmil.models.tile_scores import _spacing
from scmil.studies import check_contract, load_study
from scmil.studies.predict import noted, raise_if_all, scaled
from scmil.core.jobs.work import one_of_many

if TYPE_CHECKING:
    from torch import Tensor

    from scmil.bags.bag import Bag, BagSet
    from scmil.models.model import MILModel

STAGE = "pca"
FOLDS = 5
SIDE, GAP, TOP, BOTTOM, LEFT = 330, 34, 64, 78, 34  # pixels of a panel, between panels and around them
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#1b1f24")  # Okabe and Ito
INK, MUTED, LINE = "#1b1f24", "#5c6670", "#d9dee4"
LAYERS = 12  # each colour is drawn in so many portions, in turn, so that none hides the others
RARE = 4  # times as many tiles as of the rarest colour, at most
FINE = 3  # pixels of the PNG for one of the drawing
ANNOTATIONS = (".geojson", ".json", ".xml")
Array = NDArray[np.float64]


class Sample(NamedTuple):
    """Which tiles are drawn: their slide, row within it, corner, and colour."""

    slides: list[str]
    rows: NDArray[np.int64]
    xy: NDArray[np.int64]
    colour: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Panel:
    """One model: its tiles in the plane (n, 2), how much of the variance each axis holds, and how far colours are apart."""

    name: str
    about: str
    plane: Array
    explained: tuple[float, float]
    auc: float

    @property
    def separation(self) -> str:
        """How well a straight line tells the colours apart, in words."""
        return f"AUC of a line {self.auc:.3f}" if math.isfinite(self.auc) else "too few slides for an AUC"


@dataclass(frozen=True, eq=False)
class Drawn:
    """The figure: its panels, how many tiles have which colour, its files, and the slides that are not in it."""

    panels: list[Panel]
    counts: dict[str, int]
    files: tuple[Path, ...]
    failed: dict[str, str]
    left_out: list[str]  # slides whose tiles have no colour: neither annotations nor a label say one
    svg: str


def draw_pca(
    models: Sequence[str | Path],
    bags: BagSet,
    out: str | Path,
    *,
    annotations: str | Path | None = None,
    tiles: int = 1500,
    seed: int = 0,
    overwrite: bool = False,
    progress: Callable[[str, int, int], None] | None = None,
) -> Drawn:
    """Draw the same tiles of a cohort as each of some models sees them; writes a PNG, an SVG and a CSV.

    Tiles are drawn at random, as many of each colour as `balanced` finds, spread over the slides. With `annotations`, a
    folder of `<slide>.geojson` or `.xml`, colours are tumour and other tiles, by the tile's centre; a slide without a file
    counts as free of tumour if its label is the first class, and is left out otherwise. Without `annotations`, a tile has
    the colour of its slide's label, and slides without a label are left out. A file of the same name that this did not
    write is rejected, unless `overwrite`.
    """
    from scmil.core.jobs.work import Ledger

    studies = [load_study(path) for path in models]
    if annotations is not None and not Path(annotations).is_dir():
        raise DataError(f"{annotations} is not a folder. Give the one with the annotations: <slide>.geojson or .xml.")
    names = [f"tiles of {name} slides" for name in studies[0][1]["classes"]]
    names = names if annotations is None else ["other tiles", "tumour tiles"]
    failed: dict[str, str] = {}
    left_out: list[str] = []
    sample = _sample(bags, annotations, tiles, seed, failed, left_out, progress)
    kept, points = _seen(models, studies, bags, sample, failed, progress)
    sample = Sample([sample.slides[i] for i in kept], sample.rows[kept], sample.xy[kept], sample.colour[kept])
    panels = [
        _panel(model, study, x, sample, seed)
        for (model, study), x in zip(studies, map(np.concatenate, points), strict=True)
    ]
    counts = {name: int((sample.colour == k).sum()) for k, name in enumerate(names)}
    counts = {name: count for name, count in counts.items() if count}
    marks, size = _drawing(panels, sample.colour, names)
    path, svg = Path(out), _svg(marks, size)
    parts = {".png": _png(marks, size), ".svg": utf8(svg), ".csv": _table(panels, sample, names)}
    contents = {path.with_suffix(suffix): content for suffix, content in parts.items()}
    outputs = Outputs(path.parent, STAGE, overwrite)
    for file, content in contents.items():  # all are looked at before the first is written
        outputs.check(file, content=content)
    for file, content in contents.items():
        outputs.write(file, content)
    ledger = Ledger(path.parent)
    for id, cause in failed.items():
        ledger.add(id, STAGE, cause)
    for failure in [each for each in ledger.read() if each.stage == STAGE and each.slide not in failed]:
        ledger.clear(failure.slide, STAGE)
    return Drawn(panels, counts, tuple(contents), failed, left_out, svg)


# ---------------------------------------------------------------------------------------------------------- the sample


def _sample(
    bags: BagSet,
    annotations: str | Path | None,
    tiles: int,
    seed: int,
    failed: dict[str, str],
    left_out: list[str],
    progress: Callable[[str, int, int], None] | None,
) -> Sample:
    found: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
    for position, id in enumerate(bags.ids):
        with one_of_many(id, failed):
            bag = bags[position]
            colour = _colour_by_label(bag) if annotations is None else _colour_by_annotation(bag, Path(annotations))
            if colour is None:
                left_out.append(id)
            else:
                xy = np.zeros((len(colour), 2), np.int64) if bag.xy is None else bag.xy.numpy().astype(np.int64)
                found.append((position, colour, xy))
        if progress:
            progress("looking at tiles", position + 1, len(bags))
    if not found:
        why = next(iter(failed.values()), "No slide has a label or annotations. Give --labels, or --annotations.")
        raise DataError(f"there is no tile to draw. {why}")
    where = np.concatenate([np.full(len(colour), position) for position, colour, _ in found])
    rows = np.concatenate([np.arange(len(colour)) for _, colour, _ in found])
    colour = np.concatenate([colour for _, colour, _ in found])
    xy = np.concatenate([xy for *_, xy in found])
    chosen = balanced(where, colour, tiles, seed)
    return Sample([bags.ids[where[i]] for i in chosen], rows[chosen], xy[chosen], colour[chosen])


def balanced(groups: NDArray[np.int64], colour: NDArray[np.int64], count: int, seed: int) -> NDArray[np.int64]:
    """Draw `count` tiles, equally many of each colour, spread over the groups; in order.

    A rare colour may have fewer; the others then have at most four times as many, so that it is still seen among them.

    >>> colour = np.array([0] * 90 + [1] * 10)
    >>> chosen = balanced(np.arange(100) % 5, colour, 16, seed=0)
    >>> np.bincount(colour[chosen]).tolist(), np.bincount(chosen % 5).max().item()
    ([8, 8], 4)
    >>> np.bincount(colour[balanced(np.arange(100) % 5, colour, 200, seed=0)]).tolist()
    [40, 10]
    """
    generator = np.random.default_rng(seed)
    met = np.unique(colour)
    smallest = min(int((colour == k).sum()) for k in met)
    share = min(max(count // len(met), 1), RARE * smallest)
    chosen = []
    for k in met:
        own = generator.permutation(np.flatnonzero(colour == k))
        turn = np.empty(len(own), np.int64)  # the how manyth tile of its group it is: all first ones come first
        for group in np.unique(groups[own]):
            members = groups[own] == group
            turn[members] = np.arange(members.sum())
        chosen.append(own[np.argsort(turn, kind="stable")[:share]])
    return np.sort(np.concatenate(chosen))


def _colour_by_label(bag: Bag) -> NDArray[np.int64] | None:
    return None if bag.label is None else np.full(len(bag.features), bag.label, np.int64)


def _colour_by_annotation(bag: Bag, folder: Path) -> NDArray[np.int64] | None:
    path = next((path for suffix in ANNOTATIONS if (path := folder / f"{bag.id}{suffix}").is_file()), None)
    if path is None:
        return np.zeros(len(bag.features), np.int64) if bag.label == 0 else None
    if bag.xy is None:
        raise DataError(f"bag {bag.id!r} has no coordinates, so its tiles have no place. Encode it with scmil encode.")
    side = bag.provenance.get("side_level0") or _spacing(bag.id, bag.xy.numpy())
    from scmil.slides.annotations.asap import read_asap, tumour
    from scmil.slides.annotations.geojson import read_geojson

    area = tumour(read_asap(path) if path.suffix == ".xml" else read_geojson(path))
    centres = bag.xy.numpy() + float(side) / 2
    inside = need("shapely", "slides").contains_xy(area, centres[:, 0], centres[:, 1])
    return np.asarray(inside, dtype=np.int64)


# ---------------------------------------------------------------------------------------------------------- the models


def _seen(
    models: Sequence[str | Path],
    studies: Sequence[tuple[MILModel, dict[str, Any]]],
    bags: BagSet,
    sample: Sample,
    failed: dict[str, str],
    progress: Callable[[str, int, int], None] | None,
) -> tuple[list[int], list[list[Array]]]:
    """The drawn tiles as each model sees them; with the positions of those whose slides could be read."""
    places: dict[str, list[int]] = {}
    for i, id in enumerate(sample.slides):
        places.setdefault(id, []).append(i)
    kept: list[int] = []
    points: list[list[Array]] = [[] for _ in studies]
    foreign: list[ShapeError] = []
    for done, (id, own) in enumerate(places.items(), start=1):
        with one_of_many(id, failed):
            bag = bags.subset([id])[0]
            with noted(foreign):
                for path, (_, study) in zip(models, studies, strict=True):
                    check_contract(study, bag, path)
            each = [seen_by(model, scaled(bag, study).features, sample.rows[own]) for model, study in studies]
            if not all(np.isfinite(x).all() for x in each):
                raise BagError(f"bag {id!r} has NaN or infinite features. Encode this slide again.")
            kept += own
            for here, x in zip(points, each, strict=True):
                here.append(x)
        if progress:
            progress("through the models", done, len(places))
    raise_if_all(foreign, len(places))
    if not kept:
        raise DataError(f"no slide could be read. {next(iter(failed.values()))}")
    return kept, points


def seen_by(model: MILModel, features: Tensor, rows: NDArray[np.int64]) -> Array:
    """Some tiles of a bag as a model sees them: codes, ILRA's low-rank outputs, or embeddings.

    >>> import torch
    >>> from scmil.models.model import build_model
    >>> seen_by(build_model(9, 2, sparse_coding={"atoms": 8}, embed=[9], seed=0), torch.randn(5, 9), np.array([0, 3])).shape
    (2, 8)
    """
    import torch

    from scmil.models.aggregators.ilra import ILRA

    like = next(model.parameters())
    model.eval()
    chosen = torch.as_tensor(rows)
    with torch.no_grad():
        if isinstance(model.aggregate, ILRA) and not _has_codes(model):  # its layers look at the whole bag
            return model.aggregate.layers(model.refine(model.embed(features.to(like.dtype))))[chosen].double().numpy()
        return model.refine(model.embed(features[chosen].to(like.dtype))).double().numpy()


def _has_codes(model: MILModel) -> bool:
    return hasattr(model.refine, "dictionary")


def _panel(model: MILModel, study: Mapping[str, Any], x: Array, sample: Sample, seed: int) -> Panel:
    from scmil.models.aggregators.ilra import ILRA

    aggregator = study["settings"]["model"]["aggregator"]
    name = aggregator if isinstance(aggregator, str) else str(aggregator.get("name"))
    codes = _has_codes(model)
    kind = "sparse codes" if codes else "low-rank outputs" if isinstance(model.aggregate, ILRA) else "embeddings"
    plane, explained = principal_plane(x)
    separation = line_auc(plane, sample.colour, sample.slides, seed)
    return Panel(name + " + SC" * codes, f"{kind}, {x.shape[1]} dimensions", plane, explained, separation)


# --------------------------------------------------------------------------------------------------------- the numbers


def principal_plane(x: NDArray[Any]) -> tuple[Array, tuple[float, float]]:
    """The first two principal components of the rows, and the share of the variance that each holds.

    >>> plane, explained = principal_plane(np.array([[3.0, 0, 0], [-3, 0, 0], [0, 1, 0], [0, -1, 0]]))
    >>> np.abs(plane).round(6).tolist(), [round(share, 6) for share in explained]
    ([[3.0, 0.0], [3.0, 0.0], [0.0, 1.0], [0.0, 1.0]], [0.9, 0.1])
    """
    centred = x - x.mean(0)
    variance, axes = np.linalg.eigh(centred.T @ centred)
    total = float(variance.clip(0).sum())
    first = axes[:, ::-1][:, :2]
    # An axis may point either way: the entry that is largest is made positive, so that the figure is the same each time.
    first = first * np.where(np.take_along_axis(first, np.abs(first).argmax(0)[None], 0) < 0, -1, 1)
    plane = centred @ first
    if plane.shape[1] < 2:
        plane = np.column_stack([plane, np.zeros(len(plane))])
    shares = [float(value) / total if total else 0.0 for value in (*variance[::-1].clip(0), 0.0)[:2]]
    return plane, (shares[0], shares[1])


def line_auc(plane: Array, colour: NDArray[np.int64], slides: Sequence[str], seed: int = 0) -> float:
    """How well a straight line (linear discriminant) in the plane tells colours apart on slides it was not fitted to: AUC.

    Slides are dealt into five folds. Of more than two colours, the mean over each against the rest. NaN if there are too
    few slides: a colour is missing outside some fold.

    >>> plane = np.array([[0.0, 0], [0, 1], [5, 0], [5, 1]] * 4)
    >>> line_auc(plane, np.array([0, 0, 1, 1] * 4), [f"s{i // 4}" for i in range(16)])
    1.0
    """
    met = np.unique(colour)
    if len(met) < 2:
        return math.nan
    names, owner = np.unique(np.asarray(slides), return_inverse=True)
    fold = np.random.default_rng(seed).permutation(len(names))[owner] % min(FOLDS, len(names))
    targets = met[1:] if len(met) == 2 else met
    found = [_cross_validated(plane, (colour == target).astype(np.int64), fold) for target in targets]
    return float(np.mean(found))


def _cross_validated(plane: Array, y: NDArray[np.int64], fold: NDArray[np.int64]) -> float:
    scores = np.empty(len(y))
    for k in np.unique(fold):
        train = fold != k
        if len(np.unique(y[train])) < 2:
            return math.nan
        one, other = plane[train & (y == 1)], plane[train & (y == 0)]
        within = np.concatenate([one - one.mean(0), other - other.mean(0)])
        spread = within.T @ within / len(within)
        spread += np.eye(2) * (1e-9 * np.trace(spread) + np.finfo(float).tiny)
        direction = np.linalg.solve(spread, one.mean(0) - other.mean(0))
        scores[~train] = (plane[~train] - (one.mean(0) + other.mean(0)) / 2) @ direction
    return float(auc_many(y, scores[None])[0])


def _table(panels: Sequence[Panel], sample: Sample, names: Sequence[str]) -> bytes:
    rows: list[list[Any]] = [["model", "slide", "x", "y", "colour", "pc1", "pc2"]]
    for panel in panels:
        for slide, (x, y), colour, (one, two) in zip(
            sample.slides, sample.xy.tolist(), sample.colour.tolist(), panel.plane.tolist(), strict=True
        ):
            rows.append([panel.name, slide, x, y, names[colour], f"{one:.6g}", f"{two:.6g}"])
    return csv_bytes(rows)


# --------------------------------------------------------------------------------------------------------- the drawing


class Dots(NamedTuple):
    """Points of one colour."""

    points: Array
    colour: str


class Words(NamedTuple):
    """Text; `anchor` is start, middle or end, `turned` stands it on its end."""

    text: str
    x: float
    y: float
    size: float = 12
    colour: str = INK
    anchor: str = "start"
    bold: bool = False
    turned: bool = False


class Frame(NamedTuple):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


Mark = Dots | Words | Frame
Size = tuple[int, int]


def pca_figure(panels: Sequence[Panel], colour: NDArray[np.int64], names: Sequence[str]) -> str:
    """The figure as SVG that carries its own colours.

    >>> panel = Panel("abmil", "embeddings", np.array([[0.0, 1], [1, 0]]), (0.7, 0.2), 1.0)
    >>> pca_figure([panel], np.array([0, 1]), ["normal", "tumour"])[:36]
    '<svg xmlns="http://www.w3.org/2000/s'
    """
    return _svg(*_drawing(panels, colour, names))


def _drawing(panels: Sequence[Panel], colour: NDArray[np.int64], names: Sequence[str]) -> tuple[list[Mark], Size]:
    width = LEFT + len(panels) * (SIDE + GAP)
    marks: list[Mark] = []
    for place, panel in enumerate(panels):
        marks += _panel_marks(panel, colour, LEFT + place * (SIDE + GAP))
    marks += _legend(colour, names, TOP + SIDE + 50)
    return marks, (width, TOP + SIDE + BOTTOM)


def _panel_marks(panel: Panel, colour: NDArray[np.int64], left: float) -> Iterator[Mark]:
    x_axis, y_axis = (
        axis_over(panel.plane[:, k], start, end)
        for k, (start, end) in enumerate([(left, left + SIDE), (TOP + SIDE, TOP)])
    )
    points = np.column_stack([np.vectorize(x_axis.at)(panel.plane[:, 0]), np.vectorize(y_axis.at)(panel.plane[:, 1])])
    yield Words(panel.name, left, 22, size=15, bold=True)
    yield Words(f"{panel.about}; {panel.separation}", left, 44, size=11.5, colour=MUTED)
    yield Frame(left, TOP, SIDE, SIDE)
    for portion in range(LAYERS):
        for k in np.unique(colour):
            yield Dots(points[np.flatnonzero(colour == k)[portion::LAYERS]], COLOURS[k % len(COLOURS)])
    one, two = (
        f"component {k}: {100 * share:.0f} % of the variance" for k, share in enumerate(panel.explained, start=1)
    )
    yield Words(one, left + SIDE / 2, TOP + SIDE + 20, size=11.5, colour=MUTED, anchor="middle")
    yield Words(two, left - 10, TOP + SIDE / 2, size=11.5, colour=MUTED, anchor="middle", turned=True)


def _legend(colour: NDArray[np.int64], names: Sequence[str], y: float) -> Iterator[Mark]:
    x = float(LEFT)
    for k in np.unique(colour):
        words = f"{names[k]} ({int((colour == k).sum())})"
        yield Dots(np.array([[x + 5, y]]), COLOURS[k % len(COLOURS)])
        yield Words(words, x + 14, y + 4)
        x += 14 + 7 * len(words) + 20
    told = "AUC of a line: linear discriminant in this plane, on slides it was not fitted to; 0.5 is chance."
    yield Words(told, LEFT, y + 22, size=10.5, colour=MUTED)


def _svg(marks: Sequence[Mark], size: Size) -> str:
    width, height = size
    ground = element("rect", width=width, height=height, fill="#ffffff")
    return str(
        element(
            "svg", ground, *map(_svg_mark, marks), xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
            width=width, height=height, role="img", aria_label="Tiles in two principal components, a panel for each model",
        )
    )  # fmt: skip


def _svg_mark(mark: Mark) -> Markup:
    if isinstance(mark, Dots):  # a line without length and with round ends is a dot, and takes a few letters
        path = "".join(f"M{x:.1f},{y:.1f}h0" for x, y in mark.points.tolist())
        looks = {"stroke": mark.colour, "stroke_width": 4, "stroke_linecap": "round", "stroke_opacity": 0.65}
        return element("path", d=path, fill="none", **looks)
    if isinstance(mark, Frame):
        x, y, width, height = mark
        return element("rect", x=x, y=y, width=width, height=height, fill="none", stroke=LINE)
    # On a page whose style sheet colours all text, as the reports' does, the colour has to stand on a part of it.
    turn = f"rotate(-90 {mark.x:g} {mark.y:g})" if mark.turned else None
    inner = element(
        "tspan", mark.text, fill=mark.colour, font_size=mark.size, font_weight=600 if mark.bold else None,
        font_family="system-ui, Segoe UI, Helvetica, Arial, sans-serif",
    )  # fmt: skip
    return element("text", inner, x=f"{mark.x:g}", y=f"{mark.y:g}", text_anchor=mark.anchor, transform=turn)


def _png(marks: Sequence[Mark], size: Size) -> bytes:
    pillow, drawing = need("PIL.Image", "slides"), need("PIL.ImageDraw", "slides")
    picture = pillow.new("RGB", (size[0] * FINE, size[1] * FINE), "white")
    for mark in marks:
        if isinstance(mark, Dots):
            _draw_dots(drawing.Draw(picture, "RGBA"), mark)
        elif isinstance(mark, Frame):
            x, y, width, height = (FINE * value for value in mark)
            drawing.Draw(picture).rectangle((x, y, x + width, y + height), outline=LINE, width=FINE)
        else:
            _draw_words(picture, mark)
    content = io.BytesIO()
    picture.save(content, "PNG", dpi=(96 * FINE, 96 * FINE), optimize=True)
    return content.getvalue()


def _draw_dots(draw: Any, dots: Dots) -> None:
    colour = dots.colour + "a6"
    for x, y in (dots.points * FINE).tolist():
        draw.ellipse((x - 2 * FINE, y - 2 * FINE, x + 2 * FINE, y + 2 * FINE), fill=colour)


def _draw_words(picture: Any, words: Words) -> None:
    pillow, drawing, fonts = (need(f"PIL.{name}", "slides") for name in ("Image", "ImageDraw", "ImageFont"))
    font = fonts.load_default(words.size * FINE)
    anchor = {"start": "ls", "middle": "ms", "end": "rs"}[words.anchor]
    looks = {"font": font, "fill": words.colour, "stroke_width": 1 if words.bold else 0}
    x, y = words.x * FINE, words.y * FINE
    if not words.turned:
        drawing.Draw(picture).text((x, y), words.text, anchor=anchor, **looks)
        return
    length = math.ceil(font.getlength(words.text))
    high = math.ceil(2 * words.size * FINE)
    strip = pillow.new("RGB", (length, high), "white")
    drawing.Draw(strip).text((0, 0.7 * high), words.text, anchor="ls", **looks)
    picture.paste(strip.rotate(90, expand=True), (round(x - 0.7 * high), round(y - length / 2)))
