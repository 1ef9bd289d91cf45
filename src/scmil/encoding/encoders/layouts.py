"""Names of tensors in published files, renamed to those of the networks that scmil builds.

A layout is a function from the tensors of a file to tensors with our names. Names that a layout
does not know stay as they are, and the strict loading rejects them unless the card ignores them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from scmil.encoding.encoders.weights import State

Layout = Callable[[State], State]
TRUNK = "trunk."
# In each, the tensors of query, key and value are joined into one, in this order.
VIT_NAMES = {
    "embeddings.cls_token": "cls_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.register_tokens": "reg_token",
    "embeddings.patch_embeddings.projection.": "patch_embed.proj.",
    "layernorm.": "norm.",
    "encoder.layer.": "blocks.",
}
VIT_BLOCK = {
    "layernorm_before.": "norm1.",
    "layernorm_after.": "norm2.",
    "attention.output.dense.": "attn.proj.",
    "attention.attention.": "attn.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "mlp.weights_in.": "mlp.fc1.",
    "mlp.weights_out.": "mlp.fc2.",
}
CLIP_NAMES = {
    "vision_model.embeddings.class_embedding": "cls_token",
    "vision_model.embeddings.position_embedding.weight": "pos_embed",
    "vision_model.embeddings.patch_embedding.": "patch_embed.proj.",
    "vision_model.pre_layrnorm.": "norm_pre.",
    "vision_model.post_layernorm.": "norm.",
    "vision_model.encoder.layers.": "blocks.",
    "visual.class_embedding": "cls_token",
    "visual.positional_embedding": "pos_embed",
    "visual.conv1.": "patch_embed.proj.",
    "visual.ln_pre.": "norm_pre.",
    "visual.ln_post.": "norm.",
    "visual.transformer.resblocks.": "blocks.",
    "visual.trunk.": "",  # open_clip with an image tower of timm
}
CLIP_BLOCK = {
    "layer_norm1.": "norm1.",
    "layer_norm2.": "norm2.",
    "self_attn.out_proj.": "attn.proj.",
    "self_attn.q_proj.": "attn.query.",
    "self_attn.k_proj.": "attn.key.",
    "self_attn.v_proj.": "attn.value.",
    "ln_1.": "norm1.",
    "ln_2.": "norm2.",
    "attn.in_proj_": "attn.qkv.",
    "attn.out_proj.": "attn.proj.",
    "mlp.c_fc.": "mlp.fc1.",
    "mlp.c_proj.": "mlp.fc2.",
}
DINOV2_BLOCK = {"mlp.w12.": "mlp.fc1.", "mlp.w3.": "mlp.fc2."}


def from_timm(state: State) -> State:
    """Files of timm: the names are those of the network."""
    return _below_trunk(state)


def from_transformers(state: State) -> State:
    """transformers' ViT and DINOv2, with or without registers.

    >>> layer = "encoder.layer.3.attention.attention"
    >>> parts = {f"{layer}.{part}.bias": torch.ones(2) for part in ("query", "key", "value")}
    >>> {name: tuple(value.shape) for name, value in from_transformers(parts).items()}
    {'trunk.blocks.3.attn.qkv.bias': (6,)}
    """
    renamed = _rename(state, VIT_NAMES, VIT_BLOCK)
    return _below_trunk(_class_position_into_token(_join_qkv(renamed)))


def from_clip(state: State) -> State:
    """The image tower of transformers' and open_clip's CLIP, which may be a network of timm; the
    text tower is left as it is.
    """
    renamed = _join_qkv(_rename(state, CLIP_NAMES, CLIP_BLOCK))
    shaped = {}
    for name, value in renamed.items():
        if name == "cls_token":
            value = value.view(1, 1, -1)
        elif name == "pos_embed":
            value = value.view(1, *value.shape[-2:])
        elif name == "visual.proj":  # open_clip multiplies from the left
            name, value = "projection.weight", value.T.contiguous()
        elif name in ("visual_projection.weight", "visual.head.proj.weight"):
            name = "projection.weight"
        shaped[name] = value
    return _below_trunk(shaped)


def from_dinov2(state: State) -> State:
    """The authors' DINOv2: blocks in chunks, registers, SwiGLU under other names."""
    flat = {}
    for name, value in state.items():
        name = re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name)
        for theirs, ours in DINOV2_BLOCK.items():
            name = name.replace(theirs, ours)
        flat["reg_token" if name == "register_tokens" else name] = value
    return _below_trunk(_class_position_into_token(flat))


def from_dinov2_or_transformers(state: State) -> State:
    """Networks that are published in both layouts, such as Hibou."""
    theirs = any(name.startswith("embeddings.") for name in state)
    return from_transformers(state) if theirs else from_dinov2(state)


def from_ctranspath(state: State) -> State:
    """CTransPath, written by timm 0.5.4 or by the current one."""
    from scmil.encoding.encoders.ctranspath import to_current_timm

    return to_current_timm(state)


