"""Train one model to keep: split by patient, chosen on a validation part, tested on patients that it has not seen."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.training import baseline
from scmil.studies import runner as experiment
from scmil.errors import ConfigError, DataError, OptionError, OutputError
from scmil.core.files import utf8, write_atomically
from scmil.fingerprint import Inputs
from scmil.stats.metrics import decide, youden_threshold
from scmil.outputs import check_unclaimed
from scmil.studies.plan import TRAINING_KEYS, build, check_model, make_plan, recipe_of
from scmil.run_inputs import read_inputs, write_inputs
from scmil.bags.splits import Split, check_split, holdout, with_validation
from scmil.studies.model_card import card
from scmil.studies.data import Data
from scmil.studies.model_folder import FORMAT, STUDY, Page, Progress, read_page, told, write_csv, write_json
from scmil.studies.model_metrics import Numbers, metrics_of_parts
from scmil.bags.checks import Survey, patients_of, scaled, streamed_moments, survey
from scmil.core.jobs.work import locked

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet

BEGUN, INPUTS = "begun.json", "inputs.json"
CHECKPOINT, CROSS = "checkpoint.safetensors", "cross-validation"
FILES = ("model.safetensors", "history.csv", "predictions.csv", "metrics.json", "MODEL_CARD.md", "report.html", CROSS)
PATIENCE = 20  # epochs without a better one: the official recipes for slides have 40 to 200


@dataclass(frozen=True)
class Trained:
    """A finished model folder: what `metrics.json` and `study.json` say, and notes for the user."""

    out: Path
    study: Page
    metrics: Page
    notes: tuple[str, ...] = ()


def train(
    data: Data,
    out: str | Path,
    *,
    aggregator: str = "abmil-gated",
    sparse_coding: bool | Mapping[str, Any] = False,
    recipe: str = "official",
    epochs: int | None = None,
    patience: int | None = PATIENCE,
    folds: int | None = None,
    repeats: int = 1,
    valid: float = 0.2,
    test: float = 0.2,
    class_weights: str | Sequence[float] | None = None,
    device: str = "cpu",
    precision: str = "float32",
    seed: int = 0,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Trained:
    """Train one model, tested on patients that it has not seen, and write its folder; stopped, it goes on where it was.

    The bags are split by patient, stratified by class. The model is that of the epoch with the best validation AUC, and its
    threshold is chosen on the validation part. With `folds`, a cross-validation says how good such models are, and the
    model itself learns from all bags but the validation part. A folder whose model was trained with other settings or on
    other data is rejected; with `overwrite` its model is replaced.
    """
    from scmil.training.fit import check_precision, weigh_classes

    out = Path(out)
    training = {"recipe": recipe, "patience": patience, "epochs": epochs}
    weights = class_weights if class_weights is None or isinstance(class_weights, str) else list(class_weights)
    inputs = _inputs(data.bags, out / INPUTS)
    settings: Page = {
        "data": {**data.table, "bags": _digest_of(data.bags), "inputs": inputs.digest},
        "model": {"aggregator": aggregator, "sparse_coding": sparse_coding, "refine": None, "embed": None},
        "training": {key: value for key, value in training.items() if value is not None},
        "split": {
            "valid": valid,
            "test": None if folds else test,
            "folds": folds,
            "repeats": repeats if folds else None,
        },
        "class_weights": weights,
        "device": device,
        "precision": precision,
        "seed": seed,
    }
    if aggregator == baseline.NAME:
        raise OptionError(f"aggregator {baseline.NAME!r} is an arm of `scmil compare`; a model to keep is a network.")
    split = _split(data.bags, valid, None if folds else test, seed)
    # All of these are refused before anything is written.
    check_precision(precision)
    weigh_classes(weights, data.bags.labels, len(data.bags.classes))
    check_model(settings["model"])
    work = _Work(data, out, settings, inputs, recipe_of(settings), split, progress)
    finished, notes = (False, ()) if overwrite else _is_finished(out, settings, inputs, resume)
    if not finished:
        facts = survey(data.bags, told(progress, "looking at bags", len(data.bags)))
        with locked(out / BEGUN, wait=False) as ours:  # for the whole training: of two at once, one would be lost
            if not ours:
                raise OutputError(
                    f"another training into {out} is running. Wait for its end, or give --out another folder."
                )
            if overwrite:
                _remove_model(out)
            if (
                overwrite or not _is_finished(out, settings, inputs, resume=False)[0]
            ):  # by another process, since we looked
                _train(work, facts)
    return Trained(out, read_page(out / STUDY), read_page(out / "metrics.json"), notes)


@dataclass(frozen=True)
class _Work:
    data: Data
    out: Path
    settings: Page
    inputs: Inputs
    recipe: Any
    split: Split
    progress: Progress | None


def _train(work: _Work, facts: Survey) -> None:
    """Fit, predict all bags, and write the folder."""
    from scmil.models.files import save_model
    from scmil.report import write_model_page
    from scmil.training.fit import fit, predict, weigh_classes

    write_inputs(work.out / INPUTS, work.inputs)
    write_json(work.out / BEGUN, work.settings)
    cross = _cross_validate(work) if work.settings["split"]["folds"] else None
    bags, split, settings, scaling = work.data.bags, work.split, work.settings, None
    if work.data.table["standardise"]:
        scaling = streamed_moments(bags.subset(split.train))
        bags = scaled(bags, *scaling)
    model = build(settings["model"], facts.dim, len(bags.classes), seed=settings["seed"])
    history = fit(
        model, bags.subset(split.train), bags.subset(split.valid), work.recipe, seed=settings["seed"],
        progress=told(work.progress, "training, epochs", work.recipe.epochs), checkpoint=work.out / CHECKPOINT,
        class_weights=weigh_classes(settings["class_weights"], bags.subset(split.train).labels, len(bags.classes)),
        device=settings["device"], precision=settings["precision"],
    )  # fmt: skip
    p = predict(model, bags, device=settings["device"]).double().numpy()
    if changes := work.data.bags.inputs(work.inputs).changes_since(work.inputs):
        raise DataError(
            f"the data changed while the model was trained: {'; '.join(changes)}. Train again with --overwrite."
        )
    labels, inner = np.array(bags.labels, np.int64), list(split.valid)
    threshold = float(youden_threshold(labels[inner], p[inner, 1])) if p.shape[1] == 2 else 0.5
    metrics = metrics_of_parts(bags, split, labels, p, threshold) | ({"cross_validation": cross} if cross else {})
    study: Page = {
        "format": FORMAT,
        "classes": list(bags.classes),
        "threshold": threshold,
        "contract": {"dim": facts.dim, **facts.contract},
        "scaling": None if scaling is None else {"mean": scaling[0].tolist(), "deviation": scaling[1].tolist()},
        "settings": settings,
        "recipe": asdict(work.recipe),
        "best_epoch": history.best_epoch,
        "epochs": len(history.train_loss),
        "split": {name: [bags.ids[i] for i in part] for name, part in split._asdict().items()},
        "notes": list(work.data.notes),
        "label_table_sha256": _digest(work.data.table.get("labels")),
        "versions": experiment.versions(),
    }
    save_model(model, work.out)
    write_csv(work.out / "history.csv", _history_rows(asdict(history)))
    write_csv(work.out / "predictions.csv", _prediction_rows(bags, split, labels, p, threshold))
    write_json(work.out / "metrics.json", metrics)
    write_atomically(work.out / "MODEL_CARD.md", utf8(card(model, study, metrics, facts, labels)))
    write_json(work.out / STUDY, study)
    write_model_page(work.out)
    for name in (CHECKPOINT, BEGUN):
        (work.out / name).unlink(missing_ok=True)


def _inputs(bags: BagSet, record: Path) -> Inputs:
    """What the model is made from; where a bag cannot be read, the error names all bags that cannot."""
    try:
        return bags.inputs(read_inputs(record))
    except DataError:
        survey(bags)
        raise


def _split(bags: BagSet, valid: float, test: float | None, seed: int) -> Split:
    groups = patients_of(bags)
    if test is None:
        return with_validation(Split(tuple(range(len(bags))), ()), list(bags.labels), valid, seed, groups)
    split = holdout(list(bags.labels), test, valid, seed, groups)
    check_split(split, bags.ids, groups)
    return split


def _is_finished(out: Path, settings: Page, inputs: Inputs, resume: bool) -> tuple[bool, tuple[str, ...]]:
    """Whether the model is there, and notes; a folder that was begun with something else is rejected."""
    begun = next((out / name for name in (STUDY, BEGUN) if (out / name).is_file()), None)
    if begun is None or (begun.name == BEGUN and not any((out / name).exists() for name in (CHECKPOINT, CROSS))):
        if resume and begun is None:
            raise OptionError(f"--resume: {out} has no training that could go on. Leave --resume out to begin one.")
        if any((out / name).exists() for name in ("model.json", CHECKPOINT)):
            raise ConfigError(f"{out} has a model that this command did not begin. Give --out another folder.")
        check_unclaimed(out, BEGUN, FILES, "train")
        return False, ()
    page = read_page(begun)
    before, now = page.get("settings", page), json.loads(json.dumps(settings))
    remedy = "Give --out another folder, or add --overwrite to replace the model."
    recorded = (before.get("data") or {}).get("inputs")
    if recorded is None:  # of a version that recorded ids, labels and patients alone
        del now["data"]["inputs"]
    elif recorded != inputs.digest:
        known = read_inputs(out / INPUTS)
        changes = inputs.changes_since(known) if known and known.digest == recorded else ["its digest is another"]
        raise ConfigError(f"{out} was trained on other data: {'; '.join(changes)}. {remedy}")
    if differing := [key for key in now if before.get(key) != now[key]]:
        said = "; ".join(f"{key} was {before.get(key)}, now {now[key]}" for key in differing)
        raise ConfigError(f"{out} was begun with other settings: {said}. {remedy}")
    old = f"{out} is of a version that did not record its features: whether they have changed since is not known."
    return begun.name == STUDY, (old,) if recorded is None else ()


def _remove_model(out: Path) -> None:
    """Delete what says that a model is here, finished or not; its other files are written again."""
    for name in (STUDY, BEGUN, CHECKPOINT, INPUTS, "model.json"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / CROSS, ignore_errors=True)


def _cross_validate(work: _Work) -> list[Page]:
    """How good models of this kind are: the same recipe over the folds, into a folder of its own."""
    settings = work.settings
    own = {key: settings["split"][key] for key in ("folds", "repeats", "valid")}
    document = {
        "title": f"{work.data.name} · cross-validation",
        "data": work.data.table,
        "protocol": {**own, "seed": settings["seed"], "selection": ["nested"]},
        "model": settings["model"],
        "training": settings["training"]
        | {key: settings[key] for key in TRAINING_KEYS if settings[key] not in (None, "cpu", "float32")},
    }
    plan = make_plan(document, "cross-validation")
    outcome = experiment.run(plan, work.out / CROSS, jobs=1, progress=work.progress)
    if outcome.failed:
        raise DataError(f"the cross-validation failed: {next(iter(outcome.failed.values()))}")
    return list(read_page(experiment.cell_folder(outcome.out, plan.cells[0]) / experiment.RESULT)["rows"])


def _history_rows(history: Mapping[str, Sequence[float]]) -> list[Page]:
    return [
        {"epoch": epoch + 1} | {name: f"{values[epoch]:.6g}" for name, values in history.items() if values}
        for epoch in range(len(history["train_loss"]))
    ]


def _prediction_rows(bags: BagSet, split: Split, labels: NDArray[np.int64], p: Numbers, threshold: float) -> list[Page]:
    part = {position: name for name, own in split._asdict().items() for position in own}
    said = decide(p, threshold)
    return [
        {
            "slide_id": bags.ids[i],
            "case_id": bags.patients[i] or "",
            "part": part[i],
            "y_true": bags.classes[labels[i]],
            "y_pred": bags.classes[said[i]],
            **{f"p_{name}": f"{value:.7g}" for name, value in zip(bags.classes, p[i], strict=True)},
        }
        for i in sorted(part, key=lambda i: (Split._fields.index(part[i]), i))
    ]


def _digest_of(bags: BagSet) -> str:
    """Which bags have which labels: another table is another study."""
    return hashlib.sha256(json.dumps([bags.ids, bags.labels, bags.patients, bags.classes]).encode()).hexdigest()


def _digest(path: str | None) -> str | None:
    return None if path is None else hashlib.sha256(Path(path).read_bytes()).hexdigest()
