"""The HTML page of a test on another cohort: metrics and their change, calibration, case mix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scmil.core.run_format import MAIN_METRICS
from scmil.errors import DataError
from scmil.report.estimates import estimate_cell
from scmil.report.external_calibration import calibration_section
from scmil.report.external_targets import target_sections
from scmil.report.html.markup import Markup, change, element, format_number, join
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.page import pairs, whole_page
from scmil.report.run import METRIC_NAMES
from scmil.report.run_files import ResultTable
from scmil.report.target_model_page import EXPLAINED_RISK, describe_target, metric_name
from scmil.report.target_run import NAMES

Page = Mapping[str, Any]
SPLITS = {"valid": "validation split", "test": "test split"}


def external_page(folder: Path) -> str:
    """Return the page of a test as HTML, from the files that `scmil test` wrote.

    Args:
        folder: The output folder of the test.

    Raises:
        DataError: A file is missing or damaged.

    >>> external_page(Path("nothing"))
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: nothing/metrics.json: not readable as JSON...
    """
    page = _read(folder / "metrics.json")
    predictions = ResultTable(folder / "predictions.csv", ["slide_id", "case_id"])
    overlap = ResultTable(folder / "overlap.csv", ["slide_id", "training_slide", "reasons"])
    title = f"External validation of {page['model']['folder']}"
    sections = {
        "Metrics": _metrics_tables(page),
        **target_sections(page, predictions),
        "ROC curve and calibration": calibration_section(page, predictions),
        "Confusion matrix": _confusion_section(page),
        "Case mix": _case_mix(page),
        "Overlap with the training": _overlap(page, overlap),
        "Predictions": _predictions_section(page, predictions),
        "Model and versions": _settings_section(page),
    }
    parts = [
        element("section", element("h2", name), body) for name, body in sections.items() if body
    ]
    head = element(
        "header",
        element("h1", title),
        element("p", _describe_test(page, predictions.length), class_="about"),
    )
    foot = element(
        "footer",
        f"Written by scmil {page['versions'].get('scmil', '')} from the files in this folder. "
        "For research use only. Not a medical device.",
    )
    return whole_page(
        title,
        head,
        element("p", _test_summary(page), class_="verdict"),
        *(element("p", words, class_="warn") for words in _warnings(page)),
        *(element("p", note, class_="note") for note in page["notes"]),
        *parts,
        foot,
    )


def _read(path: Path) -> Page:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not readable as JSON ({error}). Run `scmil test` again."
        ) from None


# -------------------------------------------------------------------------------------- sentences


def _describe_test(page: Page, length: int) -> str:
    metrics, model = page["metrics"], page["model"]
    own = metrics["slide"] if "slide" in metrics else metrics["patient"]
    aggregator = model["aggregator"]
    name = aggregator if isinstance(aggregator, str) else aggregator["name"]
    several = model["ensemble"]
    kind = f"an ensemble of {several} models ({name})" if several else f"a model ({name})"
    slides = f"{length} slides of {own['patients']} patients"
    if page["task"] == "class":
        return f"Test of {kind} on {slides}. Classes: {', '.join(page['classes'])}."
    target = f" {describe_target(page)}" if page.get("target") else ""
    return f"Test of {kind} on {slides}. Task: {page['task']}.{target}"


def _test_summary(page: Page) -> str:
    level = "patient" if "patient" in page["metrics"] else "slide"
    own = page["metrics"][level]
    name = _main_metric(page["task"], own)
    words = f"On {own['n']} {level}s of this cohort: {_metric_name(name, page['task'])} "
    words += _with_range(own[name])
    is_class = page["task"] == "class"
    words += f", accuracy {_with_range(own['accuracy'])}." if is_class else "."
    found = page["change"].get(level, {}).get(name)
    if found is None:
        return f"{words} There is no internal estimate to compare it with."
    inside = page["internal"][level][name]
    words += (
        f" In {page['internal']['source']} it was {_with_range(inside)}; the change is "
        f"{change(found['value'])} ({change(found['low'])} to {change(found['high'])})"
    )
    if found["low"] is None or found["high"] is None:
        return f"{words}."
    if found["low"] <= 0 <= found["high"]:
        return f"{words}, which is compatible with no change."
    return f"{words}, more than chance explains."


def _main_metric(task: str, own: Page) -> str:
    """The metric of the summary: the AUC of classes, or the main metric of another task."""
    name = MAIN_METRICS[task].column if task in MAIN_METRICS else "auc"
    found = (each for each in own if isinstance(own[each], Mapping))
    return name if name in own else next(found)


def _warnings(page: Page) -> list[str]:
    found, failed, words = page["overlap"], page["failed"], []
    if found["fitted"] and found["rule"] == "allow":
        words.append(
            f"{found['fitted']} of these slides were used to train the model: the metrics on this "
            "page are biased upwards and are not an external validation."
        )
    if found["excluded"]:
        words.append(
            f"{found['excluded']} slides of the cohort were used to train the model and were left "
            "out."
        )
    if found["in_internal_test"]:
        words.append(
            f"{found['in_internal_test']} slides are also in the internal test split: the model "
            "was not fitted to them, but the two estimates are not independent."
        )
    if failed:
        words.append(f"{len(failed)} slides could not be read and are missing from the metrics.")
    if any(row["differs"] for row in page["case_mix"]):
        names = ", ".join(row["property"] for row in page["case_mix"] if row["differs"])
        words.append(f"The cohort differs from the training in: {names}.")
    return words


def _metric_name(metric: str, task: str) -> str:
    """The name of a metric, as the reports of its task have it."""
    names = METRIC_NAMES if task == "class" else NAMES.get(task, {})
    return names.get(metric) or metric_name(metric)


def _with_range(found: Page) -> str:
    return f"{format_number(found['value'])} ({_interval_text(found)})"


def _interval_text(found: Page) -> str:
    return f"{format_number(found['low'])} to {format_number(found['high'])}"


# ----------------------------------------------------------------------------------------- tables


def _metrics_tables(page: Page) -> Markup:
    internal = page["internal"]
    words = f"95 % confidence intervals: {page['metrics']['intervals']}."
    if internal is not None:
        words += (
            f" Internal: {internal['source']}. The interval of the change combines those of both "
            "estimates, which are of different patients."
        )
    else:
        words += " The model folder has no estimate on patients it was not trained on."
    levels = [level for level in ("slide", "patient") if level in page["metrics"]]
    return join(
        element("p", words, class_="note"), *(_level_table(page, level) for level in levels)
    )


def _level_table(page: Page, level: str) -> Markup:
    own, inside = page["metrics"][level], (page["internal"] or {}).get(level)
    changed = page["change"].get(level, {})
    heads = [f"this cohort, {own['n']} {level}s"]
    heads += [f"internal, {inside['n']} {level}s", "change"] if inside else []
    rows = []
    # Those of single labels have a table of their own.
    labels = (page.get("target") or {}).get("names", ())
    for name in [name for name in own if isinstance(own[name], Mapping)]:
        if name.rpartition(": ")[0] in labels:
            continue
        row = [row_header(_metric_name(name, page["task"])), estimate_cell(own[name])]
        if inside:
            row += [estimate_cell(inside.get(name)), estimate_cell(changed.get(name), change)]
        rows.append(row)
    return table(f"Metrics by {level}", ["Metric"], heads, rows)


def _confusion_section(page: Page) -> Markup | None:
    if "confusion" not in page["metrics"]:
        return None
    classes, counts = page["classes"], page["metrics"]["confusion"]
    rows = [
        [row_header(name), *(number_cell(str(n), n) for n in row), number_cell(str(sum(row)))]
        for name, row in zip(classes, counts, strict=True)
    ]
    threshold = page["threshold"]
    first, words = "Label", "Rows are the labels, columns the predictions, by slide."
    if page["task"] == "ordinal":
        first = "Observed"
        words = "Rows are the observed grades, columns the predicted ones, by slide."
    if len(classes) == 2 and threshold is not None:
        words += f" Threshold on the probability of {classes[1]!r}: {threshold:.3f}, of the model."
    heads = [f"predicted {name}" for name in classes]
    return join(element("p", words), table("Confusion matrix", [first], [*heads, "all"], rows))


def _case_mix(page: Page) -> Markup:
    rows = [
        [
            row_header(row["property"]),
            text_cell(row["training"] or "not known"),
            text_cell(
                element("span", row["cohort"], class_="down")
                if row["differs"]
                else row["cohort"] or "not known"
            ),
        ]
        for row in page["case_mix"]
    ]
    return join(
        _shift_sentence(page["feature_shift"]),
        table("Case mix", ["Property", "Training split", "This cohort"], [], rows),
    )


def _shift_sentence(shift: Page | None) -> Markup:
    if shift is None:
        return element(
            "p",
            "The features could not be compared: the model was trained by a version that did not "
            "record them.",
            class_="note",
        )
    words = (
        "Distance of the mean features from those of the training split, in standard deviations of "
        f"its tiles (root mean square over all features): {shift['cohort']['distance']:.3f} for "
        "this cohort"
    )
    inside = [
        f"{found['distance']:.3f} for the internal {SPLITS.get(name, name)} "
        f"({found['slides']} slides)"
        for name, found in shift["internal"].items()
    ]
    reference = f"; for comparison {' and '.join(inside)}" if inside else ""
    return element("p", f"{words}{reference}. Means of fewer slides differ more.")


def _overlap(page: Page, rows: ResultTable) -> Markup:
    found = page["overlap"]
    compared = [
        name
        for name, done in (
            ("slide ids", found["ids_compared"]),
            ("patient ids", found["patients_compared"]),
            ("features", found["features_compared"]),
        )
        if done
    ]
    words = (
        f"Compared with the slides of the training by: {', '.join(compared)}. "
        if compared
        else "The model folder does not record its training slides, so that nothing was compared. "
    )
    if not found["features_compared"]:
        words += (
            "Features could not be compared, because the model folder has no fingerprint of them: "
            "the same slides under other names would not be found. "
        )
    if not rows.length:
        return element("p", f"{words}No slide of this cohort was found in the training.")
    body = [
        [
            row_header(str(slide), str(case) or None),
            *(text_cell(str(text)) for text in (known, split, reasons)),
        ]
        for slide, case, known, split, reasons in zip(
            *(
                rows.text(name)
                for name in ("slide_id", "case_id", "training_slide", "split", "reasons")
            ),
            strict=True,
        )
    ]
    heads = ["Slide", "Training slide", "Split", "Reason"]
    return join(element("p", words), table("Overlap with the training", heads, [], body))


def _predictions_section(page: Page, predictions: ResultTable) -> Markup:
    kinds = ("sd_",) if page["task"] == "regression" else ("p_", "sd_", "s_")
    shown = [name for name in predictions.columns if name.startswith(kinds)]
    values = [predictions.numbers(name, empty=True) for name in shown]
    texts = [name for name in predictions.columns if name.startswith("y_")]
    labels = [predictions.text(name) for name in texts]
    slides, cases = predictions.text("slide_id"), predictions.text("case_id")
    rows, digits = [], ".4g" if page["task"] in ("regression", "survival") else ".3f"
    for place in range(predictions.length):
        words = [str(column[place]) for column in labels]
        wrong = page["task"] == "class" and words[0] != words[1]
        cells = [text_cell(word) for word in words]
        if wrong:
            cells[1] = text_cell(element("span", f"{words[1]} ✗", class_="down"))
        rows.append(
            [
                row_header(str(slides[place]), str(cases[place]) or None),
                *cells,
                *(
                    number_cell(f"{column[place]:{digits}}", float(column[place]))
                    for column in values
                ),
            ]
        )
    known = {"y_true": "Label", "y_pred": "Predicted"}
    heads = ["Slide", *(known.get(name, f"observed {name.removeprefix('y_')}") for name in texts)]
    several = page["model"]["ensemble"]
    note = (
        f"Predictions are means over {several} models, sd is the standard deviation over them. "
        if several
        else ""
    )
    names = [_answer_head(name, page["task"]) for name in shown]
    risk = f"{EXPLAINED_RISK} " if page["task"] == "survival" else ""
    return join(
        element("p", f"{note}{risk}Click a column header to sort."),
        table("Predictions", heads, names, rows),
    )


def _answer_head(column: str, task: str) -> str:
    """The head of a column of answers: p tumor, sd tumor, s(12), or the name of a number.

    >>> [_answer_head(name, "survival") for name in ("p_risk", "sd_risk", "s_12.5")]
    ['risk', 'sd risk', 's(12.5)']
    """
    kind, _, name = column.partition("_")
    if kind == "s":
        return f"s({name})"
    return name if kind == "p" and task in ("regression", "survival") else f"{kind} {name}"


def _settings_section(page: Page) -> Markup:
    listed = {
        "Model": {key: value for key, value in page["model"].items() if value is not None},
        "Inputs": {"digest of bags and labels": page["inputs"]},
        "Versions": page["versions"],
    }
    return element(
        "div", *(pairs(title, values) for title, values in listed.items()), class_="panels"
    )