def from_efficientnet_lite(state: State) -> State:
    """EfficientNet-Lite0, converted from TensorFlow."""
    from scmil.encoding.encoders.efficientnet_lite import to_timm

    return to_timm(state)


def from_conch(state: State) -> State:
    """CONCH: the image tower of a CoCa model; text and caption parts are left as they are."""
    return {name.removeprefix("visual."): value for name, value in state.items()}


def from_keep(state: State) -> State:
    """KEEP: `visual.` is the trunk, `visual_head.` the projection; old names of layer scales."""
    renamed = {}
    for name, value in state.items():
        name = re.sub(r"^visual\.(.*\.ls[12])\.weight$", r"visual.\1.gamma", name)
        name = re.sub(r"^visual\.", TRUNK, name)
        renamed[re.sub(r"^visual_head\.", "projection.", name)] = value
    return renamed


def from_kimianet(state: State) -> State:
    """KimiaNet: DenseNet-121 inside a sequence inside a model."""
    return {re.sub(r"^model\.0\.", "0.", name): value for name, value in state.items()}


def unchanged(state: State) -> State:
    """Names that are those of the network."""
    return state


def _rename(state: State, outside: dict[str, str], inside: dict[str, str]) -> dict[str, Tensor]:
    renamed = {}
    for name, value in state.items():
        ours = _replace_prefix(name, outside)
        if hit := re.fullmatch(r"(blocks\.\d+\.)(.*)", ours):
            ours = hit[1] + _replace_prefix(hit[2], inside)
        renamed[ours] = value
    return renamed


def _replace_prefix(name: str, table: dict[str, str]) -> str:
    for theirs, ours in table.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _join_qkv(state: State) -> dict[str, Tensor]:
    """Join the tensors of query, key and value; an incomplete set stays as it is."""
    joined = dict(state)
    for name in state:
        if hit := re.fullmatch(r"(blocks\.\d+\.attn\.)query\.(weight|bias)", name):
            parts = [f"{hit[1]}{part}.{hit[2]}" for part in ("query", "key", "value")]
            if all(part in state for part in parts):
                joined[f"{hit[1]}qkv.{hit[2]}"] = torch.cat([joined.pop(part) for part in parts])
    return joined


def _class_position_into_token(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """With registers, timm's networks have positions of patches only.

    The position of the class token is constant, so it is added to the token.
    """
    if not {"reg_token", "cls_token", "pos_embed"} <= state.keys():
        return state
    positions = state["pos_embed"]
    if math.isqrt(positions.shape[1] - 1) ** 2 != positions.shape[1] - 1:
        return state  # the class token has no position here
    token = state["cls_token"] + positions[:, :1]
    return {**state, "cls_token": token, "pos_embed": positions[:, 1:].contiguous()}


def _below_trunk(state: State) -> State:
    return {
        name if name.startswith("projection.") else f"{TRUNK}{name}": value
        for name, value in state.items()
    }


def strip_prefixes(state: State, prefixes: Iterable[str]) -> State:
    """Remove prefixes, in their order, from the names that have them.

    Where some names have a prefix and others do not, the others are of another part of the
    model, such as a head for training, and are left out.
    """
    for prefix in prefixes:
        if any(name.startswith(prefix) for name in state):
            state = {
                name.removeprefix(prefix): value
                for name, value in state.items()
                if name.startswith(prefix)
            }
    return state


def resample_positions(state: State, own: State, interpolation: str) -> State:
    """Resample the positions of patches to the grid of a network, where the two differ.

    The tokens before those of patches keep their positions.
    """
    name = f"{TRUNK}pos_embed"
    if name not in state or name not in own or state[name].shape == own[name].shape:
        return state
    theirs, ours = state[name], own[name]
    prefix = ours.shape[1] - math.isqrt(ours.shape[1]) ** 2
    before, after = (math.isqrt(max(x.shape[1] - prefix, 0)) for x in (theirs, ours))
    if before**2 + prefix != theirs.shape[1] or after**2 + prefix != ours.shape[1]:
        return state
    grid = theirs[:, prefix:].float().unflatten(1, (before, before)).permute(0, 3, 1, 2)
    resized = torch.nn.functional.interpolate(
        grid, (after, after), mode=interpolation, align_corners=False
    )
    patches = resized.permute(0, 2, 3, 1).flatten(1, 2)
    return {**state, name: torch.cat([theirs[:, :prefix].float(), patches], 1)}


LAYOUTS: dict[str, Layout] = {
    "timm": from_timm,
    "transformers": from_transformers,
    "clip": from_clip,
    "dinov2": from_dinov2,
    "dinov2-or-transformers": from_dinov2_or_transformers,
    "ctranspath": from_ctranspath,
    "efficientnet-lite": from_efficientnet_lite,
    "conch": from_conch,
    "keep": from_keep,
    "kimianet": from_kimianet,
    "unchanged": unchanged,
}
# Layouts whose libraries resample positions to the size of the input, and how they do it.
RESAMPLED = {
    "transformers": "bicubic",
    "dinov2-or-transformers": "bicubic",
    "conch": "bilinear",
}
