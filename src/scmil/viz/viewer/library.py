"""What there is to show: the slides, what one or two models say of them, the truth where it is known, the atlas."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scmil.errors import DataError, SlideError
from scmil.core.files import unquoted
from scmil.fingerprint import stat_of
from scmil.bags.labels import slide_id
from scmil.limits import BOUNDS, PIXELS, read_json
from scmil.models.tile_scores import PAGE, Scores, ScoreSet, open_scores
from scmil.slides import find_slides, open_slide, slide_digest, slide_files
from scmil.viz.drawing.background import check_extent, check_slide

PICTURES = (".jpg", ".jpeg", ".png")
MOST_IN_MEMORY = 8  # slides' scores


@dataclass(frozen=True)
class Shown:
    """A slide of the list: its id, and its file if there is one."""

    id: str
    path: Path | None


class Library:
    """Slides by their place in a list, and everything that is known of them; nothing else is ever read.

    Links that lead out of the folders given are not followed; `left_out` has the slides that are lost by that. With `scored`,
    scores of other slides than these are not shown: their bags may be gone.
    """

    def __init__(
        self,
        models: Sequence[str | Path],
        slides: str | Path | None = None,
        annotations: str | Path | None = None,
        scored: Collection[str] | None = None,
    ) -> None:
        self.folders = [Path(model) for model in models]
        self.models: list[ScoreSet] = [open_scores(folder, scored) for folder in self.folders]
        self.names = _different([scores.page.get("model") or str(scores.folder) for scores in self.models])
        found, self.left_out = _slide_files(Path(slides)) if slides else ({}, [])
        given = [annotations, slides if slides and Path(slides).is_dir() else None]
        self._annotations = [Path(folder).resolve() for folder in given if folder is not None]
        self._states = [_states(scores.folder) for scores in self.models]
        self._atlases = [_atlas(scores.folder / "atlas" / "atlas.json") for scores in self.models]
        self._labels = [_true_labels(folder / "predictions.csv") for folder in self.folders]
        ids = {slide_id(id): id for scores in self.models for id in scores}
        named = {**{key: found[key].stem for key in found}, **ids}
        self.slides = [Shown(named[key], found.get(key)) for key in sorted(named)]
        self._kept = lru_cache(MOST_IN_MEMORY)(self._read)

    def scores(self, model: int, slide: int) -> Scores:
        """The scores of a model for a slide; a slide that a model has not scored is a KeyError.

        Every score that is shown passes here. It is checked that it is of the slide that is shown, again if either changes.
        """
        self._check_unchanged(model)
        path = self.slides[slide].path
        return self._kept(model, slide, () if path is None else stat_of(slide_files(path)))

    def _read(self, model: int, slide: int, times: tuple[int, ...]) -> Scores:
        scores = self.models[model][self.slides[slide].id]
        check_same_slide(scores, self.slides[slide])
        return scores

    def _check_unchanged(self, model: int) -> None:
        """Raise DataError if the model was scored again, or its atlas made again, since this library was opened."""
        if _states(self.models[model].folder) != self._states[model]:
            raise DataError(
                f"{self.models[model].folder} has changed since the viewer was started. Stop it, and start it again."
            )

    def index(self, id: str) -> int | None:
        """The place of a slide in the list."""
        return next((place for place, shown in enumerate(self.slides) if shown.id == id), None)

    # ------------------------------------------------------------------------------------------------------- the list

    def page(self) -> dict[str, Any]:
        """The list of slides, and what each model says of each, without a look into any slide."""
        models = [
            {"name": name, "classes": scores.page["classes"], "atlas": sorted(atlas)}
            for name, scores, atlas in zip(self.names, self.models, self._atlases, strict=True)
        ]
        return {"models": models, "slides": [self._line(shown) for shown in self.slides]}

    def _line(self, shown: Shown) -> dict[str, Any]:
        said = [self._said(model, shown) for model in range(len(self.models))]
        label = next((one["label"] for one in said if one and one["label"] is not None), None)
        return {"id": shown.id, "picture": shown.path is not None, "label": label, "models": said}

    def _said(self, model: int, shown: Shown) -> dict[str, Any] | None:
        """The prediction of a model for a slide, whether it is right, and the part that the slide had in its training.

        There is none for a slide that is another file than the one that was encoded.
        """
        page, id = self.models[model].page, shown.id
        line = page["slides"].get(id)
        if line is None or not _is_file_of(line.get("slide_digest"), shown.path):
            return None
        classes, predicted = page["classes"], line["predicted"]
        label = self._labels[model].get(id) if line["label"] is None else classes[line["label"]]
        parts = page.get("split") or {}
        return {
            "label": label,
            "predicted": classes[predicted],
            "probability": line["probabilities"][predicted],
            "correct": None if label is None else classes[predicted] == label,
            "part": next((part for part, ids in parts.items() if isinstance(ids, list) and id in ids), None),
            "effective_tiles": line.get("effective_tiles"),
        }

    # ------------------------------------------------------------------------------------------------------ one slide

    def tiles(self, model: int, slide: int) -> dict[str, Any]:
        """Where a slide's tiles are, and which scores they have; atoms are counted, not listed."""
        if self.slides[slide].id not in self.models[model]:
            return {"xy": [], "side": 0, "kinds": [], "atoms": 0}
        scores = self.scores(model, slide)
        return {
            "xy": scores.xy.ravel().tolist(),
            "side": scores.side,
            "kinds": [kind for kind in scores.kinds() if not kind.startswith("atom:")],
            "atoms": 0 if scores.codes is None else scores.codes.atoms,
        }

    def extent(self, slide: int) -> tuple[tuple[int, int] | None, float | None]:
        """Size and microns per pixel of a slide as the scores have them, for slides whose file is not there."""
        for model in range(len(self.models)):
            if self.slides[slide].id in self.models[model]:
                scores = self.scores(model, slide)
                right, bottom = np.ceil(scores.xy.max(0) + scores.side).astype(int).tolist()
                return scores.slide_size or (right, bottom), scores.slide_mpp
        return None, None

    def code(self, model: int, slide: int, tile: int) -> dict[str, Any]:
        """The scores of one tile, and its code: the atoms that it uses, and how strongly."""
        scores = self.scores(model, slide)
        if tile >= len(scores):
            raise KeyError(tile)
        plain = [kind for kind in scores.kinds() if not kind.startswith("atom:")]
        atoms, values = scores.codes.row(tile) if scores.codes else (np.zeros(0, int), np.zeros(0))
        return {
            "tile": tile,
            "xy": scores.xy[tile].tolist(),
            "scores": {kind: float(scores.of(kind)[tile]) for kind in plain},
            "atoms": atoms.tolist(),
            "values": values.tolist(),
            "of": scores.codes.atoms if scores.codes else 0,
        }

    def annotation(self, slide: int) -> Path | None:
        """The file with what people drew: `<slide>.xml` (ASAP) or `<slide>.geojson`; None if there is none in the folders."""
        from scmil.slides.annotations.lookup import find_annotation

        shown = self.slides[slide]
        beside = [shown.path.parent] if shown.path else []
        path = find_annotation(shown.id, *self._annotations, *beside)
        if path is None or not any(path.resolve().is_relative_to(root) for root in self._annotations):
            return None
        return path.resolve()

    # ------------------------------------------------------------------------------------------------------ the atlas

    def atom(self, model: int, atom: int) -> dict[str, Any]:
        """The row of an atom in the atlas; without pictures if there is no atlas, or it does not have this atom."""
        self._check_unchanged(model)
        row = self._atlases[model].get(atom, {})
        tiles = [tile for tile in row.get("tiles", ()) if isinstance(tile, dict)]
        kept = {key: row.get(key) for key in ("sentence", "used")}
        return {"atom": atom, "known": bool(row), **kept, "tiles": [{**tile, "file": None} for tile in tiles]}

    def atom_picture(self, model: int, atom: int, number: int) -> Path | dict[str, Any]:
        """A picture of the atlas: its file, or the tile that it is of."""
        self._check_unchanged(model)
        tile = dict(self._atlases[model][atom]["tiles"][number])
        folder = (self.models[model].folder / "atlas").resolve()
        path = (folder / str(tile.get("file") or "")).resolve()
        good = path.is_relative_to(folder) and path.suffix.lower() in PICTURES and path.is_file()
        return path if good else tile


