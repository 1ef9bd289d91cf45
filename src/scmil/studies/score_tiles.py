"""Score every tile of a folder of bags with a model that was trained here, one file a slide."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.errors import BagError, ScmilError, ShapeError
from scmil.core.files import write_atomically
from scmil.fingerprint import Mark, sha256_of_json
from scmil.studies.model_folder import read_page
from scmil.studies.predict import check_contract, load_study, noted, raise_if_all, scaled

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.models.tile_scores import Scores, ScoreSet

STAGE = "score"
EVERY = 50  # slides; a stopped run scores so many again at most


@dataclass(frozen=True)
class Scored:
    """The folder of scores, open, and the slides that failed with their causes."""

    scores: ScoreSet
    failed: dict[str, str]


def score_folder(
    model: str | Path,
    bags: BagSet,
    out: str | Path | None = None,
    *,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> Scored:
    """Score all tiles of all bags; by default into `maps/` of the model's folder. What is there already is kept.

    Scores belong to a model, a bag and its label: if one of them has changed, the slide is scored again. A bag that cannot
    be scored is written down in `failures.csv`, and the others go on. Bags made in another way than those
    of the training are refused.
    """
    from scmil.models.tile_scores import FORMAT, PAGE, open_scores, score_bag, scores_path, write_scores
    from scmil.core.jobs.work import Ledger, one_of_many

    network, study = load_study(model)
    network = network.to(device)
    out = Path(model) / "maps" if out is None else Path(out)
    about = _about(Path(model), study)
    slides = _kept(out / PAGE, about)
    ledger, failed = Ledger(out), dict[str, str]()
    foreign: list[ShapeError] = []
    failed_before = {failure.slide for failure in ledger.read() if failure.stage == STAGE}
    for position, id in enumerate(bags.ids):
        with one_of_many(id, failed):
            marked = bags.mark(id, _recorded(slides.get(id, {})))
            made_from = _made_from(about["model_sha256"], marked, bags, position)
            if slides.get(id, {}).get("made_from") != made_from or not scores_path(out, id).is_file():
                bag = _relabelled(bags[position], bags.classes, study["classes"])
                with noted(foreign):
                    check_contract(study, bag, model)
                scores = score_bag(network, scaled(bag, study), tuple(study["classes"]), study["threshold"])
                if not np.isfinite(scores.probabilities).all():
                    raise BagError(f"bag {id!r}: the model gives NaN. Its features are too large, or damaged.")
                write_scores(replace(scores, made_from=made_from), out)
                slides[id] = {**_summary(scores), "made_from": made_from, "bag": marked}
        if id in failed:
            slides.pop(id, None)  # scores of an earlier bag are not those of this one
            ledger.add(id, STAGE, failed[id])
        elif id in failed_before:
            ledger.clear(id, STAGE)
        if (position + 1) % EVERY == 0 or position + 1 == len(bags):
            page = {"format": FORMAT, **about, "slides": slides}
            write_atomically(out / PAGE, (json.dumps(page, indent=1) + "\n").encode())
        if progress:
            progress(position + 1)
    raise_if_all(foreign, len(bags))
    if not slides:
        raise ScmilError(f"none of the {len(bags)} slides could be scored. The causes are in {out / 'failures.csv'}.")
    return Scored(open_scores(out), failed)


def _made_from(model_sha256: str, marked: Mark, bags: BagSet, position: int) -> str:
    """A digest of all that the scores of a slide depend on."""
    label = bags.labels[position]
    name = None if label is None else bags.classes[label]
    return sha256_of_json([model_sha256, marked.token, name, bags.patients[position]])


def _summary(scores: Scores) -> dict[str, Any]:
    return {
        "label": scores.label,
        "patient": scores.patient,
        "tiles": len(scores),
        "probabilities": [round(float(p), 7) for p in scores.probabilities],
        "predicted": scores.predicted,
        "effective_tiles": round(scores.effective_tiles, 2),
        "slide_digest": scores.slide_digest,
    }


def _relabelled(bag: Bag, theirs: Sequence[str], ours: Sequence[str]) -> Bag:
    """The bag with its label as the model counts classes: a cohort may have fewer of them, or in another order."""
    place = {name: position for position, name in enumerate(ours)}
    return replace(bag, label=None if bag.label is None else place.get(theirs[bag.label]))


def _about(model: Path, study: dict[str, Any]) -> dict[str, Any]:
    page = read_page(model / "model.json")
    return {
        "model": model.resolve().name,
        "model_sha256": page["sha256"],
        "spec": page["model"],
        "classes": list(study["classes"]),
        "threshold": study["threshold"],
        "split": study["split"],
    }


def _recorded(slide: Mapping[str, Any]) -> Mark | None:
    """The mark of the bag that a slide was scored from, if it was recorded."""
    try:
        token, stat = slide["bag"]
        return Mark(str(token), tuple(map(int, stat)))
    except (KeyError, TypeError, ValueError):
        return None


def _kept(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """The slides that this very model has scored already."""
    if not path.is_file():
        return {}
    page = read_page(path)
    return dict(page["slides"]) if page.get("model_sha256") == about["model_sha256"] else {}
