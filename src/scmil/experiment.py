"""Run a plan: every cell trains all its folds at once and writes its own folder; a cell whose result exists is done.

So a run that is killed goes on where it stopped, and ends with the same numbers: they depend on the settings and the seed,
not on what ran before or beside.
"""

from __future__ import annotations

import csv
import fnmatch
import io
import json
import multiprocessing
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scmil.errors import ConfigError, ScmilError
from scmil.files import write_atomically
from scmil.metrics import METRICS
from scmil.plan import Cell, Plan, build
from scmil.scoring import Row, Scored, history_rows, score, summarise

FORMAT = "scmil-run-1"
RESULT = "result.json"
Progress = Callable[[str, int, int], None]  # cell, epochs done, epochs in all


@dataclass(frozen=True)
class Outcome:
    """What `run` did: cells finished before and now, and those that failed with their cause."""

    out: Path
    before: int
    finished: int
    failed: dict[str, str]


def run(
    plan: Plan,
    out: Path,
    *,
    jobs: int | None = None,
    only: str | None = None,
    data: Path | None = None,
    progress: Progress | None = None,
    on_cell: Callable[[str], None] | None = None,
) -> Outcome:
    """Run what is not done yet, `jobs` cells at a time, and gather `results.csv` and `folds.csv` after every cell.

    `only` is a pattern for cell names, such as `musk1--*`. A cell that fails is written down with its cause, and the others
    go on.
    """
    out.mkdir(parents=True, exist_ok=True)
    _check_folder(plan, out)
    write_atomically(out / "experiment.json", (json.dumps(describe(plan), indent=2) + "\n").encode())
    wanted = [cell for cell in plan.cells if only is None or fnmatch.fnmatch(cell.name, only)]
    if not wanted:
        raise ConfigError(
            f"--only {only}: no cell has such a name. Cells: {', '.join(c.name for c in plan.cells[:8])} …"
        )
    waiting = [cell for cell in wanted if not (cell_folder(out, cell) / RESULT).exists()]
    before, failed = len(wanted) - len(waiting), {}
    gather(plan, out)
    for name, error in _execute(waiting, out, data, jobs or os.cpu_count() or 1, progress):
        if error is not None:
            failed[name] = error
        gather(plan, out)
        if on_cell:
            on_cell(name)
    return Outcome(out, before, len(waiting) - len(failed), failed)


def cell_folder(out: Path, cell: Cell) -> Path:
    """Where a cell's files are."""
    return out / "cells" / cell.name


