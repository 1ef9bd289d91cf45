"""The model card: what users of a model need to know."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING

from scmil.bags.checks import BagSummary
from scmil.core.run_format import MAIN_METRICS
from scmil.core.text import printable
from scmil.report.combined_run import shown_metrics
from scmil.report.fold_estimates import CLASS_METRICS, fold_estimates
from scmil.report.target_model_page import metric_name
from scmil.studies.model_folder import Page

if TYPE_CHECKING:
    from scmil.models.model import MILModel
    from scmil.studies.answers import Answers

STRATA = {
    "survival": "event",
    "regression": "values above and below the median",
    "ordinal": "grades above and below the median",
    "multilabel": "the label whose values are most equally frequent",
    "combined": "the target that most slides have",
}

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


def card(model: MILModel, study: Page, metrics: Page, facts: BagSummary, answers: Answers) -> str:
    """Return the model card: architecture, training data, performance and limitations."""
    from scmil.models.cost import count_parameters

    settings = study["settings"]
    coded = "with sparse coding" if settings["model"]["sparse_coding"] else "without sparse coding"
    versions = ", ".join(f"{key} {value}" for key, value in study["versions"].items())
    lines = [
        f"# {escape_markdown(settings['model']['aggregator'])} {coded}",
        "",
        f"{_purpose(study)} {count_parameters(model)} parameters.",
        "",
        *_training_data(study, facts, answers),
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


def _purpose(study: Page) -> str:
    """Return the sentence on what the model predicts."""
    names = ", ".join(map(escape_markdown, study["classes"]))
    kinds = {
        "survival": "A model of the time to an event (`{time}`, `{event}`): its answer is a risk.",
        "regression": "A model of a number: {names}.",
        "ordinal": "A model of {count} ordered grades: {names}.",
        "multilabel": "A model of {count} labels: {names}.",
        "combined": "A model of several targets at once, with {count} answers: {names}.",
    }
    sentence = kinds.get(study.get("task", ""), "A classifier of {count} classes: {names}.")
    columns = {
        key: escape_markdown(str(study.get("target", {}).get(key, ""))) for key in ("time", "event")
    }
    return sentence.format(count=len(study["classes"]), names=names, **columns)


def _selection(study: Page) -> str:
    """Return the line on the epoch that was chosen, and the threshold or cut-off."""
    if "task" not in study:
        return (
            f"- epoch {study['best_epoch']} of {study['epochs']} has the best validation AUC; the "
            f"threshold {study['threshold']:.4g} was chosen on the validation split too"
        )
    score = MAIN_METRICS[study["task"]].name
    line = f"- epoch {study['best_epoch']} of {study['epochs']} has the best validation {score}"
    if study["cut_off"] is None:
        return line
    return f"{line}; a risk above {study['cut_off']:.4g}, the median of the training split, is high"


def _training_data(study: Page, facts: BagSummary, answers: Answers) -> list[str]:
    """Return the lines on the bags, their provenance and their split."""
    provenance = ", ".join(
        f"{escape_markdown(key)} {escape_markdown(value)}"
        for key, value in study["contract"].items()
    )
    sizes = ", ".join(f"{name} {len(ids)}" for name, ids in study["split"].items())
    return [
        "## Training data",
        "",
        f"- {len(facts.sizes)} bags ({answers.composition()}); median number of instances per bag: "
        f"{facts.median}",
        f"- provenance: {provenance}; bags with another provenance are rejected",
        *_licence_lines(study),
        f"- split by patient, stratified by {STRATA.get(study.get('task', ''), 'class')}: {sizes}",
        _selection(study),
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
    for metric, estimate in metrics[split][level].items():
        if not isinstance(estimate, dict):  # numbers of slides and patients
            continue
        value, low, high = (
            "–" if number is None else f"{number:.3f}" for number in estimate.values()
        )
        name = metric_name(metric) if "task" in metrics else metric.replace("_", " ")
        lines.append(f"| {escape_markdown(name)} | {value} | {low} to {high} |")
    lines += ["", f"Intervals: {metrics['intervals'].rstrip('.')}."]
    for row in metrics.get("cross_validation", []):
        name = f"{row['repeats']} x {row['folds']} folds, {row.get('level', 'slide')}s"
        of_classes = "task" not in metrics
        shown = CLASS_METRICS if of_classes else shown_metrics(metrics)
        scores = fold_estimates(row, methods=of_classes, shown=shown)
        lines += ["", f"Cross-validation ({name}): {scores}."]
    return lines


def _licence_lines(study: Page) -> list[str]:
    """Return the line on the encoder's licence; models of earlier versions do not record it."""
    licence = study.get("encoder_licence")
    if not licence:
        return []
    name, sentence = escape_markdown(licence["encoder"]), escape_markdown(licence["sentence"])
    return [f"- licence of the encoder {name}: {sentence}"]
