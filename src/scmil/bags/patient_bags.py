"""All slides of a patient as one bag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from scmil.bags.bag import Bag, BagSet
from scmil.bags.slide_ids import slide_id
from scmil.bags.target_bags import with_targets
from scmil.bags.targets import Targets, merge_values, values_differ
from scmil.core.fingerprint import Mark, sha256_of_json
from scmil.core.text import first_names
from scmil.errors import DataError
from scmil.stats.groups import group_positions

# How the slides of a patient are used: one bag of all tiles, or one bag per slide whose predictions
# are averaged, or of which the largest counts.
PATIENT_MODES = ("joined", "mean", "max")
GAP = 1024  # pixels between the slides of a patient, so that no tiles of two slides are neighbours


def join_slides(bags: BagSet) -> BagSet:
    """Join the slides of each patient to one bag, whose id is the patient.

    Slides without a patient stay as they are. Positions of the second and further slides are
    moved to the right, so that slides do not overlap; they are None if a slide has none.

    Args:
        bags: Slides with patients.

    Returns:
        The bags of the patients; their features are read when a bag is accessed.

    Raises:
        DataError: No patient is known, or slides of one patient have different labels or values.

    >>> slides = [Bag(name, torch.ones(2, 3), 1, patient="p") for name in ("a", "b")]
    >>> joined = join_slides(BagSet([*slides, Bag("c", torch.zeros(1, 3), 0)]))
    >>> joined.ids, joined.labels, joined[0]
    (('p', 'c'), (1, 0), Bag('p', 4 x 3, label=1))
    """
    if all(patient is None for patient in bags.patients):
        raise DataError(
            "the slides of a patient cannot be joined, because no patient is known. Add a column "
            "case_id to the labels, or omit --patient joined."
        )
    groups = group_positions(bags.patients)
    members = {
        bags.ids[positions[0]] if isinstance(patient, tuple) else patient: positions
        for patient, positions in groups.items()
    }
    _check_same_labels(bags, members, "joined", "--patient joined")

    def load(patient: str) -> Bag:
        return _join([bags[position] for position in members[patient]], patient)

    def mark(patient: str, before: Mark | None) -> Mark:
        marks = [bags.mark(bags.ids[position]) for position in members[patient]]
        return Mark(f"joined:{sha256_of_json([each.token for each in marks])}")

    first = {patient: positions[0] for patient, positions in members.items()}
    patients = [bags.patients[position] for position in first.values()]
    labels = [bags.labels[position] for position in first.values()]
    joined = BagSet.lazy(members, load, labels, patients, bags.classes, mark)
    if bags.targets is None:
        return joined
    targets = bags.targets
    values = tuple(
        merge_values(targets.target, [targets.of(bags.ids[position]) for position in positions])
        for positions in members.values()
    )
    own = Targets(targets.target, tuple(members), values, tuple(patients))
    # A cohort to test need not be one to learn from; that of a training is checked by slide.
    return with_targets(joined, replace(own, columns=bags.targets.columns), check=False)


def with_patients(bags: BagSet, patients: Mapping[str, str | None]) -> BagSet:
    """The same bags without labels, with other patients.

    Args:
        bags: Slides.
        patients: The patient of each slide, by `slide_id`; None or no entry if it is unknown.

    >>> found = with_patients(BagSet([Bag("a.svs", torch.zeros(1, 3))]), {"a": "p"})
    >>> found.patients, found[0].patient
    (('p',), 'p')
    """
    own = {bag_id: patients.get(slide_id(bag_id)) for bag_id in bags.ids}
    positions = {bag_id: position for position, bag_id in enumerate(bags.ids)}

    def load(bag_id: str) -> Bag:
        return replace(bags[positions[bag_id]], label=None, patient=own[bag_id])

    return BagSet.lazy(bags.ids, load, None, own.values(), bags.classes, bags.mark)


def check_values_of_patients(bags: BagSet, mode: str) -> None:
    """Raise if predictions of the slides of a patient cannot be combined to one of the patient.

    Args:
        bags: Slides with values of another task than classes.
        mode: "mean" or "max".

    Raises:
        DataError: Slides of a patient have different values, where none is missing.
    """
    members = {
        str(patient): positions
        for patient, positions in group_positions(bags.patients).items()
        if not isinstance(patient, tuple)
    }
    _check_same_labels(bags, members, "counted as one", f"--patient {mode}")


def _check_same_labels(bags: BagSet, members: dict[str, list[int]], verb: str, option: str) -> None:
    """Raise if slides of one patient have different labels or values."""

    def differ(positions: list[int]) -> bool:
        if bags.targets is None:
            return len({bags.labels[position] for position in positions}) > 1
        values = [bags.targets.of(bags.ids[position]) for position in positions]
        return values_differ(bags.targets.target, values)

    mixed = [patient for patient, positions in members.items() if differ(positions)]
    if mixed:
        raise DataError(
            f"{len(mixed)} patients have slides with different labels ({first_names(mixed)}), so "
            f"their slides cannot be {verb}. Correct the table, or omit {option}."
        )


def _join(slides: list[Bag], patient: str) -> Bag:
    if len({slide.features.shape[1] for slide in slides}) > 1:
        raise DataError(
            f"the slides of patient {patient!r} have features of different dimensions. Encode all "
            "slides with one encoder."
        )
    xy = None
    if all(slide.xy is not None for slide in slides):
        columns: list[Tensor] = []
        right = 0
        for slide in slides:
            assert slide.xy is not None
            shifted = slide.xy.clone()
            if columns:  # the first slide keeps its positions
                shifted[:, 0] += right + GAP - int(slide.xy[:, 0].min())
            columns.append(shifted)
            side = int(slide.provenance.get("side_level0") or 0)
            right = int(shifted[:, 0].max()) + side
        xy = torch.cat(columns)
    labelled = all(slide.instance_labels is not None for slide in slides)
    return replace(
        slides[0],
        id=patient,
        features=torch.cat([slide.features for slide in slides]),
        instance_labels=torch.cat([s.instance_labels for s in slides]) if labelled else None,  # type: ignore[misc]
        xy=xy,
        provenance=_common_provenance(slides),
    )


def _common_provenance(slides: list[Bag]) -> dict[str, object]:
    """What all slides have in common: what belongs to one slide is left out."""
    first = slides[0].provenance
    return {
        key: value
        for key, value in first.items()
        if all(slide.provenance.get(key) == value for slide in slides)
    }
