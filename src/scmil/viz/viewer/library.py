"""The contents of the viewer: slides, predictions of one or two models, labels, and the atlas."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from scmil.bags.slide_ids import slide_id
from scmil.core.fingerprint import stat_of
from scmil.core.limits import BOUNDS, PIXELS
from scmil.core.tables import read_json
from scmil.errors import DataError, OptionError, SlideError
from scmil.models.predictions_file import read_training_slides
from scmil.models.score_files import PAGE, ScoreSet, open_scores
from scmil.models.tile_scores import Scores
from scmil.slides import find_slides, open_slide, slide_digest, slide_files
from scmil.viz.drawing.background import check_extent, check_slide
from scmil.viz.drawing.colour_scale import Numbers
from scmil.viz.spread import PREFIX, scores_of_others, spread_of

PICTURES = (".jpg", ".jpeg", ".png")
MOST_IN_MEMORY = 8  # slides whose scores are cached


@dataclass(frozen=True)
class ListedSlide:
    """A slide of the list: its id, and its file if there is one."""

    id: str
    path: Path | None


class Library:
    """Slides by their position in a list, with scores, labels and annotations. No other file is
    read.

    Links that lead out of the given folders are not followed; `left_out` has the slides that are
    omitted for this reason. With `scored`, scores of other slides are not shown, because their bags
    may have been deleted. `also` are further models, such as those of other folds: the spread of
    every score over them and the first model is a layer of the first model.
    """

    def __init__(
        self,
        models: Sequence[str | Path],
        slides: str | Path | None = None,
        annotations: str | Path | None = None,
        scored: Collection[str] | None = None,
        also: Sequence[str | Path] = (),
    ) -> None:
        self.folders = [Path(model) for model in models]
        self.models: list[ScoreSet] = [open_scores(folder, scored) for folder in self.folders]
        self._also = [open_scores(Path(folder), scored) for folder in also]
        self._also_states = [_file_states(scores.folder) for scores in self._also]
        self.names = _make_unique(
            [scores.page.get("model") or str(scores.folder) for scores in self.models]
        )
        files, self.left_out = _find_slide_files(Path(slides)) if slides else ({}, [])
        folders = [annotations, slides if slides and Path(slides).is_dir() else None]
        self._annotations = [Path(folder).resolve() for folder in folders if folder is not None]
        self._states = [_file_states(scores.folder) for scores in self.models]
        self._atlases = [
            _read_atlas(scores.folder / "atlas" / "atlas.json") for scores in self.models
        ]
        self._labels = [_read_training_labels(folder) for folder in self.folders]
        ids = {slide_id(bag_id): bag_id for scores in self.models for bag_id in scores}
        names = {**{key: path.stem for key, path in files.items()}, **ids}
        self.slides = [ListedSlide(names[key], files.get(key)) for key in sorted(names)]
        self._read_cached = lru_cache(MOST_IN_MEMORY)(self._read_scores)
        self._read_others = lru_cache(MOST_IN_MEMORY)(
            lambda slide: scores_of_others(self.scores(0, slide), self._also)
        )

    def scores(self, model: int, slide: int) -> Scores:
        """The scores of a model for a slide; KeyError if the model has not scored the slide.

        All scores are read by this method, which checks that they belong to the slide that is
        shown, again whenever the file of either changes.
        """
        self._check_unchanged(model)
        path = self.slides[slide].path
        return self._read_cached(model, slide, () if path is None else stat_of(slide_files(path)))

    def _read_scores(self, model: int, slide: int, times: tuple[int, ...]) -> Scores:
        scores = self.models[model][self.slides[slide].id]
        check_same_slide(scores, self.slides[slide])
        return scores

    def _check_unchanged(self, model: int) -> None:
        """Raise DataError if scores or atlas were written again since this library was opened."""
        opened = [(self.models[model], self._states[model])]
        opened += zip(self._also, self._also_states, strict=True) if model == 0 else []
        for scores, states in opened:
            if _file_states(scores.folder) != states:
                raise DataError(
                    f"{scores.folder} has changed since the viewer was started. "
                    "Stop the viewer and start it again."
                )

    def index(self, bag_id: str) -> int | None:
        """The position of a slide in the list."""
        return next((i for i, slide in enumerate(self.slides) if slide.id == bag_id), None)

    # ------------------------------------------------------------------------------------- the list

    def page(self) -> dict[str, Any]:
        """The list of slides with the predictions of each model; no slide is opened."""
        models = [
            {"name": name, "classes": scores.page["classes"], "atlas": sorted(atlas)}
            for name, scores, atlas in zip(self.names, self.models, self._atlases, strict=True)
        ]
        return {"models": models, "slides": [self._list_entry(slide) for slide in self.slides]}

    def _list_entry(self, slide: ListedSlide) -> dict[str, Any]:
        predictions = [self._prediction(model, slide) for model in range(len(self.models))]
        labels = (one["label"] for one in predictions if one and one["label"] is not None)
        return {
            "id": slide.id,
            "picture": slide.path is not None,
            "label": next(labels, None),
            "models": predictions,
        }

    def _prediction(self, model: int, slide: ListedSlide) -> dict[str, Any] | None:
        """The prediction of a model for a slide, whether it is correct, and the split of the slide.

        None if the slide is not the file that was encoded.
        """
        page, bag_id = self.models[model].page, slide.id
        line = page["slides"].get(bag_id)
        if line is None or not _has_digest(slide.path, line.get("slide_digest")):
            return None
        classes, predicted = page["classes"], line["predicted"]
        label = self._labels[model].get(bag_id) if line["label"] is None else classes[line["label"]]
        splits = page.get("split") or {}
        return {
            "label": label,
            "predicted": classes[predicted],
            "probability": line["probabilities"][predicted],
            "correct": None if label is None else classes[predicted] == label,
            "split": next(
                (name for name, ids in splits.items() if isinstance(ids, list) and bag_id in ids),
                None,
            ),
            "effective_tiles": line.get("effective_tiles"),
        }

    # ------------------------------------------------------------------------------------ one slide

    def kinds(self, model: int, slide: int) -> list[str]:
        """The names of the layers of a slide except those of atoms: its scores, then their spread
        over several models, if all of them have scored the slide.
        """
        plain = [kind for kind in self.scores(model, slide).kinds() if not kind.startswith("atom:")]
        everywhere = all(self.slides[slide].id in other for other in self._also)
        if model != 0 or not self._also or not everywhere:
            return plain
        shared = set(plain).intersection(*(each.kinds() for each in self._read_others(slide)))
        return [*plain, *(f"{PREFIX}{kind}" for kind in plain if kind in shared)]

    def values(self, model: int, slide: int, kind: str) -> Numbers:
        """The numbers of one layer of a slide, one per tile."""
        scores = self.scores(model, slide)
        if not kind.startswith(PREFIX):
            return scores.of(kind)
        if model != 0 or not self._also:
            raise OptionError(
                f"{kind!r}: there is one model, so there is no spread. Start the viewer with "
                "further models: --also"
            )
        return spread_of([scores, *self._read_others(slide)], kind.removeprefix(PREFIX))

    def tiles(self, model: int, slide: int) -> dict[str, Any]:
        """Positions of the tiles of a slide, names of their scores, number of atoms, sums of the
        evidence, and the number of models of a spread.
        """
        if self.slides[slide].id not in self.models[model]:
            return {"xy": [], "side": 0, "kinds": [], "atoms": 0, "evidence": {}, "models": 0}
        scores = self.scores(model, slide)
        return {
            "xy": scores.xy.ravel().tolist(),
            "side": scores.side,
            "kinds": self.kinds(model, slide),
            "atoms": 0 if scores.codes is None else scores.codes.atoms,
            "evidence": _describe_evidence(scores),
            "models": 1 + len(self._also),
        }

    def extent(self, slide: int) -> tuple[tuple[int, int] | None, float | None]:
        """Size and microns per pixel of a slide as recorded in its scores, for slides without a
        file.
        """
        for model in range(len(self.models)):
            if self.slides[slide].id in self.models[model]:
                scores = self.scores(model, slide)
                right, bottom = np.ceil(scores.xy.max(0) + scores.side).astype(int).tolist()
                return scores.slide_size or (right, bottom), scores.slide_mpp
        return None, None

    def code(self, model: int, slide: int, tile: int) -> dict[str, Any]:
        """The scores of one tile, and its code: the atoms that it uses, with their coefficients."""
        scores = self.scores(model, slide)
        if tile >= len(scores):
            raise KeyError(tile)
        atoms, values = scores.codes.row(tile) if scores.codes else (np.zeros(0, int), np.zeros(0))
        return {
            "tile": tile,
            "xy": scores.xy[tile].tolist(),
            "scores": {
                kind: float(self.values(model, slide, kind)[tile])
                for kind in self.kinds(model, slide)
            },
            "atoms": atoms.tolist(),
            "values": values.tolist(),
            "of": scores.codes.atoms if scores.codes else 0,
        }

    def annotation(self, slide: int) -> Path | None:
        """The annotation of a slide, `<slide>.xml` (ASAP) or `<slide>.geojson`; None if the folders
        have none.
        """
        from scmil.slides.annotations.lookup import find_annotation

        listed = self.slides[slide]
        beside = [listed.path.parent] if listed.path else []
        path = find_annotation(listed.id, *self._annotations, *beside)
        if path is None or not any(
            path.resolve().is_relative_to(root) for root in self._annotations
        ):
            return None
        return path.resolve()

    # ------------------------------------------------------------------------------------ the atlas

    def atom(self, model: int, atom: int) -> dict[str, Any]:
        """The row of an atom in the atlas; without tiles if there is no atlas, or it does not
        contain this atom.
        """
        self._check_unchanged(model)
        row = self._atlases[model].get(atom, {})
        tiles = [tile for tile in row.get("tiles", ()) if isinstance(tile, dict)]
        return {
            "atom": atom,
            "known": bool(row),
            **{key: row.get(key) for key in ("sentence", "used")},
            "tiles": [{**tile, "file": None} for tile in tiles],
        }

    def atom_picture(self, model: int, atom: int, number: int) -> Path | dict[str, Any]:
        """An image of the atlas: its file, or its tile if there is no file."""
        self._check_unchanged(model)
        tile = dict(self._atlases[model][atom]["tiles"][number])
        folder = (self.models[model].folder / "atlas").resolve()
        path = (folder / str(tile.get("file") or "")).resolve()
        if path.is_relative_to(folder) and path.suffix.lower() in PICTURES and path.is_file():
            return path
        return tile


def _describe_evidence(scores: Scores) -> dict[str, Any]:
    """Logit, constant and completeness error of the evidence for each class."""
    found = scores.evidence
    if found is None:
        return {}
    return {
        name: {
            "logit": float(found.logits[place]),
            "constant": float(found.constant[place]),
            "error": float(found.errors[place]),
            "method": found.method,
        }
        for place, name in enumerate(scores.classes)
    }


def check_same_slide(scores: Scores, listed: ListedSlide) -> None:
    """Raise DataError if scores do not belong to the file that is shown under their name."""
    if listed.path is not None:
        with open_slide(listed.path) as slide:
            check_slide(slide, scores.slide_digest)
            check_extent(slide, scores.xy, scores.side, scores.slide_size)


def _has_digest(path: Path | None, digest: str | None) -> bool:
    """Whether a slide has this digest; True if either is unknown."""
    if digest is None or path is None:
        return True
    try:
        return slide_digest(path) == digest
    except SlideError:
        return False


def _file_states(folder: Path) -> list[tuple[int, int] | None]:
    """Size and modification time of the index of a folder of scores, and of its atlas."""
    paths = folder / PAGE, folder / "atlas" / "atlas.json"
    states = [path.stat() if path.is_file() else None for path in paths]
    return [(state.st_size, state.st_mtime_ns) if state else None for state in states]


def _make_unique(names: list[str]) -> list[str]:
    return [
        f"{name} ({number})" if names.count(name) > 1 else name
        for number, name in enumerate(names, start=1)
    ]


def _find_slide_files(given: Path) -> tuple[dict[str, Path], list[Path]]:
    """The slides in a folder by their ids, and those that are links to files outside of it."""
    if not given.exists():
        raise DataError(f"{given}: no such file or folder. Specify the folder of the slides.")
    root = given.resolve() if given.is_dir() else given.resolve().parent
    found: dict[str, Path] = {}
    left_out = []
    paths = find_slides(given) if given.is_dir() else [given]
    # Thumbnails come last.
    for path in sorted(paths, key=lambda path: (path.suffix.lower() in PICTURES, path)):
        real, key = path.resolve(), slide_id(path.name)
        if given.is_dir() and not real.is_relative_to(root):
            left_out.append(path)
        elif key in found and path.suffix.lower() not in PICTURES:
            raise DataError(
                f"two slides have the id {key!r}: {found[key]} and {path}. "
                "Specify the folder of the one to show."
            )
        else:
            found.setdefault(key, real)
    return found, left_out


def _read_atlas(path: Path) -> dict[int, dict[str, Any]]:
    """The rows of an atlas by atom; empty if there is none. Invalid rows are skipped."""
    try:
        rows = read_json(path)["atoms"]
        return {
            int(row["atom"]): _drop_invalid_tiles(row)
            for row in rows
            if isinstance(row, dict) and "atom" in row
        }
    except FileNotFoundError:
        return {}
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged or not an atlas ({error}). Delete it and run scmil atlas again."
        ) from None


def _drop_invalid_tiles(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the atlas without tiles whose position or side length is impossible."""
    tiles = [
        tile
        for tile in row.get("tiles") or ()
        if isinstance(tile, dict)
        and all(PIXELS.holds(tile.get(axis)) for axis in "xy")
        and BOUNDS["side_level0"].holds(tile.get("side"))
    ]
    return {**row, "tiles": tiles}


def _read_training_labels(model: Path) -> dict[str, str]:
    """The labels used in training, for bags that were scored without labels."""
    slides = read_training_slides(model)
    return {name: slide.label for name, slide in slides.items() if slide.label}
