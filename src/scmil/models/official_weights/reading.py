"""Read the tensors of a checkpoint, with the names that its authors gave them; nothing is run."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from scmil.core.limits import LARGEST_CHECKPOINT
from scmil.core.regular_files import check_regular, open_regular
from scmil.errors import DataError, ModelFileError
from scmil.models.official_weights.dtfd import PARTS

# Under these names training scripts store the weights, next to epochs and optimisers.
WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
# In front of all names: of nn.DataParallel, and of Lightning modules.
PREFIXES = ("module.", "model.")
REMEDY = (
    "Where you trust the file, save its weights alone: "
    'torch.save(torch.load(FILE, weights_only=False)["state_dict"], NEW_FILE).'
)


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """The tensors of a `.safetensors` file or of a file of `torch.save`, by name.

    State dicts inside other dictionaries are found; several of them, as DTFD saves, are joined with
    the name of each in front. Prefixes of DataParallel and Lightning are removed.

    Raises:
        ModelFileError: If the file is missing, damaged, too large, contains anything but tensors,
            or would run code.
    """
    path = Path(path)
    try:
        if (length := check_regular(path)) > LARGEST_CHECKPOINT:
            raise ModelFileError(
                f"{path}: {length} bytes, but a checkpoint has at most {LARGEST_CHECKPOINT}. It "
                "was not read. Save the weights of the aggregator alone."
            )
        content = _read_file(path)
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}). Give the file of the authors' weights."
        ) from None
    except DataError as error:
        raise ModelFileError(f"{path}: {error} {REMEDY}") from None
    tensors: dict[str, Tensor] = {}
    foreign: list[str] = []
    _collect(_unwrap(content), "", tensors, foreign)
    if foreign or not tensors:
        kinds = ", ".join(foreign[:10]) or type(content).__name__
        raise ModelFileError(
            f"{path}: a state dict of tensors is needed, but it has {kinds}. {REMEDY}"
        )
    return tensors


def _read_file(path: Path) -> Any:
    if path.suffix != ".safetensors":
        from scmil.bags.formats.pt_files import tensors_in_pt

        with open_regular(path) as file:
            return tensors_in_pt(file)
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise DataError(f"not a safetensors file ({error}).") from None


def _unwrap(content: Any) -> Any:
    """The state dict, or the dictionary or list of several."""
    while isinstance(content, Mapping):
        inner = [content[name] for name in WRAPPERS if isinstance(content.get(name), (dict, list))]
        if not inner:
            return content
        content = inner[0]
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return {_name_part(part, number): part for number, part in enumerate(content)}
    return content


def _name_part(part: Mapping[Any, Any], number: int) -> str:
    """The name of one of DTFD's state dicts in a list, by the tensors that it has."""
    part = _without_prefix(part)
    return next((name for marker, name in PARTS.items() if marker in part), str(number))


def _collect(content: Any, where: str, tensors: dict[str, Tensor], foreign: list[str]) -> None:
    """Add all tensors by their full names; note what is no tensor."""
    if isinstance(content, Tensor) and where:
        tensors[where] = content
    elif isinstance(content, Mapping):
        for name, part in _without_prefix(content).items():
            _collect(part, f"{where}.{name}" if where else str(name), tensors, foreign)
    else:
        foreign.append(f"{where} ({type(content).__name__})" if where else type(content).__name__)


def _without_prefix(content: Mapping[Any, Any]) -> dict[str, Any]:
    names = {str(name): part for name, part in content.items()}
    for prefix in PREFIXES:
        if names and all(name.startswith(prefix) for name in names):
            names = {name.removeprefix(prefix): part for name, part in names.items()}
    return names
