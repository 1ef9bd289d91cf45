"""Apply a model to new bags or slides, and refuse those that were made in another way than its own."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scmil.errors import BagError, DataError, ModelFileError, OptionError, ShapeError, WeightsError
from scmil.limits import bounded
from scmil.stats.metrics import decide
from scmil.outputs import Outputs
from scmil.studies.plan import TABLES
from scmil.studies.model_folder import FORMAT, STUDY, Page, Progress, check_study, read_page, table_bytes
from scmil.studies.model_metrics import Numbers
from scmil.bags.checks import differences

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.encoding.encoders import Encoder
    from scmil.models.model import MILModel

RANDOM = re.compile(r"(?P<name>.+), random weights of seed (?P<seed>\d{1,18})", re.DOTALL)


@dataclass(frozen=True)
class Predicted:
    """What a model says of new bags: a row each, and the bags that failed with their causes."""

    rows: list[Page]
    failed: dict[str, str]


def load_study(folder: str | Path) -> tuple[MILModel, Page]:
    """A model that `train` has written, and what is known of it."""
    from scmil.models.files import load_model

    path = Path(folder) / STUDY
    if not path.is_file():
        raise ModelFileError(
            f"{path} is not there. Is {folder} a model of `scmil train`, and is its training finished? The same command "
            "goes on where it was stopped."
        )
    study = read_page(path)
    if study.get("format") != FORMAT:
        raise ModelFileError(f"{path}: format {study.get('format')!r}, and this version reads {FORMAT!r}.")
    model = load_model(folder)
    check_study(path, study, int(model.spec["classes"]) if model.spec else 0, model.dim)
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
    """Apply a model to bags, one at a time, and write a CSV. Bags made in another way than the model's are refused.

    A bag that cannot be read is written down in `failures.csv` beside `out`, and the others go on. A table that this did not
    write is rejected, unless `overwrite`.
    """
    from scmil.training.fit import predict
    from scmil.core.jobs.work import Ledger, one_of_many

    if out is not None:
        outputs_of(Path(out), overwrite)  # before the work
    model, study = load_study(folder)
    rows: list[Page] = []
    failed: dict[str, str] = {}
    foreign: list[ShapeError] = []
    for position, id in enumerate(bags.ids):
        with one_of_many(id, failed):
            bag = bags[position]
            with noted(foreign):
                check_contract(study, bag, folder)
            bag = scaled(bag, study)
            [p] = predict(model, [bag], device=device).double().numpy()
            if not np.isfinite(p).all():
                raise BagError(f"bag {id!r}: the model gives NaN. Its features are too large, or damaged.")
            rows.append(_row(study, bag, p))
        if progress:
            progress(position + 1)
    raise_if_all(foreign, len(bags))
    if out is not None:
        out = Path(out)
        columns = ["slide_id", "case_id", "y_pred", *(f"p_{name}" for name in study["classes"])]
        outputs_of(out, overwrite).write(out, table_bytes(rows, columns))
        ledger = Ledger(out.parent)
        for id, cause in failed.items():
            ledger.add(id, "predict", cause)
        good = {row["slide_id"] for row in rows}
        for failure in [each for each in ledger.read() if each.stage == "predict" and each.slide in good]:
            ledger.clear(failure.slide, failure.stage)
    return Predicted(rows, failed)


def outputs_of(out: Path, overwrite: bool) -> Outputs:
    """The record of the folder of a table of predictions; another's file in its place is rejected."""
    outputs = Outputs(out.parent, "predict", overwrite)
    outputs.check(out)
    return outputs


@contextmanager
def noted(foreign: list[ShapeError]) -> Iterator[None]:
    """Keep the ShapeError of a bag that was made otherwise than the model's, for `raise_if_all`."""
    try:
        yield
    except ShapeError as error:
        foreign.append(error)
        raise


def raise_if_all(foreign: Sequence[ShapeError], bags: int) -> None:
    """Where no bag at all fits a model, the folder is the wrong one: that is one error, and not a failure for each bag."""
    if foreign and len(foreign) == bags:
        raise foreign[0]


def scaled(bag: Bag, study: Mapping[str, Any]) -> Bag:
    """The bag as the model wants it: with the means and deviations of the training, if there are any."""
    import torch

    if (scaling := study["scaling"]) is None:
        return bag
    x = bag.features
    mean, deviation = (torch.tensor(scaling[key], dtype=torch.float64).to(x.dtype) for key in ("mean", "deviation"))
    return replace(bag, features=(x - mean) / deviation)


def _row(study: Page, bag: Bag, p: Numbers) -> Page:
    classes = study["classes"]
    said = classes[int(decide(p[None], study["threshold"])[0])]
    return {"slide_id": bag.id, "case_id": bag.patient or "", "y_pred": said} | {
        f"p_{name}": f"{value:.7g}" for name, value in zip(classes, p, strict=True)
    }


