"""The HTML page of a test on another cohort: metrics and their change, calibration, case mix."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from scmil.core.run_format import COMBINED
from scmil.errors import DataError
from scmil.report.external_metrics import metric_sections, summarise_test
from scmil.report.html.markup import Markup, element, join
from scmil.report.html.tables import number_cell, row_header, table, text_cell
from scmil.report.page import pairs, whole_page
from scmil.report.run_files import ResultTable
from scmil.report.target_model_page import EXPLAINED_RISK, describe_target
from scmil.stats.bootstrap import number_groups

Page = Mapping[str, Any]
RISK = "risk"  # the answer of survival
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
        **metric_sections(page, predictions),
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
        element("p", _describe_test(page, predictions), class_="about"),
    )
    foot = element(
        "footer",
        f"Written by scmil {page['versions'].get('scmil', '')} from the files in this folder. "
        "For research use only. Not a medical device.",
    )
    return whole_page(
        title,
        head,
        element("p", summarise_test(page), class_="verdict"),
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


def _describe_test(page: Page, predictions: ResultTable) -> str:
    model = page["model"]
    aggregator = model["aggregator"]
    name = aggregator if isinstance(aggregator, str) else aggregator["name"]
    several = model["ensemble"]
    kind = f"an ensemble of {several} models ({name})" if several else f"a model ({name})"
    cases = [str(case) or None for case in predictions.text("case_id")]
    patients = len(np.unique(number_groups(cases, len(cases))))
    slides = f"{predictions.length} slides of {patients} patients"
    if page["task"] == "class":
        return f"Test of {kind} on {slides}. Classes: {', '.join(page['classes'])}."
    task = "" if page["task"] == COMBINED else f" Task: {page['task']}."
    target = f" {describe_target(page)}" if page.get("target") else ""
    return f"Test of {kind} on {slides}.{task}{target}"


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


# ----------------------------------------------------------------------------------------- tables


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
    task = page["task"]
    kinds = ("sd_",) if task == "regression" else ("p_", "sd_", "s_")
    shown = [name for name in predictions.columns if name.startswith(kinds)]
    values = [predictions.numbers(name, empty=True) for name in shown]
    texts = [name for name in predictions.columns if name.startswith("y_")]
    if task == COMBINED:  # `y_pred` has all of them in one text
        predicted = [name for name in predictions.columns if name.startswith("pred_")]
        texts = [name for name in texts if name != "y_pred"] + predicted
    labels = [predictions.text(name) for name in texts]
    slides, cases = predictions.text("slide_id"), predictions.text("case_id")
    rows, digits = [], ".4g" if task in ("regression", "survival", COMBINED) else ".3f"
    for place in range(predictions.length):
        words = [str(column[place]) for column in labels]
        wrong = task == "class" and words[0] != words[1]
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
    heads = ["Slide", *map(_text_head, texts)]
    several = page["model"]["ensemble"]
    note = (
        f"Predictions are means over {several} models, sd is the standard deviation over them. "
        if several
        else ""
    )
    plain = _plain_answers(page)
    names = [_answer_head(name, plain) for name in shown]
    risk = f"{EXPLAINED_RISK} " if RISK in plain else ""
    return join(
        element("p", f"{note}{risk}Click a column header to sort."),
        table("Predictions", heads, names, rows),
    )


def _text_head(column: str) -> str:
    """The head of a column of observed or predicted values.

    >>> [_text_head(name) for name in ("y_true", "y_pred", "y_age", "pred_age")]
    ['Label', 'Predicted', 'observed age', 'predicted age']
    """
    known = {"y_true": "Label", "y_pred": "Predicted"}
    kind, _, name = column.partition("_")
    return known.get(column) or f"{'observed' if kind == 'y' else 'predicted'} {name}"


def _plain_answers(page: Page) -> set[str]:
    """The answers that are no probabilities: risks and numbers."""
    targets = (page.get("target") or {}).get("parts") or [page.get("target") or {}]
    numbers = {target["name"] for target in targets if target.get("task") == "regression"}
    tasks = {page["task"], *(target.get("task") for target in targets)}
    return numbers | ({RISK} if "survival" in tasks else set())


def _answer_head(column: str, plain: set[str]) -> str:
    """The head of a column of answers: p tumor, sd tumor, s(12), or the name of a number.

    >>> [_answer_head(name, {"risk"}) for name in ("p_risk", "sd_risk", "s_12.5")]
    ['risk', 'sd risk', 's(12.5)']
    """
    kind, _, name = column.partition("_")
    if kind == "s":
        return f"s({name})"
    return name if kind == "p" and name in plain else f"{kind} {name}"


def _settings_section(page: Page) -> Markup:
    listed = {
        "Model": {key: value for key, value in page["model"].items() if value is not None},
        "Inputs": {"digest of bags and labels": page["inputs"]},
        "Versions": page["versions"],
    }
    return element(
        "div", *(pairs(title, values) for title, values in listed.items()), class_="panels"
    )