def check_same_slide(scores: Scores, shown: Shown) -> None:
    """Raise DataError if scores are not of the slide that is shown under their name."""
    if shown.path is not None:
        with open_slide(shown.path) as slide:
            check_slide(slide, scores.slide_digest)
            check_extent(slide, scores.xy, scores.side, scores.slide_size)


def _is_file_of(digest: str | None, path: Path | None) -> bool:
    """Whether a slide is the file with this digest, as far as both are known."""
    if digest is None or path is None:
        return True
    try:
        return slide_digest(path) == digest
    except SlideError:
        return False


def _states(folder: Path) -> list[tuple[int, int] | None]:
    """Size and time of change of the files that say what is in a folder of scores, and in its atlas."""
    paths = folder / PAGE, folder / "atlas" / "atlas.json"
    states = [path.stat() if path.is_file() else None for path in paths]
    return [(state.st_size, state.st_mtime_ns) if state else None for state in states]


def _different(names: list[str]) -> list[str]:
    return [f"{name} ({place})" if names.count(name) > 1 else name for place, name in enumerate(names, start=1)]


def _slide_files(given: Path) -> tuple[dict[str, Path], list[Path]]:
    """The slides below a folder by their ids, and those that are links to elsewhere."""
    if not given.exists():
        raise DataError(f"{given}: there is no such file or folder. Give the folder of the slides.")
    root = given.resolve() if given.is_dir() else given.resolve().parent
    found: dict[str, Path] = {}
    left_out = []
    paths = find_slides(given) if given.is_dir() else [given]
    for path in sorted(paths, key=lambda path: (path.suffix.lower() in PICTURES, path)):  # thumbnails come last
        real, key = path.resolve(), slide_id(path.name)
        if given.is_dir() and not real.is_relative_to(root):
            left_out.append(path)
        elif key in found and path.suffix.lower() not in PICTURES:
            raise DataError(
                f"two slides are called {key!r}: {found[key]} and {path}. Show one of them: give its folder."
            )
        else:
            found.setdefault(key, real)
    return found, left_out


