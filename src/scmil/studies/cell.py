"""Make one run of an experiment: train and score all its folds, and write its files."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.memory import PeakMemory
from scmil.core.run_format import FORMAT, RESULT
from scmil.core.tables import records_csv, write_json
from scmil.stats.groups import group_positions, pool_slides
from scmil.studies.cell_task import CHECKPOINTS, RunTables, Task, Training
from scmil.studies.cell_training import Progress, train_folds
from scmil.studies.localise import Located, located_of_fold, located_summary
from scmil.studies.plan import Cell
from scmil.studies.protocols import Row, ScoredFold, summarise
from scmil.studies.results import versions
from scmil.studies.run_bags import RunBags, open_run_bags
from scmil.studies.run_inputs import check_unchanged
from scmil.studies.target_cell import patients_as_units, target_tables

if TYPE_CHECKING:
    from scmil.bags.bag import BagSet


def run_cell(
    cell: Cell, folder: Path, data: Path | None = None, progress: Progress | None = None
) -> None:
    """Train and score one run, and write its files, `result.json` last."""
    if not cell.settings.model.is_network:
        # Importing a package is not a cost of the method.
        import_extra("sklearn.linear_model", "statistics")
    with _one_thread():
        run_bags = open_run_bags(cell, folder.parents[1], data)
        _delete_other_checkpoints(folder, run_bags.inputs.digest)
        start, memory = time.process_time(), PeakMemory()
        trainings = train_folds(Task(cell, run_bags, folder), progress)
        check_unchanged(cell, run_bags.bags, run_bags.inputs)
    tables = _tables(cell, run_bags, trainings)
    result = _result(cell, run_bags, trainings, tables) | {
        # Of one processor: what runs beside it does not count.
        "seconds": round(time.process_time() - start, 1),
        "memory_mib": memory.mib(),
        "trained": trainings[0].method,
        "versions": versions(),
    }
    history = [row for training in trainings for row in training.history]
    write_atomically(folder / "predictions.csv", records_csv(tables.predictions))
    write_atomically(folder / "history.csv", records_csv(history))
    write_json(folder / RESULT, result)
    shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Add in the same order, and get the same sums, whatever runs beside it."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _result(
    cell: Cell, run_bags: RunBags, trainings: Sequence[Training[Any]], tables: RunTables
) -> Row:
    """The first part of `result.json`: settings, data, scores and size of the model."""
    return {
        "format": FORMAT,
        "cell": cell.name,
        "digest": cell.digest,
        "data": {"digest": run_bags.inputs.digest, "bags": len(run_bags.inputs.ids)},
        "settings": cell.settings.to_json(),
        "rows": tables.rows,
        "folds": tables.folds,
        **({"metrics": list(tables.metrics)} if tables.metrics else {}),
        "parameters": trainings[0].parameters,
        "multiply_adds": trainings[0].multiply_adds,
        "density": trainings[0].density,
    }


def _tables(cell: Cell, run_bags: RunBags, trainings: Sequence[Training[Any]]) -> RunTables:
    """The tables of the task of the bags."""
    scored = [fold for training in trainings for fold in training.scored]
    if run_bags.bags.targets is not None:
        targets, mode = run_bags.bags.targets, cell.settings.data.patient
        if mode in ("mean", "max"):
            scored = [fold.of_patients(targets, mode) for fold in scored]
            targets = patients_as_units(targets)
        return target_tables(targets, cell.protocols, scored)
    located = {key: found for training in trainings for key, found in training.located.items()}
    return _class_tables(cell, run_bags.bags, scored, located)


def _class_tables(
    cell: Cell, bags: BagSet, scored: Sequence[ScoredFold], located: Located
) -> RunTables:
    from scmil.bags.checks import patients_of

    labels = np.array(bags.labels)
    rows = _summary_rows(cell, scored, labels, patients_of(bags))
    return RunTables(
        [row | located_summary(row, located) for row in rows],
        [fold.row(labels) | located_of_fold(fold, located) for fold in scored],
        (row for fold in scored for row in fold.predictions(bags.ids, labels)),
    )


def _delete_other_checkpoints(folder: Path, digest: str) -> None:
    """Delete checkpoints of a training on other data, and record the data of those that follow."""
    checkpoints, mark = folder / CHECKPOINTS, folder / CHECKPOINTS / "data"
    if checkpoints.is_dir() and (not mark.is_file() or mark.read_text() != digest):
        shutil.rmtree(checkpoints)
    write_atomically(mark, digest.encode())


def _summary_rows(
    cell: Cell,
    scored: Sequence[ScoredFold],
    labels: NDArray[np.int64],
    patients: Sequence[str | None] | None,
) -> list[Row]:
    """The summary of every protocol; if patients have several slides, of slides and of patients."""
    by_protocol = {
        name: [fold for fold in scored if fold.protocol == name] for name in cell.protocols
    }
    rows = [summarise(folds, labels, patients) for folds in by_protocol.values()]
    slides = _slides_by_patient(labels, patients)
    if slides is None:
        return rows
    patient_labels = labels[[positions[0] for positions in slides]]
    further = [
        summarise(
            [_of_patients(fold, slides, cell.settings.data.pooling) for fold in folds],
            patient_labels,
            None,
        )
        for folds in by_protocol.values()
    ]
    return [{"level": "slide", **row} for row in rows] + [
        {"level": "patient", **row} for row in further
    ]


def _slides_by_patient(
    labels: NDArray[np.int64], patients: Sequence[str | None] | None
) -> list[list[int]] | None:
    """Slide indices grouped by patient.

    None if every patient has one slide, or if the slides of a patient have different labels.
    """
    slides = group_positions(patients or ())
    mixed = any(len(set(labels[positions].tolist())) > 1 for positions in slides.values())
    return None if mixed or len(slides) in (0, len(labels)) else list(slides.values())


def _of_patients(fold: ScoredFold, slides: Sequence[Sequence[int]], pooling: str) -> ScoredFold:
    """The same fold with a row per patient: the mean or largest probability over the slides."""
    row = {position: place for place, position in enumerate(fold.test)}
    tested = [number for number, positions in enumerate(slides) if positions[0] in row]
    means = [
        pool_slides(fold.probabilities[[row[position] for position in slides[number]]], pooling)
        for number in tested
    ]
    return replace(fold, test=tuple(tested), probabilities=np.stack(means))
