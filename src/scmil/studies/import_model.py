"""Turn a checkpoint of an aggregator's authors into a model folder."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.core.fingerprint import sha256_of_file
from scmil.core.limits import problem
from scmil.core.outputs import Outputs
from scmil.core.tables import read_json
from scmil.core.text import encode_utf8
from scmil.errors import DataError, ModelFileError, OptionError
from scmil.studies import runner
from scmil.studies.model_card import escape_markdown
from scmil.studies.model_folder import FORMAT, STUDY, Page, check_study

if TYPE_CHECKING:
    from scmil.models.official_weights import Choices, Converted

COMMAND, CARD = "import-model", "MODEL_CARD.md"


@dataclass(frozen=True)
class ImportSettings:
    """What a checkpoint does not contain, and the model folder needs.

    Args:
        encoder: The name of the encoder that made the features.
        classes: The names of the classes; their numbers by default.
        size_px: Edge length of the tiles in pixels; not compared if it is not given.
        mpp: Microns per pixel of the tiles; not compared if it is not given.
        threshold: Above it, the second of two classes is predicted; 0.5 by default.
        scaling: A JSON file with `mean` and `deviation` of each feature; none by default.
    """

    encoder: str
    classes: Sequence[str] | None = None
    size_px: int | None = None
    mpp: float | None = None
    threshold: float | None = None
    scaling: str | Path | None = None


@dataclass(frozen=True)
class Imported:
    """A written model folder: `study.json`, and the place of each tensor of the checkpoint."""

    out: Path
    study: Page
    output: str
    tensors: dict[str, str]


def import_model(
    file: str | Path,
    aggregator: str,
    out: str | Path,
    settings: ImportSettings,
    *,
    choices: Choices | None = None,
    overwrite: bool = False,
) -> Imported:
    """Write a model folder that has the weights of a checkpoint, for `predict`, `heatmap` and
    `view`.

    Args:
        file: The checkpoint, a `.safetensors` file or one of `torch.save`. Nothing in it is run.
        aggregator: The name of the aggregator.
        out: The model folder.
        settings: What the checkpoint does not contain.
        choices: Options of the network that no tensor tells.
        overwrite: Whether files are replaced that this command did not write.

    Returns:
        The content of the folder.

    Raises:
        ModelFileError: The file is not a checkpoint of this layout; the message lists the tensors.
        OptionError: A setting does not fit to the checkpoint.
        OutputError: The folder has files of another command.
    """
    from scmil.models.files import model_files
    from scmil.models.official_weights import Choices, convert, read_checkpoint

    out, choices = Path(out), choices or Choices()
    try:
        converted = convert(read_checkpoint(file), aggregator, choices)
    except ModelFileError as error:
        raise ModelFileError(_with_name(file, str(error))) from None
    study = _study(Path(file), converted, aggregator, settings, choices)
    files = {
        **model_files(converted.model),
        CARD: encode_utf8(_card(study, converted)),
        STUDY: encode_utf8(json.dumps(study, indent=2) + "\n"),
    }
    outputs = Outputs(out, COMMAND, overwrite)
    outputs.check(*(out / name for name in files))
    (out / STUDY).unlink(missing_ok=True)  # a folder that has it is finished
    for name, content in files.items():
        outputs.write(out / name, content)
    places = {name: entry.name or "unused" for name, entry in converted.table.items()}
    return Imported(out, study, converted.model.output, places)


def _with_name(file: str | Path, message: str) -> str:
    return message if message.startswith(os.fspath(file)) else f"{file}: {message}"


def _study(
    file: Path, converted: Converted, aggregator: str, settings: ImportSettings, choices: Choices
) -> Page:
    """The content of `study.json`."""
    spec = converted.model.spec or {}
    tiles = {"size_px": settings.size_px, "mpp": settings.mpp}
    for name, value in tiles.items():
        if value is not None and (wrong := problem(name, value)):
            raise OptionError(f"{wrong}.")
    contract = {"dim": spec["dim"], "encoder": settings.encoder} | {
        name: value for name, value in tiles.items() if value is not None
    }
    study = {
        "format": FORMAT,
        "classes": _class_names(settings.classes, int(spec["classes"])),
        "threshold": _threshold(settings.threshold, converted),
        "contract": contract,
        "scaling": _read_scaling(settings.scaling),
        "settings": {
            "model": {key: spec[key] for key in ("aggregator", "sparse_coding", "refine")}
        },
        "split": {},
        "notes": [],
        "imported": {
            "file": file.name,
            "sha256": sha256_of_file(file),
            "aggregator": aggregator,
            "layout": converted.repository,
            "choices": asdict(choices),
        },
        "versions": runner.versions(),
    }
    try:
        check_study(Path(settings.scaling or STUDY), study, spec["classes"], spec["dim"])
    except ModelFileError as error:
        raise OptionError(f"the options do not fit to the checkpoint: {error}") from None
    return study


def _class_names(names: Sequence[str] | None, classes: int) -> list[str]:
    if names is None:
        return [str(number) for number in range(classes)]
    if len(names) != classes or len(set(names)) != classes or not all(names):
        raise OptionError(
            f"--classes {','.join(names)}: the checkpoint has {classes} classes, so {classes} "
            "different names are needed, in the order of its outputs."
        )
    return list(names)


def _threshold(threshold: float | None, converted: Converted) -> float | None:
    """None, the likeliest class, if every class has a probability of its own."""
    several = converted.model.output == "sigmoid"
    if threshold is None:
        return None if several else 0.5
    if several or not 0 <= threshold <= 1 or (converted.model.spec or {})["classes"] != 2:
        raise OptionError(
            f"--threshold {threshold}: a probability from 0 to 1 for the second of two classes is "
            "expected, and this checkpoint has "
            + ("one sigmoid per class." if several else "other classes or the number is outside.")
            + " Omit it: the likeliest class is predicted."
        )
    return threshold


def _read_scaling(path: str | Path | None) -> Page | None:
    if path is None:
        return None
    try:
        page = read_json(Path(path))
        return {key: [float(value) for value in page[key]] for key in ("mean", "deviation")}
    except (OSError, DataError, KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"--scaling {path}: a JSON file with the lists mean and deviation is needed, one "
            f"number for each feature ({type(error).__name__}: {error})."
        ) from None


def _card(study: Page, converted: Converted) -> str:
    """The model card: where the weights come from, and what is not known of them."""
    from scmil.models.cost import count_parameters

    source, contract = study["imported"], study["contract"]
    output: dict[str, Any] = {
        "softmax": "softmax of the logits",
        "sigmoid": "one sigmoid per class; they need not sum to one",
    }
    known = ", ".join(
        f"{escape_markdown(key)} {escape_markdown(value)}" for key, value in contract.items()
    )
    threshold = study["threshold"]
    decision = (
        "the likeliest class is predicted"
        if threshold is None
        else f"threshold {threshold:.4g} for the second class"
    )
    lines = [
        f"# {escape_markdown(source['aggregator'])}, imported",
        "",
        f"Classes: {', '.join(map(escape_markdown, study['classes']))}. "
        f"{count_parameters(converted.model)} parameters.",
        "",
        "## Source",
        "",
        f"- file {escape_markdown(source['file'])}, sha256 {source['sha256']}",
        f"- layout of {escape_markdown(source['layout'])}; "
        f"all {len(converted.table)} tensors were used",
        f"- probabilities: {output[converted.model.output]}; {decision}",
        f"- required features: {known}; bags made otherwise are rejected",
        "",
        "## Limits",
        "",
        "scmil did not train this model. Training data, split and performance are those of its "
        "authors and are not known here. It is a research tool, not a medical device.",
        "",
        ", ".join(f"{key} {value}" for key, value in study["versions"].items()),
        "",
    ]
    return "\n".join(lines)