def _atlas(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of an atlas by atom; empty if there is none. Rows that are not as ours are passed over."""
    try:
        rows = read_json(path)["atoms"]
        return {int(row["atom"]): _checked(row) for row in rows if isinstance(row, dict) and "atom" in row}
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged, or no atlas ({error}). Delete it, and make it again: scmil atlas"
        ) from None


def _checked(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the atlas, with those of its tiles whose place and width can be those of a tile."""
    tiles = [
        tile
        for tile in row.get("tiles") or ()
        if isinstance(tile, dict)
        and all(PIXELS.holds(tile.get(axis)) for axis in "xy")
        and BOUNDS["side_level0"].holds(tile.get("side"))
    ]
    return {**row, "tiles": tiles}


def _true_labels(path: Path) -> dict[str, str]:
    """The labels of the training, for bags that were scored without labels."""
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {
        unquoted(row["slide_id"]): unquoted(row["y_true"]) for row in rows if row.get("slide_id") and row.get("y_true")
    }


def models_of(folder: str | Path) -> list[Path]:
    """The models in a folder: itself, or those right below it.

    >>> models_of("no such folder")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: no such folder: there is no such folder. Give a model of scmil train, or a folder of models.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder. Give a model of scmil train, or a folder of models.")
    if _is_model(folder):
        return [folder]
    below = sorted(path for path in folder.iterdir() if path.is_dir() and _is_model(path))
    if not below:
        raise DataError(
            f"{folder} is no model of scmil train, has no scores, and no folder right below it has. Train one: scmil train"
        )
    return below


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("model.json", PAGE, f"maps/{PAGE}"))
