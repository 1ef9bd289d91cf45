"""Apply a model to new bags or slides that were made in the same way as those of its training."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scmil.bags.encoder_names import card_name
from scmil.bags.provenance import check_same_provenance
from scmil.bags.targets import target_from_json
from scmil.core.limits import bounded
from scmil.core.outputs import Outputs
from scmil.core.tables import records_csv
from scmil.errors import BagError, DataError, ModelFileError, OptionError, ShapeError, WeightsError
from scmil.stats.metrics import decide
from scmil.studies.config import TABLES
from scmil.studies.ensemble import FOLD, load_fold_model, predictor_of
from scmil.studies.model_folder import (
    FORMAT,
    STUDY,
    Page,
    Progress,
    check_study,
    read_page,
)
from scmil.studies.model_metrics import Numbers
from scmil.studies.predict_patients import join_to_predict
from scmil.studies.target_metrics import answer_cells

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.encoding.encoders import Encoder
    from scmil.models.model import MILModel
    from scmil.models.objectives import Objective

RANDOM = re.compile(r"(?P<name>.+), random weights of seed (?P<seed>\d{1,18})", re.DOTALL)


@dataclass(frozen=True)
class Predicted:
    """Predictions for new bags, a row for each, and the bags that failed with their causes.

    With several `models`, the answers are their means, and `sd_` their standard deviations. Of a
    model that was trained with one bag per patient, the rows are those of patients, if these are
    known; the `notes` say so.
    """

    rows: list[Page]
    failed: dict[str, str]
    models: int = 1
    notes: tuple[str, ...] = ()


def load_trained_model(folder: str | Path) -> tuple[MILModel, Page]:
    """Read a model folder written by `train`.

    Args:
        folder: The model folder, or the folder of a model of its cross-validation,
            `ensemble/fold_1`.

    Returns:
        The model, and the content of `study.json`; with the threshold, the scaling and the split of
        the fold for a model of a cross-validation.

    Raises:
        ModelFileError: The folder has no finished model, or a file in it is invalid.
    """
    from scmil.models.files import load_model

    path = Path(folder) / STUDY
    if not path.is_file() and (Path(folder) / FOLD).is_file():
        return load_fold_model(folder, *load_trained_model(Path(folder).parent.parent))
    if not path.is_file():
        raise ModelFileError(
            f"{path} does not exist: {folder} is not a model folder of `scmil train`, or its "
            "training is not finished. To finish it, repeat the command that started it."
        )
    study = read_page(path)
    if study.get("format") != FORMAT:
        raise ModelFileError(
            f"{path}: format {study.get('format')!r}, but this version reads {FORMAT!r}. Train the "
            "model again, or use the version of scmil that wrote it."
        )
    model = load_model(folder)
    check_study(path, study, int(model.spec["classes"]) if model.spec else 0, model.dim)
    tasks = (None if model.objective is None else model.objective.task, study.get("task"))
    if len({*tasks}) > 1:
        raise ModelFileError(
            f"{path}: the model is of the task {tasks[0] or 'class'!r}, the study of "
            f"{tasks[1] or 'class'!r}. Copy the folder again, or train the model again."
        )
    return model, study


def predict_folder(
    folder: str | Path,
    bags: BagSet,
    out: str | Path | None = None,
    *,
    device: str = "cpu",
    overwrite: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Predicted:
    """Apply a model to bags, one at a time, and write a table of predictions.

    A bag that cannot be read is listed in `failures.csv` beside the table and skipped. If the model
    was trained with all slides of a patient as one bag, slides with a known patient are joined.

    Args:
        folder: The model folder.
        bags: The bags; those of a table of patients: `patients_from_table`.
        out: The CSV file; None: no file is written.
        device: Where the model runs.
        overwrite: Whether a table that `scmil predict` did not write is replaced.
        progress: Called with the number of bags that are done.

    Returns:
        The predictions, and the bags that failed.

    Raises:
        ShapeError: The provenance of every bag differs from that of the training bags.
        OutputError: `out` is a file of another origin, and `overwrite` is not set.
    """
    from scmil.core.jobs.failure_log import FailureLog, record_failure

    if out is not None:
        outputs_of(Path(out), overwrite)  # before the work
    predictor = predictor_of(folder, *load_trained_model(folder))
    study, slides = predictor.study, len(bags)
    bags, notes = join_to_predict(study, bags)
    rows: list[Page] = []
    failed: dict[str, str] = {}
    foreign: list[ShapeError] = []
    for position, bag_id in enumerate(bags.ids):
        with record_failure(bag_id, failed):
            bag = bags[position]
            with record_mismatch(foreign):
                check_same_provenance(study["contract"], bag, folder)
            p, spread = predictor.predict(bag, device)
            if not np.isfinite(p).all():
                raise BagError(nan_message(bag_id))
            rows.append(
                _row(study, predictor.objective, bag, p)
                | predictor.spread_row(study["classes"], spread)
            )
        if progress:
            progress(slides * (position + 1) // len(bags))
    raise_if_all(foreign, len(bags))
    if out is not None:
        out = Path(out)
        columns = ["slide_id", "case_id", "y_pred", *(f"p_{name}" for name in study["classes"])]
        columns += predictor.spread_columns(study["classes"])
        further = [name for name in (rows[0] if rows else ()) if name not in columns]
        outputs_of(out, overwrite).write(out, records_csv(rows, [*columns, *further]))
        failure_log = FailureLog(out.parent)
        for bag_id, cause in failed.items():
            failure_log.add(bag_id, "predict", cause)
        good = {row["slide_id"] for row in rows}
        for failure in [
            each for each in failure_log.read() if each.stage == "predict" and each.slide in good
        ]:
            failure_log.clear(failure.slide, failure.stage)
    return Predicted(rows, failed, len(predictor.members), notes)


def nan_message(bag_id: str) -> str:
    """Return the message for a bag whose prediction is not finite."""
    return (
        f"bag {bag_id!r}: the prediction is NaN, because its features are too large or corrupt. "
        "Encode the slide again."
    )


def outputs_of(out: Path, overwrite: bool) -> Outputs:
    """The record of outputs beside a table of predictions; foreign files are rejected."""
    outputs = Outputs(out.parent, "predict", overwrite)
    outputs.check(out)
    return outputs


@contextmanager
def record_mismatch(foreign: list[ShapeError]) -> Iterator[None]:
    """Record the ShapeError of a bag with another provenance, for `raise_if_all`."""
    try:
        yield
    except ShapeError as error:
        foreign.append(error)
        raise


def raise_if_all(foreign: Sequence[ShapeError], bags: int) -> None:
    """Raise one error if no bag fits the model: the folder is wrong, not each of its bags."""
    if foreign and len(foreign) == bags:
        raise foreign[0]


def _row(study: Page, objective: Objective | None, bag: Bag, p: Numbers) -> Page:
    first = {"slide_id": bag.id, "case_id": bag.patient or ""}
    if objective is not None:
        target = target_from_json(study["target"])
        return first | answer_cells(target, objective, p, study["cut_off"])
    classes = study["classes"]
    predicted = classes[int(decide(p[None], study["threshold"])[0])]
    return {**first, "y_pred": predicted} | {
        f"p_{name}": f"{value:.7g}" for name, value in zip(classes, p, strict=True)
    }


def are_slides(paths: Sequence[Path]) -> bool:
    """Return whether these are slides to encode, not a folder of bags or a table of bags.

    >>> are_slides([Path("a.svs"), Path("b.svs")]), are_slides([Path("bags.csv")])
    (True, False)
    """
    from scmil.bags.formats import detect_format
    from scmil.slides import find_slides

    if len(paths) > 1:
        return True
    [path] = paths
    if not path.is_dir():
        return path.suffix not in TABLES
    try:
        detect_format(path)
    except DataError:
        return bool(find_slides(path))
    return False


def open_bags_to_predict(
    paths: Sequence[Path], *, key: str | None = None, format_name: str | None = None
) -> BagSet:
    """Open bags without labels, from a folder in any supported format or a table."""
    from scmil.bags.datasets import load_dataset

    return load_dataset(Path(paths[0]), key=key, format=format_name)


def encode_for(
    folder: str | Path,
    slides: Sequence[str | Path],
    work: str | Path,
    *,
    preset: str = "default",
    mpp_of: float | None = None,
    weights: str | Path | None = None,
    encoder: str | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[BagSet | None, dict[str, str]]:
    """Tile and encode slides with the settings and the encoder of the training bags of a model.

    The encoder that a model names must be available on this computer: a model may come from an
    untrusted source, so nothing that it names is downloaded. If the user gives the same name as
    `encoder`, its weights may be downloaded.

    Args:
        folder: The model folder.
        slides: Slides, or folders of slides.
        work: The work folder for tiles and bags.
        preset: Preset of the tissue detection.
        mpp_of: Microns per pixel of slides whose files do not specify it.
        weights: A file with the weights of the encoder.
        encoder: The name of the encoder, which allows its weights to be downloaded.
        device: Where the encoder runs.
        progress: Called with a description, the number of encoded tiles and that of all tiles.

    Returns:
        The bags, or None if all slides failed; and the slides that failed, with their causes.

    Raises:
        DataError: The model does not record how its bags were made.
        ShapeError: The weights differ from those of the training bags.
        WeightsError: The encoder is not available on this computer.
    """
    from scmil.bags.formats import open_bags
    from scmil.core.jobs.failure_log import FailureLog
    from scmil.encoding.cohort import (
        EncodeSettings,
        Source,
        TileSettings,
        bags_folder,
        encode_slides,
        find_cohort,
        tile_slides,
    )

    _, study = load_trained_model(folder)
    contract = study["contract"]
    if missing := [key for key in ("encoder", "size_px", "mpp") if contract.get(key) is None]:
        raise DataError(
            f"{folder} does not record how its bags were made ({', '.join(missing)} missing), so "
            "slides cannot be encoded for it. Encode them with the tool that made the training "
            "bags, and specify the folder of bags."
        )
    # Features of another tool: the card that gives the same numbers.
    named = card_name(contract) or contract["encoder"]
    network = _encoder_of(folder, named, encoder, weights, device)
    if contract.get("encoder_digest") not in (None, network.digest):
        raise ShapeError(
            f"the weights of {network.name!r} on this computer have the digest "
            f"{network.digest[:12]}, but the training bags were encoded with "
            f"{contract['encoder_digest'][:12]}. Specify the file of those weights: --weights FILE."
        )
    sources: list[Source] = [source for slide in slides for source in find_cohort(slide, mpp_of)]
    settings = TileSettings(
        contract["size_px"], contract["mpp"], contract.get("overlap_px") or 0, preset=preset
    )
    scales = 2 if contract.get("scales_mpp") else 1
    rejected = set(tile_slides(sources, work, settings, retry_failed=True).failed)

    def report(slide: str, done: int, total: int) -> None:
        if progress:
            progress(f"encoding {slide}, tiles", done, total)

    only = [source.id for source in sources]
    good = [bag_id for bag_id in only if bag_id not in rejected]
    encode_slides(
        work, network, EncodeSettings(scales=scales), only=good, retry_failed=True, on_tiles=report
    )
    failed = {
        failure.slide: failure.cause for failure in FailureLog(work).read() if failure.slide in only
    }
    if set(only) <= set(failed):
        return None, failed
    bags = open_bags(bags_folder(work, network.name, scales), "scmil")
    return bags.subset(
        [bag_id for bag_id in bags.ids if bag_id in only and bag_id not in failed]
    ), failed


def _encoder_of(
    folder: str | Path, named: str, given: str | None, weights: str | Path | None, device: str
) -> Encoder:
    """Load the encoder that a model names; it is downloaded only if the user gives the same name.

    Args:
        folder: The model folder, for messages.
        named: The name in the model.
        given: The name that the user gives.
        weights: A file with the weights.
        device: Where it runs.
    """
    from scmil.encoding.encoders import load_encoder, names
    from scmil.encoding.encoders.timm_any import is_architecture

    if given is not None and given != named:
        raise OptionError(
            f"--encoder {given!r}: {folder} was trained on features of {named!r}. Specify that "
            "encoder, or omit the option."
        )
    drawn = RANDOM.fullmatch(named)
    name, seed = (
        (drawn["name"], bounded("seed", int(drawn["seed"]), folder)) if drawn else (named, None)
    )
    again = f"--encoder {shlex.quote(named)}"
    if given is None and name not in names() and not is_architecture(name):
        raise WeightsError(
            f"{folder} names the encoder {named!r}, which is not available on this computer (scmil "
            "ls encoders). An encoder that a model names is not downloaded. If you trust it, "
            f"allow the download: {again}"
        )
    try:
        return load_encoder(
            name, weights, offline=None if given else True, random=seed, device=device
        )
    except WeightsError as error:
        if given is not None or weights is not None:
            raise
        raise WeightsError(
            f"{folder} names the encoder {named!r}, whose weights are not on this computer. They "
            f"are downloaded only on request: {again}; or specify the file: --weights FILE. {error}"
        ) from None
