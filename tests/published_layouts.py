"""Small files of weights in the layouts of other libraries, and vision transformers that compute
features from those names directly, without timm and without the renaming of scmil.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear, silu

State = dict[str, Tensor]
Affine = tuple[Tensor, Tensor]


class Block(NamedTuple):
    """The tensors of one block: weight and bias of each layer, and the layer scales."""

    norm1: Affine
    q: Affine
    k: Affine
    v: Affine
    out: Affine
    scale1: Tensor | float
    norm2: Affine
    fc1: Affine
    fc2: Affine
    scale2: Tensor | float


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


def swiglu(x: Tensor) -> Tensor:
    gate, value = x.chunk(2, -1)
    return silu(gate) * value


def attend(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k, v = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (q, k, v))
    weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def run_block(x: Tensor, block: Block, heads: int, act: Callable[..., Any], eps: float) -> Tensor:
    h = layer_norm(x, x.shape[-1:], *block.norm1, eps)
    mixed = attend(linear(h, *block.q), linear(h, *block.k), linear(h, *block.v), heads)
    x = x + block.scale1 * linear(mixed, *block.out)
    h = layer_norm(x, x.shape[-1:], *block.norm2, eps)
    return x + block.scale2 * linear(act(linear(h, *block.fc1)), *block.fc2)


def patches(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return conv2d(x, weight, bias, stride=weight.shape[-1]).flatten(2).transpose(1, 2)


class Maker:
    """Random tensors under given names."""

    def __init__(self, seed: int = 0) -> None:
        self.state: State = {}
        self.generator = torch.Generator().manual_seed(seed)

    def add(self, name: str, *shape: int, scale: float = 0.2) -> Tensor:
        self.state[name] = scale * torch.randn(shape, generator=self.generator)
        return self.state[name]

    def layer(self, name: str, after: int, before: int | None = None) -> None:
        if before is None:
            self.add(f"{name}.weight", after).add_(1)
        else:
            self.add(f"{name}.weight", after, before, scale=before**-0.5)
        self.add(f"{name}.bias", after)


def affine(state: State, name: str) -> Affine:
    return state[f"{name}.weight"], state[f"{name}.bias"]


def thirds(pair: Affine) -> list[Affine]:
    return list(zip(pair[0].chunk(3), pair[1].chunk(3), strict=True))


# ------------------------------------------------------------------------------------- transformers


def transformers_state(
    width: int, depth: int, patch: int, grid: int, *, dino: bool, hidden: int, registers: int = 0
) -> State:
    """ViTModel, or Dinov2Model with `dino`; `hidden` is the width of SwiGLU, 0 without it."""
    make = Maker()
    make.add("embeddings.cls_token", 1, 1, width)
    make.add("embeddings.position_embeddings", 1, 1 + grid**2, width)
    if registers:
        make.add("embeddings.register_tokens", 1, registers, width)
    make.add("embeddings.patch_embeddings.projection.weight", width, 3, patch, patch)
    make.add("embeddings.patch_embeddings.projection.bias", width)
    if dino:
        make.add("embeddings.mask_token", 1, width)
    for i in range(depth):
        at = f"encoder.layer.{i}"
        first, second = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
        make.layer(f"{at}.{first}", width)
        make.layer(f"{at}.{second}", width)
        for part in ("query", "key", "value"):
            make.layer(f"{at}.attention.attention.{part}", width, width)
        make.layer(f"{at}.attention.output.dense", width, width)
        if hidden:
            make.layer(f"{at}.mlp.weights_in", 2 * hidden, width)
            make.layer(f"{at}.mlp.weights_out", width, hidden)
        else:
            into, out = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
            make.layer(f"{at}.{into}", 4 * width, width)
            make.layer(f"{at}.{out}", width, 4 * width)
        if dino:
            make.add(f"{at}.layer_scale1.lambda1", width)
            make.add(f"{at}.layer_scale2.lambda1", width)
    make.layer("layernorm", width)
    return make.state


def transformers_tokens(state: State, x: Tensor, heads: int, eps: float) -> Tensor:
    dino = "encoder.layer.0.norm1.weight" in state
    glu = "encoder.layer.0.mlp.weights_in.weight" in state
    x = patches(x, *affine(state, "embeddings.patch_embeddings.projection"))
    cls = state["embeddings.cls_token"].expand(len(x), -1, -1)
    x = torch.cat([cls, x], 1) + state["embeddings.position_embeddings"]
    if (registers := state.get("embeddings.register_tokens")) is not None:
        x = torch.cat([x[:, :1], registers.expand(len(x), -1, -1), x[:, 1:]], 1)
    depth = sum(name.endswith("query.bias") for name in state)
    for i in range(depth):
        at = f"encoder.layer.{i}"
        first, second = ("norm1", "norm2") if dino else ("layernorm_before", "layernorm_after")
        into, out = ("mlp.fc1", "mlp.fc2") if dino else ("intermediate.dense", "output.dense")
        if glu:
            into, out = "mlp.weights_in", "mlp.weights_out"
        q, k, v = (
            affine(state, f"{at}.attention.attention.{part}") for part in ("query", "key", "value")
        )
        block = Block(
            affine(state, f"{at}.{first}"),
            q,
            k,
            v,
            affine(state, f"{at}.attention.output.dense"),
            state[f"{at}.layer_scale1.lambda1"] if dino else 1.0,
            affine(state, f"{at}.{second}"),
            affine(state, f"{at}.{into}"),
            affine(state, f"{at}.{out}"),
            state[f"{at}.layer_scale2.lambda1"] if dino else 1.0,
        )
        x = run_block(x, block, heads, swiglu if glu else gelu, eps)
    return layer_norm(x, x.shape[-1:], *affine(state, "layernorm"), eps)


# --------------------------------------------------------------------------- DINOv2 of its authors


def dinov2_state(
    width: int, depth: int, patch: int, grid: int, *, hidden: int = 0, registers: int = 0,
    chunk: int = 0,
) -> State:  # fmt: skip
    """The authors' names; with `chunk`, blocks are nested in chunks of that many."""
    make = Maker()
    make.add("cls_token", 1, 1, width)
    make.add("pos_embed", 1, 1 + grid**2, width)
    if registers:
        make.add("register_tokens", 1, registers, width)
    make.add("mask_token", 1, width)
    make.add("patch_embed.proj.weight", width, 3, patch, patch)
    make.add("patch_embed.proj.bias", width)
    for i in range(depth):
        at = f"blocks.{i // chunk}.{i}" if chunk else f"blocks.{i}"
        make.layer(f"{at}.norm1", width)
        make.layer(f"{at}.attn.qkv", 3 * width, width)
        make.layer(f"{at}.attn.proj", width, width)
        make.add(f"{at}.ls1.gamma", width)
        make.layer(f"{at}.norm2", width)
        into, out = ("w12", "w3") if hidden else ("fc1", "fc2")
        make.layer(f"{at}.mlp.{into}", 2 * hidden or 4 * width, width)
        make.layer(f"{at}.mlp.{out}", width, hidden or 4 * width)
        make.add(f"{at}.ls2.gamma", width)
    make.layer("norm", width)
    return make.state


