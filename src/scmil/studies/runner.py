"""Run a plan: every cell trains its folds and writes its own folder; a cell whose result exists is done.

So a run that is killed goes on where it stopped, and ends with the same numbers: they depend on the settings, the data and
the seed, not on what ran before or beside. A result carries a digest of its data; one of other data is not used.
"""

from __future__ import annotations

import csv
import fnmatch
import json
import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scmil import processes
from scmil.training import baseline
from scmil.errors import ConfigError, DataError, OutputError, ScmilError
from scmil.core.extras import need
from scmil.core.files import csv_bytes, write_atomically
from scmil.stats.metrics import METRICS
from scmil.outputs import check_unclaimed
from scmil.studies.plan import Cell, Plan, aggregator_of, build, recipe_of, rule_of
from scmil.run_inputs import Present, check_results, check_unchanged, inputs_of, load_bags
from scmil.studies.protocols import Row, Scored, history_rows, score, summarise
from scmil.core.jobs.shards import ALL, Shard
from scmil.core.jobs.work import locked

FORMAT = "scmil-run-1"
RESULT, FAILED, EXPERIMENT = "result.json", "failed.json", "experiment.json"
FILES = ("results.csv", "folds.csv", "costs.csv", "report.html", "report.md", "report.tex", "cells")  # and EXPERIMENT
TAKEN = "another process is at it"
# Numbers of all bags times folds. Below, all folds train at once on bags in memory; above, one fold after the other on
# bags that are read when they are needed: a step on a slide is long enough to keep a processor busy by itself.
LARGE = 500_000_000
USUAL = {"device": "cpu", "precision": "float32"}
COSTS = ("parameters", "multiply_adds", "seconds", "memory_mib", "density")
SPREADS = ("", "_sd_repeats", "_sd_folds", "_low", "_high")
SHORT = 16  # digits of a digest, in tables
FROC = "froc"  # a metric of the cells that have outlined lesions
Progress = Callable[[str, int, int], None]  # cell, epochs done, epochs in all
Execute = Callable[[Sequence[Cell], Path, Path | None, Progress | None], Iterable[tuple[str, str | None]]]


@dataclass(frozen=True)
class Outcome:
    """What `run` did: cells finished before and now, those that failed with their cause, and notes for the user."""

    out: Path
    before: int
    finished: int
    failed: dict[str, str]
    notes: tuple[str, ...] = ()


def run(
    plan: Plan,
    out: Path,
    *,
    jobs: int | None = None,
    only: str | None = None,
    shard: Shard = ALL,
    data: Path | None = None,
    execute: Execute | None = None,
    overwrite: bool = False,
    progress: Progress | None = None,
    on_cell: Callable[[str], None] | None = None,
) -> Outcome:
    """Run what is not done yet, `jobs` cells at a time, and gather `results.csv` and `folds.csv` after every cell.

    `only` is a pattern for cell names, such as `musk1--*`. A cell that fails is written down with its cause, and the others
    go on. Any number of processes may do this in one folder, each with a `shard` of the cells or all with the same: a cell is
    run by one, and the others wait for it in the end. `execute` runs cells elsewhere than in processes of this computer.

    Results that were made from other data than there is now are rejected; with `overwrite` they are computed again.
    """
    need("scipy", "statistics")  # the report asks for it: better missed now than after a night
    out.mkdir(parents=True, exist_ok=True)
    _check_folder(plan, out)
    write_atomically(out / EXPERIMENT, (json.dumps(describe(plan), indent=2) + "\n").encode())
    wanted = chosen_cells(plan, only, shard)
    notes = _check_data(plan.cells, wanted, out, data, overwrite)
    waiting = [cell for cell in wanted if not is_done(out, cell)]
    before, failed = len(wanted) - len(waiting), {}
    causes = {cell.name: _cause(out, cell) for cell in waiting}  # of earlier runs
    gather(plan, out)
    todo, execute = waiting, execute or partial(_execute, jobs=jobs or os.cpu_count() or 1)
    while todo:
        taken = set()
        for name, error in execute(todo, out, data, progress):
            if error == TAKEN:
                taken.add(name)
                continue
            if error is not None:
                failed[name] = error
            gather(plan, out)
            if on_cell:
                on_cell(name)
        todo = [cell for cell in todo if cell.name in taken]
        failed |= _wait_for(todo, out, causes)
        for cell in [cell for cell in todo if cell.name in failed or is_done(out, cell)]:
            todo.remove(cell)
            if on_cell:
                on_cell(cell.name)
    return Outcome(out, before, len(waiting) - len(failed), failed, notes)


