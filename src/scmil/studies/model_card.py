"""The model card: what users of a model need to know."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from scmil.bags.checks import BagSummary
from scmil.core.text import printable
from scmil.report.fold_estimates import fold_estimates
from scmil.stats.metrics import METRICS
from scmil.studies.model_folder import Page

if TYPE_CHECKING:
    from scmil.models.model import MILModel

# Characters with a meaning in Markdown: emphasis, links, headings, the starts of lists and rules,
# and addresses that become links without marks.
MARKS = re.compile(r"[\\`*\[\]()#!|~$@]|(?<!\w)[_+=-]|_(?!\w)|:(?=//)|\.(?<=www\.)")


def escape_markdown(value: object) -> str:
    r"""Return text that Markdown and HTML show unchanged, on one line.

    Class names come from tables of others and may contain markup.

    >>> print(escape_markdown("<b>[x](http://evil.example)</b>"))
    &lt;b&gt;\[x\]\(http\://evil.example\)&lt;/b&gt;
    >>> print(escape_markdown("size_px 256, mpp 0.5"))
    size_px 256, mpp 0.5
    """
    return MARKS.sub(r"\\\g<0>", html.escape(printable(value), quote=False))


def card(
    model: MILModel, study: Page, metrics: Page, facts: BagSummary, labels: NDArray[np.int64]
) -> str:
    """Return the model card: architecture, training data, performance and limitations."""
    from scmil.models.cost import count_parameters

    settings, classes = study["settings"], study["classes"]
    coded = "with sparse coding" if settings["model"]["sparse_coding"] else "without sparse coding"
    names = ", ".join(map(escape_markdown, classes))
    versions = ", ".join(f"{key} {value}" for key, value in study["versions"].items())
    lines = [
        f"# {escape_markdown(settings['model']['aggregator'])} {coded}",
        "",
        f"A classifier of {len(classes)} classes: {names}. {count_parameters(model)} parameters.",
        "",
        *_training_data(study, facts, labels),
        *_performance(metrics),
        "",
        "## Limitations",
        "",
        "The model was tested on bags from the same source as its training bags. It was not tested "
        "on other scanners, stains, hospitals or patient groups. For research use only. Not a "
        "medical device.",
        "",
        f"Seed {settings['seed']}; {versions}",
        "",
    ]
    return "\n".join(lines)


def _training_data(study: Page, facts: BagSummary, labels: NDArray[np.int64]) -> list[str]:
    """Return the lines on the bags, their provenance and their split."""
    counts = ", ".join(
        f"{escape_markdown(name)} {int((labels == i).sum())}"
        for i, name in enumerate(study["classes"])
    )
    provenance = ", ".join(
        f"{escape_markdown(key)} {escape_markdown(value)}"
        for key, value in study["contract"].items()
    )
    sizes = ", ".join(f"{name} {len(ids)}" for name, ids in study["split"].items())
    return [
        "## Training data",
        "",
        f"- {len(labels)} bags ({counts}); median number of instances per bag: {facts.median}",
        f"- provenance: {provenance}; bags with another provenance are rejected",
        *_licence_lines(study),
        f"- split by patient, stratified by class: {sizes}",
        f"- epoch {study['best_epoch']} of {study['epochs']} has the best validation AUC; the "
        f"threshold {study['threshold']:.4g} was chosen on the validation split too",
        *(f"- {escape_markdown(note)}" for note in study["notes"]),
        "",
    ]


def _performance(metrics: Page) -> list[str]:
    """Return the lines with the metrics of the test split, or, without one, of the validation."""
    split = next((name for name in ("test", "valid") if name in metrics), "valid")
    level = "patient" if "patient" in metrics[split] else "slide"
    lines = [f"## Performance ({split} split, {level}s)", ""]
    if split != "test":
        lines += [
            "The epoch was chosen on the validation split, so these numbers are optimistic. See "
            "the cross-validation.",
            "",
        ]
    lines += ["| metric | value | 95 % interval, over patients |", "|---|---:|---:|"]
    for metric in METRICS:
        value, low, high = (
            "–" if number is None else f"{number:.3f}"
            for number in metrics[split][level][metric].values()
        )
        lines.append(f"| {metric.replace('_', ' ')} | {value} | {low} to {high} |")
    lines += ["", f"Intervals: {metrics['intervals']}."]
    for row in metrics.get("cross_validation", []):
        name = f"{row['repeats']} x {row['folds']} folds, {row.get('level', 'slide')}s"
        lines += [
            "",
            f"Cross-validation ({name}): {fold_estimates(row, methods=True)}.",
        ]
    return lines


def _licence_lines(study: Page) -> list[str]:
    """Return the line on the encoder's licence; models of earlier versions do not record it."""
    licence = study.get("encoder_licence")
    if not licence:
        return []
    name, sentence = escape_markdown(licence["encoder"]), escape_markdown(licence["sentence"])
    return [f"- licence of the encoder {name}: {sentence}"]
