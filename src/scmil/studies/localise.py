"""Score how well the models of a run find annotated lesions, by FROC."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from scmil.errors import DataError
from scmil.studies.protocols import Row, ScoredFold
from scmil.studies.settings import RunSettings, rule_of

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel

FROC = "froc"  # a metric of runs with annotated lesions
# Column suffixes of every metric: mean, deviations over repeats and folds, 95 % interval.
SUFFIXES = ("", "_sd_repeats", "_sd_folds", "_low", "_high")
Scores = Mapping[tuple[str, int, int], float]  # by protocol, repeat and fold


def froc_of_model(settings: RunSettings, bags: BagSet, model: MILModel, split: Split) -> float:
    """The FROC score of a model on the annotated lesions of its test bags."""
    from scmil.bags.scaling import streamed_moments
    from scmil.models.tile_scores import score_bag
    from scmil.slides.annotations.lookup import find_ground_truth
    from scmil.stats import localisation

    own = settings.localisation
    if own is None or own.annotations is None:
        raise DataError("lesions can be scored only with [localisation] annotations.")
    if settings.data.standardise:
        bags = streamed_moments(bags.subset(split.train)).apply_to_bags(bags)
    rule, hits = rule_of(own), []
    for bag in bags.subset([i for i in split.test if bags.ids[i] not in own.exclude]):
        truth = find_ground_truth(own.annotations, bag.id, bag.label, own.class_name)
        scores = score_bag(model, bag, evidence=localisation.is_evidence(rule.score))
        mpp = own.mpp or scores.slide_mpp
        if truth.area is None:
            raise DataError(_cannot_score(bag.id, truth.source))
        if mpp is None:
            raise DataError(_cannot_score(bag.id, "without microns per pixel: [localisation] mpp"))
        values = localisation.tile_values(scores, rule.score)
        detections = localisation.detect_lesions(scores.xy, scores.side, values, mpp, rule)
        lesions = localisation.find_lesions(truth.area, mpp, scores.slide_size)
        hits.append(localisation.count_hits(detections, lesions))
    return localisation.froc(hits).score


def _cannot_score(slide_id: str, cause: str) -> str:
    return f"slide {slide_id!r} is {cause}. Fix that, or list it in [localisation] exclude."


def froc_of_fold(fold: ScoredFold, scores: Scores) -> Row:
    """The FROC score of a fold as a column; nothing if lesions are not annotated."""
    key = (fold.protocol, fold.repeat, fold.fold)
    return {FROC: round(scores[key], 7)} if key in scores else {}


def froc_summary(row: Row, scores: Scores) -> Row:
    """Mean over repeats of the mean over folds with its deviations, as for every other metric."""
    by_repeat: dict[int, list[float]] = {}
    for (protocol, repeat, _), value in scores.items():
        if protocol == row["protocol"] and row.get("level") != "patient":
            by_repeat.setdefault(repeat, []).append(value)
    if not by_repeat:
        return {}
    means = [np.mean(values) for values in by_repeat.values()]
    every = np.concatenate(list(by_repeat.values()))
    deviations = [
        round(float(np.std(values, ddof=1)), 7) if len(values) > 1 else None
        for values in (means, every)
    ]
    numbers = [round(float(np.mean(means)), 7), *deviations, None, None]
    return dict(zip([f"{FROC}{suffix}" for suffix in SUFFIXES], numbers, strict=True))
