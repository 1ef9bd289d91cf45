"""Models on disk: weights as safetensors, the rest as JSON. Nothing in these files can run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from scmil.core.atomic import write_atomically
from scmil.core.regular_files import check_regular
from scmil.core.tables import read_json
from scmil.errors import ModelFileError, ScmilError
from scmil.models.model import MILModel, build_model

FORMAT = "scmil-model-1"
LARGEST_HEADER = 2**20  # of a safetensors file; ours have a few kilobytes


def save_model(model: MILModel, folder: str | os.PathLike[str]) -> Path:
    """Write `model.safetensors` and `model.json` into a folder, atomically.

    Args:
        model: A model of `build_model`.
        folder: The folder, which is created if needed.

    Returns:
        The folder.

    Raises:
        ModelFileError: If the model was not made by `build_model`, or has options that JSON cannot
            represent.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> x, model = torch.ones(4, 16), build_model(16, 2, "abmil", embed=[8], seed=0)
    >>> bool((load_model(save_model(model, folder))(x).logits == model(x).logits).all())
    True
    """
    folder, files = Path(folder), model_files(model)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_atomically(folder / name, content)
    return folder


def model_files(model: MILModel) -> dict[str, bytes]:
    """The content of the two files of a model, by name, in the order in which they are written.

    `model.json`, which has the hash of the other, is the last: an incomplete pair is detected.
    """
    from safetensors.torch import save

    if model.spec is None:
        raise ModelFileError(
            "only models of build_model can be saved: the modules of other models cannot be "
            "rebuilt from weights. Use torch.save, or make the model with build_model."
        )
    weights = save(
        {name: tensor.detach().contiguous().cpu() for name, tensor in model.state_dict().items()}
    )
    page = {
        "format": FORMAT,
        "model": model.spec,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    text = json.dumps(page, indent=2, default=_to_json) + "\n"
    return {"model.safetensors": weights, "model.json": text.encode()}


def load_model(folder: str | os.PathLike[str]) -> MILModel:
    """Read a model that `save_model` has written; reading cannot execute code.

    Args:
        folder: The folder with `model.safetensors` and `model.json`.

    Returns:
        The model with the same weights.

    Raises:
        ModelFileError: If a file is missing, damaged, or does not belong to the other.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    folder = Path(folder)
    page = _read_page(folder / "model.json")
    path = folder / "model.safetensors"
    try:
        # On `meta`, shapes need no memory, even if model.json describes terabytes.
        with torch.device("meta"):
            model = build_model(**page["model"])
    except (
        ScmilError,
        TypeError,
        ValueError,
        RuntimeError,
        ArithmeticError,
        LookupError,
        AttributeError,
    ) as error:
        raise ModelFileError(
            f"{folder / 'model.json'}: no model can be built from it ({error})"
        ) from None
    try:
        _check_size(path, model)
        weights = path.read_bytes()
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}). A model is two files; was one left behind?"
        ) from None
    if hashlib.sha256(weights).hexdigest() != page["sha256"]:
        raise ModelFileError(
            f"{path}: not the file that model.json names (its sha256 differs): "
            "damaged, cut short, or replaced."
        )
    try:
        tensors = load(weights)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path}: not a safetensors file ({error}).") from None
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
    if expected != actual or kinds != {page["dtype"]}:
        different = sorted(
            name
            for name in expected.keys() | actual.keys()
            if expected.get(name) != actual.get(name)
        )
        raise ModelFileError(
            f"{path}: its tensors are not those of the model in model.json; "
            f"different: {', '.join(different) or 'dtype'}."
        )
    if damaged := [name for name, tensor in tensors.items() if not torch.isfinite(tensor).all()]:
        raise ModelFileError(
            f"{path}: NaN or infinite weights in {len(damaged)} of {len(tensors)} tensors, such as "
            f"{damaged[0]}: the model cannot predict. Train it again, with a lower learning rate "
            "if the training diverged."
        )
    model.load_state_dict(tensors, assign=True)
    return model


def _check_size(path: Path, model: MILModel) -> None:
    """Raise ModelFileError if the file is far larger than the model, before it is read."""
    most = sum(8 * tensor.numel() for tensor in model.state_dict().values()) + LARGEST_HEADER
    if (size := check_regular(path)) > most:
        raise ModelFileError(
            f"{path}: {size} bytes, but the model in model.json has at most {most}. "
            "It was not read."
        )


def _read_page(path: Path) -> dict[str, Any]:
    try:
        page = read_json(path)
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}). Is the folder a model of scmil?"
        ) from None
    except ValueError as error:
        raise ModelFileError(f"{path}: not JSON ({error}).") from None
    if not isinstance(page, dict) or page.get("format") != FORMAT:
        actual = page.get("format") if isinstance(page, dict) else type(page).__name__
        raise ModelFileError(f"{path}: format {actual!r}, but this version reads {FORMAT!r}.")
    wrong = [
        key
        for key, kind in (("model", dict), ("sha256", str), ("dtype", str))
        if not isinstance(page.get(key), kind)
    ]
    if wrong or page["dtype"] not in ("float32", "float64", "float16", "bfloat16"):
        raise ModelFileError(f"{path}: incomplete or wrong: {', '.join(wrong) or 'dtype'}.")
    return page


def _to_json(value: Any) -> Any:
    """Convert mappings and sequences for JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise ModelFileError(
        f"{value!r} cannot be written to model.json: "
        "the options of a saved model must be numbers, text, lists or mappings."
    )
