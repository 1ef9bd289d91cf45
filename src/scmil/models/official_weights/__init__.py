"""Checkpoints of the authors of aggregators as models of scmil.

Each module has the layouts of one aggregator: a table from the authors' names of tensors to ours,
and the sizes of the model from their shapes. To add a layout, write a module with a
dictionary `LAYOUTS` by the name of the aggregator, and list it in `MODULES`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scmil.errors import ModelFileError, OptionError
from scmil.models.model import MILModel, build_model
from scmil.models.official_weights.layout import UNUSED, Choices, Entry, Layout, Table
from scmil.models.official_weights.reading import read_checkpoint

__all__ = ["Choices", "Converted", "convert", "layouts", "read_checkpoint"]

MODULES = (
    "abmil",
    "dsmil",
    "transmil",
    "dtfd",
    "ilra",
    "minet",
    "clam",
    "acmil",
    "attrimil",
    "dgr",
    "transformer",
    "rrt",
    "wikg",
    "s4mil",
    "patch_gcn",
)
SHOWN_NAMES = 20  # of an error message


class Converted(NamedTuple):
    """A model with the authors' weights, where each tensor went, and where the layout is from."""

    model: MILModel
    table: Table
    repository: str


def layouts() -> dict[str, tuple[Layout, ...]]:
    """The known layouts, by the name of the aggregator.

    >>> "dsmil" in layouts()
    True
    """
    known: dict[str, tuple[Layout, ...]] = {}
    for module in MODULES:
        known |= import_module(f"{__name__}.{module}").LAYOUTS
    return known


def convert(
    tensors: Mapping[str, Tensor], aggregator: str, choices: Choices | None = None
) -> Converted:
    """Build a model of the tensors of a checkpoint; every tensor must have its place.

    Args:
        tensors: The tensors by the authors' names, see `read_checkpoint`.
        aggregator: The name of the aggregator.
        choices: What a checkpoint does not contain.

    Returns:
        The model in float32, in evaluation mode.

    Raises:
        OptionError: If there is no layout for this aggregator.
        ModelFileError: If tensors are missing, unexpected, of another shape or not finite.

    >>> state = {"classifier.fc.weight": torch.ones(2, 8), "classifier.fc.bias": torch.zeros(2)}
    >>> convert(state, "mean").model(torch.ones(3, 8)).logits
    tensor([8., 8.], grad_fn=...)
    """
    layout = _find_layout(tensors, aggregator)
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    choices = choices or Choices()
    settings, table, starts = layout.describe(aggregator, shapes, choices)
    settings = _add_options(settings, choices.options)
    try:
        with torch.device("meta"):  # no memory, whatever the shapes are
            model = build_model(**settings)
    except (OptionError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"no {aggregator} can be built from these tensors ({error}). Is it the right --as?"
        ) from None
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    needed = {name: shape for name, shape in expected.items() if name not in starts}
    _check_names(tensors, table, needed, layout)
    state = {
        name: torch.zeros(value.shape, dtype=value.dtype)
        for name, value in model.state_dict().items()
        if name in starts
        or any(e.name == name and e.form.startswith("row") for e in table.values())
    }
    for name, entry in table.items():
        if entry.form.startswith("row"):
            state[entry.name][int(entry.form[4:])] = tensors[name].flatten()
        elif entry != UNUSED:
            tensor = _to_ours(tensors[name], entry, expected[entry.name])
            state[entry.name] = tensor.float().contiguous()
    model.load_state_dict(state, assign=True)
    return Converted(model.eval(), table, layout.repository)


def _add_options(settings: dict[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `build_model` with options that no tensor shows."""
    embed = {name[6:]: value for name, value in options.items() if name.startswith("embed.")}
    own = {name: value for name, value in options.items() if not name.startswith("embed.")}
    if embed:
        settings = {**settings, "embed": {**(settings.get("embed") or {}), **embed}}
    return {**settings, "aggregator": {**settings["aggregator"], **own}}


def _find_layout(tensors: Mapping[str, Tensor], aggregator: str) -> Layout:
    known = layouts()
    if aggregator not in known:
        raise OptionError(
            f"--as {aggregator!r}: no layout of a checkpoint is known for it. Known: "
            f"{', '.join(known)}."
        )
    for layout in known[aggregator]:
        if layout.marker in tensors:
            return layout
    expected = "; ".join(f"{layout.marker} ({layout.repository})" for layout in known[aggregator])
    raise ModelFileError(
        f"not a known layout of {aggregator}: it has {_shorten(list(tensors))}. Expected one of: "
        f"{expected}. Is it the right --as?"
    )


def _check_names(
    tensors: Mapping[str, Tensor],
    table: Table,
    expected: Mapping[str, tuple[int, ...]],
    layout: Layout,
) -> None:
    """Raise an error that lists every tensor without a place, and every place without a tensor."""
    missing = [name for name in table if name not in tensors]
    unknown = [name for name in tensors if name not in table]
    there = [(name, entry) for name, entry in table.items() if name in tensors]
    shapes = [
        f"{name} {tuple(tensors[name].shape)}"
        for name, entry in there
        if entry.name in expected and not _fits(tensors[name], entry, expected[entry.name])
    ]
    damaged = [
        name
        for name, entry in there
        if entry != UNUSED
        and not (tensors[name].is_floating_point() and torch.isfinite(tensors[name]).all())
    ]
    # A table that does not cover the model, which no file can cause.
    missing += sorted(expected.keys() - {entry.name for entry in table.values()})
    problems = {
        "Missing": missing,
        "Not expected": unknown,
        "Other shapes": shapes,
        "NaN, infinite or no numbers": damaged,
    }
    if found := [f"{kind}: {_shorten(names)}." for kind, names in problems.items() if names]:
        raise ModelFileError(
            f"the tensors are not those of the layout of {layout.repository}. {' '.join(found)} "
            "Give the file as its authors save it, or another --as."
        )


def _fits(tensor: Tensor, entry: Entry, expected: tuple[int, ...]) -> bool:
    shape = tuple(tensor.shape)
    if entry.form.startswith("row"):
        return tensor.numel() == math.prod(expected[1:])
    if entry.form == "flatten":
        return tensor.numel() == math.prod(expected)
    if entry.form == "transpose":
        return shape[::-1] == expected
    if entry.form == "second row":
        return (1, *shape[1:]) == shape and (2, *shape[1:]) == expected
    return shape == expected


def _to_ours(tensor: Tensor, entry: Entry, expected: tuple[int, ...]) -> Tensor:
    """The tensor in the form of our parameter."""
    if entry.form == "flatten":
        return tensor.reshape(expected)
    if entry.form == "transpose":
        return tensor.T
    if entry.form == "second row":
        return torch.cat([torch.zeros_like(tensor), tensor])
    return tensor


def _shorten(names: list[str]) -> str:
    rest = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {rest} more" if rest > 0 else "")
