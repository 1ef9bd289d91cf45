"""Test a trained model on another cohort: external validation.

The output folder has `metrics.json` (metrics with intervals, calibration, overlap with the
training, change against the internal estimate, case mix, and the digests of what it was made from),
`predictions.csv`, `overlap.csv` and `report.html`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scmil.bags.audit_targets import check_targets
from scmil.bags.checks import check_instances
from scmil.bags.in_memory import keep_in_memory
from scmil.bags.provenance import check_same_provenance
from scmil.bags.scaling import Scaling
from scmil.bags.targets import CombinedTarget
from scmil.core.fingerprint import Inputs, sha256_of_file
from scmil.core.jobs.failure_log import record_failure
from scmil.core.outputs import Outputs
from scmil.core.shapes import Numbers
from scmil.core.tables import records_csv
from scmil.core.text import encode_utf8
from scmil.errors import BagError, DataError, OptionError, ShapeError
from scmil.models.combined_objective import CombinedObjective
from scmil.models.predictions_file import PREDICTIONS
from scmil.studies.case_mix import case_mix, feature_shift, outcome_mix
from scmil.studies.cohort import CohortOptions, LabelledCohort, open_cohort
from scmil.studies.ensemble import Predictor, predictor_of
from scmil.studies.external_parts import (
    ScoredParts,
    find_unscored,
    internal_parts,
    score_parts,
)
from scmil.studies.external_scores import (
    ClassPredictions,
    change_of,
    internal_estimate,
    score_classes,
)
from scmil.studies.external_targets import score_targets
from scmil.studies.model_folder import STUDY, Page, Progress, counter
from scmil.studies.overlap import Overlap, check_overlap_allowed, find_overlap
from scmil.studies.predict import load_trained_model, nan_message, raise_if_all, record_mismatch
from scmil.studies.results import versions
from scmil.studies.target_metrics import answer_cells, observed_cells
from scmil.studies.training_fingerprint import Fingerprint, fingerprint_cohort, read_fingerprint

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.targets import Targets

FORMAT = "scmil-test-1"
METRICS, OVERLAP, REPORT = "metrics.json", "overlap.csv", "report.html"
RULES = ("reject", "exclude", "allow")


@dataclass(frozen=True)
class Evaluated:
    """A finished test: the content of `metrics.json`, slides that failed, notes for the user."""

    out: Path
    metrics: Page
    failed: dict[str, str]
    notes: tuple[str, ...] = ()


class _Scores(NamedTuple):
    """The metrics of a test, the internal estimate, and the change against it."""

    metrics: Page
    internal: Page | None
    change: Page
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Predicted:
    """The outputs of a model for the bags of a cohort, and their spread over an ensemble."""

    ids: tuple[str, ...]
    outputs: Numbers
    spread: Numbers | None

    @property
    def spreads(self) -> Sequence[Numbers | None]:
        """The spread of each bag; None for a single model."""
        return [None] * len(self.ids) if self.spread is None else list(self.spread)


def evaluate_cohort(
    model: str | Path,
    bags: str | Path,
    labels: str | Path | None = None,
    out: str | Path = "test",
    *,
    options: CohortOptions | None = None,
    overlap: str = "reject",
    device: str = "cpu",
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Evaluated:
    """Test a model on a cohort that it was not trained on, and write a page of the results.

    Slides and patients that the model was trained on are found by their ids and by their features.

    Args:
        model: The model folder.
        bags: A folder of bags in any format, or a table that has its labels.
        labels: A table of labels.
        out: The output folder.
        options: How bags and labels are read.
        overlap: "reject": raise if slides of the cohort were used to train the model; "exclude":
            leave them out; "allow": evaluate them, with a warning on the page.
        device: Where the model runs.
        overwrite: Whether files in `out` of another origin are replaced.
        progress: Called with what is being done, how much of it is done, and all of it.

    Returns:
        The content of `metrics.json`, slides that could not be read, and notes.

    Raises:
        DataError: Slides of the cohort were used to train the model, or it has no usable labels.
        OptionError: `overlap` is unknown.
        OutputError: A file in `out` was not written by this command.
        ShapeError: No bag was made as those of the training.
    """
    if overlap not in RULES:
        raise OptionError(f"overlap = {overlap!r}: one of {', '.join(RULES)} is expected.")
    out, model = Path(out), Path(model)
    outputs = Outputs(out, "test", overwrite)
    outputs.check(*(out / name for name in (METRICS, PREDICTIONS, OVERLAP, REPORT)))
    predictor = predictor_of(model, *load_trained_model(model))
    training = read_fingerprint(model, predictor.study)
    cohort = open_cohort(predictor.study, bags, labels, options or CohortOptions())
    _check_outcomes(cohort)
    inputs = cohort.bags.inputs()
    cohort = replace(cohort, bags=keep_in_memory(cohort.bags))
    read, failed = _read_cohort(model, predictor.study, cohort.bags, training, progress)
    found = find_overlap(read, training)
    if overlap == "reject":
        check_overlap_allowed(found, len(read.slides))
    leaks = {each.slide for each in found if each.was_fitted}
    excluded = leaks if overlap == "exclude" else set()
    kept = [slide.id for slide in read.slides if slide.id not in excluded]
    predicted = _predict(predictor, cohort.bags, kept, failed, device, progress)
    read = _only(read, cohort.bags, set(predicted.ids))
    page = _page(model, predictor, cohort, inputs, predicted, read, training)
    page["overlap"] = _overlap_page(found, overlap, training)
    page["failed"] = failed
    _write(outputs, page, _rows_of_cohort(predictor, cohort, predicted), found)
    return Evaluated(out, page, failed, tuple(page["notes"]))


def _check_outcomes(cohort: LabelledCohort) -> None:
    """Raise if no metric of survival is defined, such as without events; other tasks have some.

    Of several targets, one must have metrics.
    """
    targets = cohort.targets
    if targets is not None and targets.task == "survival":
        check_targets(targets)
    elif targets is not None and isinstance(targets.target, CombinedTarget):
        find_unscored(targets, cohort.bags.ids)


def _read_cohort(
    model: Path, study: Page, bags: BagSet, training: Fingerprint, progress: Progress | None
) -> tuple[Fingerprint, dict[str, str]]:
    """Read all bags once: check them, and make their fingerprint on the scale of the training."""
    foreign: list[ShapeError] = []

    def check(bag: Bag) -> None:
        with record_mismatch(foreign):
            check_same_provenance(study["contract"], bag, model)
        check_instances(bag)

    parts = {"cohort": tuple(range(len(bags)))}
    count = counter(progress, "comparing with the training, bags", len(bags))
    scaling = training.scaling or _unit_scaling(study["contract"]["dim"])
    read, failed = fingerprint_cohort(bags, parts, scaling, count, check)
    raise_if_all(foreign, len(bags))
    if not read.slides:
        cause = next(iter(failed.values()))
        raise DataError(f"none of the {len(bags)} bags can be read. The first: {cause}")
    return read, failed


def _unit_scaling(dim: int) -> Scaling:
    import torch

    return Scaling(torch.zeros(dim), torch.ones(dim))


def _predict(
    predictor: Predictor,
    bags: BagSet,
    kept: Sequence[str],
    failed: dict[str, str],
    device: str,
    progress: Progress | None,
) -> _Predicted:
    if not kept:
        raise DataError(
            "no slide is left: all of them were used to train the model. Choose another cohort."
        )
    count = counter(progress, "predicting", len(kept))
    found: dict[str, tuple[Numbers, Numbers | None]] = {}
    subset = bags.subset(kept)
    for position, bag_id in enumerate(kept):
        with record_failure(bag_id, failed):
            outputs, spread = predictor.predict(subset[position], device)
            if not np.isfinite(outputs).all():
                raise BagError(nan_message(bag_id))
            found[bag_id] = outputs, spread
        if count:
            count(position + 1)
    if not found:
        raise DataError(f"no bag can be predicted. The first: {next(iter(failed.values()))}")
    spreads = [spread for _, spread in found.values() if spread is not None]
    return _Predicted(
        tuple(found),
        np.stack([outputs for outputs, _ in found.values()]),
        np.stack(spreads) if spreads else None,
    )


def _only(read: Fingerprint, bags: BagSet, used: set[str]) -> Fingerprint:
    """The fingerprint of the slides that were evaluated; means are made again if some were not."""
    if len(used) == len(read.slides) or read.scaling is None:
        return read
    subset = bags.subset([slide.id for slide in read.slides if slide.id in used])
    parts = {"cohort": tuple(range(len(subset)))}
    return fingerprint_cohort(subset, parts, read.scaling)[0]


def _page(
    model: Path,
    predictor: Predictor,
    cohort: LabelledCohort,
    inputs: Inputs,
    predicted: _Predicted,
    read: Fingerprint,
    training: Fingerprint,
) -> Page:
    """The content of `metrics.json`, without the overlap."""
    study = predictor.study
    internal = internal_estimate(model, study, training)
    scores = _score(model, predictor, cohort, predicted, internal)
    targets = cohort.targets
    outcomes = None if targets is None else outcome_mix(model, targets, predicted.ids)
    return {
        "format": FORMAT,
        "task": study.get("task", "class"),
        "model": {
            "folder": model.resolve().name,
            "sha256": sha256_of_file(model / "model.safetensors"),
            "study_sha256": sha256_of_file(model / STUDY),
            "aggregator": study["settings"]["model"]["aggregator"],
            "ensemble": len(predictor.members) if predictor.is_ensemble else None,
        },
        "inputs": inputs.digest,
        "classes": list(study["classes"]),
        "threshold": study["threshold"],
        "target": study.get("target"),
        "cut_off": study.get("cut_off"),
        "metrics": scores.metrics,
        "internal": scores.internal,
        "change": scores.change,
        "case_mix": case_mix(read, training, outcomes),
        "feature_shift": feature_shift(read, training),
        "notes": [*cohort.notes, *scores.notes],
        "versions": versions(),
    }


def _score(
    model: Path,
    predictor: Predictor,
    cohort: LabelledCohort,
    predicted: _Predicted,
    internal: Page | None,
) -> _Scores | ScoredParts:
    """The metrics of the task, or of each of several targets by its name."""
    if cohort.targets is None:
        external = score_classes(_class_predictions(predictor, cohort, predicted))
        return _Scores(external, internal, change_of(external, internal))
    objective, targets, cut_off = predictor.objective, cohort.targets, predictor.study["cut_off"]
    outcomes = (targets, predicted.ids, predicted.outputs, cut_off)
    if isinstance(targets.target, CombinedTarget):
        assert isinstance(objective, CombinedObjective)
        inside = internal_parts(model, targets.target, internal)
        return score_parts(objective, *outcomes, inside)
    assert objective is not None
    external = score_targets(objective, *outcomes, internal)
    return _Scores(external, internal, change_of(external, internal))


def _class_predictions(
    predictor: Predictor, cohort: LabelledCohort, predicted: _Predicted
) -> ClassPredictions:
    subset, threshold = cohort.bags.subset(predicted.ids), predictor.study["threshold"]
    return ClassPredictions(
        tuple(predictor.study["classes"]),
        np.array(subset.labels, np.int64),
        predicted.outputs,
        np.full(len(subset), np.nan if threshold is None else float(threshold)),
        subset.patients,
    )


def _overlap_page(found: Sequence[Overlap], rule: str, training: Fingerprint) -> Page:
    leaks = [each for each in found if each.was_fitted]
    return {
        "rule": rule,
        "features_compared": training.deviation is not None,
        "ids_compared": bool(training.slides),
        "patients_compared": any(slide.patient for slide in training.slides),
        "fitted": len(leaks),
        "excluded": len(leaks) if rule == "exclude" else 0,
        "in_internal_test": len(found) - len(leaks),
    }


def _rows_of_cohort(
    predictor: Predictor, cohort: LabelledCohort, predicted: _Predicted
) -> list[Page]:
    """The rows of `predictions.csv`."""
    subset, classes = cohort.bags.subset(predicted.ids), list(predictor.study["classes"])
    if cohort.targets is not None:
        return _target_rows(predictor, cohort.targets, subset, predicted)
    names = [f"p_{name}" for name in classes]
    decided = _class_predictions(predictor, cohort, predicted).decided
    truth = [
        {"y_true": classes[label or 0], "y_pred": classes[choice]}
        for label, choice in zip(subset.labels, decided.tolist(), strict=True)
    ]
    return [
        {"slide_id": bag_id, "case_id": patient or "", **own}
        | {name: f"{value:.7g}" for name, value in zip(names, outputs, strict=True)}
        | predictor.spread_row(classes, spread)
        for bag_id, patient, own, outputs, spread in zip(
            subset.ids, subset.patients, truth, predicted.outputs, predicted.spreads, strict=True
        )
    ]


def _target_rows(
    predictor: Predictor, targets: Targets, subset: BagSet, predicted: _Predicted
) -> list[Page]:
    """The rows of another task than classes: observed values and answers, as `predict` has them."""
    objective, study = predictor.objective, predictor.study
    assert objective is not None
    return [
        {
            "slide_id": bag_id,
            "case_id": patient or "",
            **observed_cells(targets, bag_id),
            **answer_cells(targets.target, objective, outputs, study["cut_off"]),
            **predictor.spread_row(study["classes"], spread),
        }
        for bag_id, patient, outputs, spread in zip(
            subset.ids, subset.patients, predicted.outputs, predicted.spreads, strict=True
        )
    ]


def _write(outputs: Outputs, page: Page, rows: Sequence[Page], found: Sequence[Overlap]) -> None:
    """Write all files of the output folder, the page last."""
    from scmil.report.external_page import external_page

    folder = outputs.folder
    columns = list(Overlap("", None, "", None, None, ()).to_json())
    outputs.write(folder / PREDICTIONS, records_csv(rows))
    outputs.write(folder / OVERLAP, records_csv([each.to_json() for each in found], columns))
    outputs.write(folder / METRICS, encode_utf8(json.dumps(page, indent=1, allow_nan=False) + "\n"))
    outputs.write(folder / REPORT, encode_utf8(external_page(folder)))
