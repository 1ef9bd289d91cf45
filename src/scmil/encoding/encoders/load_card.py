"""Load an encoder from its card: build the network, get the weights, check both."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from scmil.core.fingerprint import sha256_of_file
from scmil.encoding.encoders.builders import build_network, count_parameters
from scmil.encoding.encoders.card import Card
from scmil.encoding.encoders.encoder import Encoder
from scmil.encoding.encoders.layouts import (
    LAYOUTS,
    RESAMPLED,
    resample_positions,
    strip_prefixes,
)
from scmil.encoding.encoders.weights import (
    COUNTER,
    Checkpoint,
    State,
    compare_state,
    digest,
    load_state,
    obtain,
    read_state,
)
from scmil.errors import WeightsError


def checkpoint_of(card: Card) -> Checkpoint:
    """The published file of a card."""
    shown = card.weights
    return Checkpoint(
        file=shown.file,
        sha256=shown.sha256,
        url=shown.url,
        package=shown.package,
        hint=shown.hint,
        hub=shown.hub,
        revision=shown.revision,
        gated=shown.gated,
        md5=shown.md5,
        folder="" if shown.sha256 else card.name.partition(":")[0],
    )


def load_card(
    card: Card,
    weights: str | Path | None = None,
    offline: bool | None = None,
    random: int | None = None,
) -> Encoder:
    """Build the network of a card and load its weights; a missing file is reported first."""
    if not card.builder:
        raise WeightsError(f"{card.name} cannot be built by scmil. {card.remedy}")
    details = {"encoder_card": f"{card.name}, version {card.version}"}
    if random is not None:
        network, source = build_random(card, random), f"random, seed {random}"
    else:
        path = obtain(card.name, checkpoint_of(card), weights, offline)
        state = read_state(path, card.weights.unwrap)
        network = load_network(card, state, str(path))
        sha256 = sha256_of_file(path)
        source = f"{path.name}, sha256 {sha256}"
        details["encoder_file_sha256"] = sha256
    details["encoder_parameters_digest"] = parameters = digest(network)
    whole = hashlib.sha256(f"{parameters}\n{card.contract}".encode()).hexdigest()
    shown = card.input
    return Encoder(
        name=card.name if random is None else f"{card.name}, random weights of seed {random}",
        dim=card.output.width,
        network=network,
        digest=parameters if card.digest == "parameters" else whole,
        weights_source=source,
        size_px=shown.tile_px,
        mpp=shown.mpp[0] if shown.mpp else None,
        input_px=shown.resize_px or None,
        mean=shown.mean,  # type: ignore[arg-type]  # three numbers, checked with the card
        std=shown.std,  # type: ignore[arg-type]
        foldable=card.foldable,
        interpolation=shown.interpolation,
        crop_px=shown.crop_px or None,
        mpps=shown.mpp,
        details=details,
    )


def load_network(card: Card, state: State, where: str) -> nn.Module:
    """A frozen network with the tensors of a published file, every one in its place."""
    network = build_empty(card)
    own = network.state_dict()
    renamed = _rename_tensors(card, state, card.weights.strip, own)
    try:
        load_state(network, renamed, card.weights.ignore, where)
    except WeightsError as error:
        if prefix := _fitting_prefix(card, state, own):
            raise WeightsError(
                f"{error} They fit without the prefix {prefix!r}: remove it from the names, or use "
                f"a copy of the card with strip = [{prefix!r}] below [weights]."
            ) from None
        raise WeightsError(f"{error} {_published_file(card)}") from None
    return network.eval().requires_grad_(False)


def _published_file(card: Card) -> str:
    """A sentence that names the file that fits."""
    shown = card.weights
    place = shown.url or (f"https://huggingface.co/{shown.hub}" if shown.hub else shown.hint)
    return f"Expected for {card.name}: the file {shown.file}{f' ({place})' if place else ''}."


def _rename_tensors(card: Card, state: State, strip: Iterable[str], own: State) -> State:
    """The tensors of a file with the names of the network."""
    renamed = LAYOUTS[card.weights.layout](strip_prefixes(state, strip))
    if interpolation := RESAMPLED.get(card.weights.layout):
        renamed = resample_positions(renamed, own, interpolation)
    return renamed


def _fitting_prefix(card: Card, state: State, own: State) -> str:
    """A prefix without which the tensors of a file fit, or an empty text."""
    shared = Counter(key[: dot.end()] for key in state for dot in re.finditer(r"\.", key))
    candidates = [prefix for prefix, count in shared.items() if 2 * count > len(own)]
    for prefix in sorted(candidates, key=len):
        strip = (*card.weights.strip, prefix)
        renamed = _rename_tensors(card, state, strip, own)
        if not compare_state(own, renamed, card.weights.ignore)[1]:
            return prefix
    return ""


def build_random(card: Card, seed: int = 0) -> nn.Module:
    """A frozen network with random weights, without changing the global random state."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_network(card).eval().requires_grad_(False)
    return check_parameters(card, network)


def build_empty(card: Card) -> nn.Module:
    """A network to load weights into, without memory of its own where that is possible.

    Networks with buffers that are not in files, or with counters that files may lack, are built
    with memory.
    """
    with torch.device("meta"):
        network = build_network(card)
    stored = network.state_dict()
    buffers = {name for name, _ in network.named_buffers()}
    if buffers - stored.keys() or any(name.endswith(COUNTER) for name in stored):
        return build_random(card)
    return check_parameters(card, network)


def check_parameters(card: Card, network: nn.Module) -> nn.Module:
    """Raise if a network has another number of parameters than its card."""
    if (actual := count_parameters(network)) != card.parameters:
        raise WeightsError(
            f"{card.name}: the network has {actual} parameters, but its card says "
            f"{card.parameters}. Another version of {card.needs} may build another network; see "
            "constraints.txt for the tested one."
        )
    return network


def loader_of(card: Card) -> partial[Encoder]:
    """The function that the registry calls; its options are those of `load_card`."""
    return partial(load_card, card)