def chosen_cells(plan: Plan, only: str | None = None, shard: Shard = ALL) -> list[Cell]:
    """The cells whose names fit a pattern, or a part of them."""
    fitting = [cell for cell in plan.cells if only is None or fnmatch.fnmatch(cell.name, only)]
    if not fitting:
        raise ConfigError(
            f"--only {only}: no cell has such a name. Cells: {', '.join(c.name for c in plan.cells[:8])} …"
        )
    return shard.of(fitting)


def is_done(out: Path, cell: Cell) -> bool:
    """Whether a cell has its result."""
    return (cell_folder(out, cell) / RESULT).exists()


def _wait_for(cells: Sequence[Cell], out: Path, before: Mapping[str, Row | None]) -> dict[str, str]:
    """Wait until no other process is at any of the cells, and give the causes of those that failed there meanwhile."""
    for cell in cells:
        with locked(cell_folder(out, cell), wait=True):
            pass
    causes = {cell.name: _cause(out, cell) for cell in cells if not is_done(out, cell)}
    return {name: cause["error"] for name, cause in causes.items() if cause and cause != before[name]}


def _cause(out: Path, cell: Cell) -> Row | None:
    path = cell_folder(out, cell) / FAILED
    return _read(path) if path.is_file() else None


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
    """Refuse a folder with files of others in the place of ours, or with results of other settings under the same names."""
    check_unclaimed(out, EXPERIMENT, FILES, "run")
    if (out / EXPERIMENT).is_file() and not str(_read(out / EXPERIMENT).get("format")).startswith("scmil-run-"):
        raise OutputError(
            f"{out / EXPERIMENT} was not written by scmil run. Give --out another folder, or move it away."
        )
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


def _check_data(
    cells: Sequence[Cell], wanted: Sequence[Cell], out: Path, data: Path | None, overwrite: bool
) -> tuple[str, ...]:
    """Reject results of other data, or remove them with `overwrite`; record the data that new results are made from."""
    results = {cell.name: _read(cell_folder(out, cell) / RESULT) for cell in cells if is_done(out, cell)}
    present, more = Present(out, data), any(cell.name not in results for cell in wanted)
    again, notes = check_results(cells, results, present, out, more=more, overwrite=overwrite)
    for cell in again:
        (cell_folder(out, cell) / RESULT).unlink(missing_ok=True)
    for cell in wanted:
        present.of(cell)
    present.record()
    return tuple(notes)


def _read(path: Path) -> Row:
    try:
        page = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{path}: damaged ({error}). Delete it, and the cell is run again.") from None
    return page if isinstance(page, dict) else {}


# ------------------------------------------------------------------------------------------------------------ the work


def _execute(
    cells: Sequence[Cell], out: Path, data: Path | None, progress: Progress | None, jobs: int
) -> Iterable[tuple[str, str | None]]:
    """Run the cells, and give each one's name and error as it ends; the error is `TAKEN` if another process is at it."""
    if not cells:
        return
    jobs = min(jobs, len(cells))
    if jobs == 1:
        for cell in cells:
            yield cell.name, guarded_cell(cell, out, data, progress)
        return
    with processes.manager() as shared:
        told = shared.Queue()
        with processes.process_pool(jobs) as pool:
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
    return guarded_cell(cell, out, data, lambda *news: told.put(news))


def guarded_cell(cell: Cell, out: Path, data: Path | None, progress: Progress | None) -> str | None:
    """Run a cell unless another process is at it; a failure is written down and returned, and stops nothing else."""
    folder = cell_folder(out, cell)
    with locked(folder, wait=False) as ours:
        if not ours:
            return TAKEN
        if is_done(out, cell):  # by another process, since we looked
            return None
        try:
            run_cell(cell, folder, data, progress)
            (folder / FAILED).unlink(missing_ok=True)
            return None
        except Exception as error:
            trace = None if isinstance(error, ScmilError) else traceback.format_exc()
            return write_failure(out, cell, f"{type(error).__name__}: {error}", trace)


