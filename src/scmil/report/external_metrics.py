"""The metrics of a test on another cohort on its page: a sentence, and the sections of a task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scmil.core.run_format import COMBINED, MAIN_METRICS
from scmil.report.combined_run import name_of_part
from scmil.report.estimates import estimate_cell
from scmil.report.external_calibration import calibration_section
from scmil.report.external_targets import target_sections
from scmil.report.html.markup import ABSENT, Markup, change, element, format_number, join
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.run import METRIC_NAMES
from scmil.report.run_files import ResultTable
from scmil.report.target_model_page import metric_name, table_of_part
from scmil.report.target_run import NAMES

Page = Mapping[str, Any]
METRICS = "Metrics"  # the title of the first section


def metric_sections(page: Page, predictions: ResultTable) -> dict[str, Markup | None]:
    """The sections of the metrics by their titles; of several targets those of each target.

    Args:
        page: The content of `metrics.json`.
        predictions: `predictions.csv`.
    """
    if page["task"] != COMBINED:
        return _sections_of_task(page, predictions)
    sections: dict[str, Markup | None] = {"Targets": _overview_table(page)}
    for target in page["target"]["parts"]:
        name = name_of_part(target)
        if name not in page["metrics"]:
            continue
        own = part_page(page, target)
        for title, body in _sections_of_task(own, table_of_part(predictions, target)).items():
            sections[_title_of_part(name, title)] = body
        words = element("p", test_summary(own), class_="verdict")
        title = _title_of_part(name, METRICS)
        sections[title] = join(words, sections[title])
    return sections


def _overview_table(page: Page) -> Markup:
    """The main metric of each target, and its change."""
    rows = []
    for target in page["target"]["parts"]:
        name = name_of_part(target)
        cells = [row_header(name, target["task"])]
        if name not in page["metrics"]:
            rows.append([*cells, *[text_cell("not tested")] * 2, *[number_cell(ABSENT)] * 3])
            continue
        own = part_page(page, target)
        level, metric = _main_estimate(own)
        found = own["metrics"][level]
        inside = (own["internal"] or {}).get(level) or {}
        cells += [text_cell(f"{found['n']} {level}s"), text_cell(_metric_name(metric, own["task"]))]
        cells += [estimate_cell(found[metric]), estimate_cell(inside.get(metric))]
        rows.append([*cells, estimate_cell(own["change"].get(level, {}).get(metric), change)])
    heads = ["this cohort", "internal", "change"]
    return table("Main metric of each target", ["Target", "With a value", "Metric"], heads, rows)


def _title_of_part(name: str, title: str) -> str:
    is_word = title[1:2].islower()  # no abbreviation
    return f"{name}: {title[0].lower() if is_word else title[0]}{title[1:]}"


def part_page(page: Page, target: Mapping[str, Any]) -> Page:
    """The content of `metrics.json` of one of several targets, as that of a model of its task.

    Args:
        page: The content of `metrics.json` of several targets.
        target: One of them.
    """
    name = name_of_part(target)
    own = {key: page[key][name] for key in ("metrics", "internal", "change")}
    classes = target.get("classes") or target.get("grades") or target.get("names") or ()
    return {**page, "task": target["task"], "target": target, "classes": list(classes), **own}


def summarise_test(page: Page) -> str:
    """The main metric and its change, or how several targets are tested."""
    if page["task"] != COMBINED:
        return test_summary(page)
    return (
        "One model predicts all targets; a slide counts for those that it has a value of. Each "
        f"target is tested as a task of its own: {', '.join(page['metrics'])}."
    )


def _sections_of_task(page: Page, predictions: ResultTable) -> dict[str, Markup | None]:
    return {
        METRICS: _metrics_tables(page),
        **target_sections(page, predictions),
        "ROC curve and calibration": calibration_section(page, predictions),
        "Confusion matrix": _confusion_section(page),
    }


def test_summary(page: Page) -> str:
    """The main metric with its interval, and the change against the internal estimate."""
    level, name = _main_estimate(page)
    own = page["metrics"][level]
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


def _main_estimate(page: Page) -> tuple[str, str]:
    """The level and the metric of the summary: patients, unless only slides can be compared."""
    levels = [level for level in ("patient", "slide") if level in page["metrics"]]
    level = next((level for level in levels if level in page["change"]), levels[0])
    return level, _main_metric(page["task"], page["metrics"][level])


def _main_metric(task: str, own: Page) -> str:
    """The metric of the summary: the AUC of classes, or the main metric of another task."""
    name = MAIN_METRICS[task].column if task in MAIN_METRICS else "auc"
    found = (each for each in own if isinstance(own[each], Mapping))
    return name if name in own else next(found)


def _metric_name(metric: str, task: str) -> str:
    """The name of a metric, as the reports of its task have it."""
    names = METRIC_NAMES if task == "class" else NAMES.get(task, {})
    return names.get(metric) or metric_name(metric)


def _with_range(found: Page) -> str:
    return f"{format_number(found['value'])} ({_interval_text(found)})"


def _interval_text(found: Page) -> str:
    return f"{format_number(found['low'])} to {format_number(found['high'])}"


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
    if inside:
        known = inside["n"] is not None  # unless the predictions of the model were deleted
        heads += [f"internal, {inside['n']} {level}s" if known else "internal", "change"]
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
