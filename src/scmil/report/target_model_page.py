"""The parts of a model's page that differ for survival, numbers, grades and several labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scmil.core.run_format import MAIN_METRICS
from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.plots import Line, LineStyle
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.run_files import ResultTable

NAMES = {
    "c_index": "concordance (Harrell)",
    "uno_c": "concordance (Uno)",
    "auc": "AUC",
    "integrated_brier": "integrated Brier score",
    "r2": "R²",
    "pearson": "Pearson's correlation",
    "spearman": "Spearman's correlation",
    "mae": "mean absolute error",
    "kappa": "quadratic kappa",
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "f1": "F1",
    "brier": "Brier score",
    "calibration_error": "calibration error",
}
TASKS = {
    "survival": "time to an event",
    "regression": "number",
    "ordinal": "ordered grade",
    "multilabel": "several labels",
}
PARTS = {"test": "test split", "valid": "validation split", "train": "training split"}


def metric_name(column: str) -> str:
    """The name of a metric of another task than classes, as a reader knows it.

    >>> metric_name("auc@12.5"), metric_name("tp53: auc"), metric_name("mae")
    ('AUC at 12.5', 'tp53: AUC', 'mean absolute error')
    """
    label, colon, metric = column.rpartition(": ")
    base, at, time = metric.partition("@")
    name = NAMES.get(base, base.replace("_", " ")) + (f" at {time}" if at else "")
    return f"{label}{colon}{name}"


def describe_target(study: Mapping[str, Any]) -> str:
    """What the model predicts, in words."""
    target, task = study["target"], study["task"]
    if task == "survival":
        return f"Time to an event (columns {target['time']} and {target['event']})."
    if task == "regression":
        return f"Number: {target['name']}."
    if task == "ordinal":
        return f"Grade {target['name']}: {', '.join(target['grades'])}."
    return f"Labels: {', '.join(target['names'])}."


def summarise_target_metrics(metrics: Mapping[str, Any]) -> str:
    """The main metric of the test split, or of the validation split without one."""
    column, _, name = MAIN_METRICS[metrics["task"]]
    part = "test" if "test" in metrics else "valid"
    [(level, found)] = metrics[part].items()
    words = f"On {found['n']} {level}s of the {PARTS[part]}: {name} {_with_range(found[column])}."
    for row in metrics.get("cross_validation", [])[-1:]:
        words += f" Over {row['repeats']} x {row['folds']} folds: {name} {row[column]:.3f}."
    if part != "test":
        return (
            f"{words} The epoch was selected on the validation split, so its metrics are biased "
            "upwards; those of the cross-validation are not."
        )
    return words + (" With so few slides the uncertainty is large." if found["n"] < 30 else "")


def target_metrics_table(metrics: Mapping[str, Any]) -> Markup:
    """Every metric of every split with its interval."""
    columns = [(part, *next(iter(metrics[part].items()))) for part in PARTS if part in metrics]
    heads = [f"{PARTS[part]}, {found['n']} {level}s" for part, level, found in columns]
    names = dict.fromkeys(
        metric
        for _, _, found in columns
        for metric, value in found.items()
        if isinstance(value, dict)
    )
    rows = [
        [
            row_header(metric_name(metric)),
            *(_metric_cell(found.get(metric)) for *_, found in columns),
        ]
        for metric in names
    ]
    words = (
        f"95 % confidence intervals: {metrics['intervals']}. Metrics on the training and "
        "validation splits are biased upwards, because the model was fitted and selected on them."
    )
    tested = metrics.get("test", {})
    for found in tested.values():
        if found.get("log_rank_p") is not None:
            words += (
                " Log-rank test of patients above and below the median risk of the training split, "
                f"in the test split: p = {found['log_rank_p']:.3g}."
            )
    return join(element("p", words, class_="note"), table("Metrics", ["Metric"], heads, rows))


def _metric_cell(found: Mapping[str, float | None] | None) -> Any:
    if found is None or found["value"] is None:
        return text_cell(ABSENT)
    shown = join(format_number(found["value"]), element("small", _range_text(found)))
    return number_cell(shown, found["value"])


def _range_text(found: Mapping[str, float | None]) -> str:
    return f"{format_number(found['low'])} to {format_number(found['high'])}"


def _with_range(found: Mapping[str, float | None]) -> str:
    return f"{format_number(found['value'])} ({_range_text(found)})"


def score_line(study: Mapping[str, Any], history: ResultTable) -> Line | None:
    """The validation score by epoch; None without validation bags."""
    if "valid_score" not in history.columns:
        return None
    name = MAIN_METRICS[study["task"]].name
    values = history.numbers("valid_score", empty=True).tolist()
    return Line(name, LineStyle(0, None), history.numbers("epoch").tolist(), values)


def read_target_predictions(folder: Path) -> ResultTable:
    """`predictions.csv` of a model of another task than classes."""
    return ResultTable(folder / "predictions.csv", ["slide_id", "case_id", "part", "y_pred"])


def target_prediction_table(study: Mapping[str, Any], predictions: ResultTable) -> Markup:
    """Observed and predicted values of every slide, those of the test split first."""
    observed = [name for name in predictions.columns if name.startswith("y_") and name != "y_pred"]
    predicted = [name for name in predictions.columns if name.startswith(("p_", "s_"))]
    numbers = [predictions.numbers(name) for name in predicted]
    texts = [predictions.text(name) for name in ("slide_id", "case_id", "part", "y_pred")]
    shown = [predictions.text(name) for name in observed]
    order = sorted(range(predictions.length), key=lambda i: list(PARTS).index(str(texts[2][i])))
    rows = [
        [
            row_header(str(texts[0][i]), str(texts[1][i]) or None),
            text_cell(PARTS[str(texts[2][i])]),
            *(text_cell(str(column[i]) or ABSENT) for column in shown),
            text_cell(str(texts[3][i])),
            *(number_cell(f"{column[i]:.4g}", float(column[i])) for column in numbers),
        ]
        for i in order
    ]
    words = "Observed and predicted values. Click a column header to sort."
    if study["task"] == "survival":
        words += (
            " The risk is higher for an earlier event; s(t) is the predicted probability of no "
            "event up to the time t."
        )
    heads = [f"s({name[2:]})" if name.startswith("s_") else name[2:] for name in predicted]
    first = ["Slide", "Split", *(name[2:] for name in observed), "Predicted"]
    return join(element("p", words), table("Predictions", first, heads, rows))