def write_failure(out: Path, cell: Cell, words: str, trace: str | None = None) -> str:
    """Write down why a cell failed, and when, beside where its result would be."""
    page = {"error": words, "traceback": trace, "when": datetime.now(UTC).isoformat()}
    write_atomically(cell_folder(out, cell) / FAILED, json.dumps(page, indent=2).encode())
    return words


def run_cell(cell: Cell, folder: Path, data: Path | None = None, progress: Progress | None = None) -> None:
    """Train and score one cell, and write its files, `result.json` last."""
    import shutil

    import torch

    from scmil.bags.checks import check_classes, patients_of, survey

    if aggregator_of(cell.settings["model"]) == baseline.NAME:
        need("sklearn.linear_model", "statistics")  # loading a package is no cost of the arm
    began, threads, memory = time.process_time(), torch.get_num_threads(), _Memory()
    torch.set_num_threads(1)  # the same sums in the same order, whether cells run beside each other or not
    try:
        bags = load_bags(cell.settings["data"], data)
        check_classes(bags)
        inputs = inputs_of(cell, bags, folder.parents[1])
        _keep_checkpoints_of(folder, inputs.digest)
        trainings = _trainings(_Work(cell, bags, survey(bags), folder), progress)
        check_unchanged(cell, bags, inputs)
    finally:
        torch.set_num_threads(threads)
    scored = [fold for training in trainings for fold in training.scored]
    history = [row for training in trainings for row in training.history]
    found = {(fold.protocol, *place): value for t in trainings for fold in t.scored for place, value in t.froc.items()}
    ids, labels = bags.ids, np.array(bags.labels)
    result = {
        "format": FORMAT,
        "cell": cell.name,
        "digest": cell.digest,
        "data": {"digest": inputs.digest, "bags": len(inputs.ids)},
        "settings": cell.settings,
        "rows": [row | _froc_summary(row, found) for row in _rows(cell, scored, labels, patients_of(bags))],
        "folds": [fold.row(labels) | _froc_of(fold, found) for fold in scored],
        "parameters": trainings[0].parameters,
        "multiply_adds": trainings[0].multiply_adds,  # of one bag of median size
        "density": trainings[0].density,
        "seconds": round(time.process_time() - began, 1),  # of one processor: what runs beside does not count
        "memory_mib": memory.peak(),
        "trained": trainings[0].how,
        "versions": versions(),
    }
    write_atomically(folder / "predictions.csv", _csv(row for fold in scored for row in fold.predictions(ids, labels)))
    write_atomically(folder / "history.csv", _csv(history))
    write_atomically(folder / RESULT, (json.dumps(result, indent=1) + "\n").encode())
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)


def _keep_checkpoints_of(folder: Path, digest: str) -> None:
    """Delete checkpoints of a training on other data; say of what data those are that will be written."""
    import shutil

    place, mark = folder / "checkpoints", folder / "checkpoints" / "data"
    if place.is_dir() and (not mark.is_file() or mark.read_text() != digest):
        shutil.rmtree(place)
    write_atomically(mark, digest.encode())


class _Memory:
    """The highest resident memory of this process above what it had at first, in MiB, as Linux counts it (VmHWM)."""

    def __init__(self) -> None:
        try:
            Path("/proc/self/clear_refs").write_text("5")  # the peak of what ran before in this process is not ours
            self.first: int | None = self._said("VmRSS")
        except OSError:
            self.first = None

    def peak(self) -> float | None:
        """None where the system does not say."""
        if self.first is None:
            return None
        return round(max(self._said("VmHWM") - self.first, 0) / 1024, 1)  # both are counted to some pages only

    def _said(self, name: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith(name)).split()[1])


def _rows(
    cell: Cell, scored: Sequence[Scored], labels: NDArray[np.int64], patients: Sequence[str | None] | None
) -> list[Row]:
    """The summary of every protocol; where a patient has several slides, of slides and of patients."""
    by_protocol = {name: [fold for fold in scored if fold.protocol == name] for name in cell.protocols}
    rows = [summarise(folds, labels, patients) for folds in by_protocol.values()]
    owners = _owners(labels, patients)
    if owners is None:
        return rows
    those = labels[[slides[0] for slides in owners]]
    further = [summarise([_of_patients(fold, owners) for fold in folds], those, None) for folds in by_protocol.values()]
    return [{"level": "slide", **row} for row in rows] + [{"level": "patient", **row} for row in further]


