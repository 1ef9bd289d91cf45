"""Score every tile of a folder of bags with a trained model, one file per slide."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.bags.provenance import check_same_provenance
from scmil.bags.scaling import scale_as_recorded
from scmil.core.fingerprint import Mark, sha256_of_json
from scmil.core.tables import write_json
from scmil.errors import BagError, ScmilError, ShapeError
from scmil.studies.model_folder import read_page
from scmil.studies.predict import (
    load_trained_model,
    nan_message,
    raise_if_all,
    record_mismatch,
)
from scmil.studies.temperature import tempered

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.models.score_files import ScoreSet
    from scmil.models.tile_scores import Scores

STAGE = "score"
SAVE_EVERY = 50  # slides: an interrupted command scores at most this number again


@dataclass(frozen=True)
class ScoredSlides:
    """The scores of all slides, and the slides that failed with their causes."""

    scores: ScoreSet
    failed: dict[str, str]


def score_folder(
    model: str | Path,
    bags: BagSet,
    out: str | Path | None = None,
    *,
    evidence: bool = False,
    device: str = "cpu",
    progress: Callable[[int], None] | None = None,
) -> ScoredSlides:
    """Score all tiles of all bags, and write one file per slide.

    Existing scores are kept; a slide is scored again if the model, its bag or its label has
    changed. A bag that cannot be scored is listed in `failures.csv` and skipped.

    Args:
        model: The model folder.
        bags: The bags.
        out: The folder of the scores; by default `maps/` in the model folder.
        evidence: Whether all slides need the evidence of their tiles. Otherwise it is computed
            only where it is exact, see `score_bag`.
        device: Where the model runs.
        progress: Called with the number of slides that are done.

    Returns:
        The scores, and the slides that failed.

    Raises:
        ShapeError: The provenance of every bag differs from that of the training bags.
        ScmilError: No slide could be scored.
    """
    from scmil.core.jobs.failure_log import FailureLog, record_failure
    from scmil.models.score_files import FORMAT, PAGE, open_scores, scores_path, write_scores
    from scmil.models.tile_scores import score_bag

    network, study = load_trained_model(model)
    network = network.to(device)
    out = Path(model) / "maps" if out is None else Path(out)
    about = _about(Path(model), study)
    slides = _read_scored_slides(out / PAGE, about)
    failure_log, failed = FailureLog(out), dict[str, str]()
    foreign: list[ShapeError] = []
    failed_before = {failure.slide for failure in failure_log.read() if failure.stage == STAGE}
    for position, bag_id in enumerate(bags.ids):
        with record_failure(bag_id, failed):
            marked = bags.mark(bag_id, _recorded(slides.get(bag_id, {})))
            made_from = _made_from(about["model_sha256"], marked, bags, position)
            if (
                slides.get(bag_id, {}).get("made_from") != made_from
                or not scores_path(out, bag_id).is_file()
                or (evidence and "evidence_error" not in slides[bag_id])
            ):
                bag = _relabelled(bags[position], bags.classes, study["classes"])
                with record_mismatch(foreign):
                    check_same_provenance(study["contract"], bag, model)
                scores = score_bag(
                    network,
                    scale_as_recorded(bag, study["scaling"]),
                    tuple(study["classes"]),
                    study["threshold"],
                    evidence=evidence,
                )
                p = tempered(scores.probabilities, study.get("temperature"))
                scores = replace(scores, probabilities=p)
                if not np.isfinite(scores.probabilities).all():
                    raise BagError(nan_message(bag_id))
                write_scores(replace(scores, made_from=made_from), out)
                slides[bag_id] = {**_summary(scores), "made_from": made_from, "bag": marked}
        if bag_id in failed:
            slides.pop(bag_id, None)  # scores of an earlier bag are not those of this one
            failure_log.add(bag_id, STAGE, failed[bag_id])
        elif bag_id in failed_before:
            failure_log.clear(bag_id, STAGE)
        if (position + 1) % SAVE_EVERY == 0 or position + 1 == len(bags):
            page = {"format": FORMAT, **about, "slides": slides}
            write_json(out / PAGE, page)
        if progress:
            progress(position + 1)
    raise_if_all(foreign, len(bags))
    if not slides.keys() & set(bags.ids):  # scores of bags that are gone do not count
        raise ScmilError(
            f"none of the {len(bags)} slides could be scored. See the causes in "
            f"{out / 'failures.csv'}, fix them and repeat the command."
        )
    return ScoredSlides(open_scores(out), failed)


def _made_from(model_sha256: str, marked: Mark, bags: BagSet, position: int) -> str:
    """A digest of all that the scores of a slide depend on."""
    label = bags.labels[position]
    name = None if label is None else bags.classes[label]
    return sha256_of_json([model_sha256, marked.token, name, bags.patients[position]])


def _summary(scores: Scores) -> dict[str, Any]:
    found = scores.evidence
    return {
        "label": scores.label,
        "patient": scores.patient,
        "tiles": len(scores),
        "probabilities": [round(float(p), 7) for p in scores.probabilities],
        "predicted": scores.predicted,
        "effective_tiles": round(scores.effective_tiles, 2),
        "slide_digest": scores.slide_digest,
        **({} if found is None else {"evidence_error": float(np.abs(found.errors).max())}),
    }


def _relabelled(bag: Bag, theirs: Sequence[str], ours: Sequence[str]) -> Bag:
    """Return the bag with its label as a position in the classes of the model.

    The bags may have fewer classes than the model, or another order of them.
    """
    positions = {name: position for position, name in enumerate(ours)}
    return replace(bag, label=None if bag.label is None else positions.get(theirs[bag.label]))


def _about(model: Path, study: dict[str, Any]) -> dict[str, Any]:
    page = read_page(model / "model.json")
    digest = page["sha256"]
    if "imported" in study:  # the same weights can be imported again with other settings
        keys = ("classes", "threshold", "contract", "scaling")
        digest = sha256_of_json([digest, page["model"], *(study[key] for key in keys)])
    if study.get("temperature") is not None:
        digest = sha256_of_json([digest, study["temperature"]])
    return {
        "model": model.resolve().name,
        "model_sha256": digest,
        "spec": page["model"],
        "classes": list(study["classes"]),
        "threshold": study["threshold"],
        "split": study["split"],
        **({"task": study["task"]} if "task" in study else {}),
    }


def _recorded(slide: Mapping[str, Any]) -> Mark | None:
    """The mark of the bag that a slide was scored from, if it was recorded."""
    try:
        token, stat = slide["bag"]
        return Mark(str(token), tuple(map(int, stat)))
    except (KeyError, TypeError, ValueError):
        return None


def _read_scored_slides(path: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the slides that this model has scored before."""
    if not path.is_file():
        return {}
    page = read_page(path)
    return dict(page["slides"]) if page.get("model_sha256") == about["model_sha256"] else {}
