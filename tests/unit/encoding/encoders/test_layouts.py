"""Files in the layouts of other libraries give the features that those libraries compute."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import published_layouts as published
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, interpolate, layer_norm, linear, normalize

from scmil.encoding.encoders import card_of
from scmil.encoding.encoders.builders import build_network, count_parameters
from scmil.encoding.encoders.card import Card
from scmil.encoding.encoders.layouts import resample_positions, strip_prefixes
from scmil.encoding.encoders.load_card import load_network
from scmil.errors import WeightsError

WIDTH, DEPTH, HEADS = 32, 2, 4


def reduced(name: str, size: int = 28, width: int | None = None, **arguments: Any) -> Card:
    """The card of an encoder with a small network of the same family."""
    card = card_of(name)
    small = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "img_size": size}
    card = replace(card, arguments={**card.arguments, **small, **arguments})
    factor = 2 if card.output.pool == "cls+mean" else 1
    card = replace(card, output=replace(card.output, width=width or factor * WIDTH))
    with torch.device("meta"):
        return replace(card, parameters=count_parameters(build_network(card)))


def image(size: int = 28) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def check(card: Card, state: published.State, x: Tensor, expected: Tensor) -> nn.Module:
    network = load_network(card, state, "own.pth")
    with torch.inference_mode():
        features = network(x)
    assert features.shape == (len(x), card.output.width)
    assert torch.allclose(features, expected, rtol=1e-4, atol=1e-5)
    unused = re.compile("mask_token|^text|logit|caption|dino_head|^visual.proj_contrast")
    needed = [name for name in state if not unused.search(name)]
    for lost in needed[::7]:
        with pytest.raises(WeightsError, match=r"own\.pth: these are not the weights"):
            load_network(card, {n: v for n, v in state.items() if n != lost}, "own.pth")
    with pytest.raises(WeightsError, match=r"Not expected: .*more"):
        load_network(
            card, {**state, "backbone.more": torch.ones(1), "more": torch.ones(1)}, "own.pth"
        )
    return network


def test_transformers_vit() -> None:
    state = published.transformers_state(WIDTH, DEPTH, 16, 2, dino=False, hidden=0)
    tokens = published.transformers_tokens(state, image(32), HEADS, 1e-12)
    check(reduced("phikon", 32), state, image(32), tokens[:, 0])


def test_transformers_dinov2_with_layer_scale() -> None:
    state = published.transformers_state(WIDTH, DEPTH, 16, 2, dino=True, hidden=0)
    tokens = published.transformers_tokens(state, image(32), HEADS, 1e-6)
    check(reduced("phikon-v2", 32), state, image(32), tokens[:, 0])


def test_transformers_dinov2_with_swiglu_and_both_kinds_of_pooling() -> None:
    state = published.transformers_state(WIDTH, DEPTH, 14, 2, dino=True, hidden=85)
    tokens = published.transformers_tokens(state, image(), HEADS, 1e-6)
    mean = tokens[:, 1:].mean(1)
    both = torch.cat([tokens[:, 0], mean], 1)
    check(reduced("midnight-12k"), state, image(), both)
    check(reduced("midnight-12k:cls"), state, image(), tokens[:, 0])


@pytest.mark.parametrize("library", ["transformers", "authors"])
def test_registers_and_the_position_of_the_class_token(library: str) -> None:
    if library == "transformers":
        state = published.transformers_state(WIDTH, DEPTH, 14, 2, dino=True, hidden=85, registers=4)
        tokens = published.transformers_tokens(state, image(), HEADS, 1e-6)
    else:
        state = published.dinov2_state(WIDTH, DEPTH, 14, 2, hidden=85, registers=4)
        tokens = published.dinov2_tokens(state, image(), HEADS)
    check(reduced("hibou-b"), state, image(), tokens[:, 0])


def test_the_published_teacher_of_gpfm_with_blocks_in_chunks() -> None:
    state = published.dinov2_state(WIDTH, 4, 14, 2, chunk=2)
    tokens = published.dinov2_tokens(state, image(), HEADS)
    teacher = {f"backbone.{name}": value for name, value in state.items()}
    teacher["dino_head.mlp.0.weight"] = torch.ones(3, 3)
    assert "backbone.blocks.1.3.norm1.bias" in teacher
    card = reduced("gpfm", depth=4)
    check(card, teacher, image(), tokens[:, 0])
    flat = published.dinov2_state(WIDTH, 4, 14, 2)
    check(card, flat, image(), tokens[:, 0])


@pytest.mark.parametrize("name", ["plip", "quiltnet-b-32"])
def test_clip_towers_of_transformers_and_of_open_clip(name: str) -> None:
    state = published.clip_state(WIDTH, DEPTH, 32, 2, out=16)
    activation = published.quick_gelu if name == "plip" else gelu
    expected = published.clip_features(state, image(64), HEADS, activation)
    stored = state if name == "plip" else published.to_open_clip(state)
    check(reduced(name, 64, width=16), stored, image(64), expected)


def test_a_clip_tower_of_timm_in_open_clip() -> None:
    make = published.Maker(3)
    make.add("visual.head.proj.weight", 16, WIDTH)
    make.add("logit_scale")
    make.add("text.transformer.embeddings.weight", 2, 2)
    tower = published.timm_state("visual.trunk.", WIDTH, DEPTH, 16, 2, scales=False)
    cls = published.timm_tokens(tower, "visual.trunk.", image(32), HEADS)[:, 0]
    expected = cls @ make.state["visual.head.proj.weight"].T
    card = reduced("quiltnet-b-16-pmb", 32, width=16)
    check(card, make.state | tower, image(32), expected)


def test_keep_projects_and_normalises() -> None:
    make = published.Maker(3)
    make.layer("visual_head.0", 24, WIDTH)
    make.layer("visual_head.2", 24, 24)
    make.add("logit_scale")
    make.add("text.embeddings.weight", 2, 2)
    state = make.state | published.timm_state("visual.", WIDTH, DEPTH, 16, 2, scales=True)
    cls = published.timm_tokens(state, "visual.", image(32), HEADS)[:, 0]
    first = gelu(linear(cls, *published.affine(state, "visual_head.0")))
    expected = normalize(linear(first, *published.affine(state, "visual_head.2")), dim=-1)
    check(reduced("keep", 32, width=24), state, image(32), expected)
    old = {name.replace(".gamma", ".weight"): value for name, value in state.items()}
    check(reduced("keep", 32, width=24), old, image(32), expected)


@pytest.mark.parametrize("name", ["conch", "conch:projected"])
def test_conch_attends_with_one_query(name: str) -> None:
    make, width = published.Maker(3), 24
    pool = "visual.attn_pool_contrast"
    make.add(f"{pool}.query", 1, width)
    make.add(f"{pool}.attn.q_proj_weight", width, width)
    make.add(f"{pool}.attn.k_proj_weight", width, WIDTH)
    make.add(f"{pool}.attn.v_proj_weight", width, WIDTH)
    make.add(f"{pool}.attn.in_proj_bias", 3 * width)
    make.layer(f"{pool}.attn.out_proj", width, width)
    make.layer(f"{pool}.ln_q", width)
    make.layer(f"{pool}.ln_k", WIDTH)
    make.layer("visual.ln_contrast", width)
    make.add("visual.proj_contrast", width, width)
    make.add("visual.attn_pool_caption.query", 4, width)
    make.add("text.cls_emb", 3)
    make.add("logit_scale")
    state = make.state | published.timm_state("visual.trunk.", WIDTH, DEPTH, 16, 2, scales=False)
    x = published.timm_tokens(state, "visual.trunk.", image(32), HEADS)
    keys = layer_norm(x, (WIDTH,), *published.affine(state, f"{pool}.ln_k"))
    query = layer_norm(
        state[f"{pool}.query"], (width,), *published.affine(state, f"{pool}.ln_q")
    ).expand(2, 1, -1)
    biases = state[f"{pool}.attn.in_proj_bias"].chunk(3)
    q, k, v = (
        linear(value, state[f"{pool}.attn.{part}_proj_weight"], bias)
        for value, part, bias in zip((query, keys, keys), "qkv", biases, strict=True)
    )
    mixed = published.attend(q, k, v, heads=8)
    pooled = linear(mixed, *published.affine(state, f"{pool}.attn.out_proj"))[:, 0]
    pooled = layer_norm(pooled, (width,), *published.affine(state, "visual.ln_contrast"))
    if name == "conch:projected":
        pooled = pooled @ state["visual.proj_contrast"]
    check(reduced(name, 32, width=width), state, image(32), pooled)


def test_conch15_attends_with_maps_without_biases() -> None:
    make, width = published.Maker(3), 24
    pool = "attn_pool_contrast"
    make.add(f"{pool}.query", 1, width)
    make.add(f"{pool}.to_q.weight", width, width)
    make.add(f"{pool}.to_kv.weight", 2 * width, WIDTH)
    make.add(f"{pool}.to_out.weight", width, width)
    make.layer(f"{pool}.ln_q", width)
    make.layer(f"{pool}.ln_k", WIDTH)
    make.layer("ln_contrast", width)
    state = make.state | published.timm_state("trunk.", WIDTH, DEPTH, 16, 2, scales=True)
    x = published.timm_tokens(state, "trunk.", image(32), HEADS)
    keys = layer_norm(x, (WIDTH,), *published.affine(state, f"{pool}.ln_k"))
    query = layer_norm(state[f"{pool}.query"], (width,), *published.affine(state, f"{pool}.ln_q"))
    q = (query @ state[f"{pool}.to_q.weight"].T).expand(2, 1, -1)
    k, v = (keys @ state[f"{pool}.to_kv.weight"].T).chunk(2, -1)
    pooled = published.attend(q, k, v, heads=8)[:, 0] @ state[f"{pool}.to_out.weight"].T
    expected = layer_norm(pooled, (width,), *published.affine(state, "ln_contrast"))
    check(reduced("conch-v1.5", 32, width=width), state, image(32), expected)


def test_virchow2_leaves_registers_out_of_the_mean() -> None:
    card = reduced("virchow2", mlp_ratio=4.0)
    network = build_network(card).eval()
    with torch.inference_mode():
        tokens = network.trunk(image())
        assert tokens.shape == (2, 1 + 4 + 4, WIDTH)  # class token, registers, patches
        expected = torch.cat([tokens[:, 0], tokens[:, 5:].mean(1)], 1)
        assert torch.allclose(network(image()), expected)


def test_positions_of_a_larger_image_are_resampled_as_transformers_does() -> None:
    state = published.transformers_state(WIDTH, DEPTH, 14, 4, dino=True, hidden=85)
    network = load_network(reduced("midnight-12k:cls"), state, "own.pth")
    positions = state["embeddings.position_embeddings"]
    grid = positions[:, 1:].view(1, 4, 4, WIDTH).permute(0, 3, 1, 2)
    small = interpolate(grid, (2, 2), mode="bicubic", align_corners=False)
    expected = torch.cat([positions[:, :1], small.permute(0, 2, 3, 1).reshape(1, 4, WIDTH)], 1)
    assert torch.allclose(network.trunk.pos_embed, expected)
    odd = {"trunk.pos_embed": torch.ones(1, 7, WIDTH)}
    assert resample_positions(odd, network.state_dict(), "bicubic") == odd


def test_a_prefix_is_removed_where_it_is() -> None:
    ones = torch.ones(1)
    assert list(strip_prefixes({"backbone.a": ones, "head.b": ones}, ["backbone."])) == ["a"]
    assert list(strip_prefixes({"a": ones}, ["backbone."])) == ["a"]
