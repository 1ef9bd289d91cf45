"""Encoders φ_w, which map tiles to features: `load_encoder("resnet18")` or `"timm:resnet34"`.

An encoder of a known family is a card, a TOML file in the folder `cards`: see `card.py`. For a new
family, add a builder to `builders.py`. A function that builds a network can also be registered with
its name and its `EncoderInfo`. `tests/contracts/test_encoders.py` tests one encoder of each family.
In another package, define an entry point of the group `scmil.encoders` for a function that returns
an `Encoder`; it is called with those of `weights`, `offline` and `random` that the user gave.
Random weights are used on request only, for tests and benchmarks, and are part of the encoder's
name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import nn

from scmil.core.fingerprint import sha256_of_file
from scmil.core.registry import Registry
from scmil.encoding.encoders.encoder import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    RGB,
    Encoder,
    tile_warnings,
)
from scmil.encoding.encoders.weights import (
    Checkpoint,
    State,
    digest,
    is_offline,
    load_state,
    obtain,
    read_state,
)
from scmil.errors import OptionError, UnknownNameError

if TYPE_CHECKING:
    from scmil.encoding.encoders.card import Card

__all__ = [
    "Encoder",
    "EncoderInfo",
    "EncoderStatus",
    "card_of",
    "encoder_status",
    "load_encoder",
    "names",
    "register",
    "registry",
    "tile_warnings",
]
TIMM = "timm:"
CARD_FILE = re.compile(r"(?P<path>.+\.toml)(?P<variant>:[\w.-]+)?")
# The first encoders in `scmil ls`: those of the paper, and those that need no request.
FIRST = ("resnet18", "swin", "resnet50-trunc", "ctranspath", "efficientnet-lite0")

registry: Registry[Encoder] = Registry("encoder")


@dataclass(frozen=True)
class EncoderInfo:
    """Metadata of an encoder: its input, its output, and the file with its weights."""

    dim: int
    checkpoint: Checkpoint
    needs: str  # the module that defines the architecture
    size_px: int = 256
    mpp: float | None = None
    input_px: int | None = None
    mean: RGB = IMAGENET_MEAN
    std: RGB = IMAGENET_STD
    foldable: bool = False
    # Pattern of names in the file that the network does not use; the default matches nothing.
    ignores: str = r"$."
    rename: Callable[[State], State] = dict  # from the names in the file to those of the network


class EncoderStatus(NamedTuple):
    """Input and output of an encoder, whether its weights are available, and if not, what to do."""

    name: str
    summary: str
    dim: int | None
    size_px: int | None
    mpp: float | None
    ready: bool
    where: str
    remedy: str
    mpps: tuple[float, ...] = ()
    licence: str = ""
    gated: bool = False


def register(
    name: str, summary: str, info: EncoderInfo
) -> Callable[[Callable[[], nn.Module]], Callable[[], nn.Module]]:
    """Register a function that builds a network, with a line for `scmil ls`."""

    def decorate(build: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        def load(
            weights: str | Path | None = None,
            offline: bool | None = None,
            random: int | None = None,
        ) -> Encoder:
            return assemble(name, info, build, weights, offline, random)

        registry.register(name, summary)(load)
        _infos[name] = info
        return build

    return decorate


def names() -> list[str]:
    """The names of all encoders; every model of timm is available as `timm:<name>`.

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
    """Load an encoder with its weights.

    Without `weights`, the weights are searched in the folder SCMIL_WEIGHTS and in the cache, and
    downloaded otherwise.

    Args:
        name: An encoder (see `scmil ls encoders`), `timm:<name>`, or the path of a card.
        weights: A file of weights.
        offline: Whether downloads are disabled; None takes the environment variable SCMIL_OFFLINE.
        random: Seed for random weights, for tests and benchmarks.
        device: The device, such as "cpu" or "cuda".
        precision: "auto", "float32" or "bfloat16", see `Encoder.to`. Features are always float32.

    Returns:
        The encoder.

    Raises:
        UnknownNameError: If there is no such encoder.
        OptionError: If both `weights` and `random` are given, or the precision is invalid.
        WeightsError: If the weights are missing, damaged, or do not fit the network.
        MissingExtraError: If a required package is not installed.

    >>> encoder = load_encoder("resnet18", random=0)
    >>> encoder.name, encoder(torch.zeros(2, 64, 64, 3, dtype=torch.uint8)).shape
    ('resnet18, random weights of seed 0', torch.Size([2, 512]))
    """
    if random is not None and weights is not None:
        raise OptionError(
            f"{name}: weights = {weights} and random = {random} were both given. Give one of them."
        )
    given = {"weights": weights, "offline": offline, "random": random}
    options = {option: value for option, value in given.items() if value is not None}
    if name.startswith(TIMM):
        from scmil.encoding.encoders.timm_any import load

        encoder = load(name.removeprefix(TIMM), weights, offline, random)
    elif CARD_FILE.fullmatch(name):
        from scmil.encoding.encoders.load_card import load_card

        encoder = load_card(card_of(name), weights, offline, random)
    else:
        if "offline" not in registry.entry(name).options:
            options.pop("offline", None)  # an encoder without downloads has no such option
        encoder = registry.build(name, **options)
    return encoder.to(device, precision)


