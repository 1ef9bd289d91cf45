"""Weights of encoders: where they are found, how they are read, and that every one of them has its place."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError

import torch
from torch import Tensor, nn

from scmil.core.download import cache, download, file_hash
from scmil.errors import DataError, WeightsError
from scmil.core.files import check_regular
from scmil.core.safe_io import check_archive

State = Mapping[str, Tensor]
COUNTER = "num_batches_tracked"  # of batch norms: old files lack it, and no feature depends on it


@dataclass(frozen=True)
class Checkpoint:
    """A published file of weights: its name, its SHA-256, and the address or the package that has it, if there is one."""

    file: str
    sha256: str
    url: str = ""
    package: str = ""
    hint: str = ""  # how to get it where there is no address

    def places(self) -> Iterator[Path]:
        """Where the file may be, in the order in which it is looked for."""
        named = os.environ.get("SCMIL_WEIGHTS")
        if named and not Path(named).is_dir():
            raise WeightsError(f"{named} is not a folder, but SCMIL_WEIGHTS says so. Name the folder with the weights.")
        folders = [Path(named)] if named else []
        folders += [downloaded(), Path(torch.hub.get_dir()) / "checkpoints"]
        for folder in folders:
            yield folder / self.file
            yield (folder / self.file).with_suffix(".safetensors")
        package = find_spec(self.package) if self.package else None  # finds the folder without running anything in it
        for place in (package and package.submodule_search_locations) or ():
            yield Path(place) / "models" / self.file

    def locate(self) -> Path | None:
        """The file that would be read, or None."""
        return next((place for place in self.places() if place.is_file()), None)

    def remedy(self) -> str:
        """What a user can do who does not have the file."""
        get = f"Get {self.url} on a computer with a network" if self.url else self.hint
        put = f"put it into {downloaded()}, or into a folder that SCMIL_WEIGHTS names, or name the file with --weights"
        return f"{get} (file {self.file}, sha256 {self.sha256}), and {put}."


def downloaded() -> Path:
    """The folder for weights that were downloaded."""
    return cache() / "weights"


def is_offline(offline: bool | None = None) -> bool:
    """Whether nothing may be downloaded: as asked, or else as the environment variable SCMIL_OFFLINE says.

    >>> is_offline(True), is_offline(False)
    (True, False)
    """
    return os.environ.get("SCMIL_OFFLINE", "0") not in ("", "0") if offline is None else offline


def obtain(name: str, checkpoint: Checkpoint, given: str | Path | None = None, offline: bool | None = None) -> Path:
    """The file of weights: the one that is given, or the published one, found on this computer or downloaded."""
    if given is not None:
        return Path(given)
    if found := checkpoint.locate():
        if found.name == checkpoint.file and (met := file_hash(found)) != checkpoint.sha256:
            damaged = f"sha256 {met}, expected {checkpoint.sha256}"
            raise WeightsError(f"{found}: these are not the published weights of {name} ({damaged}). Delete this file.")
        return found
    if not checkpoint.url or is_offline(offline):
        why = "scmil is offline" if checkpoint.url else "there is no address to download it from"
        raise WeightsError(f"{name}: {checkpoint.file} is not on this computer, and {why}. {checkpoint.remedy()}")
    path = downloaded() / checkpoint.file
    try:
        download(checkpoint.url, path, checkpoint.sha256)
    except DataError as error:
        raise WeightsError(f"{name}: {error} {checkpoint.remedy()}") from None
    return path


def read_state(path: Path) -> dict[str, Tensor]:
    """The tensors of a .safetensors, or of a .pth that holds tensors and nothing that would run code."""
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            if zipfile.is_zipfile(path):
                with zipfile.ZipFile(path) as archive:
                    check_archive(archive)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise WeightsError(f"{path}: there is no such file of weights.") from None
    except UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        raise WeightsError(
            f"{path}: is damaged, or would run code when it is read, and is refused ({reason}). "
            "Save its state_dict() as .safetensors where you trust it."
        ) from None
    except Exception as error:  # safetensors, zip, torch: each has errors of its own for a damaged file
        raise WeightsError(f"{path}: cannot be read as weights ({error}). Get the file again.") from None
    return _tensors(content, path)


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    """The state dict itself, which may be inside another one, under a name that training scripts use."""
    for wrapper in ("model", "state_dict", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{path}: a dictionary of tensors is needed, as state_dict() gives it.")
    state = {str(name): value for name, value in content.items()}
    if odd := [name for name, value in state.items() if value.device.type != "cpu" or value.layout != torch.strided]:
        raise WeightsError(f"{path}: {odd[0]} is sparse or without values, and plain tensors are needed.")
    if state and all(name.startswith("module.") for name in state):  # saved from nn.DataParallel
        state = {name.removeprefix("module."): value for name, value in state.items()}
    return state


def load_state(network: nn.Module, state: State, ignores: str, where: str) -> None:
    """Put weights into a network if each has its place; `ignores` is the pattern of names that have none on purpose.

    >>> load_state(nn.Linear(2, 1), {"weight": torch.ones(1, 2), "head.bias": torch.ones(1)}, "head", "a.pth")
    Traceback (most recent call last):
    ...
    scmil.errors.WeightsError: a.pth: these are not the weights of this network. Missing: bias.
    """
    own = network.state_dict()
    kept = {name: value for name, value in state.items() if name in own or not re.match(ignores, name)}
    missing = [name for name in own if name not in kept and not name.endswith(COUNTER)]
    unexpected = [name for name in kept if name not in own]
    shapes = [
        f"{name} {tuple(kept[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in kept and kept[name].shape != value.shape
    ]
    found = {"Missing": missing, "Not expected": unexpected, "Other shapes": shapes}
    if problems := [f"{kind}: {_shortened(names)}." for kind, names in found.items() if names]:
        raise WeightsError(f"{where}: these are not the weights of this network. {' '.join(problems)}")
    network.load_state_dict(kept, strict=False)  # strict would ask for the counters


def _shortened(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def digest(network: nn.Module) -> str:
    """SHA-256 over names, types, shapes and values of all weights, sorted by name.

    >>> layer = nn.Linear(1, 1)
    >>> _ = nn.init.zeros_(layer.weight), nn.init.zeros_(layer.bias)
    >>> digest(layer)[:8]
    '51311a13'
    """
    sha = hashlib.sha256()
    for name, value in sorted(network.state_dict().items()):
        if not name.endswith(COUNTER):
            sha.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
            sha.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return sha.hexdigest()
