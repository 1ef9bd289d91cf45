"""The HTML page of a trained model: metrics, ROC curve, training curves, predictions, settings."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import write_atomically
from scmil.core.run_format import MAIN_METRICS, PATIENT_MEANING
from scmil.core.text import encode_utf8
from scmil.errors import DataError
from scmil.report.calibration_sections import calibration_sections
from scmil.report.fold_estimates import fold_estimates
from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.plots import Line, LineStyle, line_legend, line_panel, panels
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.page import pairs, whole_page
from scmil.report.run import METRIC_NAMES
from scmil.report.run_files import ResultTable
from scmil.report.target_calibration import target_calibration_sections
from scmil.report.target_model_page import (
    describe_target,
    read_target_predictions,
    score_line,
    summarise_target_metrics,
    target_metrics_table,
    target_plot,
    target_prediction_table,
)

SPLITS = {"test": "test split", "valid": "validation split", "train": "training split"}


def write_model_page(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a model, from the files that `scmil train` wrote
    there.

    Args:
        folder: The folder of the model.

    Returns:
        The path of the page.

    Raises:
        DataError: A file is missing or damaged.

    >>> write_model_page("nothing")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: nothing/study.json: not readable as JSON...
    """
    folder = Path(folder)
    study, metrics = (_read_json(folder / name) for name in ("study.json", "metrics.json"))
    history = ResultTable(folder / "history.csv", ["epoch", "train_loss"])
    model = study["settings"]["model"]
    title = f"{_aggregator(model)} {'with' if model['sparse_coding'] else 'without'} sparse coding"
    of_task = _target_sections if "task" in study else _class_sections
    sections: dict[str, Markup | None] = {
        **of_task(folder, study, metrics, history),
        "Requirements and settings": _settings_lists(study),
    }
    parts = [
        element("section", element("h2", name), body) for name, body in sections.items() if body
    ]
    head = element("header", element("h1", title), element("p", _describe(study), class_="about"))
    foot = element(
        "footer",
        f"Written by scmil {study['versions'].get('scmil', '')} from the files in this folder. "
        "For research use only. Not a medical device.",
    )
    text = whole_page(
        title,
        head,
        element("p", _summary_of_task(metrics), class_="verdict"),
        *(element("p", note, class_="note") for note in study.get("notes", ())),
        *parts,
        foot,
    )
    write_atomically(folder / "report.html", encode_utf8(text))
    return folder / "report.html"


def _class_sections(
    folder: Path, study: Mapping[str, Any], metrics: Mapping[str, Any], history: ResultTable
) -> dict[str, Markup | None]:
    predictions = ResultTable(
        folder / "predictions.csv", ["slide_id", "case_id", "part", "y_true", "y_pred"]
    )
    return {
        "Metrics": _metrics_table(metrics),
        "ROC curve": _roc_curves(study, predictions),
        **calibration_sections(study, predictions),
        "Training": _loss_curves(study, history),
        "Predictions": _prediction_table(study, predictions),
    }


def _target_sections(
    folder: Path, study: Mapping[str, Any], metrics: Mapping[str, Any], history: ResultTable
) -> dict[str, Markup | None]:
    predictions = read_target_predictions(folder)
    return {
        "Metrics": target_metrics_table(metrics),
        "Predicted and observed": target_plot(study, predictions),
        **target_calibration_sections(study, predictions),
        "Training": _loss_curves(study, history),
        "Predictions": target_prediction_table(study, predictions),
    }


def _summary_of_task(metrics: Mapping[str, Any]) -> str:
    return (summarise_target_metrics if "task" in metrics else _summarise_metrics)(metrics)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not readable as JSON ({error}). Expected the folder of a trained model; "
            "train again if the file is damaged."
        ) from None


def _aggregator(model: Mapping[str, Any]) -> str:
    own = model["aggregator"]
    return str(own["name"] if isinstance(own, Mapping) else own)


