"""The tasks of the demo on synthetic slides, and the columns of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scmil.bags.bag import BagSet
from scmil.core.atomic import write_atomically
from scmil.core.tables import write_json
from scmil.errors import OptionError
from scmil.studies.settings import TaskOptions

SHOWN = 3  # slides with a heatmap in the report


@dataclass(frozen=True)
class DemoTask:
    """What the demo predicts.

    Attributes:
        name: The name of the task.
        words: What is predicted, for the report.
        label: The columns of the label, separated by commas; None for classes and survival.
        answer: The score of a heatmap that shows the answer for each tile.
    """

    name: str
    words: str
    label: str | None = None
    answer: str = "probability"

    @property
    def is_class(self) -> bool:
        """Whether it is the prediction of classes."""
        return self.name == "class"

    @property
    def options(self) -> TaskOptions | None:
        """The task for `open_data`."""
        return None if self.is_class else TaskOptions(self.name)

    def data(self) -> dict[str, Any]:
        """Further keys of `[data]`."""
        if self.is_class:
            return {}
        label = {} if self.label is None else {"label": self.label}
        return {"task": self.name, **label, "drop_unlabelled": True}


TASKS = {
    task.name: task
    for task in (
        DemoTask("class", "half of them with a small tumour"),
        DemoTask("survival", "with survival times that depend on tumour and inflammation"),
        DemoTask("regression", "with the fraction of tumour as a number", "tumour_fraction"),
        DemoTask("ordinal", "with a grade that depends on the fraction of tumour", "grade"),
        DemoTask("multilabel", "with two labels, some missing", "inflammation,necrosis"),
    )
}


def demo_task(name: str) -> DemoTask:
    """The task of that name.

    Raises:
        OptionError: There is no such task.

    >>> demo_task("regression").data()
    {'task': 'regression', 'label': 'tumour_fraction', 'drop_unlabelled': True}
    """
    if name not in TASKS:
        raise OptionError(f"--task {name}. Known: {', '.join(TASKS)}.")
    return TASKS[name]


def draw_task_pictures(
    task: DemoTask, out: Path, run: Path, test_bags: BagSet, models: dict[str, Path]
) -> None:
    """Draw heatmaps of the answers on some test slides, and add them to the report of the run."""
    from scmil.viz.heatmaps import draw_heatmaps

    shown = test_bags.subset(test_bags.ids[:SHOWN])
    folder = run / "pictures"
    rows: list[dict[str, Any]] = []
    for name, model in models.items():
        draw_heatmaps(model, shown, slides=out / "slides", score=task.answer)
        pictures = _copy_heatmaps(model / "maps" / task.answer, shown.ids, name, folder)
        rows.append({"words": "", "pictures": pictures})
    rows[0]["heading"] = "Heatmaps"
    rows[0]["words"] = (
        "Test slides, which were not used in training. The colour is the answer of the model for "
        "each tile on its own; annotated tumour is outlined in red."
    )
    write_json(folder / "pictures.json", rows)


def _copy_heatmaps(
    maps: Path, slides: Sequence[str], name: str, folder: Path
) -> list[dict[str, str]]:
    copied = []
    for slide in slides:
        target = folder / f"{slide}-{name}.png"
        write_atomically(target, (maps / f"{slide}.png").read_bytes())
        copied.append({"file": target.name, "caption": f"{slide}, {name.replace('_', ' ')}"})
    return copied