def dinov2_tokens(state: State, x: Tensor, heads: int) -> Tensor:
    x = patches(x, *affine(state, "patch_embed.proj"))
    x = torch.cat([state["cls_token"].expand(len(x), -1, -1), x], 1) + state["pos_embed"]
    if (registers := state.get("register_tokens")) is not None:
        x = torch.cat([x[:, :1], registers.expand(len(x), -1, -1), x[:, 1:]], 1)
    places = [name.removesuffix(".ls1.gamma") for name in state if name.endswith(".ls1.gamma")]
    for at in places:
        glu = f"{at}.mlp.w12.weight" in state
        into, out = ("w12", "w3") if glu else ("fc1", "fc2")
        q, k, v = thirds(affine(state, f"{at}.attn.qkv"))
        block = Block(
            affine(state, f"{at}.norm1"),
            q,
            k,
            v,
            affine(state, f"{at}.attn.proj"),
            state[f"{at}.ls1.gamma"],
            affine(state, f"{at}.norm2"),
            affine(state, f"{at}.mlp.{into}"),
            affine(state, f"{at}.mlp.{out}"),
            state[f"{at}.ls2.gamma"],
        )
        x = run_block(x, block, heads, swiglu if glu else gelu, 1e-6)
    return layer_norm(x, x.shape[-1:], *affine(state, "norm"), 1e-6)


# --------------------------------------------------------------------------------------------- CLIP


