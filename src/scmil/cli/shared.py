"""What several verbs need."""

from __future__ import annotations

from typing import Any


def progress_bars(**options: Any) -> Any:
    """Bars with a description, a count, the time that is gone and the time that is left."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    text = TextColumn("{task.description}")
    return Progress(text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn(), **options)


def device_of(name: str) -> str:
    """The device of that name; `auto` is a GPU if there is one."""
    import torch

    if name != "auto":
        return name
    return "cuda" if torch.cuda.is_available() else "cpu"