def encoder_status() -> list[EncoderStatus]:
    """List all encoders and whether they can be loaded now; files are located but not read.

    >>> entries = {entry.name: entry for entry in encoder_status()}
    >>> entries["ctranspath"].dim, entries["ctranspath"].size_px, entries["ctranspath"].mpp
    (768, 256, 1.0)
    """
    rows = []
    for entry in registry:
        if card := _cards.get(entry.name):
            row = _card_status(card)
        elif info := _infos.get(entry.name):
            row = EncoderStatus(
                entry.name,
                entry.summary,
                info.dim,
                info.size_px,
                info.mpp,
                *_readiness(info.needs, info.checkpoint),
            )
        else:
            row = EncoderStatus(
                entry.name, entry.summary, None, None, None, True, "another package", ""
            )
        rows.append(row)
    return rows


def assemble(
    name: str,
    info: EncoderInfo,
    build: Callable[[], nn.Module],
    weights: str | Path | None = None,
    offline: bool | None = None,
    random: int | None = None,
) -> Encoder:
    """Build a network and load its weights; a missing file is reported before slow imports."""
    if random is not None:
        network, source = built(build, random), f"random, seed {random}"
    else:
        path = obtain(name, info.checkpoint, weights, offline)
        state = read_state(path)
        network, source = built(build), f"{path.name}, sha256 {sha256_of_file(path)}"
        load_state(network, info.rename(state), info.ignores, str(path))
    return Encoder(
        name=name if random is None else f"{name}, random weights of seed {random}",
        dim=info.dim,
        network=network,
        digest=digest(network),
        weights_source=source,
        size_px=info.size_px,
        mpp=info.mpp,
        input_px=info.input_px,
        mean=info.mean,
        std=info.std,
        foldable=info.foldable,
    )


def built(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    """Build a frozen network with random weights, without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().eval().requires_grad_(False)


def card_of(name: str) -> Card:
    """The card of an encoder, by its name or by the path of a card file.

    >>> card_of("virchow2:cls").output.width
    1280
    """
    if hit := CARD_FILE.fullmatch(name):
        from scmil.encoding.encoders.card import read_cards

        path = Path(hit["path"])
        cards = {card.name: card for card in read_cards(path)}
        wanted = path.stem + (hit["variant"] or "")
        if wanted not in cards:
            raise UnknownNameError(f"{path} has no {wanted!r}. It has: {', '.join(cards)}.")
        return cards[wanted]
    registry.entry(name)  # raises with the nearest name
    if name not in _cards:
        raise UnknownNameError(
            f"encoder {name!r} is of another package and has no card. Ask its authors."
        )
    return _cards[name]


def _card_status(card: Card) -> EncoderStatus:
    from scmil.encoding.encoders.load_card import checkpoint_of

    ready, where, remedy = (
        _readiness(card.needs, checkpoint_of(card)) if card.builder else (False, "", card.remedy)
    )
    mpps = card.input.mpp
    return EncoderStatus(
        card.name,
        card.summary,
        card.output.width,
        card.input.tile_px,
        mpps[0] if mpps else None,
        ready,
        where,
        remedy,
        mpps,
        card.licence.name,
        card.weights.gated,
    )


def _readiness(needs: str, checkpoint: Checkpoint) -> tuple[bool, str, str]:
    if find_spec(needs) is None:
        return False, "", "pip install 'scmil[encoders]'"
    if path := checkpoint.locate():
        return True, str(path), ""
    public = checkpoint.url or (checkpoint.hub and not checkpoint.gated)
    itself = "It is downloaded on first use. Without internet access: " if public else ""
    return False, "", itself * (not is_offline()) + checkpoint.remedy()


def _register_cards() -> None:
    """Register the encoders of all cards; the first ones are those of the paper."""
    from scmil.encoding.encoders.card import all_cards
    from scmil.encoding.encoders.load_card import loader_of

    available = {card.name: card for card in all_cards()}
    for name in [*FIRST, *sorted(available.keys() - set(FIRST))]:
        card = available[name]
        registry.register(name, card.summary)(loader_of(card))
        _cards[name] = card


_infos: dict[str, EncoderInfo] = {}
_cards: dict[str, Card] = {}
_register_cards()
