"""Score how well the models of a run find annotated lesions, by FROC, and positive instances, by
AUC and average precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from scmil.errors import DataError
from scmil.studies.from_settings import rule_of
from scmil.studies.protocols import Row, ScoredFold
from scmil.studies.settings import RunSettings

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel

FROC = "froc"  # a metric of runs with annotated lesions
# Metrics of data sets with instance labels: how attention, and the probability of a bag with one
# instance, rank the positive instances of a test bag; means over the bags that have both kinds.
INSTANCES = ("attention_auc", "attention_ap", "instance_auc", "instance_ap")
LOCATED = (FROC, *INSTANCES)
# Column suffixes of every metric: mean, deviations over repeats and folds, 95 % interval.
SUFFIXES = ("", "_sd_repeats", "_sd_folds", "_low", "_high")
# Metrics by protocol, repeat and fold.
Located = Mapping[tuple[str, int, int], Mapping[str, float]]


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


def rank_by_model(settings: RunSettings, bags: BagSet, model: MILModel, split: Split) -> Row:
    """The metrics of `INSTANCES` on the test bags; nothing without instance labels."""
    import torch

    from scmil.bags.scaling import streamed_moments
    from scmil.models.tile_scores import instance_logits
    from scmil.stats.localisation import rank_instances

    if any(bags[position].instance_labels is None for position in split.test):
        return {}
    if settings.data.standardise:
        bags = streamed_moments(bags.subset(split.train)).apply_to_bags(bags)
    positive, attention, probability = [], [], []
    model.eval()
    with torch.no_grad():
        for bag in bags.subset(split.test):
            h = model.refine(model.embed(bag.features))
            positive.append(np.asarray(bag.instance_labels) > 0)
            attention.append(model.aggregate(h).attention.double().numpy())
            logits = instance_logits(model.aggregate, h)
            probability.append(model.probabilities(logits)[:, -1].double().numpy())
    areas = [
        area for values in (attention, probability) for area in rank_instances(positive, values)[:2]
    ]
    return dict(zip(INSTANCES, areas, strict=True))


def located_of_fold(fold: ScoredFold, located: Located) -> Row:
    """The metrics of a fold as columns; nothing if neither lesions nor instances have labels."""
    found = located.get((fold.protocol, fold.repeat, fold.fold), {})
    return {name: round(value, 7) for name, value in found.items() if value == value}


def located_summary(row: Row, located: Located) -> Row:
    """Mean over repeats of the mean over folds with its deviations, as for every other metric."""
    columns: Row = {}
    for name in LOCATED:
        by_repeat: dict[int, list[float]] = {}
        for (protocol, repeat, _), found in located.items():
            value = found.get(name, np.nan)
            if protocol == row["protocol"] and row.get("level") != "patient" and value == value:
                by_repeat.setdefault(repeat, []).append(value)
        if by_repeat:
            columns |= _summary_columns(name, list(by_repeat.values()))
    return columns


def _summary_columns(name: str, by_repeat: list[list[float]]) -> Row:
    means = [np.mean(values) for values in by_repeat]
    every = np.concatenate(by_repeat)
    deviations = [
        round(float(np.std(values, ddof=1)), 7) if len(values) > 1 else None
        for values in (means, every)
    ]
    numbers = [round(float(np.mean(means)), 7), *deviations, None, None]
    return dict(zip([f"{name}{suffix}" for suffix in SUFFIXES], numbers, strict=True))