def _describe(study: Mapping[str, Any]) -> str:
    slides = sum(map(len, study["split"].values()))
    counts = ", ".join(
        f"{len(ids)} in the {SPLITS[part]}" for part, ids in study["split"].items() if ids
    )
    predicted = f"Classes: {', '.join(study['classes'])}."
    if "task" in study:
        predicted = describe_target(study)
    mode = study["settings"].get("data", {}).get("patient")
    use = PATIENT_MEANING.get(mode, PATIENT_MEANING[None])
    noun = "patients" if mode == "joined" else "slides"
    return f"{predicted} {slides} {noun}, split by patient: {counts}. {use}"


def _summarise_metrics(metrics: Mapping[str, Any]) -> str:
    part = "test" if "test" in metrics else "valid"
    level = "patient" if "patient" in metrics[part] else "slide"
    found = metrics[part][level]
    scores = f"AUC {_with_interval(found['auc'])}, accuracy {_with_interval(found['accuracy'])}"
    words = f"On {found['n']} {level}s of the {SPLITS[part]}: {scores}."
    for row in metrics.get("cross_validation", [])[-1:]:
        words += f" Over {row['repeats']} x {row['folds']} folds: {fold_estimates(row)}."
    if part != "test":
        return (
            f"{words} Epoch and threshold were selected on the validation split, so its metrics "
            "are biased upwards; those of the cross-validation are not."
        )
    wide = (found["auc"]["high"] or 1) - (found["auc"]["low"] or 0)
    return words + (
        " With so few slides the uncertainty is large." if wide > 0.2 or found["n"] < 30 else ""
    )


def _with_interval(found: Mapping[str, float | None]) -> str:
    return (
        f"{format_number(found['value'])} ({format_number(found['low'])} to "
        f"{format_number(found['high'])})"
    )


def _metrics_table(metrics: Mapping[str, Any]) -> Markup:
    columns = [
        (part, level)
        for part in SPLITS
        if part in metrics
        for level in ("slide", "patient")
        if level in metrics[part]
    ]
    heads = [f"{SPLITS[part]}, {metrics[part][level]['n']} {level}s" for part, level in columns]
    rows = [
        [row_header(name)]
        + [
            number_cell(
                join(
                    format_number((found := metrics[part][level][metric])["value"]),
                    element("small", _range(found)),
                ),
                found["value"],
            )
            for part, level in columns
        ]
        for metric, name in METRIC_NAMES.items()
    ]
    methods = metrics.get("intervals", "bootstrap over patients")
    words = (
        f"95 % confidence intervals: {methods}. Metrics on the training and validation splits are "
        "biased upwards, because the model was fitted and selected on them."
    )
    return join(element("p", words, class_="note"), table("Metrics", ["Metric"], heads, rows))


def _range(found: Mapping[str, float | None]) -> str:
    return f"{format_number(found['low'])} to {format_number(found['high'])}"


def _roc_curves(study: Mapping[str, Any], predictions: ResultTable) -> Markup | None:
    """The ROC curve of each split, for two classes."""
    classes = study["classes"]
    if len(classes) != 2:
        return None
    scores, positive = (
        predictions.numbers(f"p_{classes[1]}"),
        predictions.text("y_true") == classes[1],
    )
    part = predictions.text("part")
    lines = []
    for i, (name, words) in enumerate(SPLITS.items()):
        own = part == name
        if own.any() and 0 < positive[own].sum() < own.sum():
            x, y = roc(positive[own], scores[own])
            lines.append(Line(words, LineStyle(i, None), x.tolist(), y.tolist()))
    if not lines:
        return None
    words = (
        "Sensitivity against the false positive rate, for all thresholds on the probability of "
        f"{classes[1]!r}."
    )
    return join(
        element("p", words),
        line_legend(lines),
        panels(line_panel("Sensitivity, by false positive rate", words, lines)),
    )


