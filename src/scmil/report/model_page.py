"""A trained model as a page: how good it is and on whom, how it was trained, and what it says of every slide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil.errors import DataError
from scmil.core.files import utf8, write_atomically
from scmil.report.files import Table
from scmil.report.html.tables import cell_of_name, cell_of_number, cell_of_words, table
from scmil.report.html.markup import ABSENT, Markup, element, join, number
from scmil.report.page import pairs, whole_page
from scmil.report.html.plots import Line, Look, line_legend, line_panel, panels
from scmil.report.run_files import METRIC_NAMES

PARTS = {"test": "test part", "valid": "validation part", "train": "training part"}
HONEST = "test"


def write_model_page(folder: str | Path) -> Path:
    """Write `report.html` into the folder of a model that `scmil train` has made; it reads the files there, and no more."""
    folder = Path(folder)
    study, metrics = (_page(folder / name) for name in ("study.json", "metrics.json"))
    said = Table(folder / "predictions.csv", ["slide_id", "case_id", "part", "y_true", "y_pred"])
    history = Table(folder / "history.csv", ["epoch", "train_loss"])
    model = study["settings"]["model"]
    title = f"{_aggregator(model)} {'with' if model['sparse_coding'] else 'without'} sparse coding"
    sections = {
        "How good it is": _scores(metrics),
        "Told apart": _separation(study, said),
        "Training": _training(study, history),
        "Every slide": _slides(study, said),
        "What it expects": _facts(study),
    }
    parts = [element("section", element("h2", name), body) for name, body in sections.items() if body]
    head = element("header", element("h1", title), element("p", _about(study), class_="about"))
    foot = element("footer", f"Written by scmil {study['versions'].get('scmil', '')} from the files of this model.")
    text = whole_page(title, head, element("p", _verdict(study, metrics), class_="verdict"), *parts, foot)
    write_atomically(folder / "report.html", utf8(text))
    return folder / "report.html"


def _page(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not readable as JSON ({error}). Is this the folder of a finished model?") from None


def _aggregator(model: Mapping[str, Any]) -> str:
    own = model["aggregator"]
    return str(own["name"] if isinstance(own, Mapping) else own)


def _about(study: Mapping[str, Any]) -> str:
    slides = sum(map(len, study["split"].values()))
    told = ", ".join(f"{len(ids)} in the {PARTS[part]}" for part, ids in study["split"].items() if ids)
    return f"Tells {', '.join(study['classes'])} apart. {slides} slides, split by patient: {told}."


def _verdict(study: Mapping[str, Any], metrics: Mapping[str, Any]) -> str:
    part = HONEST if HONEST in metrics else "valid"
    level = "patient" if "patient" in metrics[part] else "slide"
    found = metrics[part][level]
    scores = f"AUC {_interval(found['auc'])}, accuracy {_interval(found['accuracy'])}"
    words = f"On {found['n']} {level}s of the {PARTS[part]}: {scores}."
    for row in metrics.get("cross_validation", [])[-1:]:
        words += f" Over {row['repeats']} x {row['folds']} folds: AUC {row['auc']:.3f}, accuracy {row['accuracy']:.3f}."
    if part != HONEST:
        return (
            words
            + " The validation part chose the epoch and the threshold, so its numbers are too good; the folds' are not."
        )
    wide = (found["auc"]["high"] or 1) - (found["auc"]["low"] or 0)
    return words + (
        " So few slides leave much open, more than the intervals say." if wide > 0.2 or found["n"] < 30 else ""
    )


def _interval(found: Mapping[str, float | None]) -> str:
    return f"{number(found['value'])} ({number(found['low'])} to {number(found['high'])})"


def _scores(metrics: Mapping[str, Any]) -> Markup:
    columns = [
        (part, level) for part in PARTS if part in metrics for level in ("slide", "patient") if level in metrics[part]
    ]
    heads = [f"{PARTS[part]}, {metrics[part][level]['n']} {level}s" for part, level in columns]
    rows = [
        [cell_of_name(name)]
        + [
            cell_of_number(
                join(number((found := metrics[part][level][metric])["value"]), element("small", _range(found))),
                found["value"],
            )
            for part, level in columns
        ]
        for metric, name in METRIC_NAMES.items()
    ]
    words = "95 % intervals: patients drawn anew with their slides. What it has learned from, or was chosen on, says little."
    return join(element("p", words, class_="note"), table("Metrics", ["Metric"], heads, rows))


def _range(found: Mapping[str, float | None]) -> str:
    return f"{number(found['low'])} to {number(found['high'])}"


def _separation(study: Mapping[str, Any], said: Table) -> Markup | None:
    """The ROC curve of each part, for two classes."""
    classes = study["classes"]
    if len(classes) != 2:
        return None
    scores, positive = said.numbers(f"p_{classes[1]}"), said.text("y_true") == classes[1]
    part = said.text("part")
    lines = []
    for i, (name, words) in enumerate(PARTS.items()):
        own = part == name
        if own.any() and 0 < positive[own].sum() < own.sum():
            x, y = roc(positive[own], scores[own])
            lines.append(Line(words, Look(i, None), x.tolist(), y.tolist()))
    if not lines:
        return None
    words = f"Sensitivity against false alarms as the threshold on the probability of {classes[1]!r} goes down."
    return join(element("p", words), line_legend(lines), panels(line_panel("ROC curve", words, lines)))


def roc(positive: NDArray[np.bool_], scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Share of false alarms and sensitivity at every threshold; equal scores are one step.

    >>> roc(np.array([True, False, True]), np.array([0.9, 0.5, 0.5]))
    (array([0., 0., 1.]), array([0. , 0.5, 1. ]))
    """
    order = np.argsort(-scores, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(scores[order])), len(order) - 1)
    hits, alarms = np.cumsum(positive[order])[ends], np.cumsum(~positive[order])[ends]
    return np.append(0, alarms / max(alarms[-1], 1)), np.append(0, hits / max(hits[-1], 1))


