"""Any model of timm as an encoder, `timm:<name>`, with its own normalisation and input size."""

from __future__ import annotations

import difflib
import re
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from scmil.core.extras import import_extra
from scmil.core.fingerprint import sha256_of_file
from scmil.encoding.encoders import TIMM, Encoder, built
from scmil.encoding.encoders.torchvision_models import torchvision
from scmil.encoding.encoders.weights import digest, is_offline, load_state, read_state
from scmil.errors import UnknownNameError, WeightsError


@cache
def timm() -> ModuleType:
    """Import timm, which needs torchvision."""
    torchvision()
    return import_extra("timm", "encoders")


def load(
    model: str, weights: str | Path | None, offline: bool | None, random: int | None
) -> Encoder:
    """Build a model of timm without its classifier.

    The weights come from a file, from the hub of timm, or are random with the seed `random`.
    """
    _check_name(model, offline)
    name, create = f"{TIMM}{model}", partial(timm().create_model, model, num_classes=0)
    if random is not None:
        name, source = f"{name}, random weights of seed {random}", f"random, seed {random}"
        network = built(create, random)
    elif weights is not None:
        path, network = Path(weights), built(create)
        load_state(network, read_state(path), _classifier(network), str(path))
        source = f"{path.name}, sha256 {sha256_of_file(path)}"
    else:
        network, source = _from_hub(model, offline)
    data = timm().data.resolve_model_data_config(network)
    size_px = int(data["input_size"][-1])
    return Encoder(
        name=name,
        dim=int(network.head_hidden_size),  # type: ignore[arg-type]
        network=network,
        digest=digest(network),
        weights_source=source,
        size_px=size_px,
        input_px=size_px,
        mean=tuple(data["mean"]),
        std=tuple(data["std"]),
    )


def is_architecture(name: str) -> bool:
    """Whether a name is `timm:` and the name of a model, not a hub address or a folder.

    >>> is_architecture("timm:resnet34.a1_in1k"), is_architecture("timm:hf-hub:somebody/else")
    (True, False)
    """
    return (
        name.startswith(TIMM) and re.fullmatch(r"\w+(\.\w+)?", name.removeprefix(TIMM)) is not None
    )


def _check_name(model: str, offline: bool | None) -> None:
    if model.startswith("hf"):  # hf-hub:owner/name, which only the hub can check
        if is_offline(offline):
            raise WeightsError(
                f"{TIMM}{model}: its architecture has to be read from the hub, but scmil is "
                "offline."
            )
        return
    if timm().is_model(model):
        return
    near = difflib.get_close_matches(model, timm().list_models(), n=1)
    hint = f" Did you mean '{TIMM}{near[0]}'?" if near else ""
    raise UnknownNameError(f"timm has no model {model!r}.{hint} All names: timm.list_models().")


def _classifier(network: nn.Module) -> str:
    """The pattern of the names of the classifier, which an encoder does not use."""
    heads = network.pretrained_cfg.get("classifier") or "head"  # type: ignore[union-attr, operator]
    return "|".join(
        re.escape(f"{head}.") for head in ([heads] if isinstance(heads, str) else heads)
    )


def _from_hub(model: str, offline: bool | None) -> tuple[nn.Module, str]:
    remedy = f"Give a file with its weights (.safetensors or .pth): weights=, for {TIMM}{model}."
    if is_offline(offline):
        raise WeightsError(
            f"{TIMM}{model}: its weights have to be downloaded, but scmil is offline. {remedy}"
        )
    try:
        network = built(lambda: timm().create_model(model, pretrained=True, num_classes=0))
    except Exception as error:  # the client of the hub raises exceptions of several packages
        raise WeightsError(
            f"{TIMM}{model}: timm cannot download its weights ({error}). {remedy}"
        ) from None
    config: Any = network.pretrained_cfg
    return network, f"timm's hub, {config['hf_hub_id'] or config['url']}"
