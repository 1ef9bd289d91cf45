"""Weights of encoders: locate, download, read and check them."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickletools
import re
import struct
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import IO

import torch
from torch import Tensor, nn

from scmil.core.download import cache, download
from scmil.core.fingerprint import sha256_of_file
from scmil.core.regular_files import check_regular
from scmil.core.safe_io import check_archive
from scmil.core.text import first_names
from scmil.encoding.encoders.hub import cached_file, fetch, record_hash, recorded_hash
from scmil.errors import DataError, WeightsError

State = Mapping[str, Tensor]
LEGACY_PICKLES = 5
# Counters of batch norms are missing in old files, and do not change the features.
COUNTER = "num_batches_tracked"


@dataclass(frozen=True)
class Checkpoint:
    """A published file of weights: name, SHA-256, and the URL or package that provides it."""

    file: str
    sha256: str
    url: str = ""
    package: str = ""
    hint: str = ""  # how to get it if there is no URL
    hub: str = ""  # id of its repository on the Hugging Face hub
    revision: str = ""
    gated: bool = False  # access has to be requested on the hub
    md5: str = ""
    # Files without a known digest have common names; they are kept in a folder of this name.
    folder: str = ""

    def places(self) -> Iterator[Path]:
        """The paths at which the file is searched, in this order."""
        named = os.environ.get("SCMIL_WEIGHTS")
        if named and not Path(named).is_dir():
            raise WeightsError(
                f"SCMIL_WEIGHTS = {named} is not a folder. Set it to the folder with the weights."
            )
        folders = [Path(named)] if named else []
        folders += [downloaded(), Path(torch.hub.get_dir()) / "checkpoints"]
        for folder in folders:
            yield folder / self.folder / self.file
            yield (folder / self.folder / self.file).with_suffix(".safetensors")
        if self.hub and (cached := cached_file(self.hub, self.file, self.revision)):
            yield cached
        # Finds the package without importing it.
        package = find_spec(self.package) if self.package else None
        for place in (package and package.submodule_search_locations) or ():
            yield Path(place) / "models" / self.file

    def locate(self) -> Path | None:
        """The file that would be read, or None."""
        return next((place for place in self.places() if place.is_file()), None)

    def remedy(self) -> str:
        """Instructions to get the file."""
        get = f"Download {self.url} on a computer with internet access" if self.url else self.hint
        if self.hub and not self.url:
            get = f"Download the file from https://huggingface.co/{self.hub}"
            get += ", where access has to be requested" * self.gated
        known = f", sha256 {self.sha256}" if self.sha256 else ""
        where = downloaded() / self.folder
        named = f"SCMIL_WEIGHTS/{self.folder}" if self.folder else "SCMIL_WEIGHTS"
        put = f"put it into {where} or into the folder {named}, or give the file with --weights"
        return f"{get} (file {self.file}{known}), and {put}."


def downloaded() -> Path:
    """The folder of downloaded weights."""
    return cache() / "weights"


def is_offline(offline: bool | None = None) -> bool:
    """Whether downloads are disabled, by the argument or by the environment variable SCMIL_OFFLINE.

    >>> is_offline(True), is_offline(False)
    (True, False)
    """
    return os.environ.get("SCMIL_OFFLINE", "0") not in ("", "0") if offline is None else offline


def obtain(
    name: str, checkpoint: Checkpoint, given: str | Path | None = None, offline: bool | None = None
) -> Path:
    """The file of weights: the given one, else the published one, found locally or downloaded."""
    if given is not None:
        return Path(given)
    if found := checkpoint.locate():
        expected = checkpoint.sha256 or recorded_hash(found)
        named = found.name == checkpoint.file
        if expected and named and (actual := sha256_of_file(found)) != expected:
            damaged = f"sha256 {actual}, expected {expected}"
            raise WeightsError(
                f"{found} is not the published file of weights of {name} ({damaged}). Delete it."
            )
        return found
    public = checkpoint.url or checkpoint.hub
    if not public or is_offline(offline):
        why = "scmil is offline" if public else "it cannot be downloaded automatically"
        raise WeightsError(
            f"{name}: {checkpoint.file} is not on this computer, and {why}. {checkpoint.remedy()}"
        )
    if not checkpoint.url:
        return fetch(name, checkpoint.hub, checkpoint.file, checkpoint.revision)
    path = downloaded() / checkpoint.folder / checkpoint.file
    try:
        download(checkpoint.url, path, checkpoint.sha256)
    except DataError as error:
        raise WeightsError(f"{name}: {error} {checkpoint.remedy()}") from None
    if not checkpoint.sha256:
        record_hash(path, checkpoint.md5)
    return path


def read_state(path: Path, unwrap: Iterable[str] = ()) -> dict[str, Tensor]:
    """Read the tensors of a .safetensors file, or of a .pth file that contains only tensors.

    Args:
        path: The file.
        unwrap: Further keys under which the tensors may be nested.

    Returns:
        The tensors by their names.

    Raises:
        WeightsError: If the file is missing or damaged, or would run code.
    """
    try:
        check_regular(path)
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            _check_pickles(path)
            content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise WeightsError(
            f"{path}: no such file. Give an existing file with the weights."
        ) from None
    except UnpicklingError as error:
        reason = str(error).partition("\n")[0]
        if reason.startswith("Weights only load failed"):  # with advice to load it unprotected
            found = re.search(r"Unsupported \w+: [\w. ]*\w|invalid load key", str(error))
            reason = found[0] if found else "not a file of torch"
        raise WeightsError(
            f"{path} is damaged, is not a file of weights, or would run code when it is read, and "
            f"was not loaded ({reason}). Download the file again, or save its state_dict() as "
            ".safetensors on a computer where you trust it."
        ) from None
    except Exception as error:  # safetensors, zip and torch raise different ones for damaged files
        reason = str(error).partition(". This is an internal")[0]  # of torch's zip reader
        raise WeightsError(
            f"{path} cannot be read as weights: it is damaged or incomplete ({reason}). Download "
            "the file again."
        ) from None
    return _tensors(content, path, unwrap)


def _check_pickles(path: Path) -> None:
    """Raise if a file would allocate memory that it does not fill, by `bytearray(length)`."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_archive(archive)
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    _check_calls(io.BytesIO(archive.read(name)))
    else:
        with path.open("rb") as file:
            _check_calls(file)


