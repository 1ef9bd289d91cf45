"""Panels of options: the help of a command with many options shows them by subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, signature
from typing import Annotated, Any, get_args

from typer.models import ParameterInfo

Panels = Mapping[str, Sequence[str]]
_INPUTS: Panels = {
    "What is predicted": ("label", "task", "time", "event", "event_value", "grades", "loss"),
    "Files and labels": ("key", "format_name", "missing", "drop_unlabelled", "data"),
    "Patients and sites": ("patient", "site"),
    "Features": ("standardise",),
}
TRAIN_PANELS: Panels = {
    "Model and training": (
        *("aggregator", "sparse_coding", "recipe", "epochs", "patience", "class_weights"),
        *("precision", "device", "seed"),
    ),
    "Evaluation": ("valid", "test", "folds", "repeats", "keep_folds", "calibrate"),
    **_INPUTS,
}
COMPARE_PANELS: Panels = {
    "Methods and training": ("aggregator", "refine", "recipe", "epochs", "seed"),
    "Evaluation": ("folds", "repeats", "selection"),
    **_INPUTS,
}
TILE_OPTIONS = (
    *("size", "mpp", "mag", "overlap", "min_tissue", "preset", "pen", "mpp_of", "override_mpp"),
)
_CLUSTER: Panels = {"Several computers": ("shard", "on", "task_cpus", "task_gpus")}
TILE_PANELS: Panels = {"Tiles": (*TILE_OPTIONS, "rule"), **_CLUSTER}
ENCODE_PANELS: Panels = {
    "Encoder": (
        *("encoder", "weights", "random", "offline", "two_scales", "precision", "dtype"),
        *("batch", "workers", "device", "devices"),
    ),
    "Tiles": TILE_OPTIONS,
    **_CLUSTER,
}
LOCATE_PANELS: Panels = {
    "Scores and detections": ("score", "rule", "radius_um", "smooth_um", "least"),
    "Annotations and slides": (
        *("group", "part", "exclude", "mpp", "tile_share", "labels", "missing"),
        *("key", "format_name"),
    ),
}


def group_options(
    panels: Panels,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Show the options of a command in named panels of its help, below the panel of the others.

    Args:
        panels: The names of the parameters of each panel, in the order in which they are shown.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        found = signature(command, eval_str=True)
        left = dict(found.parameters)
        grouped = [
            _in_panel(left.pop(name), panel) for panel, names in panels.items() for name in names
        ]
        command.__signature__ = found.replace(  # type: ignore[attr-defined]
            parameters=sorted([*left.values(), *grouped], key=_has_default)
        )
        command.__annotations__ = {
            name: each.annotation
            for name, each in command.__signature__.parameters.items()  # type: ignore[attr-defined]
        }
        return command

    return decorate


def _has_default(parameter: Parameter) -> bool:
    return parameter.default is not Parameter.empty


def _in_panel(parameter: Parameter, panel: str) -> Parameter:
    kind, *information = get_args(parameter.annotation)
    options = [_with_panel(each, panel) for each in information]
    return parameter.replace(annotation=Annotated[(kind, *options)])


def _with_panel(information: Any, panel: str) -> Any:
    if not isinstance(information, ParameterInfo):
        return information
    shown = copy(information)  # several commands share it
    shown.rich_help_panel = panel
    return shown
