"""The parts of a model's page that differ for survival, numbers, grades and several labels."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.run_format import COMBINED, MAIN_METRICS
from scmil.report.combined_run import name_of_part, shown_metrics
from scmil.report.html import target_plots
from scmil.report.html.markup import ABSENT, Markup, element, format_number, join
from scmil.report.html.plots import Line, LineStyle, panels
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.run_files import ResultTable
from scmil.report.target_run import LABEL_METRICS, NAMES
from scmil.stats.bootstrap import number_groups
from scmil.stats.survival import kaplan_meier, majority_of_patients

METRICS = {name: text for names in NAMES.values() for name, text in names.items()} | {
    **{name: text for name, text in LABEL_METRICS.items() if name != "auc"},
    "mae": "mean absolute error",
}
Mask = NDArray[np.bool_]
EXPLAINED_RISK = (
    "The risk is higher for an earlier event; s(t) is the predicted probability of no event up to "
    "the time t."
)
PARTS = {"test": "test split", "valid": "validation split", "train": "training split"}


def metric_name(column: str) -> str:
    """The name of a metric of another task than classes, as a reader knows it.

    >>> metric_name("auc@12.5"), metric_name("tp53: auc"), metric_name("mae")
    ('AUC at 12.5', 'tp53: AUC', 'mean absolute error')
    """
    if column in METRICS:
        return METRICS[column]
    label, colon, metric = column.rpartition(": ")
    base, at, time = metric.partition("@")
    of_label = base == "auc" and (at or label != "survival")
    plain = "AUC" if of_label else METRICS.get(base, base.replace("_", " "))
    return f"{label}{colon}{plain}" + (f" at {time}" if at else "")


def describe_target(study: Mapping[str, Any]) -> str:
    """What the model predicts, in words."""
    target, task = study["target"], study["task"]
    if task == COMBINED:
        parts = [
            describe_target({"target": part, "task": part["task"]}) for part in target["parts"]
        ]
        return f"Several targets. {' '.join(parts)}"
    if task == "class":
        return f"Class {target['name']}: {', '.join(target['classes'])}."
    if task == "survival":
        return f"Time to an event (columns {target['time']} and {target['event']})."
    if task == "regression":
        return f"Number: {target['name']}."
    if task == "ordinal":
        return f"Grade {target['name']}: {', '.join(target['grades'])}."
    return f"Labels: {', '.join(target['names'])}."


def summarise_target_metrics(metrics: Mapping[str, Any]) -> str:
    """The main metric of the test split, or of the validation split without one."""
    part = "test" if "test" in metrics else "valid"
    [(level, found)] = metrics[part].items()
    shown = [pair for pair in shown_metrics(metrics) if pair[0] in found]
    scores = ", ".join(f"{name} {_value_and_range(found[column])}" for column, name in shown)
    words = f"On {found['n']} {level}s of the {PARTS[part]}: {scores}."
    for row in metrics.get("cross_validation", [])[-1:]:
        scores = ", ".join(f"{name} {format_number(row[column])}" for column, name in shown)
        words += f" Over {row['repeats']} x {row['folds']} folds: {scores}."
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
            *(_estimate_cell(found.get(metric)) for *_, found in columns),
        ]
        for metric in names
    ]
    words = (
        f"95 % confidence intervals: {metrics['intervals']} Metrics on the training and "
        "validation splits are biased upwards, because the model was fitted and selected on them."
    )
    for part, known in metrics.get("known", {}).items():  # of several targets
        counts = ", ".join(f"{name} {count}" for name, count in known.items())
        words += f" Slides of the {PARTS[part]} with a value: {counts}."
    tested = metrics.get("test", {})
    for found in tested.values():
        if found.get("log_rank_p") is not None:
            words += (
                " Log-rank test of patients above and below the median risk of the training split, "
                f"in the test split: p = {found['log_rank_p']:.3g}."
            )
    return join(element("p", words, class_="note"), table("Metrics", ["Metric"], heads, rows))


def _estimate_cell(found: Mapping[str, float | None] | None) -> Any:
    if found is None or found["value"] is None:
        return text_cell(ABSENT)
    shown = join(format_number(found["value"]), element("small", _range_text(found)))
    return number_cell(shown, found["value"])


def _range_text(found: Mapping[str, float | None]) -> str:
    return f"{format_number(found['low'])} to {format_number(found['high'])}"


def _value_and_range(found: Mapping[str, float | None]) -> str:
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
        words += f" {EXPLAINED_RISK}"
    # Outputs have the names of the observed columns: labels, or a number.
    heads = [
        f"s({name[2:]})" if name.startswith("s_") else f"output: {name[2:]}" for name in predicted
    ]
    first = ["Slide", "Split", *(f"observed: {name[2:]}" for name in observed), "Predicted"]
    return join(element("p", words), table("Predictions", first, heads, rows))


def target_plot(study: Mapping[str, Any], predictions: ResultTable) -> Markup | None:
    """Survival by risk, predicted against observed numbers, or the confusion of grades.

    Of the test split, or of the validation split without one; None for several labels.
    """
    parts = predictions.text("part")
    part = "test" if (parts == "test").any() else "valid"
    if study["task"] == COMBINED:
        return _plots_of_parts(study, predictions)
    return plot_of_rows(study, predictions, parts == part, PARTS[part])


def plot_of_rows(
    study: Mapping[str, Any], predictions: ResultTable, own: Mask, part: str
) -> Markup | None:
    """The plot of `target_plot` for some slides.

    Args:
        study: The task and the target.
        predictions: Observed and predicted values of slides.
        own: The slides.
        part: What they are, in words.
    """
    draw = {"survival": _survival_plot, "regression": _agreement_plot, "ordinal": _grade_table}
    draw["class"] = _grade_table
    made = draw.get(study["task"])
    return None if made is None or not own.any() else made(study, predictions, own, part)


def _plots_of_parts(study: Mapping[str, Any], predictions: ResultTable) -> Markup | None:
    """The plot of each of several targets, of the slides that have a value."""
    plots = []
    for target in study["target"]["parts"]:
        name = name_of_part(target)
        own = {**study, "task": target["task"], "target": target}
        if (made := target_plot(own, table_of_part(predictions, target))) is not None:
            plots += [element("h3", name), made]
    return join(*plots) if plots else None


def table_of_part(predictions: ResultTable, target: Mapping[str, Any]) -> ResultTable:
    """The slides that have a value of one of several targets, with its prediction as `y_pred`.

    Probabilities have the columns of a model of this target alone: `p_1` for `p_isup=1`.

    Args:
        predictions: `predictions.csv` of a model of several targets.
        target: One of them.
    """
    names = target.get("names") or [target.get("time", target.get("name"))]
    cells = zip(*(predictions.text(f"y_{name}") for name in names), strict=True)
    rows = [place for place, known in enumerate(cells) if any(cell != "" for cell in known)]
    own = copy(predictions)
    own.columns = {
        column: tuple(values[place] for place in rows)
        for column, values in predictions.columns.items()
    }
    own.columns["y_pred"] = own.columns[f"pred_{name_of_part(target)}"]
    for name in target.get("grades") or target.get("classes") or ():
        own.columns[f"p_{name}"] = own.columns[f"p_{target['name']}={name}"]
    if target["task"] == "class":
        own.columns["y_true"] = own.columns[f"y_{target['name']}"]
    own.length = len(rows)
    return own


def _survival_plot(
    study: Mapping[str, Any], predictions: ResultTable, own: Mask, part: str
) -> Markup:
    target = study["target"]
    rows = np.flatnonzero(own)
    cases = [str(predictions.text("case_id")[i]) or None for i in rows]
    units = number_groups(cases, len(rows))
    first = rows[np.unique(units, return_index=True)[1]]
    times = predictions.numbers(f"y_{target['time']}")[first]
    events = predictions.numbers(f"y_{target['event']}")[first]
    above = np.char.startswith(predictions.text("y_pred")[rows].astype(str), "high")
    high = majority_of_patients(units, above)
    groups = {
        name: kaplan_meier(times[chosen], events[chosen])
        for name, chosen in (("low risk", ~high), ("high risk", high))
        if chosen.any()
    }
    words = (
        f"Kaplan-Meier curves of the patients of the {part} with a low and a high predicted risk; "
        "the cut-off is the median risk of the training split. A patient has a high risk if more "
        "than half of the slides have one. Short lines are censored times."
    )
    sizes = ", ".join(f"{int(c.sum())} {n}" for n, c in (("low", ~high), ("high", high)))
    panel = target_plots.survival_panel(sizes, groups, target["time"])
    return join(element("p", words), target_plots.survival_legend(), panels(panel))


def _agreement_plot(
    study: Mapping[str, Any], predictions: ResultTable, own: Mask, part: str
) -> Markup:
    name = study["target"]["name"]
    observed, predicted = predictions.numbers(f"y_{name}")[own], predictions.numbers(f"p_{name}")
    words = (
        f"Predicted number (vertical) against the observed one (horizontal) of each slide of the "
        f"{part}; on the line they agree."
    )
    panel = target_plots.agreement_panel(name, observed, predicted[own], name)
    return join(element("p", words), panels(panel))


def _grade_table(
    study: Mapping[str, Any], predictions: ResultTable, own: Mask, part: str
) -> Markup:
    grades = study["target"].get("grades") or study["target"]["classes"]
    noun = "grade" if "grades" in study["target"] else "class"
    observed = predictions.text(f"y_{study['target']['name']}")[own]
    predicted = predictions.text("y_pred")[own]
    rows = [
        [
            row_header(f"observed {grade}"),
            *(
                number_cell(str(n := int(((observed == grade) & (predicted == other)).sum())), n)
                for other in grades
            ),
        ]
        for grade in grades
    ]
    heads = [f"predicted {grade}" for grade in grades]
    words = element("p", f"Number of slides of the {part}.")
    return join(words, table(f"Confusion by {noun}", [noun.capitalize()], heads, rows))
