"""The state of a model folder: empty, started or finished, and with which settings and data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from scmil.core.fingerprint import Inputs
from scmil.core.outputs import check_unclaimed
from scmil.errors import ConfigError, OptionError
from scmil.models.predictions_file import PREDICTIONS
from scmil.studies.ensemble import ENSEMBLE
from scmil.studies.model_folder import STUDY, Page, read_page
from scmil.studies.run_inputs import read_inputs
from scmil.studies.training_fingerprint import FINGERPRINT

STARTED, INPUTS = "begun.json", "inputs.json"
CHECKPOINT, CROSS = "checkpoint.safetensors", "cross-validation"
FILES = (
    "model.safetensors",
    "history.csv",
    PREDICTIONS,
    "metrics.json",
    "MODEL_CARD.md",
    "report.html",
    CROSS,
    FINGERPRINT,
    ENSEMBLE,
)


def is_finished(
    out: Path, settings: Page, inputs: Inputs, resume: bool
) -> tuple[bool, tuple[str, ...]]:
    """Whether the model exists, and notes.

    Raises an error if the folder has a model, finished or not, with other settings or other data.
    """
    record = next((out / name for name in (STUDY, STARTED) if (out / name).is_file()), None)
    if record is None or (
        record.name == STARTED and not any((out / name).exists() for name in (CHECKPOINT, CROSS))
    ):
        _check_new_folder(out, must_exist=resume and record is None)
        return False, ()
    page = read_page(record)
    before, now = page.get("settings", page), json.loads(json.dumps(settings))
    remedy = "Choose another --out, or add --overwrite to replace the model."
    recorded = (before.get("data") or {}).get("inputs")
    if recorded is None:  # of a version that recorded ids, labels and patients alone
        del now["data"]["inputs"]
    elif recorded != inputs.digest:
        changes = "; ".join(_changes_since(inputs, recorded, out / INPUTS))
        raise ConfigError(f"{out} was trained on other data: {changes}. {remedy}")
    if differing := [key for key in now if before.get(key) != now[key]]:
        changes = "; ".join(f"{key} was {before.get(key)}, now {now[key]}" for key in differing)
        raise ConfigError(f"{out} was started with other settings: {changes}. {remedy}")
    note = (
        f"{out} was trained by a version that did not record its features. It is not known whether "
        "they have changed since."
    )
    return record.name == STUDY, (note,) if recorded is None else ()


def _check_new_folder(out: Path, must_exist: bool) -> None:
    """Raise an error if a new training cannot start in the folder."""
    if must_exist:
        raise OptionError(
            f"--resume: {out} has no interrupted training. Omit --resume to start a new one."
        )
    if any((out / name).exists() for name in ("model.json", CHECKPOINT)):
        raise ConfigError(
            f"{out} has a model that was not started by this command. Choose another --out."
        )
    check_unclaimed(out, STARTED, FILES, "train")


def _changes_since(inputs: Inputs, digest: str, record: Path) -> list[str]:
    """How the inputs differ from those with this digest, as far as that is recorded."""
    known = read_inputs(record)
    if known is None or known.digest != digest:
        return ["its digest differs"]
    return inputs.changes_since(known)


def delete_model(out: Path) -> None:
    """Delete the files that mark a model as started or finished; the others are overwritten."""
    for name in (STUDY, STARTED, CHECKPOINT, INPUTS, "model.json"):
        (out / name).unlink(missing_ok=True)
    for name in (CROSS, ENSEMBLE):
        shutil.rmtree(out / name, ignore_errors=True)
