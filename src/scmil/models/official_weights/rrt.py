"""RRT-MIL: DearCaat/RRT-MIL."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    UNUSED,
    Choices,
    Description,
    Entry,
    Layout,
    Shapes,
    Table,
    has,
    linear,
    size,
)

FIRST = "patch_to_emb.0.weight"
ENCODER = "online_encoder."


def encoder_table(shapes: Shapes, theirs: str = ENCODER, ours: str = "aggregate.encoder.") -> Table:
    """The place of the tensors of the encoder."""
    table = linear(f"{theirs}norm", f"{ours}norm")
    number = 0
    if has(shapes, f"{theirs}layers.0."):
        region = f"{theirs}layers.0.attn.attn"
        table |= linear(f"{theirs}layers.0.norm", f"{ours}norms.0")
        table |= linear(f"{region}.qkv", f"{ours}layers.0.to_qkv")
        table |= linear(f"{region}.proj", f"{ours}layers.0.to_out.0")
        if has(shapes, f"{region}.pe."):
            table[f"{region}.pe.weight"] = Entry(f"{ours}layers.0.position.weight")
            table[f"{region}.pe.bias"] = UNUSED  # cancels in the softmax
        number = 1
    if has(shapes, f"{theirs}cr_msa."):
        cross, own = f"{theirs}cr_msa.attn", f"{ours}layers.{number}"
        table |= linear(f"{theirs}cr_msa.norm", f"{ours}norms.{number}")
        table |= linear(f"{cross}.attn.qkv", f"{own}.attention.to_qkv")
        table |= linear(f"{cross}.attn.proj", f"{own}.attention.to_out.0")
        if f"{cross}.phi" in shapes:
            table[f"{cross}.phi"] = Entry(f"{own}.phi.weight", "transpose")
        else:
            for part in ("0", "2"):
                table[f"{cross}.phi.{part}.weight"] = Entry(f"{own}.phi.{part}.weight")
    return table


def encoder_options(shapes: Shapes, theirs: str = ENCODER) -> dict[str, object]:
    """The options of the encoder that its tensors show."""
    kernel = f"{theirs}layers.0.attn.attn.pe.weight"
    mlp = has(shapes, phi := f"{theirs}cr_msa.attn.phi.")
    scores = (f"{phi}2.weight", 0) if mlp else (phi[:-1], 1)
    return {
        "heads": size(shapes, kernel, 0, 8),
        "kernel": size(shapes, kernel, 2, 0),
        "summaries": size(shapes, *scores),
        "summary_mlp": mlp,
    }


def _describe(_: str, shapes: Shapes, __: Choices) -> Description:
    table = encoder_table(shapes) | linear("patch_to_emb.0", "embed.0")
    table |= linear("predictor", "aggregate.classifier")
    for part in ("0", "2"):
        name = f"pool_fn.attention.attention.{part}.weight"
        table[name] = Entry(f"aggregate.score.{part}.weight")
    settings = {
        "dim": size(shapes, FIRST, 1),
        "classes": size(shapes, "predictor.weight", 0, 2),
        "aggregator": {
            "name": "rrt",
            "hidden": size(shapes, "pool_fn.attention.attention.0.weight", 0),
            **encoder_options(shapes),
        },
        "embed": {"widths": [size(shapes, FIRST, 0)], "dropout": 0.25},
    }
    return Description(settings, table)


LAYOUTS = {"rrt": (Layout("DearCaat/RRT-MIL", FIRST, _describe),)}
