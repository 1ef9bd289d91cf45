"""Does sparse coding help on these bags? Three arms an aggregator on the same splits, and one that is not a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scmil.training import baseline
from scmil.studies import runner as experiment
from scmil.studies.plan import Plan, make_plan
from scmil.studies.data import Data
from scmil.studies.model_folder import Page, Progress
from scmil.bags.checks import survey


class Comparison(NamedTuple):
    """A finished comparison: its folder, what was run, and what it says in words."""

    out: Path
    outcome: experiment.Outcome
    verdict: str


BASELINE_ARM = "logistic regression on mean and maximum"


def comparison(
    data: Page,
    aggregators: Sequence[str],
    *,
    folds: int = 5,
    repeats: int = 1,
    seed: int = 0,
    epochs: int | None = None,
    recipe: str = "official",
    selection: str = "nested",
    atoms: int = 256,
) -> Page:
    """The experiment, as a TOML file would say it: three arms an aggregator, and beside them a logistic regression.

    >>> [arm["name"] for arm in comparison({"dataset": "musk1"}, ["dsmil"])["arms"]]
    ['dsmil', 'dsmil + SC', 'dsmil + linear', 'logistic regression on mean and maximum']
    """
    arms: list[Page] = []
    for name in dict.fromkeys(aggregators):
        width = {"atoms": atoms}
        arms += [
            {"name": name, "model": {"aggregator": name}},
            {"name": f"{name} + SC", "against": name, "model": {"aggregator": name, "sparse_coding": width}},
            {
                "name": f"{name} + linear",
                "against": name,
                "model": {"aggregator": name, "sparse_coding": width, "refine": "linear"},
            },
        ]
    arms.append({"name": BASELINE_ARM, "model": {"aggregator": baseline.NAME}})
    short = Path(str(data["dataset"])).stem
    return {
        "title": f"{short} · does sparse coding help?",
        "about": "Each aggregator without sparse coding, with it, and with a plain linear layer with ReLU of the same width "
        "in its place, on the same splits and from the same seeds; beside them a logistic regression on the mean and the "
        "maximum of each bag's features, which is not a network.",
        "data": data,
        "protocol": {"folds": folds, "repeats": repeats, "seed": seed, "selection": [selection]},
        "training": {"recipe": recipe, **({} if epochs is None else {"epochs": epochs})},
        "arms": arms,
    }


def compare(
    data: Data,
    out: str | Path,
    aggregators: Sequence[str],
    *,
    jobs: int | None = None,
    folder: Path | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_cell: Callable[[str], None] | None = None,
    **options: Any,
) -> Comparison:
    """Run the comparison and write its report; what `comparison` takes may follow. `folder` has data sets, if needed.

    Results that were made from other data than there is now are rejected; with `overwrite` they are computed again.
    """
    from scmil.report import read_run, verdict, write_report

    plan = comparison_plan(data, aggregators, folder, **options)
    survey(data.bags)
    outcome = experiment.run(
        plan, Path(out), jobs=jobs, data=folder, overwrite=overwrite, progress=progress, on_cell=on_cell
    )
    write_report(Path(out))
    return Comparison(Path(out), outcome, verdict(read_run(Path(out))))


def comparison_plan(data: Data, aggregators: Sequence[str], folder: Path | None = None, **options: Any) -> Plan:
    """The checked plan of a comparison: what `comparison` says, for these bags."""
    return make_plan(comparison(data.table, aggregators, **options), f"compare-{data.name}", data=folder)