def are_slides(paths: Sequence[Path]) -> bool:
    """Whether these are slides to be encoded, and not a folder of bags or a table.

    >>> are_slides([Path("a.svs"), Path("b.svs")]), are_slides([Path("bags.csv")])
    (True, False)
    """
    from scmil.bags.formats import detect
    from scmil.slides import find_slides

    if len(paths) > 1:
        return True
    [path] = paths
    if not path.is_dir():
        return path.suffix not in TABLES
    try:
        detect(path)
    except DataError:
        return bool(find_slides(path))
    return False


def open_bags_to_predict(paths: Sequence[Path], *, key: str | None = None, format: str | None = None) -> BagSet:
    """Bags without labels, from a folder of any format or a table."""
    from scmil.bags.datasets import load_dataset

    return load_dataset(Path(paths[0]), key=key, format=format)


def check_contract(study: Mapping[str, Any], bag: Bag, folder: str | Path = "the model") -> None:
    """Refuse a bag that was made otherwise than those that the model has learned from, and say how to make it again."""
    contract = study["contract"]
    found = differences(contract, bag)
    if (dim := bag.features.shape[1]) != contract["dim"]:
        found.insert(0, f"{dim}-dimensional features instead of {contract['dim']}")
    if found:
        encoder, size, mpp = (contract.get(key) for key in ("encoder", "size_px", "mpp"))
        options = "".join(
            f" --{option} {shlex.quote(str(value))}"
            for option, value in (("encoder", encoder), ("size", size), ("mpp", mpp))
            if value
        )
        remedy = (
            f"scmil encode SLIDES{options} --out WORK" if options else "with the encoder that made the training bags"
        )
        raise ShapeError(
            f"bag {bag.id!r} has {', '.join(found)}, the bags of {folder}. Encode the slides again: {remedy}"
        )


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
    """Tile and encode slides as the model's bags were made; the bags that came of it, and the slides that failed.

    The encoder is the one that the model names. It is taken from this computer: a model may be a stranger's, and what it
    names is not fetched. With `encoder`, the same name given by the user, its weights may be downloaded.
    """
    from scmil.encoding.cohort import Source, TileSettings, bags_folder, encode_slides, find_cohort, tile_slides
    from scmil.bags.formats import open_bags
    from scmil.core.jobs.work import Ledger

    _, study = load_study(folder)
    contract = study["contract"]
    if missing := [key for key in ("encoder", "size_px", "mpp") if contract.get(key) is None]:
        raise DataError(
            f"{folder} does not know how its bags were made ({', '.join(missing)} not recorded), so slides cannot be encoded "
            "for it. Encode them with the tool that made the training bags, and give the folder of bags."
        )
    network = _encoder_of(folder, contract["encoder"], encoder, weights, device)
    if contract.get("encoder_digest") not in (None, network.digest):
        raise ShapeError(
            f"the weights of {network.name!r} here are not those of the training bags (digest {network.digest[:12]} instead "
            f"of {contract['encoder_digest'][:12]}). Name the file of the right ones: --weights."
        )
    sources: list[Source] = [source for slide in slides for source in find_cohort(slide, mpp_of)]
    settings = TileSettings(contract["size_px"], contract["mpp"], contract.get("overlap_px") or 0, preset=preset)
    scales = 2 if contract.get("scales_mpp") else 1
    rejected = set(tile_slides(sources, work, settings, retry_failed=True).failed)

    def tell(slide: str, done: int, total: int) -> None:
        if progress:
            progress(f"encoding {slide}, tiles", done, total)

    only = [source.id for source in sources]
    good = [id for id in only if id not in rejected]
    encode_slides(work, network, only=good, scales=scales, retry_failed=True, on_tiles=tell)
    failed = {failure.slide: failure.cause for failure in Ledger(work).read() if failure.slide in only}
    place = bags_folder(work, network.name, scales)
    if set(only) <= set(failed):
        return None, failed
    bags = open_bags(place, "scmil")
    return bags.subset([id for id in bags.ids if id in only and id not in failed]), failed


def _encoder_of(folder: str | Path, named: str, given: str | None, weights: str | Path | None, device: str) -> Encoder:
    """The encoder that a model names: from this computer, or, if the user gives the same name, from the network too."""
    from scmil.encoding.encoders import load_encoder, names
    from scmil.encoding.encoders.timm_any import is_architecture

    if given is not None and given != named:
        raise OptionError(f"--encoder {given!r}: {folder} was trained on features of {named!r}. Give that, or nothing.")
    drawn = RANDOM.fullmatch(named)
    name, seed = (drawn["name"], bounded("seed", int(drawn["seed"]), folder)) if drawn else (named, None)
    again = f"--encoder {shlex.quote(named)}"
    if given is None and name not in names() and not is_architecture(name):
        raise WeightsError(
            f"{folder} names the encoder {named!r}, which is not one of this computer (scmil ls encoders), and what a model "
            f"names is not fetched. If you know it and trust it, name it yourself: {again}"
        )
    try:
        return load_encoder(name, weights, offline=None if given else True, random=seed, device=device)
    except WeightsError as error:
        if given is not None or weights is not None:
            raise
        raise WeightsError(
            f"{folder} names the encoder {named!r}, and what a model names is not downloaded unasked. Name it yourself: "
            f"{again}; or its file: --weights FILE. {error}"
        ) from None