def roc(
    positive: NDArray[np.bool_], scores: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """False positive rate and sensitivity at every threshold; equal scores are one step.

    >>> roc(np.array([True, False, True]), np.array([0.9, 0.5, 0.5]))
    (array([0., 0., 1.]), array([0. , 0.5, 1. ]))
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits, alarms = np.cumsum(positive[order])[ends], np.cumsum(~positive[order])[ends]
    return np.append(0, alarms / max(alarms[-1], 1)), np.append(0, hits / max(hits[-1], 1))


def _loss_curves(study: Mapping[str, Any], history: ResultTable) -> Markup:
    epochs = history.numbers("epoch").tolist()

    def line(column: str, name: str, colour: int) -> Line | None:
        if column not in history.columns:
            return None
        return Line(
            name, LineStyle(colour, None), epochs, history.numbers(column, empty=True).tolist()
        )

    losses = [
        each
        for each in (line("train_loss", "training", 2), line("valid_loss", "validation", 1))
        if each
    ]
    scores = [
        each
        for each in (line("valid_auc", "AUC", 0), line("valid_accuracy", "accuracy", 3))
        if each
    ]
    name, names = "AUC", "AUC and accuracy"
    if "task" in study:
        name = names = MAIN_METRICS[study["task"]].name
        scores = [each for each in (score_line(study, history),) if each]
    best = study["best_epoch"]
    words = (
        (
            f"Epoch {best} of {study['epochs']} has the best validation {name} (vertical line); "
            "the model is that of this epoch."
        )
        if best
        else ""
    )
    return join(
        element("p", words) if words else None,
        line_legend([*losses, *scores]),
        panels(
            line_panel("Loss, by epoch", "Loss by epoch", losses, best),
            line_panel("Validation, by epoch", f"Validation {names} by epoch", scores, best)
            if scores
            else None,
        ),
    )


def _prediction_table(study: Mapping[str, Any], predictions: ResultTable) -> Markup:
    classes: Sequence[str] = study["classes"]
    columns = [f"p({name})" for name in classes]
    probabilities = [predictions.numbers(f"p_{name}") for name in classes]
    texts = [predictions.text(name) for name in ("slide_id", "case_id", "part", "y_true", "y_pred")]
    rows = []
    tested_first = sorted(
        range(predictions.length), key=lambda place: list(SPLITS).index(str(texts[2][place]))
    )
    for place in tested_first:
        slide, case, part, label, predicted = (column[place] for column in texts)
        shown = (
            element("span", f"{predicted} ✗", class_="down")
            if predicted != label
            else join(str(predicted))
        )
        rows.append(
            [
                row_header(str(slide), str(case) or None),
                *(text_cell(word) for word in (SPLITS[str(part)], str(label), shown)),
                *(number_cell(f"{p[place]:.3f}", float(p[place])) for p in probabilities),
            ]
        )
    missed = int((texts[3] != texts[4]).sum())
    words = (
        f"{missed} of {len(rows)} predictions differ from the label (✗). Click a column header to "
        "sort."
    )
    return join(
        element("p", words),
        table("Predictions", ["Slide", "Split", "Label", "Predicted"], columns, rows),
    )


def _settings_lists(study: Mapping[str, Any]) -> Markup:
    contract = {key: ABSENT if value is None else value for key, value in study["contract"].items()}
    listed = {
        "Bags": contract,
        "Recipe": study["recipe"],
        "Settings": study["settings"],
        "Versions": study["versions"],
    }
    if licence := study.get("encoder_licence"):  # models of earlier versions have none
        listed["Licence of the encoder"] = {
            "encoder": licence["encoder"],
            "terms": licence["sentence"],
        }
    return join(
        element(
            "p",
            "Bags with other properties are rejected, with the command that creates matching bags.",
        ),
        element(
            "div", *(pairs(title, values) for title, values in listed.items()), class_="panels"
        ),
    )
