"""A folder of tile scores on disk: one file per slide and one index.

A folder of scores, by default `maps/` in the folder of the model, is what pictures, localisation,
atlas and viewer read:

    maps.json             the model's hash and parts, its classes and threshold
    scores/<slide>.npz    the arrays of a `Scores`; the codes as sparse rows
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.atomic import write_atomically
from scmil.core.jobs.locks import safe_name
from scmil.core.limits import PIXELS, bounded
from scmil.core.safe_io import DAMAGE, npz_arrays
from scmil.core.tables import read_json
from scmil.errors import DataError
from scmil.models.evidence import STEPS, TileEvidence
from scmil.models.tile_scores import Codes, Scores

FORMAT = "scmil-maps-1"
PAGE, FOLDER = "maps.json", "scores"
EVIDENCE = ("tiles", "constant", "logits", "atoms")  # arrays of a `TileEvidence`


def scores_path(folder: str | Path, slide_id: str) -> Path:
    """The file with the scores of a slide."""
    return Path(folder) / FOLDER / f"{safe_name(slide_id)}.npz"


def write_scores(scores: Scores, folder: str | Path) -> Path:
    """Write the scores of one slide, atomically."""
    page = {
        "id": scores.id,
        "side": scores.side,
        "slide_size": scores.slide_size,
        "slide_mpp": scores.slide_mpp,
        "label": scores.label,
        "patient": scores.patient,
        "classes": scores.classes,
        "threshold": scores.threshold,
        "slide_digest": scores.slide_digest,
        "made_from": scores.made_from,
        "atoms": None if scores.codes is None else scores.codes.atoms,
        "evidence_steps": None if scores.evidence is None else scores.evidence.steps,
    }
    arrays: dict[str, Any] = {
        "page": np.frombuffer(json.dumps(page).encode(), np.uint8),
        **{
            name: getattr(scores, name) for name in ("xy", "probabilities", "attention", "instance")
        },
    }
    if scores.lam is not None:
        arrays["lam"] = scores.lam
    if scores.codes is not None:
        arrays |= {
            f"code_{name}": getattr(scores.codes, name) for name in ("values", "columns", "starts")
        }
    if scores.evidence is not None:
        parts = {name: getattr(scores.evidence, name) for name in EVIDENCE}
        arrays |= {f"evidence_{name}": part for name, part in parts.items() if part is not None}
    content = io.BytesIO()
    np.savez(content, **arrays)
    path = scores_path(folder, scores.id)
    write_atomically(path, content.getbuffer())
    return path


def read_scores(path: str | Path) -> Scores:
    """Read the scores of one slide."""
    try:
        arrays: dict[str, Any] = npz_arrays(Path(path))
        page = json.loads(arrays.pop("page").tobytes())
        parts = {
            name: arrays.pop(f"code_{name}")
            for name in ("values", "columns", "starts")
            if page["atoms"]
        }
        codes = Codes(**parts, atoms=page["atoms"]) if parts else None
        evidence = _pop_evidence(page, arrays)
        del page["atoms"]
        size = None if page["slide_size"] is None else tuple(page["slide_size"])
        scores = Scores(
            **{**page, "classes": tuple(page["classes"]), "slide_size": size},
            **arrays,
            codes=codes,
            evidence=evidence,
        )
        _check_scores(scores)
        return scores
    except FileNotFoundError:
        raise DataError(
            f"{path}: there is no such file. Create it: scmil heatmap MODEL BAGS"
        ) from None
    except DAMAGE as error:
        raise DataError(
            f"{path} is damaged or not a file of scores ({error}). "
            "Delete it, and create it again: scmil heatmap MODEL BAGS"
        ) from None


def _pop_evidence(page: dict[str, Any], arrays: dict[str, Any]) -> TileEvidence | None:
    """Take the evidence, if there is any, out of the contents of a file."""
    steps = page.pop("evidence_steps", None)  # files of earlier versions have none
    found = {name: arrays.pop(f"evidence_{name}", None) for name in EVIDENCE}
    if steps is None:
        return None
    if type(steps) is not int or not 0 <= steps <= max(STEPS):
        raise ValueError(f"evidence_steps = {steps!r}")
    return TileEvidence(**found, steps=steps)


def _check_evidence(evidence: TileEvidence, n: int, c: int, atoms: int | None) -> None:
    """Raise if the arrays of the evidence do not belong to n tiles and c classes."""
    shapes = {"tiles": (n, c), "constant": (c,), "logits": (c,), "atoms": (2 * (atoms or 0), c)}
    for name, expected in shapes.items():
        array = getattr(evidence, name)
        if array is None and name == "atoms":
            continue
        if array is None or array.dtype.kind != "f" or array.shape != expected:
            raise ValueError(f"evidence_{name} is not an array of floats of the shape {expected}")


def _check_scores(scores: Scores) -> None:
    """Raise ValueError if numbers are out of range, or arrays do not fit together."""
    _check_numbers(scores)
    n, c = len(scores.xy), len(scores.classes)
    if scores.xy.dtype.kind not in "iu" or (
        n and max(-int(scores.xy.min()), int(scores.xy.max())) > PIXELS.high
    ):
        raise ValueError("coordinates that are not pixels of a slide")
    for name in ("probabilities", "attention", "instance"):
        if getattr(scores, name).dtype.kind != "f":
            raise ValueError(f"{name} of type {getattr(scores, name).dtype}")
    shapes = {
        "xy": (n, 2),
        "probabilities": (c,),
        "attention": (n,),
        "instance": (n, c),
        "lam": (n,),
    }
    for name, expected in shapes.items():
        array = getattr(scores, name)
        if array is not None and array.shape != expected:
            raise ValueError(f"{name} has the shape {array.shape} instead of {expected}")
    if scores.codes is not None:
        _check_codes(scores.codes, n)
    if scores.evidence is not None:
        atoms = None if scores.codes is None else scores.codes.atoms
        _check_evidence(scores.evidence, n, c, atoms)


def _check_numbers(scores: Scores) -> None:
    """Raise if a number of the slide is out of range."""
    bounded("side_level0", scores.side, "side")
    if scores.threshold is not None:
        bounded("threshold", scores.threshold, "threshold")
    if scores.slide_mpp is not None:
        bounded("slide_mpp", scores.slide_mpp, "page")
    for length in scores.slide_size or ():
        bounded("slide_size", length, "page")
    if scores.label is not None and scores.label not in range(len(scores.classes)):
        raise ValueError(f"label {scores.label!r} of {len(scores.classes)} classes")


def _check_codes(codes: Codes, n: int) -> None:
    """Raise if the arrays of the codes do not describe n rows."""
    bounded("atoms", codes.atoms, "page")
    values, columns, starts = codes.values, codes.columns, codes.starts
    whole = len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(values) == len(columns)
    if not whole or (np.diff(starts) < 0).any() or (len(columns) and columns.max() >= codes.atoms):
        raise ValueError("the arrays of the codes do not fit together")


def _is_valid_entry(line: Any, classes: int, task: str | None) -> bool:
    """Whether the entry of a slide in `maps.json` is valid; risks and numbers have any sign."""
    probabilities, label = line["probabilities"], line["label"]
    any_sign = task in ("survival", "regression", "combined")
    low, high = (-1e300, 1e300) if any_sign else (0, 1)
    return (
        type(line["predicted"]) is int
        and line["predicted"] in range(classes)
        and (label is None or (type(label) is int and label in range(classes)))
        and len(probabilities) == classes
        and all(isinstance(p, int | float) and low <= p <= high for p in probabilities)
        and 0 <= line["effective_tiles"] < float("inf")
    )


class ScoreSet(Mapping[str, Scores]):
    """The scores in a folder, by slide; files are read when they are accessed.

    `page` is the content of `maps.json`. `only` restricts the set to these slides.
    """

    def __init__(self, folder: str | Path, only: Collection[str] | None = None) -> None:
        self.folder = Path(folder)
        try:
            self.page: dict[str, Any] = read_json(self.folder / PAGE)
            classes = len(self.page["classes"])
            valid = self.page["format"] == FORMAT and isinstance(self.page.get("split") or {}, dict)
            valid = valid and all(isinstance(name, str) for name in self.page["classes"])
            valid = valid and all(
                _is_valid_entry(line, classes, self.page.get("task"))
                for line in self.page["slides"].values()
            )
        except (OSError, AttributeError, KeyError, TypeError, ValueError):
            valid = False
        if not valid:
            raise DataError(
                f"{self.folder} has no scores that this version reads. "
                "Create them: scmil heatmap MODEL BAGS"
            )
        if only is not None:
            entries = self.page["slides"].items()
            self.page["slides"] = {
                slide_id: entry for slide_id, entry in entries if slide_id in only
            }

    def __getitem__(self, slide_id: str) -> Scores:
        if slide_id not in self.page["slides"]:
            raise KeyError(slide_id)
        path = scores_path(self.folder, slide_id)
        scores = read_scores(path)
        expected = (slide_id, self.page["slides"][slide_id].get("made_from"))
        if (scores.id, scores.made_from) != expected:
            raise DataError(
                f"{path} has scores of slide {scores.id!r} that were not made with the others of "
                f"{self.folder}. Delete the file, and create it again: scmil heatmap MODEL BAGS"
            )
        return scores

    def __contains__(self, slide_id: object) -> bool:
        return slide_id in self.page["slides"]

    def __iter__(self) -> Any:
        return iter(self.page["slides"])

    def __len__(self) -> int:
        return len(self.page["slides"])


def open_scores(folder: str | Path, only: Collection[str] | None = None) -> ScoreSet:
    """Open the scores that `score_folder` has written, given their folder or the model folder."""
    folder = Path(folder)
    return ScoreSet(folder / "maps" if (folder / "maps" / PAGE).is_file() else folder, only)
