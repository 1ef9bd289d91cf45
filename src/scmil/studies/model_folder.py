"""The files of a model folder: their names, readers and writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any

from scmil.bags.targets import target_from_json
from scmil.core.limits import Bound, bounded, check_overlap
from scmil.core.tables import read_json
from scmil.errors import DataError, ModelFileError
from scmil.models.answers import answer_names

FORMAT = "scmil-study-1"
STUDY = "study.json"
FINITE = Bound(-1e300, 1e300)
# Called with what is being done, how much of it is done, and all of it.
Progress = Callable[[str, int, int], None]
Page = dict[str, Any]


def counter(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    """A callback for a loop that only counts; it reports what is counted, and how much there is."""
    return None if progress is None else lambda done: progress(what, done, total)


def read_page(path: Path) -> Page:
    """A JSON file of a model folder."""
    try:
        return dict(read_json(path))
    except (OSError, TypeError, ValueError) as error:
        raise ModelFileError(
            f"{path}: not readable as JSON ({error}). Copy the folder again, or train the model "
            "again."
        ) from None


def joins_patients(study: Page) -> bool:
    """Whether the model was trained with all slides of a patient as one bag."""
    return bool(study["settings"].get("data", {}).get("patient") == "joined")


def check_study(path: Path, study: Page, classes: int, dim: int | None) -> None:
    """Raise an error if `study.json` is incomplete, or has a value that no model has.

    `classes` and `dim` are those of the model itself.
    """
    try:
        _check_classes_and_split(study, classes)
        if study["threshold"] is not None:
            bounded("threshold", study["threshold"], "threshold")
        if study.get("temperature") is not None:
            bounded("temperature", study["temperature"], "temperature")
        _check_provenance(study["contract"])
        if study["scaling"] is not None:
            check_scaling(study["scaling"], dim)
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelFileError(
            f"{path}: incomplete or wrong ({type(error).__name__} {error}). Train the model again."
        ) from None
    except DataError as error:
        raise ModelFileError(
            f"{path}: {str(error).rstrip('.')}. Copy the folder again, or train the model again."
        ) from None


def _check_classes_and_split(study: Page, classes: int) -> None:
    names, split = study["classes"], study["split"]
    aggregator = study["settings"]["model"]["aggregator"]
    if study.get("target") is not None:
        _check_target(study)
    elif not _are_names(names) or len(names) != classes:
        raise DataError(f"classes are not the names of {classes} classes")
    if not isinstance(aggregator, (str, dict)) or not isinstance(split, dict):
        raise DataError("split or settings have a wrong type")
    if not all(map(_are_names, split.values())):
        raise DataError("split does not consist of lists of slide names")


def _check_target(study: Page) -> None:
    target = target_from_json(study["target"])
    if list(answer_names(target)) != study["classes"] or study["task"] != target.task:
        raise DataError("task, target and classes do not agree")
    if study["cut_off"] is not None and not FINITE.holds(study["cut_off"]):
        raise DataError("cut_off is not a finite number")


def _are_names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _check_provenance(contract: Page) -> None:
    """How the bags of the training were made."""
    bounded("dim", contract["dim"], "contract")
    for key in ("encoder", "encoder_digest"):
        if not isinstance(contract.get(key, ""), (str, NoneType)):
            raise DataError(f"contract: {key} is not a string")
    for key in ("size_px", "mpp", "overlap_px"):
        if contract.get(key) is not None:
            bounded(key, contract[key], "contract")
    check_overlap(contract.get("size_px") or 2**13, contract.get("overlap_px") or 0, "contract")


def check_scaling(scaling: Page, dim: int | None) -> None:
    """Raise DataError if a recorded scaling is not `dim` finite means and deviations."""
    for key in ("mean", "deviation"):
        values = scaling[key]
        if len(values) != (dim or len(values)) or not all(map(FINITE.holds, values)):
            raise DataError(f"scaling: {key} is not {dim} finite numbers")
    if not all(scaling["deviation"]):
        raise DataError("scaling: a deviation is 0")
