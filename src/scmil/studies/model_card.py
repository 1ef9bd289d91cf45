"""The model card: a page for whoever meets the model without its makers."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.core.files import printable
from scmil.stats.metrics import METRICS
from scmil.studies.model_folder import Page
from scmil.bags.checks import Survey

if TYPE_CHECKING:
    from scmil.models.model import MILModel

# What Markdown gives a meaning to: marks, the beginnings of lists and rules, and addresses that become links by themselves.
MARKS = re.compile(r"[\\`*\[\]()#!|~$@]|(?<!\w)[_+=-]|_(?!\w)|:(?=//)|\.(?<=www\.)")


def plain(value: object) -> str:
    r"""Text that Markdown and HTML show as it is, in one line: names of classes come from other people's tables.

    >>> print(plain("<b>[x](http://evil.example)</b>"), plain("size_px 256, mpp 0.5"))
    &lt;b&gt;\[x\]\(http\://evil.example\)&lt;/b&gt; size_px 256, mpp 0.5
    """
    return MARKS.sub(r"\\\g<0>", html.escape(printable(value), quote=False))


def card(model: MILModel, study: Page, metrics: Page, facts: Survey, labels: NDArray[np.int64]) -> str:
    """The model card: what it is, what it has learned from, how good it is, where it must not be used."""
    from scmil.models.cost import count_parameters

    settings, contract, classes = study["settings"], study["contract"], study["classes"]
    part = next((name for name in ("test", "valid") if name in metrics), "valid")
    level = "patient" if "patient" in metrics[part] else "slide"
    coded = "with sparse coding" if settings["model"]["sparse_coding"] else "without sparse coding"
    counts = ", ".join(f"{plain(name)} {int((labels == i).sum())}" for i, name in enumerate(classes))
    known = ", ".join(f"{plain(key)} {plain(value)}" for key, value in contract.items())
    lines = [
        f"# {plain(settings['model']['aggregator'])} {coded}",
        "",
        f"Tells {len(classes)} classes apart: {', '.join(map(plain, classes))}. {count_parameters(model)} parameters.",
        "",
        "## What it has learned from",
        "",
        f"- {len(labels)} bags ({counts}), {facts.median} instances in the median one",
        f"- how they were made: {known}; bags made otherwise are refused",
        "- split by patient, stratified by class: " + ", ".join(f"{k} {len(v)}" for k, v in study["split"].items()),
        f"- epoch {study['best_epoch']} of {study['epochs']} has the best validation AUC; threshold "
        f"{study['threshold']:.4g}, chosen there too",
        *(f"- {plain(note)}" for note in study["notes"]),
        "",
        f"## How good it is ({part} part, {level}s)",
        "",
    ]
    if part != "test":
        lines += ["The validation part chose the epoch, so these numbers are too good; see the cross-validation.", ""]
    lines += ["| metric | value | 95 % interval, over patients |", "|---|---:|---:|"]
    for metric in METRICS:
        said = [("–" if value is None else f"{value:.3f}") for value in metrics[part][level][metric].values()]
        lines.append(f"| {metric.replace('_', ' ')} | {said[0]} | {said[1]} to {said[2]} |")
    for row in metrics.get("cross_validation", []):
        name = f"{row['repeats']} x {row['folds']} folds, {row.get('level', 'slide')}s"
        lines += ["", f"Cross-validation ({name}): accuracy {row['accuracy']:.3f}, AUC {row['auc']:.3f}."]
    lines += [
        "",
        "## Where it must not be used",
        "",
        "It was tested on bags of the same source as it was trained on. Other scanners, stains, hospitals and patients are "
        "not tested. It is a tool of research, and no medical device.",
        "",
        f"Seed {settings['seed']}; " + ", ".join(f"{key} {value}" for key, value in study["versions"].items()),
        "",
    ]
    return "\n".join(lines)
