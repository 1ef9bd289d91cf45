"""Another cohort for a trained model: its bags with the classes or the target of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scmil.bags.checks import labelled
from scmil.bags.class_names import comparable_label
from scmil.bags.datasets import load_dataset, words_of
from scmil.bags.labels import read_labels
from scmil.bags.patient_bags import join_slides, with_patients
from scmil.bags.target_tables import TargetColumns, read_targets
from scmil.bags.target_types import ordered_names
from scmil.bags.targets import (
    CombinedTarget,
    GradeTarget,
    LabelsTarget,
    PartTarget,
    SurvivalTarget,
    Target,
    Targets,
    target_from_json,
)
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError
from scmil.studies.model_folder import Page, joins_patients

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet


JOINED = (
    "The model was trained with all slides of a patient as one bag (--patient joined), and so is "
    "this cohort: where slides are counted, these are patients."
)


@dataclass(frozen=True)
class CohortOptions:
    """How the bags and labels of a cohort are read; the options of `scmil train`."""

    label: str | None = None
    key: str | None = None
    format_name: str | None = None
    missing: str | None = None
    drop_unlabelled: bool = False
    time: str | None = None
    event: str | None = None
    event_value: str | None = None


@dataclass(frozen=True)
class LabelledCohort:
    """Bags with labels: classes of the model, or the values of another target."""

    bags: BagSet
    targets: Targets | None = None
    notes: tuple[str, ...] = ()


def open_cohort(
    study: Page, bags: str | Path, labels: str | Path | None, options: CohortOptions
) -> LabelledCohort:
    """Open another cohort for a model, and check its labels before any bag is read.

    Args:
        study: `study.json` of the model.
        bags: A folder in any format, or a table that has its labels.
        labels: A table of labels.
        options: Columns and formats.

    Returns:
        The bags that have a label.

    Raises:
        DataError: A label is not a class of the model, or bags have no label.
    """
    if "target" in study:
        found = _open_targets(target_from_json(study["target"]), bags, labels, options)
    else:
        found = _open_classes(study, bags, labels, options)
    return _join_patients(found) if joins_patients(study) else found


def _join_patients(cohort: LabelledCohort) -> LabelledCohort:
    """One bag of all slides of each patient, as the model was trained."""
    bags = slides = cohort.bags
    if cohort.targets is not None:
        positions = {bag_id: position for position, bag_id in enumerate(slides.ids)}
        bags = type(bags).lazy(
            bags.ids,
            lambda bag_id: slides[positions[bag_id]],
            bags.labels,
            bags.patients,
            bags.classes,
            bags.mark,
            cohort.targets,
        )
    joined = join_slides(bags)
    return LabelledCohort(joined, joined.targets, (*cohort.notes, JOINED))


def _open_classes(
    study: Page, bags: str | Path, labels: str | Path | None, options: CohortOptions
) -> LabelledCohort:
    """Bags with the classes of the model."""
    _check_no_times(options, "class")
    classes = list(study["classes"])
    notes: tuple[str, ...] = ()
    if Path(bags).is_dir() and labels is not None:
        from scmil.bags.formats import open_bags

        words = words_of(options.missing)
        table = read_labels(labels, label=options.label, classes=classes, missing=words)
        found = open_bags(bags, options.format_name, table, key=options.key)
        notes = tuple(table.notes)
    else:
        found = load_dataset(
            Path(bags),
            labels=labels,
            label=options.label,
            key=options.key,
            format=options.format_name,
            missing=options.missing,
        )
    return _labelled(_with_classes(found, classes), labels, options, notes)


def _with_classes(bags: BagSet, classes: Sequence[str]) -> BagSet:
    """The same bags, with the classes of a model."""
    known = {comparable_label(name): number for number, name in enumerate(classes)}
    own = [known.get(comparable_label(name)) for name in bags.classes]
    used = {label for label in bags.labels if label is not None}
    if unknown := [bags.classes[label] for label in sorted(used) if own[label] is None]:
        raise DataError(
            f"the cohort has the classes {first_names(unknown)}, but the model predicts "
            f"{', '.join(classes)}. Rename the classes in the table of labels, or choose its "
            "column with --label."
        )
    labels = [None if label is None else own[label] for label in bags.labels]
    of_id = dict(zip(bags.ids, labels, strict=True))
    positions = {bag_id: position for position, bag_id in enumerate(bags.ids)}

    def load(bag_id: str) -> Bag:
        return replace(bags[positions[bag_id]], label=of_id[bag_id])

    return type(bags).lazy(bags.ids, load, labels, bags.patients, classes, bags.mark)


def _labelled(
    bags: BagSet, labels: str | Path | None, options: CohortOptions, notes: tuple[str, ...]
) -> LabelledCohort:
    missing = [bag_id for bag_id, label in zip(bags.ids, bags.labels, strict=True) if label is None]
    return LabelledCohort(
        labelled(bags), None, notes + _check_unlabelled(missing, bags, labels, options)
    )


def _check_unlabelled(
    missing: Sequence[str], bags: BagSet, labels: str | Path | None, options: CohortOptions
) -> tuple[str, ...]:
    """Raise if bags have no label, unless they are to be left out, which is noted."""
    if len(missing) == len(bags):
        table = "and no table of labels was given" if labels is None else f"in {labels}"
        raise DataError(
            f"none of the {len(bags)} bags has a label {table}: bags have names such as "
            f"{first_names(bags.ids)}. Names must agree except for folders and suffixes."
        )
    if missing and not options.drop_unlabelled:
        raise DataError(
            f"bags without a label ({len(missing)} of {len(bags)}): {first_names(missing, 10)}. "
            "Label them, or leave them out: --drop-unlabelled."
        )
    if not missing:
        return ()
    return (f"{len(missing)} of {len(bags)} bags have no label and are left out.",)


def _open_targets(
    target: Target, bags: str | Path, labels: str | Path | None, options: CohortOptions
) -> LabelledCohort:
    """Bags with the values of a target that is not a class."""
    from scmil.bags.formats import open_bags

    if labels is None:
        raise DataError(
            f"the model predicts the task {target.task!r}, which needs a table of labels. Give it "
            "after the bags."
        )
    words = words_of(options.missing) or ()
    targets = read_targets(labels, _tasks_of(target), _columns(target, options), missing=words)
    opened = open_bags(bags, options.format_name, key=options.key)
    known = set(targets.known)
    missing = [bag_id for bag_id in opened.ids if targets.of(bag_id) is None]
    notes = targets.notes + _check_unlabelled(missing, opened, labels, options)
    kept = opened.subset([bag_id for bag_id in opened.ids if bag_id not in set(missing)])
    own = replace(targets, target=target) if known else targets
    patients = dict(zip(own.ids, own.patients, strict=True))
    return LabelledCohort(with_patients(kept, patients), own, notes)


def _check_no_times(options: CohortOptions, task: str) -> None:
    """Raise OptionError if columns of survival are named for a model of another task."""
    if given := [name for name in ("time", "event", "event_value") if getattr(options, name)]:
        raise OptionError(
            f"--{given[0].replace('_', '-')} is for the task 'survival', and the model predicts "
            f"the task {task!r}. Omit it."
        )


def _columns(target: Target, options: CohortOptions) -> TargetColumns:
    """The columns of the training, or those that the user names for another table."""
    if isinstance(target, CombinedTarget):
        return _columns_of_parts(target, options)
    if isinstance(target, SurvivalTarget):
        return _columns_of_times(target, options)
    _check_no_times(options, target.task)
    named = words_of(options.label) or []
    if isinstance(target, LabelsTarget):
        if named and len(named) != len(target.names):
            raise OptionError(
                f"--label names {len(named)} columns, and the model predicts {len(target.names)} "
                f"labels: {', '.join(target.names)}. Name a column for each, in this order."
            )
        return TargetColumns(label=named or list(target.names))
    grades = target.grades if isinstance(target, GradeTarget) else None
    return TargetColumns(label=named or [target.name], grades=grades)


def _columns_of_times(target: SurvivalTarget, options: CohortOptions) -> TargetColumns:
    return TargetColumns(
        time=options.time or target.time,
        event=options.event or target.event,
        event_value=options.event_value,
    )


def _columns_of_parts(target: CombinedTarget, options: CohortOptions) -> TargetColumns:
    """The columns of all parts, with the grades and classes of the model."""
    times = [part for part in target.parts if isinstance(part, SurvivalTarget)]
    if not times:
        _check_no_times(options, ", ".join(part.task for part in target.parts))
    expected = [name for part in target.parts for name in _label_columns(part)]
    named = words_of(options.label) or expected
    if len(named) != len(expected):
        raise OptionError(
            f"--label names {len(named)} columns, and the model was trained with {len(expected)}: "
            f"{', '.join(expected)}. Name a column for each, in this order."
        )
    column = dict(zip(expected, named, strict=True))
    ordered = {
        column[name]: names
        for part in target.parts
        if (names := ordered_names(part))
        for name in _label_columns(part)
    }
    columns = _columns_of_times(times[0], options) if times else TargetColumns()
    return replace(columns, label=named, ordered=ordered)


def _label_columns(part: PartTarget) -> tuple[str, ...]:
    if isinstance(part, SurvivalTarget):
        return ()
    return part.names if isinstance(part, LabelsTarget) else (part.name,)


def _tasks_of(target: Target) -> str:
    """The task, or that of each column of several targets, as `--task` has them."""
    if not isinstance(target, CombinedTarget):
        return target.task
    return ",".join(
        task for part in target.parts for task in [part.task] * (len(_label_columns(part)) or 1)
    )