def _training(study: Mapping[str, Any], history: Table) -> Markup:
    epochs = history.numbers("epoch").tolist()

    def line(column: str, name: str, colour: int) -> Line | None:
        if column not in history.columns:
            return None
        return Line(name, Look(colour, None), epochs, history.numbers(column, empty=True).tolist())

    losses = [each for each in (line("train_loss", "training", 2), line("valid_loss", "validation", 1)) if each]
    scores = [each for each in (line("valid_auc", "AUC", 0), line("valid_accuracy", "accuracy", 3)) if each]
    best = study["best_epoch"]
    words = (
        f"Epoch {best} of {study['epochs']} has the best validation AUC (the vertical line), and is the model."
        if best
        else ""
    )
    return join(
        element("p", words) if words else None,
        line_legend([*losses, *scores]),
        panels(
            line_panel("Loss, by epoch", "Loss by epoch", losses, best),
            line_panel("Validation, by epoch", "Validation AUC and accuracy by epoch", scores, best)
            if scores
            else None,
        ),
    )


def _slides(study: Mapping[str, Any], said: Table) -> Markup:
    classes: Sequence[str] = study["classes"]
    columns = [f"p({name})" for name in classes]
    probabilities = [said.numbers(f"p_{name}") for name in classes]
    texts = [said.text(name) for name in ("slide_id", "case_id", "part", "y_true", "y_pred")]
    rows = []
    tested_first = sorted(range(said.length), key=lambda place: list(PARTS).index(str(texts[2][place])))
    for place in tested_first:
        slide, case, part, truth, guess = (column[place] for column in texts)
        wrong = element("span", f"{guess} ✗", class_="down") if guess != truth else join(str(guess))
        rows.append(
            [
                cell_of_name(str(slide), str(case) or None),
                *(cell_of_words(word) for word in (PARTS[str(part)], str(truth), wrong)),
                *(cell_of_number(f"{p[place]:.3f}", float(p[place])) for p in probabilities),
            ]
        )
    missed = int((texts[3] != texts[4]).sum())
    words = f"{missed} of {len(rows)} are not what their label says (✗). Click a heading to sort."
    return join(element("p", words), table("Every slide", ["Slide", "Part", "Label", "Said"], columns, rows))


def _facts(study: Mapping[str, Any]) -> Markup:
    contract = {key: ABSENT if value is None else value for key, value in study["contract"].items()}
    listed = {"Bags": contract, "Recipe": study["recipe"], "Settings": study["settings"], "Versions": study["versions"]}
    return join(
        element("p", "Bags that were made otherwise are refused, with the command that makes them again."),
        element("div", *(pairs(title, values) for title, values in listed.items()), class_="panels"),
    )
