"""DSMIL: the aggregators of binli123/dsmil-wsi, and those of SC-MIL's release."""

from __future__ import annotations

from functools import partial

from scmil.models.official_weights.layout import (
    Choices,
    Description,
    Layout,
    LayoutEntry,
    Shapes,
    has,
    linear,
    size,
)
from scmil.models.official_weights.sparse_coding import sparse_coding


def _describe(instance_classifier: str, _: str, shapes: Shapes, choices: Choices) -> Description:
    """One score has a sigmoid of its own, which softmax of (0, s) is; several have one each."""
    refine, table = sparse_coding("sc.", shapes, choices)
    streams = size(shapes, f"{instance_classifier}.weight", 0)
    width = size(shapes, f"{instance_classifier}.weight", 1)
    deep = not has(shapes, "b_classifier.q.weight")
    first = "b_classifier.q.0" if deep else "b_classifier.q"
    table |= linear(instance_classifier, "aggregate.instance_classifier")
    table |= linear(first, "aggregate.query.0" if deep else "aggregate.query")
    if deep:
        table |= linear("b_classifier.q.2", "aggregate.query.2")
    passing_v = has(shapes, "b_classifier.v.")
    if passing_v:
        table |= linear("b_classifier.v.1", "aggregate.values.1")
    table |= {
        # A convolution over all bag vectors at once, which is a linear map.
        "b_classifier.fcc.weight": LayoutEntry("aggregate.bag_classifier.weight", "flatten"),
        "b_classifier.fcc.bias": LayoutEntry("aggregate.bag_classifier.bias"),
    }
    aggregator = {
        "name": "dsmil",
        "streams": streams,
        "hidden": size(shapes, f"{first}.weight", 0, 128),
        "query": "deep" if deep else "linear",
        "passing_v": passing_v,
    }
    settings = {
        "dim": size(shapes, "sc.Dict", 0) if refine else width,
        "classes": max(streams, 2),
        "aggregator": aggregator,
        "output": "sigmoid" if streams > 1 else "softmax",
        **refine,
    }
    return Description(settings, table)


LAYOUTS = {
    "dsmil": tuple(
        Layout(
            "binli123/dsmil-wsi, or sotiraslab/SC-MIL",
            f"{name}.weight",
            partial(_describe, name),
        )
        # The second name is that of the network with its feature extractor.
        for name in ("i_classifier.fc.0", "i_classifier.fc")
    )
}
