"""A folder of bags with a table of the values of every task, as `scmil compare` reads them."""

from __future__ import annotations

import csv
from pathlib import Path

from target_cohort import make_bags, make_targets

from scmil.bags.formats import export_bags

HEADER = ["case_id", "slide_id", "os_months", "os_event", "number", "grade", "high", "low", "noise"]
# Options of `scmil compare` for each task.
OPTIONS: dict[str, list[str]] = {
    "survival": ["--task", "survival"],
    "regression": ["--task", "regression", "--label", "number"],
    "ordinal": ["--task", "ordinal", "--label", "grade"],
    "multilabel": ["--label", "high,low,noise"],
}
# `[data]` of an experiment file for each task.
DATA: dict[str, dict[str, str]] = {
    "survival": {"task": "survival", "time": "os_months", "event": "os_event"},
    "regression": {"task": "regression", "label": "number"},
    "ordinal": {"task": "ordinal", "label": "grade"},
    "multilabel": {"label": "high,low,noise"},
}


def write_target_folder(
    home: Path, n: int = 40, signal: float = 1.0, slides: int = 1, seed: int = 0
) -> Path:
    """Write `bags/` and `values.csv`; each patient has `slides` slides with the same values.

    A patient's values depend on the first of its slides only, so that the others are noise.
    """
    bags, shares = make_bags(n, signal, seed)
    export_bags(bags, home / "bags", "clam")
    (home / "bags" / "labels.csv").unlink(missing_ok=True)
    tables = {task: make_targets(task, shares, seed) for task in OPTIONS}
    with (home / "values.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for i, bag in enumerate(bags):
            first = f"s{i - i % slides}"
            [[time, event]] = tables["survival"].array([first]).tolist()
            labels = tables["multilabel"].of(first)
            grade = tables["ordinal"].of(first)
            writer.writerow(
                [f"p{i // slides}", bag.id, time, int(event), tables["regression"].of(first)]
                + [1 + grade]  # type: ignore[operator]
                + ["" if label is None else int(label) for label in labels]  # type: ignore[union-attr,arg-type]
            )
    return home