def _owners(labels: NDArray[np.int64], patients: Sequence[str | None] | None) -> list[list[int]] | None:
    """The slides of each patient; None if each has one, or if slides of one patient differ in class, so that he has none."""
    slides: dict[Any, list[int]] = {}
    for position, patient in enumerate(patients or ()):
        slides.setdefault(position if patient is None else patient, []).append(position)
    torn = any(len(set(labels[own].tolist())) > 1 for own in slides.values())
    return None if torn or len(slides) in (0, len(labels)) else list(slides.values())


def _of_patients(fold: Scored, owners: Sequence[Sequence[int]]) -> Scored:
    """The same fold with a patient for every row: the mean probability over the slides."""
    row = {position: place for place, position in enumerate(fold.test)}
    tested = [number for number, slides in enumerate(owners) if slides[0] in row]
    means = [fold.probabilities[[row[slide] for slide in owners[number]]].mean(0) for number in tested]
    return replace(fold, test=tuple(tested), probabilities=np.stack(means))


# --------------------------------------------------------------------------------------------------------- the training


@dataclass(frozen=True)
class _Work:
    cell: Cell
    bags: Any
    facts: Any  # Survey
    folder: Path

    @property
    def labels(self) -> NDArray[np.int64]:
        return np.array(self.bags.labels, np.int64)

    @property
    def classes(self) -> int:
        return max(2, 1 + int(self.labels.max()))

    def class_weights(self, split: Any) -> list[float] | None:
        """What `[training] class_weights` means for the training part of a split."""
        from scmil.training.fit import weigh_classes

        labels = [self.bags.labels[position] for position in split.train]
        return weigh_classes(self.cell.settings["training"].get("class_weights"), labels, self.classes)

    def flat(self, kind: str) -> list[tuple[int, int, Any]]:
        """Repeat, fold and split of everything that is trained."""
        splits = splits_of(self.cell, self.bags, inner=kind == "inner")
        return [(repeat, fold, split) for repeat, folds in enumerate(splits) for fold, split in enumerate(folds)]


@dataclass(frozen=True)
class _Training:
    scored: list[Scored]
    history: list[Row]
    parameters: int
    multiply_adds: int
    density: float | None
    how: str
    froc: dict[tuple[int, int], float] = field(default_factory=dict)  # by repeat and fold, if lesions are outlined


def _trainings(work: _Work, progress: Progress | None) -> list[_Training]:
    """`last` and `test-tuned` look at the same models; `nested` trains on less, to have an inner part to choose on."""
    cell = work.cell
    full = [name for name in cell.protocols if name != "nested"]
    kinds = [("full", full)] * bool(full) + [("inner", ["nested"])] * ("nested" in cell.protocols)
    epochs = recipe_of(cell.settings).epochs
    trainings = []
    for done, (kind, protocols) in enumerate(kinds):

        def tell(epoch: int, done: int = done) -> None:
            if progress:
                progress(cell.name, done * epochs + epoch, len(kinds) * epochs)

        if aggregator_of(cell.settings["model"]) == baseline.NAME:
            trainings.append(_train_baseline(work, kind, protocols))
            tell(epochs)
        else:
            trainings.append(_train(work, kind, protocols, tell))
    return trainings


def _train(work: _Work, kind: str, protocols: list[str], progress: Callable[[int], None]) -> _Training:
    from scmil.models.cost import count_parameters

    settings, flat, recipe = work.cell.settings, work.flat(kind), recipe_of(work.cell.settings)
    seed = settings["protocol"]["seed"]
    models = [
        build(settings["model"], work.facts.dim, work.classes, seed=_model_seed(seed, repeat, fold))
        for repeat, fold, _ in flat
    ]
    if kind == "full":  # there is no validation part to be patient about
        recipe = replace(recipe, patience=None)
    # One model at a time keeps a GPU busy, and short products are for slides.
    otherwise = any(settings["training"].get(key, usual) != usual for key, usual in USUAL.items())
    located = "localisation" in settings  # for which a model has to end as it was in the epoch that was chosen
    one_by_one = work.facts.numbers * len(flat) > LARGE or recipe.patience is not None or otherwise or located
    train = _fold_by_fold if one_by_one else _all_at_once
    scored, history = train(work, kind, protocols, models, flat, recipe, progress)
    return _Training(
        scored,
        history,
        count_parameters(models[0]),
        _multiply_adds(models[0], work.facts),
        _density(models, work.bags, [split for *_, split in flat], settings["data"]["standardise"]),
        "fold by fold" if one_by_one else "all folds at once",
        {(r, f): _froc(work, model, split) for model, (r, f, split) in zip(models, flat)} if located else {},
    )