def describe(plan: Plan) -> Row:
    """What the report needs to know of the plan."""
    first = plan.cells[0].settings
    return {
        "format": FORMAT,
        "name": plan.name,
        "title": plan.title,
        "about": plan.about,
        "arms": [{"name": name, "against": against} for name, against in plan.arms],
        "datasets": plan.datasets,
        "protocol": {key: value for key, value in first["protocol"].items() if key != "selection"},
        "training": first["training"],
        "cells": [
            {"cell": c.name, "dataset": c.dataset, "arm": c.arm, "protocols": c.protocols, "settings": c.settings}
            for c in plan.cells
        ],
        "published": list(plan.published),
        "published_note": plan.published_note,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """What the numbers were made with."""
    import torch

    import scmil

    return {
        "scmil": scmil.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _check_folder(plan: Plan, out: Path) -> None:
    """Refuse a folder that holds results of other settings under the same names."""
    different = []
    for cell in plan.cells:
        path = cell_folder(out, cell) / RESULT
        if path.exists() and _read(path).get("digest") != cell.digest:
            different.append(cell.name)
    if different:
        raise ConfigError(
            f"{out}: the results of {len(different)} cells were made with other settings, the first is {different[0]!r}. "
            "Give --out another folder, or delete that one."
        )


def _read(path: Path) -> Row:
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: damaged ({error}). Delete it, and the cell is run again.") from None
    return page if isinstance(page, dict) else {}


# ------------------------------------------------------------------------------------------------------------ the work


def _execute(
    cells: Sequence[Cell], out: Path, data: Path | None, jobs: int, progress: Progress | None
) -> Iterable[tuple[str, str | None]]:
    """Run the cells, and give each one's name and error as it ends."""
    if not cells:
        return
    jobs = min(jobs, len(cells))
    if jobs == 1:
        for cell in cells:
            yield cell.name, _guarded(cell, out, data, progress)
        return
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        told = manager.Queue()
        with ProcessPoolExecutor(jobs, mp_context=context) as pool:
            names: dict[Future[str | None], str] = {
                pool.submit(_guarded_elsewhere, cell, out, data, told): cell.name for cell in cells
            }
            while names:
                done, _ = wait(names, timeout=0.2, return_when=FIRST_COMPLETED)
                while progress and not told.empty():
                    progress(*told.get())
                for future in done:
                    name = names.pop(future)
                    try:
                        yield name, future.result()
                    except Exception as error:  # the process died: out of memory, killed
                        yield name, f"{type(error).__name__}: {error}"


def _guarded_elsewhere(cell: Cell, out: Path, data: Path | None, told: Any) -> str | None:
    return _guarded(cell, out, data, lambda *news: told.put(news))


def _guarded(cell: Cell, out: Path, data: Path | None, progress: Progress | None) -> str | None:
    """Run a cell; a failure is written down and returned, and stops nothing else."""
    folder = cell_folder(out, cell)
    try:
        run_cell(cell, folder, data, progress)
        (folder / "failed.json").unlink(missing_ok=True)
        return None
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
        page = {"error": words, "traceback": None if isinstance(error, ScmilError) else traceback.format_exc()}
        write_atomically(folder / "failed.json", json.dumps(page, indent=2).encode())
        return words


def run_cell(cell: Cell, folder: Path, data: Path | None = None, progress: Progress | None = None) -> None:
    """Train and score one cell, and write its files, `result.json` last."""
    import torch

    from scmil.datasets import load_dataset
    from scmil.training import check_labels

    began, threads = time.process_time(), torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, whether cells run beside each other or not
    try:
        bags = load_dataset(cell.settings["data"]["dataset"], data=data)
        check_labels(bags)
        trainings = _trainings(cell, bags, progress)
    finally:
        torch.set_num_threads(threads)
    scored = [fold for training in trainings for fold in training.scored]
    history = [row for training in trainings for row in training.history]
    ids, labels, patients = bags.ids, np.array(bags.labels), bags.patients
    groups = None if all(patient is None for patient in patients) else patients
    result = {
        "format": FORMAT,
        "cell": cell.name,
        "digest": cell.digest,
        "settings": cell.settings,
        "rows": [summarise([f for f in scored if f.protocol == p], labels, groups) for p in cell.protocols],
        "folds": [fold.row(labels) for fold in scored],
        "parameters": trainings[0].parameters,
        "density": trainings[0].density,
        "seconds": round(time.process_time() - began, 1),  # of one processor: what runs beside does not count
        "versions": versions(),
    }
    write_atomically(folder / "predictions.csv", _csv(row for fold in scored for row in fold.predictions(ids, labels)))
    write_atomically(folder / "history.csv", _csv(history))
    write_atomically(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())


@dataclass(frozen=True)
class _Training:
    scored: list[Scored]
    history: list[Row]
    parameters: int
    density: float | None


def _trainings(cell: Cell, bags: Any, progress: Progress | None) -> list[_Training]:
    """`last` and `test-tuned` look at the same models; `nested` trains on less, to have an inner part to choose on."""
    full = [name for name in cell.protocols if name != "nested"]
    kinds = [("full", full)] * bool(full) + [("inner", ["nested"])] * ("nested" in cell.protocols)
    epochs = _recipe(cell).epochs
    trainings = []
    for done, (kind, protocols) in enumerate(kinds):

        def tell(epoch: int, done: int = done) -> None:
            if progress:
                progress(cell.name, done * epochs + epoch, len(kinds) * epochs)

        trainings.append(_train(cell, bags, kind, protocols, tell))
    return trainings


def _recipe(cell: Cell) -> Any:
    from scmil.recipes import recipe

    training = dict(cell.settings["training"])
    return recipe(training.pop("recipe"), **training)


def _train(cell: Cell, bags: Any, kind: str, protocols: list[str], progress: Callable[[int], None]) -> _Training:
    from scmil.folds import fit_folds

    settings, labels = cell.settings, [int(label) for label in bags.labels]
    splits = splits_of(cell, bags, inner=kind == "inner")
    flat = [(repeat, fold, split) for repeat, folds in enumerate(splits) for fold, split in enumerate(folds)]
    seed, classes = settings["protocol"]["seed"], max(2, 1 + max(labels))
    models = [
        build(settings["model"], bags.dim, classes, seed=_model_seed(seed, repeat, fold)) for repeat, fold, _ in flat
    ]
    look = "last" if protocols == ["last"] else "every"
    standardised = settings["data"]["standardise"]
    history = fit_folds(
        models, list(bags), [split for *_, split in flat], _recipe(cell),
        seed=seed, standardise=standardised, look=look, progress=progress,
    )  # fmt: skip
    y = np.array(labels)
    scored = [
        score(protocol, repeat, fold, split, history.probabilities[:, place].astype(float), y)
        for protocol in protocols
        for place, (repeat, fold, split) in enumerate(flat)
    ]
    rows = history_rows(kind, history.train_loss, history.probabilities, [split for *_, split in flat], y)
    parameters = sum(p.numel() for p in models[0].parameters() if p.requires_grad)
    return _Training(scored, rows, parameters, _density(models, bags, [s for *_, s in flat], standardised))


def _model_seed(seed: int, repeat: int, fold: int) -> int:
    """Alike in all arms, so that they are compared in pairs."""
    return 1_000_003 * seed + 1_000 * repeat + fold


def splits_of(cell: Cell, bags: Any, inner: bool) -> list[list[Any]]:
    """The folds of every repeat; with `inner`, each with a validation part taken from its training bags."""
    from scmil.splits import check_split, holdout, load_splits, repeated_folds, with_validation

    protocol, labels = cell.settings["protocol"], list(bags.labels)
    groups = None if all(patient is None for patient in bags.patients) else list(bags.patients)
    seed, repeats = protocol["seed"], protocol["repeats"]
    if protocol["splits"] is not None:
        splits = load_splits(protocol["splits"], bags.ids)
    elif protocol["kind"] == "holdout":
        splits = [[holdout(labels, protocol["test"], 0.0, seed + 1000 * repeat, groups)] for repeat in range(repeats)]
    else:
        splits = repeated_folds(labels, protocol["folds"], repeats, seed, groups)
    for split in (split for folds in splits for split in folds):
        check_split(split, bags.ids, groups)
    if not inner:
        return [[split._replace(train=split.train + split.valid, valid=()) for split in folds] for folds in splits]
    return [
        [
            split if split.valid else with_validation(split, labels, protocol["valid"], seed + 1000 * r + f, groups)
            for f, split in enumerate(folds)
        ]
        for r, folds in enumerate(splits)
    ]


def _density(models: Sequence[Any], bags: Any, splits: Sequence[Any], standardised: bool) -> float | None:
    """The share of coefficients that are not zero, over some bags of every fold, where there is a sparse code."""
    import torch

    from scmil.bags import moments

    if not hasattr(models[0].refine, "statistics"):
        return None
    found = []
    for model, split in zip(models, splits, strict=True):
        some = [bags[position] for position in split.train]
        mean, deviation = moments(some) if standardised else (torch.tensor(0.0), torch.tensor(1.0))
        with torch.no_grad():
            for bag in some[:5]:
                x = (bag.features - mean.to(bag.features.dtype)) / deviation.to(bag.features.dtype)
                found.append(model.refine.statistics(model.embed(x)).density)
    return round(float(np.mean(found)), 4)


# ------------------------------------------------------------------------------------------------------------- tables


def gather(plan: Plan, out: Path) -> None:
    """Write `results.csv` and `folds.csv` from the cells that are done, in the order of the plan; times come last."""
    results: list[Row] = []
    folds: list[Row] = []
    for cell in plan.cells:
        path = cell_folder(out, cell) / RESULT
        if not path.exists():
            continue
        page = _read(path)
        place = {"cell": cell.name, "dataset": cell.dataset, "arm": cell.arm}
        cost = {key: page[key] for key in ("parameters", "density", "seconds")}
        results += [{**place, **row, **cost} for row in page["rows"]]
        folds += [{**place, **row} for row in page["folds"]]
    spreads = ("", "_sd_repeats", "_sd_folds", "_low", "_high")
    metrics = [f"{metric}{spread}" for metric in METRICS for spread in spreads]
    start, end = ["cell", "dataset", "arm", "protocol"], ["parameters", "density", "seconds"]
    write_atomically(out / "results.csv", _csv(results, [*start, "repeats", "folds", "bags", *metrics, *end]))
    header = [*start, "repeat", "fold", "bags", *METRICS, "epoch", "threshold"]
    write_atomically(out / "folds.csv", _csv(folds, header))


def _csv(rows: Iterable[Mapping[str, Any]], header: Sequence[str] | None = None) -> bytes:
    rows = list(rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, header or list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return text.getvalue().encode()
