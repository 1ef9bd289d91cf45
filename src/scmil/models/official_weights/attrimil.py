"""AttriMIL: MedCAI/AttriMIL."""

from __future__ import annotations

from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Entry,
    Layout,
    Shapes,
    Table,
    linear,
    size,
)

GATES = (("a.0", "V"), ("b.0", "U"), ("c", "w"))


def _describe(name: str, shapes: Shapes, _: Choices) -> Description:
    table: Table = {"bias": Entry("aggregate.bias")}
    table |= linear("adaptor.0", "aggregate.adaptor.0")
    table |= linear("adaptor.2", "aggregate.adaptor.2")
    classes = size(shapes, "bias", 0, 2)
    for number in range(classes):
        for theirs, ours in GATES:
            table |= linear(
                f"attention_nets.{number}.attention_{theirs}", f"aggregate.scores.{number}.{ours}"
            )
        table |= linear(f"classifiers.{number}", f"aggregate.classifiers.{number}")
    settings = {
        "dim": size(shapes, "adaptor.0.weight", 1),
        "classes": classes,
        "aggregator": {"name": name},
    }
    return Description(settings, table, starts=("aggregate.queue", "aggregate.queued"))


LAYOUTS = {
    "attrimil": (Layout("MedCAI/AttriMIL", "attention_nets.0.attention_c.weight", _describe),)
}
