"""CLAM-SB and CLAM-MB: mahmoodlab/CLAM."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    UNUSED,
    Choices,
    Description,
    Layout,
    Shapes,
    Table,
    has,
    linear,
    size,
)


def _describe(name: str, shapes: Shapes, _: Choices) -> Description:
    # The dropout layer is in front of the attention; early versions without dropout lack it.
    net = "attention_net.3" if has(shapes, "attention_net.3.") else "attention_net.2"
    gated = has(shapes, f"{net}.attention_a.")
    table: Table = linear("attention_net.0", "embed.0")
    for theirs, ours in (
        (("attention_a.0", "V"), ("attention_b.0", "U"), ("attention_c", "w"))
        if gated
        else (("module.0", "V"), (_last_layer(shapes, net), "w"))
    ):
        table |= linear(f"{net}.{theirs}", f"aggregate.score.{ours}")
    multi = name == "clam-mb"
    classes = len([key for key in shapes if key.startswith("instance_classifiers.")]) // 2
    for number in range(classes):
        key = f"instance_classifiers.{number}"
        table |= linear(key, f"aggregate.{key}")
        if multi:
            table |= linear(f"classifiers.{number}", f"aggregate.classifier.{number}")
    if not multi:
        table |= linear("classifiers", "aggregate.classifier")
    if "instance_loss_fn.labels" in shapes:  # a constant of the SVM loss
        table["instance_loss_fn.labels"] = UNUSED
    first = f"{net}.attention_a.0.weight" if gated else f"{net}.module.0.weight"
    aggregator: dict[str, object] = {
        "name": name,
        "hidden": size(shapes, first, 0),
        "gated": gated,
    }
    if "instance_loss_fn.labels" in shapes:
        aggregator["instance_loss"] = "svm"
    settings = {
        "dim": size(shapes, "attention_net.0.weight", 1),
        "classes": max(classes, 2),
        "aggregator": aggregator,
        "embed": {"widths": [size(shapes, "attention_net.0.weight", 0)]},
    }
    return Description(settings, table)


def _last_layer(shapes: Shapes, net: str) -> str:
    """The layer after tanh, and after dropout if there is any."""
    return "module.3" if has(shapes, f"{net}.module.3.") else "module.2"


LAYOUTS = {
    "clam-sb": (Layout("mahmoodlab/CLAM", "classifiers.weight", _describe),),
    "clam-mb": (Layout("mahmoodlab/CLAM", "classifiers.0.weight", _describe),),
}
