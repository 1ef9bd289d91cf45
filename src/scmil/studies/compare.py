"""Does sparse coding help on these bags? Several methods per aggregator on the same splits, and one
that is not a neural network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from scmil.errors import OptionError
from scmil.studies import runner
from scmil.studies.data import Data
from scmil.studies.model_folder import Page, Progress
from scmil.studies.plan import Plan, make_plan
from scmil.studies.run_bags import open_run_bags
from scmil.studies.settings import DataSettings
from scmil.training import baseline


class ComparisonResult(NamedTuple):
    """A finished comparison: its run directory, what was run, and the conclusion as text."""

    out: Path
    outcome: runner.ExperimentOutcome
    verdict: str


BASELINE_ARM = "logistic regression on mean and maximum"
# The linear baseline of each other task.
BASELINES = {
    "survival": "Cox regression",
    "regression": "ridge regression",
    "ordinal": "ridge regression",
    "multilabel": "logistic regression",
}
SEVERAL = "Cox, ridge or logistic regression"  # of several targets
# The layers in front of an aggregator that a comparison knows, and how its report describes them.
LAYERS = {
    "sc": "with sparse coding",
    "linear": "with a plain linear layer with ReLU of the same width in its place",
    "rrt": "with the re-embedding of RRT-MIL in its place",
}
DEFAULT_LAYERS = ("sc", "linear")


def comparison(
    data: DataSettings,
    aggregators: Sequence[str],
    *,
    folds: int = 5,
    repeats: int = 1,
    seed: int = 0,
    epochs: int | None = None,
    recipe: str = "official",
    selection: str = "nested",
    atoms: int = 256,
    refine: Sequence[str] = DEFAULT_LAYERS,
    loss: str | None = None,
) -> Page:
    """The experiment as a TOML file would describe it.

    `refine` names the layers that are placed in front of each aggregator, see `LAYERS`; `loss` is
    that of another task than classes.

    >>> document = comparison(DataSettings("musk1", True), ["dsmil"])
    >>> [arm["name"] for arm in document["arms"]]
    ['dsmil', 'dsmil + SC', 'dsmil + linear', 'logistic regression on mean and maximum']
    """
    layers = _checked_layers(refine)
    arms: list[Page] = []
    for name in dict.fromkeys(aggregators):
        plain = {"aggregator": name}
        coded = {**plain, "sparse_coding": {"atoms": atoms}}
        models = {
            "sc": coded,
            "linear": {**coded, "refine": "linear"},
            "rrt": {**plain, "refine": "rrt"},
        }
        arms.append({"name": name, "model": plain})
        arms += [
            {
                "name": f"{name} + {'SC' if layer == 'sc' else layer}",
                "against": name,
                "model": models[layer],
            }
            for layer in layers
        ]
    default = SEVERAL if "," in (data.task or "") else "logistic regression"
    linear = BASELINES.get(data.task or "", default)
    arms.append({"name": f"{linear} on mean and maximum", "model": {"aggregator": baseline.NAME}})
    training = {"epochs": epochs, "loss": loss}
    return {
        "title": f"{Path(data.dataset).stem} · does sparse coding help?",
        "about": _about(layers, linear),
        "data": data.to_json(),
        "protocol": {"folds": folds, "repeats": repeats, "seed": seed, "selection": [selection]},
        "training": {"recipe": recipe, **{k: v for k, v in training.items() if v is not None}},
        "arms": arms,
    }


def _checked_layers(refine: Sequence[str]) -> list[str]:
    if unknown := [layer for layer in refine if layer not in LAYERS]:
        raise OptionError(f"refine: unknown {', '.join(unknown)}. Known: {', '.join(LAYERS)}.")
    return list(dict.fromkeys(refine))


def _about(layers: Sequence[str], linear: str) -> str:
    parts = ["Each aggregator without sparse coding", *(LAYERS[layer] for layer in layers)]
    text = ", ".join(parts[:-1]) + f", and {parts[-1]}" if len(parts) > 1 else parts[0]
    return (
        f"{text}, on the same splits and from the same seeds; beside them a {linear} on "
        "the mean and the maximum of each bag's features, which is not a network."
    )


def compare_aggregators(
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
) -> ComparisonResult:
    """Run the comparison and write its report.

    Args:
        data: The bags.
        out: The run directory.
        aggregators: Names of aggregators.
        jobs: Runs to make at the same time.
        folder: A folder with data sets, if needed.
        overwrite: Whether results that were made from other data are computed again.
        progress: Called with the name of a run, its epochs done and all its epochs.
        on_cell: Called with the name of each run that ends.
        **options: Options of `comparison`.

    Returns:
        What was run, and the conclusion.

    Raises:
        ConfigError: The directory has results of other settings or of other data.
    """
    from scmil.report import read_run, verdict, write_report

    plan = comparison_plan(data, aggregators, folder, **options)
    outcome = run_comparison(
        plan,
        Path(out),
        jobs=jobs,
        data=folder,
        overwrite=overwrite,
        progress=progress,
        on_cell=on_cell,
    )
    write_report(Path(out))
    return ComparisonResult(Path(out), outcome, verdict(read_run(Path(out))))


def comparison_plan(
    data: Data, aggregators: Sequence[str], folder: Path | None = None, **options: Any
) -> Plan:
    """The checked plan of a comparison on these bags; `options` are those of `comparison`."""
    document = comparison(data.settings, aggregators, **options)
    return make_plan(document, f"compare-{data.name}", data=folder)


def run_comparison(
    plan: Plan, out: Path, *, data: Path | None = None, **options: Any
) -> runner.ExperimentOutcome:
    """Make the runs of a comparison; `options` are those of `run`.

    All methods have the same bags. They are read before the first run, and an error is raised if
    one of them cannot be trained on; the runs of this process use what was read here.
    """
    open_run_bags(plan.cells[0], out, data)
    return runner.run(plan, out, data=data, **options)
