"""Train one model to keep: split by patient, selected on a validation split, tested on patients
that it was not trained on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scmil.bags.checks import BagSummary, patients_of, validate_bags
from scmil.bags.in_memory import keep_in_memory
from scmil.bags.splits import Split, check_split, holdout, with_validation
from scmil.core.atomic import write_atomically
from scmil.core.fingerprint import Inputs, sha256_of_file
from scmil.core.jobs.locks import locked
from scmil.core.tables import records_csv, write_json
from scmil.core.text import encode_utf8
from scmil.errors import DataError, OptionError, OutputError
from scmil.models.predictions_file import PREDICTIONS
from scmil.studies import runner
from scmil.studies.answers import Answers, answers_in, check_task
from scmil.studies.data import Data
from scmil.studies.data_sites import holdout_by_site, site_digest, site_groups
from scmil.studies.encoder_licence import licence_of
from scmil.studies.ensemble import check_keep_folds, gather_ensemble, with_ensemble
from scmil.studies.from_settings import build_for_split, check_model, recipe_of
from scmil.studies.model_card import card
from scmil.studies.model_folder import (
    FORMAT,
    STUDY,
    Page,
    Progress,
    counter,
    read_page,
)
from scmil.studies.plan import make_plan
from scmil.studies.run_inputs import read_inputs, write_inputs
from scmil.studies.settings import TRAINING_KEYS, TrainSettings
from scmil.studies.target_temperature import calibrate_target
from scmil.studies.temperature import calibrate_fold
from scmil.studies.train_state import (
    CHECKPOINT,
    CROSS,
    INPUTS,
    STARTED,
    delete_model,
    is_finished,
)
from scmil.studies.training_fingerprint import write_fingerprint
from scmil.training import baseline

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet
    from scmil.models.model import MILModel
    from scmil.training.fold import TrainedFold
    from scmil.training.recipes import Recipe


@dataclass(frozen=True)
class Trained:
    """A finished model folder: `study.json` and `metrics.json`, and notes for the user."""

    out: Path
    study: Page
    metrics: Page
    notes: tuple[str, ...] = ()


def train(
    data: Data,
    out: str | Path,
    settings: TrainSettings | None = None,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Trained:
    """Train one model and write its folder; an interrupted training continues where it stopped.

    The bags are split by patient, stratified by class. The model is that of the epoch with the best
    validation AUC, and its threshold is chosen on the validation split. With `folds`, a
    cross-validation estimates how good such models are, and the model itself is trained on all bags
    but the validation split.

    Args:
        data: The bags with their labels.
        out: The model folder.
        settings: All settings of the model and its training.
        resume: Whether to raise an error if there is no interrupted training.
        overwrite: Whether a model with other settings or data is replaced.
        progress: Called with what is being done, how much of it is done, and all of it.
        **options: Fields of `TrainSettings`, instead of `settings`.

    Returns:
        The content of the model folder.

    Raises:
        ConfigError: The folder has a model with other settings or data.
        OptionError: A setting is invalid.
        OutputError: Another process is training into the folder.
    """
    out, settings = Path(out), settings or TrainSettings(**options)
    data = replace(data, bags=keep_in_memory(data.bags))
    inputs = _inputs(data.bags, out / INPUTS)
    work = _prepare(data, out, settings, inputs, progress)  # before anything is written
    notes: tuple[str, ...] = ()
    finished = False
    if not overwrite:
        finished, notes = is_finished(out, work.recorded, inputs, resume)
    if not finished:
        facts = validate_bags(data.bags, counter(progress, "validating bags", len(data.bags)))
        _train_alone(work, facts, overwrite)
    elif (out / STARTED).exists():
        _finish_interrupted(out)
    return Trained(out, read_page(out / STUDY), read_page(out / "metrics.json"), notes)


@dataclass(frozen=True)
class _Work:
    """Everything that is known before the training starts."""

    data: Data
    out: Path
    settings: TrainSettings
    recorded: Page  # the settings as files hold them, with digests of the data
    inputs: Inputs
    recipe: Recipe
    split: Split
    progress: Progress | None


@dataclass(frozen=True)
class _Fitted:
    """A trained model, and what it predicts for all bags."""

    model: MILModel
    fold: TrainedFold
    temperature: float | None = None
    notes: tuple[str, ...] = ()


def _prepare(
    data: Data, out: Path, settings: TrainSettings, inputs: Inputs, progress: Progress | None
) -> _Work:
    """Check all settings, and split the bags."""
    from scmil.training.fitting import check_precision

    if settings.aggregator == baseline.NAME:
        raise OptionError(
            f"aggregator {baseline.NAME!r} is a method of `scmil compare` only; `train` needs a "
            "neural network. See scmil ls aggregators."
        )
    bags = data.bags
    test = None if settings.folds else settings.test
    sites = site_groups(data.settings, bags)
    if sites is not None and test is not None:
        split = holdout_by_site(bags, sites, settings.valid, test, settings.seed)
    else:
        split = _split_bags(bags, settings.valid, test, settings.seed)
    check_precision(settings.precision)
    check_keep_folds(settings)
    check_task(bags, settings)
    check_model(settings.model)
    recipe = recipe_of(settings.model, settings.training)
    digests = {"bags": _labels_digest(bags), "inputs": inputs.digest}
    digests |= site_digest(data.settings, bags)
    recorded = {"data": data.settings.to_json() | digests, **settings.to_json()}
    return _Work(data, out, settings, recorded, inputs, recipe, split, progress)


def _train_alone(work: _Work, facts: BagSummary, overwrite: bool) -> None:
    """Train unless another process does, or has finished in the meantime."""
    out = work.out
    with locked(out / STARTED, wait=False) as ours:
        if not ours:
            raise OutputError(
                f"another process is training into {out}. Wait until it ends, or choose another "
                "--out."
            )
        if overwrite:
            delete_model(out)
        elif is_finished(out, work.recorded, work.inputs, resume=False)[0]:
            return
        write_inputs(out / INPUTS, work.inputs)
        write_json(out / STARTED, work.recorded)
        cross_validation = _cross_validate(work) if work.settings.folds else None
        fitted = _fit(work, facts)
        _write_folder(work, facts, fitted, cross_validation)


def _fit(work: _Work, facts: BagSummary) -> _Fitted:
    """Train the model, and predict all bags."""
    from scmil.training.fold import TrainingOptions, train_fold

    settings, bags = work.settings, work.data.bags
    model = build_for_split(
        settings.model, bags, work.split, facts.dim, settings.seed, settings.loss
    )
    options = TrainingOptions(
        settings.seed,
        work.data.settings.standardise,
        settings.weights,
        settings.device,
        settings.precision,
    )
    fold = train_fold(
        model,
        bags,
        work.split,
        work.recipe,
        options,
        checkpoint=work.out / CHECKPOINT,
        progress=counter(work.progress, "training, epochs", work.recipe.epochs),
    )
    if changes := bags.inputs(work.inputs).changes_since(work.inputs):
        raise DataError(
            f"the data changed while the model was trained: {'; '.join(changes)}. Train again with "
            "--overwrite."
        )
    if settings.calibrate and model.objective is not None:
        fold, note = calibrate_target(model, fold, bags, work.split.valid, settings.device)
        return _Fitted(model, fold, None, (note,))
    if settings.calibrate:
        fold, temperature, note = calibrate_fold(fold, bags.labels, work.split.valid)
        return _Fitted(model, fold, temperature, (note,))
    return _Fitted(model, fold)


def _write_folder(
    work: _Work, facts: BagSummary, fitted: _Fitted, cross_validation: list[Page] | None
) -> None:
    """Write all files of the model folder; `study.json` marks it as finished."""
    from scmil.models.files import save_model

    out, patient = work.out, work.data.settings.patient
    answers = answers_in(work.data.bags, work.split, fitted.model, fitted.fold, patient)
    metrics = answers.metrics()
    if cross_validation:
        metrics["cross_validation"] = cross_validation
    study = with_ensemble(
        _study(work, facts, fitted, answers), out, work.settings, fitted.model, work.data.bags
    )
    save_model(fitted.model, out)
    write_fingerprint(out, work.data.bags, work.split)
    history = _history_rows(asdict(fitted.fold.history))
    write_atomically(out / "history.csv", records_csv(history))
    write_atomically(out / PREDICTIONS, records_csv(answers.prediction_rows()))
    write_json(out / "metrics.json", metrics)
    write_atomically(
        out / "MODEL_CARD.md", encode_utf8(card(fitted.model, study, metrics, facts, answers))
    )
    write_json(out / STUDY, study)
    _finish_folder(out)


def _finish_folder(out: Path) -> None:
    """Write the page, and delete what an interrupted training would need."""
    from scmil.report import write_model_page

    write_model_page(out)
    for name in (CHECKPOINT, STARTED):
        (out / name).unlink(missing_ok=True)


def _finish_interrupted(out: Path) -> None:
    """Finish a folder whose training was interrupted after `study.json` was written."""
    with locked(out / STARTED, wait=False) as ours:
        if ours:  # otherwise the process that trains is about to do it
            _finish_folder(out)


def _study(work: _Work, facts: BagSummary, fitted: _Fitted, answers: Answers) -> Page:
    """The content of `study.json`."""
    bags, history, scaling = work.data.bags, fitted.fold.history, fitted.fold.scaling
    labels = work.data.settings.labels
    return {
        "format": FORMAT,
        **answers.study(),
        "temperature": fitted.temperature,
        "contract": {"dim": facts.dim, **facts.provenance},
        "encoder_licence": licence_of(facts.provenance),
        "scaling": None if scaling is None else scaling.to_json(),
        "settings": work.recorded,
        "recipe": work.recipe.to_json(),
        "best_epoch": history.best_epoch,
        "epochs": len(history.train_loss),
        "split": {
            name: [bags.ids[i] for i in positions]
            for name, positions in work.split._asdict().items()
        },
        "notes": [*work.data.notes, *filter(None, [history.step_note()]), *fitted.notes],
        "columns": dict(work.data.columns),
        "label_table_sha256": None if labels is None else sha256_of_file(labels),
        "versions": runner.versions(),
    }


def _inputs(bags: BagSet, record: Path) -> Inputs:
    """What the model is made from; if bags cannot be read, the error names all of them."""
    try:
        return bags.inputs(read_inputs(record))
    except DataError:
        validate_bags(bags)
        raise


def _split_bags(bags: BagSet, valid: float, test: float | None, seed: int) -> Split:
    groups = patients_of(bags)
    if test is None:
        everything = Split(tuple(range(len(bags))), ())
        return with_validation(everything, list(bags.labels), valid, seed, groups)
    split = holdout(list(bags.labels), test, valid, seed, groups)
    check_split(split, bags.ids, groups)
    return split


def _cross_validate(work: _Work) -> list[Page]:
    """Estimate how good models of this kind are, with the same recipe, in a folder of its own."""
    recorded = work.recorded
    protocol = {key: recorded["split"][key] for key in ("folds", "repeats", "valid")}
    further = {
        key: value
        for key in TRAINING_KEYS
        if (value := recorded.get(key)) not in (None, "cpu", "float32")
    }
    if work.settings.keep_folds:
        further["keep_models"] = True
    document = {
        "title": f"{work.data.name} · cross-validation",
        "data": work.data.settings.to_json(),
        "protocol": {**protocol, "seed": recorded["seed"], "selection": ["nested"]},
        "model": recorded["model"],
        "training": recorded["training"] | further,
    }
    plan = make_plan(document, "cross-validation")
    outcome = runner.run(plan, work.out / CROSS, jobs=1, progress=work.progress)
    if outcome.failed:
        raise DataError(f"the cross-validation failed: {next(iter(outcome.failed.values()))}")
    folder = runner.cell_folder(outcome.out, plan.cells[0])
    gather_ensemble(folder, work.out)
    return list(read_page(folder / runner.RESULT)["rows"])


def _history_rows(history: Mapping[str, Sequence[float]]) -> list[Page]:
    return [
        {"epoch": epoch + 1}
        | {name: f"{values[epoch]:.6g}" for name, values in history.items() if values}
        for epoch in range(len(history["train_loss"]))
    ]


def _labels_digest(bags: BagSet) -> str:
    """A digest of which bags have which labels."""
    description: list[Any] = [bags.ids, bags.labels, bags.patients, bags.classes]
    if bags.targets is not None:
        description.append(bags.targets.as_json()["values"])
    return hashlib.sha256(json.dumps(description).encode()).hexdigest()