def clip_state(width: int, depth: int, patch: int, grid: int, out: int) -> State:
    """transformers' CLIPModel; of the text tower only two tensors, to be left out."""
    make = Maker()
    make.add("logit_scale")
    make.add("text_projection.weight", out, out)
    make.add("vision_model.embeddings.class_embedding", width)
    make.add("vision_model.embeddings.position_embedding.weight", 1 + grid**2, width)
    make.add("vision_model.embeddings.patch_embedding.weight", width, 3, patch, patch)
    make.layer("vision_model.pre_layrnorm", width)
    for i in range(depth):
        at = f"vision_model.encoder.layers.{i}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            make.layer(f"{at}.self_attn.{part}", width, width)
        make.layer(f"{at}.layer_norm1", width)
        make.layer(f"{at}.layer_norm2", width)
        make.layer(f"{at}.mlp.fc1", 4 * width, width)
        make.layer(f"{at}.mlp.fc2", width, 4 * width)
    make.layer("vision_model.post_layernorm", width)
    make.add("visual_projection.weight", out, width)
    return make.state


def to_open_clip(state: State) -> State:
    """The same tensors as open_clip stores them: query, key and value in one."""
    renamed: State = {"logit_scale": state["logit_scale"], "text_projection": torch.ones(2, 2)}
    vision = "vision_model."
    renamed["visual.class_embedding"] = state[f"{vision}embeddings.class_embedding"]
    renamed["visual.positional_embedding"] = state[f"{vision}embeddings.position_embedding.weight"]
    renamed["visual.conv1.weight"] = state[f"{vision}embeddings.patch_embedding.weight"]
    renamed["visual.proj"] = state["visual_projection.weight"].T.contiguous()
    for kind in ("weight", "bias"):
        renamed[f"visual.ln_pre.{kind}"] = state[f"{vision}pre_layrnorm.{kind}"]
        renamed[f"visual.ln_post.{kind}"] = state[f"{vision}post_layernorm.{kind}"]
        for i in range(sum(name.endswith("q_proj.bias") for name in state)):
            ours, at = f"visual.transformer.resblocks.{i}", f"{vision}encoder.layers.{i}"
            parts = [state[f"{at}.self_attn.{part}_proj.{kind}"] for part in "qkv"]
            renamed[f"{ours}.attn.in_proj_{kind}"] = torch.cat(parts)
            for theirs, mine in {
                "attn.out_proj": "self_attn.out_proj",
                "ln_1": "layer_norm1",
                "ln_2": "layer_norm2",
                "mlp.c_fc": "mlp.fc1",
                "mlp.c_proj": "mlp.fc2",
            }.items():
                renamed[f"{ours}.{theirs}.{kind}"] = state[f"{at}.{mine}.{kind}"]
    return renamed


def clip_features(
    state: State, x: Tensor, heads: int, activation: Callable[[Tensor], Tensor] = quick_gelu
) -> Tensor:
    vision = "vision_model."
    x = patches(x, state[f"{vision}embeddings.patch_embedding.weight"], None)
    cls = state[f"{vision}embeddings.class_embedding"].expand(len(x), 1, -1)
    x = torch.cat([cls, x], 1) + state[f"{vision}embeddings.position_embedding.weight"]
    x = layer_norm(x, x.shape[-1:], *affine(state, f"{vision}pre_layrnorm"))
    for i in range(sum(name.endswith("q_proj.bias") for name in state)):
        at = f"{vision}encoder.layers.{i}"
        q, k, v = (affine(state, f"{at}.self_attn.{part}_proj") for part in "qkv")
        block = Block(
            affine(state, f"{at}.layer_norm1"),
            q,
            k,
            v,
            affine(state, f"{at}.self_attn.out_proj"),
            1.0,
            affine(state, f"{at}.layer_norm2"),
            affine(state, f"{at}.mlp.fc1"),
            affine(state, f"{at}.mlp.fc2"),
            1.0,
        )
        x = run_block(x, block, heads, activation, 1e-5)
    cls = layer_norm(x[:, 0], x.shape[-1:], *affine(state, f"{vision}post_layernorm"))
    return cls @ state["visual_projection.weight"].T


# -------------------------------------------------------------------------------- timm, with a head


def timm_state(prefix: str, width: int, depth: int, patch: int, grid: int, scales: bool) -> State:
    """timm's names below a prefix."""
    state = dinov2_state(width, depth, patch, grid)
    kept = {name: value for name, value in state.items() if name != "mask_token"}
    return {prefix + name: value for name, value in kept.items() if scales or ".ls" not in name}


def timm_tokens(state: State, prefix: str, x: Tensor, heads: int) -> Tensor:
    """Tokens of `timm_state`."""
    plain = {
        name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)
    }
    width = plain["norm.bias"].shape[0]
    depth = sum(name.endswith("attn.qkv.bias") for name in plain)
    ones = {f"blocks.{i}.ls{j}.gamma": torch.ones(width) for i in range(depth) for j in (1, 2)}
    return dinov2_tokens({**ones, **plain}, x, heads)
