"""Checks of an experiment whose runs predict something else than classes, before any training."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scmil.core.run_format import COMBINED
from scmil.errors import ScmilError
from scmil.studies.from_settings import build_from_settings, recipe_of
from scmil.studies.grid import Draft
from scmil.studies.problems import Problems
from scmil.studies.settings import DataSettings, ModelSettings, TrainingSettings
from scmil.studies.target_data import CLASS, read_data_targets, task_of


@dataclass
class TaskChecks:
    """Finds the task of each run, and what does not fit it; tables are read once."""

    problems: Problems
    data: Path | None = None  # a folder with data sets
    tasks: dict[str, str] = field(default_factory=dict)  # by data set
    _known: dict[str, Any] = field(default_factory=dict)

    def check(self, draft: Draft) -> None:
        """Check one run, and state its task in `[data]` if it was inferred and is not a class."""
        tables = draft.tables
        try:
            settings = DataSettings.from_json(tables["data"])
            targets = self._targets(settings)
        except (ScmilError, TypeError, AttributeError) as error:
            stated = isinstance(tables["data"].get("task"), str)
            if stated and isinstance(error, ScmilError):
                self.problems.add(f"[data] {error}")
            return  # a table of classes that cannot be read is an error of its run
        self.tasks[draft.dataset] = CLASS if targets is None else _task_words(targets)
        training = TrainingSettings.from_json(tables["training"])
        if targets is None:
            if training.loss is not None:
                self.problems.add(
                    f"[training] loss = {training.loss!r}: classes have one loss. Leave it out, or "
                    "state the task: [data] task."
                )
            return
        tables["data"]["task"] = settings.task or targets.task
        if "localisation" in tables:
            self.problems.add(f"[localisation] needs classes, and the task is {targets.task!r}.")
        self._check_training(ModelSettings.from_json(tables["model"]), training, targets)

    def check_one_task(self) -> None:
        """Add a problem if data sets have different tasks: no table could show them together."""
        if len(set(self.tasks.values())) > 1:
            found = ", ".join(f"{dataset} ({task})" for dataset, task in self.tasks.items())
            self.problems.add(
                f"[data] task: the data sets have different tasks: {found}. Write one file for "
                "each task."
            )

    def _targets(self, settings: DataSettings) -> Any:
        key = json.dumps(settings.to_json(), sort_keys=True, default=str)
        if key not in self._known:
            self._known[key] = (
                None if task_of(settings) == CLASS else read_data_targets(settings, self.data)
            )
        return self._known[key]

    def _check_training(
        self, model: ModelSettings, training: TrainingSettings, targets: Any
    ) -> None:
        import torch

        from scmil.training.target_folds import objective_for

        if training.class_weights is not None:
            self.problems.add(
                f"[training] class_weights need classes, and the task is {targets.task!r}."
            )
        try:
            values = targets.array(targets.known)
            objective = objective_for(targets.target, values, training.loss)
        except ScmilError as error:
            self.problems.add(f"[training] {error}")
            return
        if not model.is_network:
            return
        try:
            if recipe_of(model, training).regularisation.is_on:
                self.problems.add(
                    f"[training] regularisation needs classes, and the task is {targets.task!r}."
                )
            with torch.device("meta"):
                build_from_settings(model, 64, 0, None, objective)
        except (ScmilError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            self.problems.add(f"[model] {error}")


def _task_words(targets: Any) -> str:
    """The task; of several targets their names and tasks, which all data sets must share."""
    if targets.task != COMBINED:
        return str(targets.task)
    pairs = zip(targets.target.names, targets.target.parts, strict=True)
    return ", ".join(f"{part.task} {name}" for name, part in pairs)
