"""Bags and labels as a user names them, checked before any bag is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.bags.audit_checks import without_bag
from scmil.bags.checks import check_classes, labelled
from scmil.bags.datasets import words_of
from scmil.bags.label_records import columns_json, describe_inferred
from scmil.bags.labels import Labels, read_labels
from scmil.bags.patient_bags import PATIENT_MODES, join_slides
from scmil.bags.slide_ids import slide_id
from scmil.core.text import first_names
from scmil.errors import DataError, OptionError, ScmilError
from scmil.studies.config import TABLES, standardised_by_default
from scmil.studies.data_sites import site_note
from scmil.studies.run_inputs import load_bags
from scmil.studies.settings import DataSettings, TaskOptions
from scmil.studies.target_data import CLASS, read_data_targets

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.bags.targets import Targets


@dataclass(frozen=True)
class Data:
    """The bags of a user, the settings that name them, and notes on what is left out."""

    settings: DataSettings
    bags: BagSet
    notes: tuple[str, ...] = ()
    columns: Mapping[str, Any] = field(default_factory=dict)  # of the label table, as JSON values

    @property
    def name(self) -> str:
        """A short name, for folders and titles."""
        return Path(self.settings.dataset).stem


def open_data(
    bags: str | Path,
    labels: str | Path | None = None,
    *,
    label: str | None = None,
    key: str | None = None,
    format_name: str | None = None,
    data: Path | None = None,
    missing: str | None = None,
    drop_unlabelled: bool = False,
    standardise: bool | None = None,
    task: TaskOptions | None = None,
    patient: str | None = None,
    site: str | None = None,
) -> Data:
    """Open bags with their labels, and check the labels before any bag is read.

    Args:
        bags: A folder in any format, a table that has its labels, or the name of a data set, of
            which the first letters suffice.
        labels: A table of labels.
        label: The column of the labels; several, separated by commas, for several labels.
        key: The encoder, if a folder has features of several.
        format_name: The format of a folder, if it is not detected.
        data: A folder with data sets.
        missing: Words for a missing label, separated by commas: see `read_labels`.
        drop_unlabelled: Whether bags without a label are left out.
        standardise: Whether features are standardised; by default those of a folder are not.
        task: What is predicted, if it is not a class or cannot be inferred from the table. The
            settings of the result name the task, unless it is a class.
        patient: How the slides of a patient are used, one of `PATIENT_MODES`: "joined" to one bag,
            or as bags of their own whose predictions are averaged ("mean", the default) or of which
            the largest counts ("max").
        site: The column of the label table whose slides stay together in test splits.

    Returns:
        The bags, and notes on what was left out.

    Raises:
        DataError: There are no such bags, or nothing can be learned from the labels.

    >>> open_data("ucsb").settings.to_json()
    {'dataset': 'ucsb-breast-cancer', 'standardise': True}
    """
    name = _dataset_name(str(bags))
    settings = DataSettings(
        name,
        standardised_by_default(name) if standardise is None else standardise,
        labels=None if labels is None else str(labels),
        label=label,
        key=key,
        format=format_name,
        missing=missing,
        drop_unlabelled=drop_unlabelled or None,
        patient=patient,
        site=site,
        **asdict(task or TaskOptions()),
    )
    if patient not in (None, *PATIENT_MODES):
        raise OptionError(f"patient = {patient!r}. Known: {', '.join(PATIENT_MODES)}.")
    if (found := read_data_targets(settings, data)) is not None:
        return _open_target_data(settings, found, data)
    everyone = load_bags(replace(settings, drop_unlabelled=None, patient=None), data)
    kept = labelled(everyone) if drop_unlabelled else everyone
    if patient == "joined":
        kept = join_slides(kept)
    is_folder = Path(name).is_dir()
    if is_folder and labels is None and not any(label is not None for label in everyone.labels):
        raise DataError(
            f"{name}: the bags have no labels. Give a table with the columns case_id, slide_id, "
            "label, or similar ones."
        )
    check_classes(kept)
    dropped = len(everyone) - len(labelled(everyone)) if drop_unlabelled else 0
    notes: tuple[str, ...] = ()
    if dropped:
        notes += (f"{dropped} of {len(everyone)} bags have no label and are left out.",)
    notes += site_note(settings, kept)
    columns: dict[str, Any] = {}
    if is_folder and labels is not None:
        table = read_labels(labels, label=label, missing=words_of(missing))
        notes += _notes(table, everyone)
        columns = columns_json(table.columns)
    return Data(settings, kept, notes, columns)


def _open_target_data(settings: DataSettings, targets: Targets, data: Path | None) -> Data:
    """Open bags with values of another task than classes."""
    settings = replace(settings, task=settings.task or targets.task)
    joined = settings.patient == "joined"
    slides = load_bags(replace(settings, patient=None if joined else settings.patient), data)
    bags = join_slides(slides) if joined else slides
    notes, ids = targets.notes, {*map(slide_id, slides.ids)}
    if lost := [slide for slide in targets.known if slide not in ids]:
        notes += (_without_bag(lost, len(targets)),)
    return Data(settings, bags, notes, columns_json(targets.columns))


def _without_bag(lost: Sequence[str], slides: int) -> str:
    return f"labelled slides without a bag ({len(lost)} of {slides}): {first_names(lost)}."


def _notes(table: Labels, bags: BagSet) -> tuple[str, ...]:
    """What was merged in the table of labels, and which of its slides have no bag."""
    lost = without_bag(table, bags.ids)
    if not lost:
        return tuple(table.notes)
    return (*table.notes, _without_bag(lost, len(table)))


def _dataset_name(name: str) -> str:
    """The name of a data set in full; a path stays as it is."""
    from scmil.bags import datasets

    if datasets.split_options(name)[0] in datasets.names():
        return name
    if Path(name).exists() or Path(name).suffix in TABLES or not name:
        return name
    if len(near := [known for known in datasets.names() if known.startswith(name)]) == 1:
        return near[0]
    if Path(name).name == name:
        datasets.registry.entry(name)  # raises an error with the nearest name
    raise DataError(
        f"{name}: there is no such folder, table or data set. Names of data sets: scmil ls datasets"
    )


def inferred_columns(settings: Iterable[DataSettings]) -> tuple[str, ...]:
    """Return a note for each column that scmil infers in the label tables of these settings.

    Args:
        settings: `[data]` of each run of an experiment; a table that several runs use is read once.

    Returns:
        One note per inferred column; none for a table that cannot be read, which the run reports.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "labels.csv")
    >>> _ = path.write_text("slide_id,lable\\ns1,a\\ns2,b\\n")
    >>> inferred_columns([DataSettings("bags", False, labels=str(path))] * 2)
    ("labels.csv: label column: 'lable' (inferred).",)
    """
    known = list(settings)
    notes = _notes_of_tasks(each for each in known if each.task not in (None, CLASS))
    of_class = (each for each in known if each.task in (None, CLASS) and each.labels)
    tables = {(each.labels, each.label, each.missing) for each in of_class}
    for labels, label, missing in sorted(tables, key=str):
        try:
            table = read_labels(str(labels), label=label, missing=words_of(missing))
        except ScmilError:
            continue
        lines = describe_inferred(table.columns)
        notes += [f"{Path(str(labels)).name}: {line}." for line in lines]
    return tuple(notes)


def _notes_of_tasks(settings: Iterable[DataSettings]) -> list[str]:
    """The task of each table whose task is not classes, and the columns that scmil infers."""
    notes: list[str] = []
    for each in settings:
        try:
            targets = read_data_targets(each)
        except ScmilError:
            continue
        lines = [f"task: {each.task!r}.", *(targets.notes if targets else ())]
        notes += [f"{Path(each.labels or each.dataset).name}: {line}" for line in lines]
    return list(dict.fromkeys(notes))
