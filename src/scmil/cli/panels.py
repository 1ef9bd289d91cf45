"""Panels of options: the help of a command with many options shows them by subject."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter, signature
from typing import Annotated, Any, get_args

from typer.models import ParameterInfo


def group_options(
    panels: Mapping[str, Sequence[str]],
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
