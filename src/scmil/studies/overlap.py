"""Slides of a cohort that a model has been trained on: by ids, and by features."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from scmil.bags.slide_ids import slide_id
from scmil.bags.slide_sketch import Codes, is_copy, matching_tiles, stack_rows
from scmil.core.text import printable
from scmil.errors import DataError
from scmil.studies.model_folder import Page
from scmil.studies.training_fingerprint import Fingerprint, KnownSlide

FITTED = ("train", "valid")  # splits from which weights, epoch and threshold come
MOST_LISTED = 20  # slides that a message names


@dataclass(frozen=True)
class Overlap:
    """A slide that was used in the training of a model.

    Attributes:
        slide: The slide of the new cohort.
        patient: Its patient.
        known: The slide of the training, the first of several.
        known_patient: The patient of that slide.
        split: The split of that slide.
        reasons: Why it is the same slide or patient.
    """

    slide: str
    patient: str | None
    known: str
    known_patient: str | None
    split: str | None
    reasons: tuple[str, ...]

    @property
    def was_fitted(self) -> bool:
        """Whether the model was fitted to it; slides of the internal test split were not."""
        return self.split in FITTED or self.split is None

    def to_json(self) -> Page:
        """The row of `overlap.csv`."""
        return {
            "slide_id": self.slide,
            "case_id": self.patient or "",
            "training_slide": self.known,
            "training_case": self.known_patient or "",
            "split": self.split or "",
            "reasons": "; ".join(self.reasons),
        }


def find_overlap(cohort: Fingerprint, training: Fingerprint) -> list[Overlap]:
    """Find the slides of a cohort that were used in the training of a model.

    Slides are compared by id, by a digest of the slide file, by a digest of the features and by
    their sketch; patients by id. All slides of a patient of whom one slide is found are listed.

    Args:
        cohort: The fingerprint of the cohort, made with the scaling of the training.
        training: The fingerprint of the training.

    Returns:
        One entry per slide, in the order of the cohort. A slide that matches fitted slides and
        slides of the internal test split is listed with a fitted one.
    """
    index = _Index.of(training)
    matches = {slide.id: match for slide in cohort.slides if (match := index.find(slide))}
    by_patient = {
        slide.patient: matches[slide.id][0]
        for slide in reversed(cohort.slides)
        if slide.patient and slide.id in matches
    }
    found = []
    for slide in cohort.slides:
        known, reasons = matches.get(slide.id, (None, ()))
        same = index.patients.get(slide.patient) if slide.patient else None
        if same is not None:
            reasons += ("same patient id",)
        known = known or same or by_patient.get(slide.patient or "")
        if known is None:
            continue
        reasons = reasons or ("another slide of this patient is in the training",)
        found.append(
            Overlap(slide.id, slide.patient, known.id, known.patient, known.split, reasons)
        )
    return found


def check_overlap_allowed(found: Sequence[Overlap], slides: int) -> None:
    """Raise if slides of a cohort were used to fit a model.

    Raises:
        DataError: The message lists them, and how to continue.
    """
    leaks = [each for each in found if each.was_fitted]
    if not leaks:
        return
    lines = [
        f"\n  {printable(each.slide)}"
        + (f" (patient {printable(each.patient)})" if each.patient else "")
        + f": {printable(each.known)} of the {_split_name(each.split)}; "
        + printable("; ".join(each.reasons))
        for each in leaks[:MOST_LISTED]
    ]
    rest = f"\n  … and {len(leaks) - MOST_LISTED} more" * (len(leaks) > MOST_LISTED)
    raise DataError(
        f"{len(leaks)} of {slides} slides of this cohort were used to train the model, so that "
        "their metrics would be biased upwards. Leave them out with --exclude-overlap, or evaluate "
        "them with --allow-overlap, which puts a warning on the page. If two hospitals use the "
        "same numbers for different patients or slides, add a prefix to those of one hospital."
        f"{''.join(lines)}{rest}"
    )


def _split_name(split: str | None) -> str:
    return {"train": "training split", "valid": "validation split"}.get(split or "", "training")


@dataclass(frozen=True)
class _Index:
    """The slides of a training, those of the internal test split last, by what identifies them."""

    slides: tuple[KnownSlide, ...]
    patients: Mapping[str, KnownSlide]
    names: Mapping[str, list[int]]  # positions by "reason: value"
    sketched: tuple[int, ...]
    rows: Codes  # of the sketches
    training: Fingerprint

    @classmethod
    def of(cls, training: Fingerprint) -> _Index:
        slides = tuple(sorted(training.slides, key=lambda slide: slide.split == "test"))
        names: dict[str, list[int]] = {}
        for position, slide in enumerate(slides):
            for reason in _identities(slide):
                names.setdefault(reason, []).append(position)
        sketched = [i for i, slide in enumerate(slides) if slide.sketch is not None]
        return cls(
            slides,
            {slide.patient: slide for slide in reversed(slides) if slide.patient},
            names,
            tuple(sketched),
            stack_rows([sketch for slide in slides if (sketch := slide.sketch)]),
            training,
        )

    def find(self, slide: KnownSlide) -> tuple[KnownSlide, tuple[str, ...]] | None:
        """The first slide of the training that is this one, and all reasons."""
        reasons: dict[int, list[str]] = {}
        for name in _identities(slide):
            for position in self.names.get(name, ()):
                reasons.setdefault(position, []).append(name.partition(": ")[0])
        for position, matching in self._copies(slide):
            own = reasons.setdefault(position, [])
            if "same features" not in own:
                own.append(f"{matching} sampled tiles have the same features")
        first = min(reasons, default=None)
        return None if first is None else (self.slides[first], tuple(reasons[first]))

    def _copies(self, slide: KnownSlide) -> Iterator[tuple[int, int]]:
        """The slides of the training whose sketch agrees, and in how many tiles."""
        own, deviation = slide.sketch, self.training.deviation
        if own is None or deviation is None:
            return
        matching = matching_tiles(own, self.rows, deviation)
        for place in np.flatnonzero(matching).tolist():
            position, count = self.sketched[place], int(matching[place])
            other = self.slides[position].sketch
            if other and is_copy(count, own, other, deviation, self.training.typical):
                yield position, count


def _identities(slide: KnownSlide) -> list[str]:
    """What is the same for two copies of a slide, each with the reason in front."""
    values = {
        "same slide id": slide_id(slide.id),
        "same slide file": slide.slide_digest,
        "same features": slide.content,
    }
    return [f"{reason}: {value}" for reason, value in values.items() if value is not None]
