"""The models of a cross-validation, kept in a model folder: `ensemble/fold_1`, `ensemble/fold_2` …

Each of these folders has the two files of a model and `fold.json` with its threshold, the scaling
of its features, its epoch and its split. `study.json` names how many there are and the hashes of
their weights. `predict` gives the mean of their answers, and their standard deviation.

The folds of survival have bins of their own: their survival curves are read at the ends of the bins
of the model that was trained on all slides. Risks of Cox models are relative to the mean of their
training slides, and are averaged as such.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scmil.bags.scaling import scale_as_recorded
from scmil.core.limits import ANY, bounded
from scmil.core.shapes import Numbers
from scmil.core.tables import write_json
from scmil.errors import DataError, ModelFileError, OptionError
from scmil.models.answers import answers_of
from scmil.models.combined_objective import CombinedObjective, output_width
from scmil.models.objectives import CoxObjective, Objective, SurvivalObjective
from scmil.models.survival_bins import bin_ends, survival_at
from scmil.studies.model_folder import Page, check_scaling, check_study, read_page
from scmil.studies.target_metrics import risk_cut_off
from scmil.studies.temperature import tempered

if TYPE_CHECKING:
    from scmil.bags.bag import Bag, BagSet
    from scmil.bags.splits import Split
    from scmil.models.model import MILModel
    from scmil.studies.settings import TrainSettings
    from scmil.training.fold import TrainedFold

ENSEMBLE, MODELS = "ensemble", "models"
FOLD, FOLD_FORMAT = "fold.json", "scmil-fold-1"


def write_fold_model(
    folder: Path, model: MILModel, trained: TrainedFold, ids: Sequence[str], split: Split
) -> None:
    """Write the model of a fold, `fold.json` last."""
    from scmil.models.files import save_model

    save_model(model, folder)
    page: Page = {
        "format": FOLD_FORMAT,
        "threshold": None if model.objective is not None else float(trained.threshold),
        "epoch": trained.epoch,
        "scaling": None if trained.scaling is None else trained.scaling.to_json(),
        "split": {name: [ids[i] for i in own] for name, own in split._asdict().items()},
    }
    if isinstance(model.objective, CoxObjective):
        page["centre"] = float(trained.probabilities[-1][list(split.train)].mean())
    write_json(folder / FOLD, page)


def check_keep_folds(settings: TrainSettings) -> None:
    """Raise OptionError if there is no cross-validation whose models could be kept."""
    if settings.keep_folds and not settings.folds:
        raise OptionError(
            "--keep-folds keeps the models of a cross-validation, but there is none. Add --folds, "
            "such as --folds 5, or leave it out."
        )
    if settings.keep_folds and settings.calibrate:
        raise OptionError(
            "--keep-folds and --calibrate exclude each other: a temperature belongs to one model. "
            "Omit one of them."
        )


def gather_ensemble(run: Path, out: Path) -> None:
    """Move the models that a run of the cross-validation kept into a model folder.

    Args:
        run: The folder of the run, with `models/inner-0`, `models/inner-1` …
        out: The model folder.
    """
    for path in (run / MODELS).glob("inner-*"):  # none, if an interrupted command moved them
        target = out / ENSEMBLE / f"fold_{int(path.name.partition('-')[2]) + 1}"
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(exist_ok=True)
        os.replace(path, target)


def _ensemble_entry(out: Path, count: int) -> Page:
    folders = [out / ENSEMBLE / f"fold_{number}" for number in range(1, count + 1)]
    thresholds = [read_page(folder / FOLD)["threshold"] for folder in folders]
    return {
        "threshold": None if None in thresholds else float(np.mean(thresholds)),
        "sha256": [read_page(folder / "model.json")["sha256"] for folder in folders],
    }


def with_ensemble(
    study: Page, out: Path, settings: TrainSettings, model: MILModel, bags: BagSet
) -> Page:
    """Return `study.json` with the entry and a note of the ensemble, if one is kept.

    The cut-off of a risk is the median risk of the ensemble over all bags of the training.

    Args:
        study: `study.json` without an ensemble.
        out: The model folder, with the models of the folds.
        settings: The settings of the training.
        model: The model that was trained on all bags.
        bags: All bags.
    """
    if not settings.keep_folds or not settings.folds:
        return study
    count = settings.folds * settings.repeats
    note = (
        f"The {count} models of the cross-validation are kept as an ensemble: predict and test use "
        "the mean of their answers, heatmaps the model that was trained on all slides."
    )
    entry = _ensemble_entry(out, count)
    found = {**study, "ensemble": entry, "notes": [*study["notes"], note]}
    if study.get("cut_off") is not None:
        predictor = predictor_of(out, model, {**found, "ensemble": {**entry, "cut_off": 0.0}})
        risks = [predictor.predict(bag, settings.device)[0] for bag in bags]
        assert model.objective is not None
        entry["cut_off"] = risk_cut_off(model.objective, np.stack(risks), range(len(risks)))
    return found


class Member(NamedTuple):
    """A model with the scaling of its features, and the mean of the risks of its training."""

    model: MILModel
    scaling: Page | None
    centre: float = 0.0


@dataclass(frozen=True)
class Predictor:
    """A model, or the models of an ensemble, each with the scaling of its features.

    Attributes:
        study: `study.json`, with the threshold or cut-off of the ensemble if there is one.
        members: The models.
        objective: What the outputs mean, if they are no classes: that of the model which was
            trained on all slides.
    """

    study: Page
    members: tuple[Member, ...]
    objective: Objective | None = None

    @property
    def is_ensemble(self) -> bool:
        """Whether predictions are means over models, with a standard deviation."""
        return "ensemble" in self.study

    def predict(self, bag: Bag, device: str = "cpu") -> tuple[Numbers, Numbers | None]:
        """Return the probabilities or other outputs of a bag, and the standard deviation of its
        answers over the models; None for a single model.
        """
        from scmil.training.fitting import predict

        outputs = np.concatenate(
            [
                self._comparable(
                    member,
                    predict(member.model, [scale_as_recorded(bag, member.scaling)], device=device)
                    .double()
                    .numpy(),
                )
                for member in self.members
            ]
        )
        if not self.is_ensemble:
            return tempered(outputs[0], self.study.get("temperature")), None
        answers = outputs if self.objective is None else answers_of(self.objective, outputs)
        return outputs.mean(0), answers.std(0, ddof=1)

    def _comparable(self, member: Member, outputs: Numbers) -> Numbers:
        """The outputs of a model (1, w) on the scale that all models share."""
        own, objective = member.model.objective, self.objective
        if not self.is_ensemble:
            return outputs
        if isinstance(own, CombinedObjective) and isinstance(objective, CombinedObjective):
            parts = [
                _on_common_bins(part, common, outputs[:, columns])
                for (part, columns), common in zip(own.slices(), objective.parts, strict=True)
            ]
            return np.concatenate(parts, axis=1)
        return _on_common_bins(own, objective, outputs) - member.centre

    def spread_columns(self, names: Sequence[str]) -> list[str]:
        """The columns of the standard deviations in a table; none for a single model."""
        return [f"sd_{name}" for name in names] if self.is_ensemble else []

    def spread_row(self, names: Sequence[str], spread: Numbers | None) -> Page:
        """The cells of these columns for one bag."""
        values = () if spread is None else spread
        return {
            column: f"{value:.7g}"
            for column, value in zip(self.spread_columns(names), values, strict=True)
        }


def _on_common_bins(own: Objective | None, common: Objective | None, outputs: Numbers) -> Numbers:
    """The survival curves of a model at the ends of the bins of another; other outputs are kept."""
    if isinstance(own, SurvivalObjective) and isinstance(common, SurvivalObjective):
        return survival_at(own.edges, outputs, bin_ends(common.edges))
    return outputs


def predictor_of(folder: str | Path, model: MILModel, study: Page) -> Predictor:
    """Return what predicts for a model folder: its ensemble if it has one, or its model.

    Args:
        folder: The model folder.
        model: Its model.
        study: The content of `study.json`.

    Raises:
        ModelFileError: A model of the ensemble is missing or damaged.
    """
    entry = study.get("ensemble")
    if entry is None:
        return Predictor(study, (Member(model, study["scaling"]),), model.objective)
    try:
        hashes, changed = list(entry["sha256"]), _decision_of(entry, model.objective)
        bounded("folds", len(hashes), "ensemble")
        folders = [Path(folder) / ENSEMBLE / f"fold_{number + 1}" for number in range(len(hashes))]
        members = tuple(
            _load_member(path, model, expected)
            for path, expected in zip(folders, hashes, strict=True)
        )
    except (KeyError, TypeError, AttributeError, DataError) as error:
        raise ModelFileError(
            f"{folder}: the ensemble is incomplete or wrong ({type(error).__name__}: "
            f"{str(error).rstrip('.')}). Copy the folder again, or train the model again."
        ) from None
    return Predictor({**study, **changed}, members, model.objective)


def load_fold_model(folder: str | Path, model: MILModel, study: Page) -> tuple[MILModel, Page]:
    """Read one model of an ensemble as a model of its own, for its tile scores.

    Args:
        folder: The folder of the fold, `ensemble/fold_1` in the model folder.
        model: The model of the model folder.
        study: The content of its `study.json`.

    Returns:
        The model of the fold, and `study.json` with the threshold, the scaling and the split of the
        fold.

    Raises:
        ModelFileError: The folder is not a model of the ensemble, or is damaged.
    """
    path = Path(folder).resolve()
    hashes = (study.get("ensemble") or {}).get("sha256", [])
    names = {f"fold_{number + 1}": digest for number, digest in enumerate(hashes)}
    try:
        own, scaling, _ = _load_member(path, model, names[path.name])
        page = read_page(path / FOLD)
        part = {"threshold": page["threshold"], "scaling": scaling, "split": page["split"]}
        rest = {key: value for key, value in study.items() if key != "ensemble"}
        classes = int(own.spec["classes"]) if own.spec else 0
        check_study(path / FOLD, {**rest, **part}, classes, own.dim)
    except (KeyError, TypeError, AttributeError, DataError) as error:
        raise ModelFileError(
            f"{folder}: not a model of the ensemble of {path.parent.parent.name} "
            f"({type(error).__name__}: {str(error).rstrip('.')}). Copy the model folder again, or "
            "train the model again."
        ) from None
    return own, {**rest, **part}


def _decision_of(entry: Page, objective: Objective | None) -> Page:
    """The threshold of classes, or the cut-off of a risk; nothing for other tasks."""
    if objective is None:
        return {"threshold": bounded("threshold", entry["threshold"], "ensemble")}
    if not _has_survival(objective):
        return {}
    return {"cut_off": bounded("cut_off", entry["cut_off"], "ensemble", ANY)}


def _has_survival(objective: Objective) -> bool:
    if isinstance(objective, CombinedObjective):
        return any(map(_has_survival, objective.parts))
    return objective.task == "survival"


def _load_member(path: Path, model: MILModel, expected: str) -> Member:
    from scmil.models.files import load_model

    page, own = read_page(path / FOLD), load_model(path)
    if read_page(path / "model.json")["sha256"] != expected or not _alike(own, model):
        raise DataError(f"{path} is not the model that study.json names")
    if page["scaling"] is not None:
        check_scaling(page["scaling"], own.dim)
    centre = bounded("centre", page["centre"], path / FOLD, ANY) if "centre" in page else 0.0
    return Member(own, page["scaling"], float(centre))


def _alike(a: MILModel, b: MILModel) -> bool:
    """Whether two models differ in weights only, or in bins and scales of their training split."""
    first, second = (dict(own.spec or {}) for own in (a, b))
    kinds = {_kinds_of(own.objective) for own in (a, b)}
    free = {"output"} if len(kinds) == 1 and a.objective is not None else set()
    if free and a.objective is not None and _has_survival(a.objective):
        free |= {"classes"}
    return all(first.get(key) == second.get(key) for key in {*first, *second} - free)


def _kinds_of(objective: Objective | None) -> tuple[tuple[type, int | None], ...]:
    """The type of an objective and its number of outputs, or those of each part.

    Those of survival depend on the times of the training split: tied times make fewer bins.
    """
    if isinstance(objective, CombinedObjective):
        return tuple(kind for part in objective.parts for kind in _kinds_of(part))
    if objective is None or isinstance(objective, SurvivalObjective):
        return ((type(objective), None),)
    return ((type(objective), output_width(objective)),)
