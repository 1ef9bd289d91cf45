"""φ_w, the encoders: tiles go in, features come out. `load_encoder("resnet18")`, `load_encoder("timm:resnet34")`.

To add one, write a file in this folder with a function that builds the network, and decorate it with its name and its
`Card`; the contract tests run over it from then on. From another package, name in an entry point of the group
`scmil.encoders` a function that returns an `Encoder`; of `weights`, `offline` and `random` it is given what is asked for.
Weights are never made up: random ones are there for tests and benchmarks, on request, and say so in the encoder's name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch
from torch import nn

from scmil.core.download import file_hash
from scmil.encoding.encoders.encoder import IMAGENET_MEAN, IMAGENET_STD, RGB, Encoder, check_contract
from scmil.encoding.encoders.weights import Checkpoint, State, digest, is_offline, load_state, obtain, read_state
from scmil.errors import OptionError
from scmil.core.registry import Registry

__all__ = ["Card", "Encoder", "Status", "check_contract", "load_encoder", "names", "register", "registry", "status"]
TIMM = "timm:"

registry: Registry[Encoder] = Registry("encoder")


@dataclass(frozen=True)
class Card:
    """What is known of an encoder before it is built: what goes in, what comes out, and the file with its weights."""

    dim: int
    checkpoint: Checkpoint
    needs: str  # the module that has the architecture
    size_px: int = 256
    mpp: float | None = None
    input_px: int | None = None
    mean: RGB = IMAGENET_MEAN
    std: RGB = IMAGENET_STD
    foldable: bool = False
    ignores: str = r"$."  # the pattern of names in the file that the network has no use for; this one matches nothing
    rename: Callable[[State], State] = dict  # from the file's names to the network's


class Status(NamedTuple):
    """What an encoder expects and gives, and whether its weights are here; if not, what to do."""

    name: str
    summary: str
    dim: int | None
    size_px: int | None
    mpp: float | None
    ready: bool
    where: str
    remedy: str


def register(name: str, summary: str, card: Card) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a function that builds a network, with a line for `scmil ls`."""

    def decorate(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def load(weights: str | Path | None = None, offline: bool | None = None, random: int | None = None) -> Encoder:
            return assemble(name, card, build, weights, offline, random)

        registry.register(name, summary)(load)
        _cards[name] = card
        return build

    return decorate


def names() -> list[str]:
    """The names of all encoders; any model of timm is one too, as `timm:<its name>`.

    >>> "ctranspath" in names()
    True
    """
    return registry.names()


def load_encoder(
    name: str,
    weights: str | Path | None = None,
    *,
    offline: bool | None = None,
    random: int | None = None,
    device: str = "cpu",
    precision: str = "auto",
) -> Encoder:
    """An encoder by name, with its weights, ready to run.

    Weights come from the file `weights`; or else from the folder that SCMIL_WEIGHTS names, from what was downloaded
    before, or from the network, unless `offline` or SCMIL_OFFLINE=1 forbids it. `random` is a seed for random weights.
    For `device` and `precision` see `Encoder.to`; the features are always float32.

    >>> encoder = load_encoder("resnet18", random=0)
    >>> encoder.name, encoder(torch.zeros(2, 64, 64, 3, dtype=torch.uint8)).shape
    ('resnet18, random weights of seed 0', torch.Size([2, 512]))
    """
    if random is not None and weights is not None:
        raise OptionError(f"{name}: either a file of weights or random ones, not both: {weights}, random={random}.")
    asked = {"weights": weights, "offline": offline, "random": random}
    options = {option: value for option, value in asked.items() if value is not None}
    if name.startswith(TIMM):
        from scmil.encoding.encoders.timm_any import load

        encoder = load(name.removeprefix(TIMM), weights, offline, random)
    else:
        if "offline" not in registry.entry(name).options:
            options.pop("offline", None)  # an encoder that needs no network obeys by itself
        encoder = registry.build(name, **options)
    return encoder.to(device, precision)


def status() -> list[Status]:
    """What encoders there are and what can be loaded now; files are looked for, not read.

    >>> next((entry.dim, entry.size_px, entry.mpp) for entry in status() if entry.name == "ctranspath")
    (768, 256, 1.0)
    """
    rows = []
    for entry in registry:
        if card := _cards.get(entry.name):
            row = Status(entry.name, entry.summary, card.dim, card.size_px, card.mpp, *_readiness(card))
        else:
            row = Status(entry.name, entry.summary, None, None, None, True, "another package", "")
        rows.append(row)
    return rows


def assemble(
    name: str,
    card: Card,
    build: Callable[[], nn.Module],
    weights: str | Path | None = None,
    offline: bool | None = None,
    random: int | None = None,
) -> Encoder:
    """Build a network and put its weights in; a missing file is told before anything slow is imported."""
    if random is not None:
        network, source = built(build, random), f"random, seed {random}"
    else:
        path = obtain(name, card.checkpoint, weights, offline)
        state = read_state(path)
        network, source = built(build), f"{path.name}, sha256 {file_hash(path)}"
        load_state(network, card.rename(state), card.ignores, str(path))
    return Encoder(
        name=name if random is None else f"{name}, random weights of seed {random}",
        dim=card.dim,
        network=network,
        digest=digest(network),
        weights_source=source,
        size_px=card.size_px,
        mpp=card.mpp,
        input_px=card.input_px,
        mean=card.mean,
        std=card.std,
        foldable=card.foldable,
    )


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """A network that will not be trained, with the random weights of a seed; torch's own generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval().requires_grad_(False)


def _readiness(card: Card) -> tuple[bool, str, str]:
    if find_spec(card.needs) is None:
        return False, "", "pip install 'scmil[encoders]'"
    if path := card.checkpoint.locate():
        return True, str(path), ""
    itself = "It is downloaded when it is first needed. Without a network: " if card.checkpoint.url else ""
    return False, "", itself * (not is_offline()) + card.checkpoint.remedy()


_cards: dict[str, Card] = {}
# The order here is the order in `scmil ls`.
for _room in ("torchvision_models", "ctranspath", "efficientnet_lite"):
    import_module(f"{__name__}.{_room}")