def _all_at_once(
    work: _Work, kind: str, protocols: list[str], models: list[Any], flat: list[Any], recipe: Any,
    progress: Callable[[int], None],
) -> tuple[list[Scored], list[Row]]:  # fmt: skip
    from scmil.training.folds import fit_folds

    splits = [split for *_, split in flat]
    history = fit_folds(
        models, list(work.bags), splits, recipe, seed=work.cell.settings["protocol"]["seed"],
        standardise=work.cell.settings["data"]["standardise"], look="last" if protocols == ["last"] else "every",
        class_weights=[w for split in splits if (w := work.class_weights(split)) is not None] or None,
        progress=progress,
    )  # fmt: skip
    scored = [
        score(protocol, repeat, fold, split, history.probabilities[:, place].astype(float), work.labels)
        for protocol in protocols
        for place, (repeat, fold, split) in enumerate(flat)
    ]
    return scored, history_rows(kind, history.train_loss, history.probabilities, splits, work.labels)


def _fold_by_fold(
    work: _Work, kind: str, protocols: list[str], models: list[Any], flat: list[Any], recipe: Any,
    progress: Callable[[int], None],
) -> tuple[list[Scored], list[Row]]:  # fmt: skip
    """The same with `fit`, which reads bags when it needs them; a fold that was stopped goes on from its checkpoint."""
    from scmil.bags.checks import scaled, streamed_moments
    from scmil.training.fit import fit, predict

    look, how = "test-tuned" in protocols, USUAL | work.cell.settings["training"]
    scored: list[Scored] = []
    losses = np.full((recipe.epochs, len(flat)), np.nan)
    for place, (repeat, fold, split) in enumerate(flat):
        model, bags = models[place], work.bags
        if work.cell.settings["data"]["standardise"]:
            bags = scaled(bags, *streamed_moments(bags.subset(split.train)))
        said: list[NDArray[np.float64]] = []

        def tell(
            epoch: int, model: Any = model, bags: Any = bags, split: Any = split, place: int = place, said: Any = said
        ) -> None:
            if look:
                said.append(_said(model, bags, split, work.classes, predict))
            progress((place * recipe.epochs + epoch) // len(flat))

        history = fit(
            model, bags.subset(split.train), bags.subset(split.valid) if split.valid else None, recipe,
            seed=work.cell.settings["protocol"]["seed"], progress=tell,
            checkpoint=None if look else work.folder / "checkpoints" / f"{kind}-{place}.safetensors",
            class_weights=work.class_weights(split), device=how["device"], precision=how["precision"],
        )  # fmt: skip
        losses[: len(history.train_loss), place] = history.train_loss
        p = np.stack(said or [_said(model, bags, split, work.classes, predict)])
        epoch = history.best_epoch or len(history.train_loss)
        found = [score(protocol, repeat, fold, split, p, work.labels) for protocol in protocols]
        scored += found if look else [replace(one, epoch=epoch) for one in found]
    scored.sort(key=lambda one: protocols.index(one.protocol))
    means = [float(np.nanmean(row)) for row in losses if not np.isnan(row).all()]
    blank = dict.fromkeys(("test_loss", "test_accuracy", "test_auc"))
    return scored, [
        {"training": kind, "epoch": epoch, "train_loss": f"{mean:.6g}", **blank} for epoch, mean in enumerate(means, 1)
    ]


def _said(model: Any, bags: Any, split: Any, classes: int, predict: Any) -> NDArray[np.float64]:
    """What the model says of the test and validation bags: (bags, classes), NaN for the others."""
    watched = [*split.test, *split.valid]
    p = np.full((len(bags), classes), np.nan)
    p[watched] = predict(model, bags.subset(watched)).double().numpy()
    return p


def _train_baseline(work: _Work, kind: str, protocols: list[str]) -> _Training:
    """Logistic regression on the same splits; C is chosen on the validation part, or on one inside the training part."""
    from scmil.bags.splits import with_validation
    from scmil.bags.checks import patients_of

    x, labels = baseline.mean_and_max(work.bags), work.labels
    protocol, groups = work.cell.settings["protocol"], patients_of(work.bags)
    scored: list[Scored] = []
    losses = []
    for repeat, fold, split in work.flat(kind):
        seed = _model_seed(protocol["seed"], repeat, fold)
        inner = (
            split if split.valid else with_validation(split, list(work.bags.labels), protocol["valid"], seed, groups)
        )
        strength = baseline.choose_strength(x, labels, inner.train, inner.valid, work.classes)
        train = list(split.train)
        fitted = baseline.fit_baseline(x[train], labels[train].tolist(), work.classes, strength)
        p = fitted.predict(x)
        losses.append(baseline.log_loss(p[train, labels[train]]))
        scored += [score(name, repeat, fold, split, p[None], labels) for name in protocols]
    scored.sort(key=lambda one: protocols.index(one.protocol))
    blank = dict.fromkeys(("test_loss", "test_accuracy", "test_auc"))
    history: list[Row] = [{"training": kind, "epoch": 1, "train_loss": f"{np.mean(losses):.6g}", **blank}]
    return _Training(scored, history, fitted.parameters, fitted.multiply_adds, None, "scikit-learn")


def _multiply_adds(model: Any, facts: Any) -> int:
    """Of one bag of median size, by the equations as they are written: a small bag's own form is not seen by the counter."""
    from scmil.models.cost import count_multiply_adds

    fused = getattr(model.refine, "fused", None)
    if fused:
        model.refine.fused = False
    try:
        return count_multiply_adds(model, facts.median, facts.dim)
    finally:
        if fused:
            model.refine.fused = True


def _model_seed(seed: int, repeat: int, fold: int) -> int:
    """Alike in all arms, so that they are compared in pairs."""
    return 1_000_003 * seed + 1_000 * repeat + fold


def splits_of(cell: Cell, bags: Any, inner: bool) -> list[list[Any]]:
    """The folds of every repeat; with `inner`, each with a validation part taken from its training bags."""
    from scmil.bags.datasets.cohorts import official_splits
    from scmil.bags.splits import check_split, holdout, load_splits, repeated_folds, with_validation
    from scmil.bags.checks import patients_of

    protocol, labels, groups = cell.settings["protocol"], list(bags.labels), patients_of(bags)
    seed, repeats = protocol["seed"], protocol["repeats"]
    if protocol["splits"] is not None:
        splits = load_splits(protocol["splits"], bags.ids)
    elif protocol["kind"] == "official":
        splits = official_splits(cell.settings["data"]["dataset"], bags, repeats, protocol["valid"], seed)
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


def _froc(work: _Work, model: Any, split: Any) -> float:
    """How well the scores of a model find the outlined lesions of its test bags: the FROC score."""
    from scmil.stats import localisation
    from scmil.models.tile_scores import score_bag
    from scmil.slides.annotations.lookup import truth_of
    from scmil.bags.checks import scaled, streamed_moments

    own, bags = work.cell.settings["localisation"], work.bags
    if work.cell.settings["data"]["standardise"]:
        bags = scaled(bags, *streamed_moments(bags.subset(split.train)))
    rule, hits = rule_of(own), []
    for bag in bags.subset([i for i in split.test if bags.ids[i] not in own["exclude"]]):
        truth = truth_of(own["annotations"], bag.id, bag.label, own["class"])
        scores = score_bag(model, bag)
        mpp = own["mpp"] or scores.slide_mpp
        if truth.area is None or mpp is None:
            why = "without microns per pixel: [localisation] mpp" if truth.area is not None else truth.told
            raise DataError(f"slide {bag.id!r} is {why}. Mend that, or name it in [localisation] exclude.")
        values = localisation.tile_values(scores, rule.score)
        found = localisation.detect(scores.xy, scores.side, values, mpp, rule)
        hits.append(localisation.count_hits(found, localisation.find_lesions(truth.area, mpp, scores.slide_size)))
    return localisation.froc(hits).score


def _froc_of(fold: Scored, found: Mapping[tuple[str, int, int], float]) -> Row:
    place = (fold.protocol, fold.repeat, fold.fold)
    return {FROC: round(found[place], 7)} if place in found else {}


def _froc_summary(row: Row, found: Mapping[tuple[str, int, int], float]) -> Row:
    """Mean over repeats of the mean over folds, and its spread over both, as for every other metric."""
    by_repeat: dict[int, list[float]] = {}
    for (protocol, repeat, _), value in found.items():
        if protocol == row["protocol"] and row.get("level") != "patient":
            by_repeat.setdefault(repeat, []).append(value)
    if not by_repeat:
        return {}
    means, every = [np.mean(values) for values in by_repeat.values()], np.concatenate(list(by_repeat.values()))
    spread = [round(float(np.std(part, ddof=1)), 7) if len(part) > 1 else None for part in (means, every)]
    numbers = [round(float(np.mean(means)), 7), *spread, None, None]
    return dict(zip([f"{FROC}{part}" for part in SPREADS], numbers, strict=True))


def _density(models: Sequence[Any], bags: Any, splits: Sequence[Any], standardised: bool) -> float | None:
    """The share of coefficients that are not zero, over some bags of every fold, where there is a sparse code."""
    import torch

    from scmil.bags.checks import scaled, streamed_moments

    if not hasattr(models[0].refine, "statistics"):
        return None
    found = []
    for model, split in zip(models, splits, strict=True):
        train = bags.subset(split.train)
        seen = scaled(train, *streamed_moments(train)) if standardised else train
        with torch.no_grad():
            found += [model.refine.statistics(model.embed(bag.features)).density for bag in seen[:5]]
    return round(float(np.mean(found)), 4)


# ------------------------------------------------------------------------------------------------------------- tables


def gather(plan: Plan, out: Path) -> None:
    """Write `results.csv`, `folds.csv` and `costs.csv` from the cells that are done, in the order of the plan."""
    _gather([{"cell": cell.name, "dataset": cell.dataset, "arm": cell.arm} for cell in plan.cells], out)


def gather_again(out: Path) -> None:
    """Gather what a shard has finished and not gathered, because it was killed in between; else nothing is written."""
    try:
        cells = json.loads((out / EXPERIMENT).read_text(encoding="utf-8"))["cells"]
        places = [{key: str(cell[key]) for key in ("cell", "dataset", "arm")} for cell in cells]
        with (out / "results.csv").open(encoding="utf-8", newline="") as file:
            known = {row["cell"] for row in csv.DictReader(file)}
    except (OSError, ValueError, KeyError, TypeError):
        return  # no folder of `run`, or a damaged one: the report says what is wrong with it
    if any(place["cell"] not in known and (out / "cells" / place["cell"] / RESULT).is_file() for place in places):
        _gather(places, out)


def _gather(places: Sequence[dict[str, str]], out: Path) -> None:
    with locked(out / "results.csv", wait=True):  # of two that gather, the later one has seen what the earlier saw
        _write_tables(places, out)


def _write_tables(places: Sequence[dict[str, str]], out: Path) -> None:
    results: list[Row] = []
    folds: list[Row] = []
    costs: list[Row] = []
    for place in places:
        path = out / "cells" / place["cell"] / RESULT
        if not path.exists():
            continue
        page = _read(path)
        cost = {key: page[key] for key in ("parameters", "density", "seconds")}
        made_from = {"data": str((page.get("data") or {}).get("digest", ""))[:SHORT]}
        results += [{**place, **row, **cost, **made_from} for row in page["rows"]]
        folds += [{**place, **row} for row in page["folds"]]
        costs.append({**place, **{key: page.get(key) for key in COSTS}, "trained": page.get("trained")})
    known = [*METRICS, *[FROC] * any(FROC in row for row in results)]
    metrics = [f"{metric}{spread}" for metric in known for spread in SPREADS]
    start, end = ["cell", "dataset", "arm", "protocol"], ["parameters", "density", "seconds", "data"]
    level = ["level"] * any("level" in row for row in results)
    write_atomically(out / "results.csv", _csv(results, [*start, *level, "repeats", "folds", "bags", *metrics, *end]))
    header = [*start, "repeat", "fold", "bags", *known, "epoch", "threshold"]
    write_atomically(out / "folds.csv", _csv(folds, header))
    write_atomically(out / "costs.csv", _csv(costs, ["cell", "dataset", "arm", *COSTS, "trained"]))


def _csv(rows: Iterable[Mapping[str, Any]], header: Sequence[str] | None = None) -> bytes:
    rows = list(rows)
    header = header or list(rows[0])  # a row without a column of others, such as the level, leaves it empty
    return csv_bytes([header, *([row.get(name) for name in header] for row in rows)])
