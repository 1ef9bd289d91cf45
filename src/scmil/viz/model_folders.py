"""Find the model folders that a command is given."""

from __future__ import annotations

from pathlib import Path

from scmil.errors import DataError
from scmil.models.score_files import PAGE


def find_models(folder: str | Path) -> list[Path]:
    """The model folders: the folder itself, or those directly in it.

    >>> find_models("nothing")
    Traceback (most recent call last):
    ...
    scmil.errors.DataError: nothing: no such folder. Specify a model folder written by scmil train,
    or a folder of model folders.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"{folder}: no such folder. Specify a model folder written by scmil train, or a folder "
            "of model folders."
        )
    if _is_model(folder):
        return [folder]
    models = sorted(path for path in folder.iterdir() if path.is_dir() and _is_model(path))
    if not models:
        raise DataError(
            f"{folder} is not a model folder written by scmil train and contains none. "
            "Train a model: scmil train"
        )
    return models


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("model.json", PAGE, f"maps/{PAGE}"))
