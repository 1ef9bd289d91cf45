"""`training_fingerprint.json` of a model folder: by what its training slides are recognised.

For each slide: id, patient, split, class, number of tiles, a digest of the features, a sketch of
them (`scmil.bags.slide_sketch`) and how they were made. For all of them: mean and standard
deviation of each feature. `scmil test` compares another cohort with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from scmil.bags.audit_facts import fingerprint
from scmil.bags.provenance import comparable
from scmil.bags.scaling import Scaling, streamed_moments
from scmil.bags.slide_sketch import CODES, Sketch, Sketcher, typical_matches
from scmil.bags.splits import Split
from scmil.core.atomic import write_atomically
from scmil.core.jobs.failure_log import record_failure
from scmil.core.limits import Bound
from scmil.core.shapes import Numbers
from scmil.errors import DataError, ModelFileError
from scmil.models.predictions_file import read_training_slides
from scmil.studies.model_folder import FINITE, Page, read_page

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet

FINGERPRINT = "training_fingerprint.json"
FORMAT = "scmil-training-fingerprint-1"
FACTS = ("encoder", "vendor", "scanner", "objective", "slide_mpp", "mpp", "size_px")
LONGEST_FACT = 200  # characters
COUNT = Bound(0, 2**40, whole=True)


@dataclass(frozen=True)
class KnownSlide:
    """A slide as `scmil test` compares it; what is unknown is None or empty."""

    id: str
    patient: str | None = None
    split: str | None = None
    label: str | None = None
    tiles: int | None = None
    content: str | None = None  # digest of the features, rounded to 16 bits, in any order
    slide_digest: str | None = None  # of the file of the slide
    facts: Mapping[str, str] = field(default_factory=dict)
    sketch: Sketch | None = None

    def to_json(self) -> Page:
        """The slide as JSON; `from_json` reads it."""
        page = asdict(replace(self, sketch=None))
        return page | {"sketch": None if self.sketch is None else self.sketch.to_json()}

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> KnownSlide:
        """Read what `to_json` returned.

        Raises:
            DataError: If a value is of a wrong type.
        """
        texts = {name: page[name] for name in ("patient", "split", "label", "content")}
        texts["slide_digest"] = page["slide_digest"]
        facts = dict(page["facts"])
        if not isinstance(page["id"], str) or not all(
            value is None or isinstance(value, str) for value in texts.values()
        ):
            raise DataError("the id or a property of a slide is not text")
        if not all(isinstance(value, str) for pair in facts.items() for value in pair):
            raise DataError("a property of a slide is not text")
        if page["tiles"] is not None and not COUNT.holds(page["tiles"]):
            raise DataError("a number of tiles is not a whole number")
        sketch = None if page["sketch"] is None else Sketch.from_json(page["sketch"])
        return cls(page["id"], **texts, tiles=page["tiles"], facts=facts, sketch=sketch)


@dataclass(frozen=True)
class Fingerprint:
    """A cohort as `scmil test` compares it.

    Attributes:
        slides: The slides.
        scaling: Mean and standard deviation of each feature over the tiles of the training split;
            None if features were not recorded.
        deviation: Standard deviation of the codes of the sketches.
        typical: Tiles that bags of different patients typically have in common, see
            `typical_matches`.
        means: The mean features of the slides of each split.
    """

    slides: tuple[KnownSlide, ...]
    scaling: Scaling | None = None
    deviation: Numbers | None = None
    typical: int = 0
    means: Mapping[str, Numbers] = field(default_factory=dict)

    def to_json(self) -> Page:
        """The fingerprint as JSON; `from_json` reads it."""
        return {
            "format": FORMAT,
            "scaling": None if self.scaling is None else _rounded_list(self.scaling.to_json()),
            "deviation": [] if self.deviation is None else self.deviation.round(3).tolist(),
            "typical": self.typical,
            "means": _rounded_list({name: mean.tolist() for name, mean in self.means.items()}),
            "slides": [slide.to_json() for slide in self.slides],
        }

    @classmethod
    def from_json(cls, page: Mapping[str, Any]) -> Fingerprint:
        """Read what `to_json` returned.

        Raises:
            DataError: If a value is of a wrong type or not finite.
        """
        if page["format"] != FORMAT:
            raise DataError(f"format {page['format']!r}, but this version reads {FORMAT!r}")
        lists = [page["deviation"], *page["means"].values(), *page["scaling"].values()]
        if not all(FINITE.holds(number) for numbers in lists for number in numbers):
            raise DataError("a mean or a deviation is not a finite number")
        scaling = Scaling.from_json(page["scaling"])
        if len({len(numbers) for numbers in lists[1:]}) != 1 or len(lists[0]) != CODES:
            raise DataError("means and deviations are not of one dimension")
        if not COUNT.holds(page["typical"]) or not bool((scaling.deviation > 0).all()):
            raise DataError("a deviation is 0, or a number is not whole")
        return cls(
            tuple(KnownSlide.from_json(slide) for slide in page["slides"]),
            scaling,
            np.array(lists[0], float),
            page["typical"],
            {name: np.array(mean, float) for name, mean in page["means"].items()},
        )


def fingerprint_cohort(
    bags: BagSet,
    parts: Mapping[str, tuple[int, ...]],
    scaling: Scaling,
    progress: Callable[[int], None] | None = None,
    check: Callable[[Bag], None] | None = None,
) -> tuple[Fingerprint, dict[str, str]]:
    """Read bags, one at a time, and return what is compared of them.

    Args:
        bags: The bags.
        parts: Positions of the bags of each split.
        scaling: The scale of the features for which the sketches are made.
        progress: Called with the number of bags that were read.
        check: Raises if a bag cannot be used.

    Returns:
        The fingerprint, whose `typical` is that of these bags; and the bags that cannot be read or
        used, with the causes.
    """
    sketcher, slides = Sketcher(scaling), []
    totals: dict[str, Numbers] = {}
    failed: dict[str, str] = {}
    order = [(name, position) for name, own in parts.items() for position in own]
    for done, (name, position) in enumerate(order):
        with record_failure(bags.ids[position], failed):
            bag = bags[position]
            if check:
                check(bag)
            label = None if bag.label is None else bags.classes[bag.label]
            slides.append(_known(bag, name, label, sketcher))
            mean = _mean_features(bag)
            totals[name] = totals.get(name, np.zeros_like(mean)) + mean
        if progress:
            progress(done + 1)
    deviation = sketcher.deviation()
    sketches = [slide.sketch for slide in slides if slide.sketch is not None]
    counts = Counter(slide.split for slide in slides)
    found = Fingerprint(
        tuple(slides),
        scaling,
        deviation,
        typical_matches(sketches, [slide.patient for slide in slides], deviation),
        {name: total / counts[name] for name, total in totals.items()},
    )
    return found, failed


def write_fingerprint(
    folder: Path, bags: BagSet, split: Split, progress: Callable[[int], None] | None = None
) -> None:
    """Write the fingerprint of the bags of a training into its model folder."""
    parts = {name: own for name, own in split._asdict().items() if own}
    scaling = streamed_moments(bags.subset(split.train))
    found, failed = fingerprint_cohort(bags, parts, scaling, progress)
    for bag_id, cause in failed.items():  # they have just been trained on
        raise DataError(f"bag {bag_id!r} cannot be read: {cause}. Repeat the command.")
    text = json.dumps(found.to_json(), separators=(",", ":"))
    write_atomically(folder / FINGERPRINT, text.encode())


def read_fingerprint(folder: Path, study: Page) -> Fingerprint:
    """Read the fingerprint of a model; of an earlier version, ids, patients and classes alone.

    Raises:
        ModelFileError: The file is damaged, or of another model.
    """
    path = folder / FINGERPRINT
    split_of = {slide: name for name, slides in study["split"].items() for slide in slides}
    if not path.is_file():
        known = read_training_slides(folder)
        return Fingerprint(
            tuple(
                KnownSlide(slide, row.patient, name, row.label)
                if (row := known.get(slide))
                else KnownSlide(slide, None, name)
                for slide, name in split_of.items()
            )
        )
    try:
        found = Fingerprint.from_json(read_page(path))
        if {slide.id: slide.split for slide in found.slides} != split_of:
            raise DataError("its slides are not those of study.json")
    except (KeyError, TypeError, AttributeError, ValueError, DataError) as error:
        raise ModelFileError(
            f"{path}: incomplete or wrong ({type(error).__name__}: {str(error).rstrip('.')}). "
            "Copy the model folder again, or train the model again."
        ) from None
    return found


def _known(bag: Bag, split: str, label: str | None, sketcher: Sketcher) -> KnownSlide:
    digest = bag.provenance.get("slide_digest")
    return KnownSlide(
        bag.id,
        bag.patient,
        split,
        label,
        len(bag.features),
        fingerprint(bag.features.detach().cpu())[1].hex(),
        digest if isinstance(digest, str) else None,
        {
            key: str(comparable(bag.provenance[key]))[:LONGEST_FACT]
            for key in FACTS
            if bag.provenance.get(key) is not None
        },
        sketcher.sketch(bag.features) if len(bag.features) else None,
    )


def _mean_features(bag: Bag) -> Numbers:
    return np.asarray(bag.features.mean(0, dtype=torch.float64).numpy())


def _rounded_list(lists: Mapping[str, list[float]]) -> dict[str, list[float]]:
    return {name: [float(f"{value:.6g}") for value in values] for name, values in lists.items()}
