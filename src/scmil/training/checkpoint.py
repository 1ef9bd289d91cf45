"""Checkpoints: the state of a training after an epoch, as safetensors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scmil.bags.bag import Bag
from scmil.bags.loader import Loader, ids_of, labels_of
from scmil.core.atomic import write_atomically
from scmil.core.regular_files import check_regular
from scmil.errors import ModelFileError
from scmil.models.model import MILModel
from scmil.training.history import History
from scmil.training.recipes import Recipe

DEFAULT_PRECISION = "float32"


@dataclass
class TrainingState:
    """Everything that changes during a training, and how its steps are computed."""

    model: MILModel
    optimiser: torch.optim.Optimizer
    history: History
    best: dict[str, Tensor] | None  # weights of the best epoch so far
    loader: Loader
    class_weights: tuple[float, ...] | None
    precision: str
    teacher: MILModel | None = None  # the running mean of the weights, if a recipe asks for one


def identity_of(
    model: MILModel,
    train: Sequence[Bag],
    valid: Sequence[Bag] | None,
    recipe: Recipe,
    seed: int,
    *,
    class_weights: tuple[float, ...] | None = None,
    precision: str = DEFAULT_PRECISION,
) -> dict[str, Any]:
    """Everything that must be equal for a checkpoint to belong to this training."""
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    bags = [[ids_of(split), labels_of(split)] for split in (train, valid or [])]
    hashed: list[Any] = [shapes, model.spec, bags]
    # In the default precision, only the class weights are hashed: checkpoints that were written
    # before there was a choice of precision stay valid.
    hashed.append(class_weights if precision == DEFAULT_PRECISION else [class_weights, precision])
    digest = hashlib.sha256(json.dumps(hashed, default=str).encode()).hexdigest()
    return {
        "recipe": recipe.to_json(),
        "seed": seed,
        "model_and_bags": digest,
    }


@dataclass
class TrainingCheckpoint:
    """A file with weights, optimiser state and history; reading it cannot execute code."""

    path: Path
    identity: dict[str, Any]

    def save(self, state: TrainingState, epoch: int) -> None:
        """Write the state after an epoch."""
        from safetensors.torch import save

        tensors = {f"model/{name}": tensor for name, tensor in state.model.state_dict().items()}
        tensors |= {f"best/{name}": tensor for name, tensor in (state.best or {}).items()}
        if state.teacher is not None:
            tensors |= {f"teacher/{k}": v for k, v in state.teacher.state_dict().items()}
        for index, entries in state.optimiser.state_dict()["state"].items():
            tensors |= {
                f"optimiser/{index}/{key}": value
                for key, value in entries.items()
                if value is not None
            }
        page = {"identity": self.identity, "epoch": epoch, "history": asdict(state.history)}
        content = save(
            {k: v.detach().contiguous().cpu() for k, v in tensors.items()},
            {"scmil": json.dumps(page)},
        )
        write_atomically(self.path, content)

    def load_into(self, state: TrainingState) -> int:
        """Restore the state; returns the number of finished epochs, 0 if there is no file."""
        from safetensors import SafetensorError, safe_open

        if not self.path.exists():
            return 0
        try:
            check_regular(self.path)
            with safe_open(self.path, framework="pt") as file:
                page = json.loads((file.metadata() or {})["scmil"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            if page["identity"] != self.identity:
                raise ModelFileError(
                    f"{self.path} is the checkpoint of another training: model, bags, recipe or "
                    "seed differ. Choose another file, or delete this one."
                )
            kinds = ("model", "best", "optimiser", "teacher")
            parts: dict[str, dict[str, Tensor]] = {kind: {} for kind in kinds}
            for name, tensor in tensors.items():
                part, _, rest = name.partition("/")
                parts[part][rest] = tensor
            state.model.load_state_dict(parts["model"])
            if state.teacher is not None:
                state.teacher.load_state_dict(parts["teacher"])
            state.best = parts["best"] or None
            state.history = History(**page["history"])
            _load_optimiser(state.optimiser, parts["optimiser"])
            return int(page["epoch"])
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, RuntimeError) as error:
            if isinstance(error, ModelFileError):
                raise
            raise ModelFileError(
                f"{self.path} is not a checkpoint of scmil ({error}). "
                "Delete it to start the training from the beginning."
            ) from None


def _load_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Restore the state of the optimiser from tensors named `parameter/entry`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        index, _, key = name.partition("/")
        state.setdefault(int(index), {})[key] = tensor
    optimiser.load_state_dict(
        {"state": state, "param_groups": optimiser.state_dict()["param_groups"]}
    )