def _check_calls(file: IO[bytes]) -> None:
    """Check the pickles at the start of a file; files of torch before 1.6 start with five."""
    with contextlib.suppress(ValueError, IndexError, struct.error):  # damaged: torch reports it
        for _ in range(LEGACY_PICKLES):
            for _, argument, _ in pickletools.genops(file):
                if isinstance(argument, str) and argument.split(" ")[-1] == "bytearray":
                    raise UnpicklingError("it calls bytearray")


def _tensors(content: object, path: Path, unwrap: Iterable[str] = ()) -> dict[str, Tensor]:
    """The state dict, which may be nested under a name that training scripts use."""
    for wrapper in (*unwrap, "model", "state_dict", "model_state_dict"):
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise WeightsError(
            f"{path} is not a dictionary of tensors. Save the weights as network.state_dict()."
        )
    state = {str(name): value for name, value in content.items()}
    if odd := [
        name
        for name, value in state.items()
        if value.device.type != "cpu" or value.layout != torch.strided
    ]:
        raise WeightsError(
            f"{path}: {odd[0]} is sparse or has no values; expected dense tensors on the CPU."
        )
    if state and all(name.startswith("module.") for name in state):  # saved from nn.DataParallel
        state = {name.removeprefix("module."): value for name, value in state.items()}
    return state


def load_state(network: nn.Module, state: State, ignores: str, where: str) -> None:
    """Load weights into a network; every weight of both must have its counterpart.

    Args:
        network: The network.
        state: The weights.
        ignores: Pattern of names in `state` that the network does not use.
        where: The file, for the message.

    Raises:
        WeightsError: If weights are missing, unexpected or of another shape.

    >>> state = {"weight": torch.ones(1, 2), "head.bias": torch.ones(1)}
    >>> load_state(nn.Linear(2, 1), state, "head", "a.pth")
    Traceback (most recent call last):
    ...
    scmil.errors.WeightsError: a.pth: these are not the weights of this network. Missing: bias.
    """
    own = network.state_dict()
    used, problems = compare_state(own, state, ignores)
    if problems:
        raise WeightsError(
            f"{where}: these are not the weights of this network. {' '.join(problems)}"
        )
    if any(value.is_meta for value in own.values()):  # built without memory of its own
        used = {name: value.to(own[name].dtype) for name, value in used.items()}
        network.load_state_dict(used, strict=False, assign=True)
        return
    network.load_state_dict(used, strict=False)  # strict would require the counters


def compare_state(own: State, state: State, ignores: str) -> tuple[dict[str, Tensor], list[str]]:
    """The weights that a network uses, and sentences about those that do not fit.

    Args:
        own: The weights of the network.
        state: Those of a file.
        ignores: Pattern of names in `state` that the network does not use.

    Returns:
        The used weights by name, and a sentence for each kind of difference.
    """
    used = {
        name: value for name, value in state.items() if name in own or not re.match(ignores, name)
    }
    missing = [name for name in own if name not in used and not name.endswith(COUNTER)]
    unexpected = [name for name in used if name not in own]
    shapes = [
        f"{name} {tuple(used[name].shape)} instead of {tuple(value.shape)}"
        for name, value in own.items()
        if name in used and used[name].shape != value.shape
    ]
    differences = {"Missing": missing, "Not expected": unexpected, "Other shapes": shapes}
    return used, [f"{kind}: {first_names(names)}." for kind, names in differences.items() if names]


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
