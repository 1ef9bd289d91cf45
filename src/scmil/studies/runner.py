"""Make the runs of an experiment: each trains its folds and writes its own folder; a run whose
result exists is finished.

An interrupted experiment continues where it stopped, and ends with the same numbers: they depend on
the settings, the data and the seed, not on what ran before or beside. A result has a digest of its
data; a result of other data is not used.
"""

from __future__ import annotations

import fnmatch
import json
import os
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from scmil.core.atomic import write_atomically
from scmil.core.extras import import_extra
from scmil.core.jobs import processes
from scmil.core.jobs.locks import locked
from scmil.core.jobs.shards import ALL, Shard
from scmil.core.outputs import check_unclaimed
from scmil.core.tables import write_json
from scmil.errors import ConfigError, OutputError, ScmilError
from scmil.studies.cell import run_cell
from scmil.studies.cell_splits import splits_of
from scmil.studies.cell_training import Progress
from scmil.studies.plan import Cell, Plan
from scmil.studies.protocols import Row
from scmil.studies.results import (
    EXPERIMENT,
    FAILED,
    RESULT,
    ResultTables,
    cell_folder,
    describe_plan,
    gather,
    gather_again,
    is_done,
    read_json_file,
    versions,
)
from scmil.studies.run_bags import release_run_bags
from scmil.studies.run_inputs import CurrentInputs, check_results, load_bags

__all__ = [
    "EXPERIMENT",
    "FAILED",
    "RESULT",
    "TAKEN",
    "Execute",
    "ExperimentOutcome",
    "Progress",
    "cell_folder",
    "chosen_cells",
    "describe_plan",
    "gather",
    "gather_again",
    "guarded_cell",
    "is_done",
    "load_bags",
    "run",
    "run_cell",
    "splits_of",
    "versions",
    "write_failure",
]

# Files of a run directory beside experiment.json.
FILES = ("results.csv", "folds.csv", "costs.csv", "report.html", "report.md", "report.tex", "cells")
TAKEN = "locked by another process"
Execute = Callable[
    [Sequence[Cell], Path, Path | None, Progress | None], Iterable[tuple[str, str | None]]
]


@dataclass(frozen=True)
class ExperimentOutcome:
    """What `run` did: runs that were finished before and now, failed ones with their causes, and
    notes for the user.
    """

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
) -> ExperimentOutcome:
    """Make all runs of a plan that are not finished, and gather the tables after each of them.

    A run that fails is recorded with its cause, and the others continue. Several processes may work
    in one directory, each on its own shard or all on the same runs: each run is made by one of
    them, and the others wait for it at the end.

    Args:
        plan: The experiment.
        out: The run directory.
        jobs: Runs to make at the same time; by default one per processor.
        only: A pattern for names of runs, such as `musk1--*`.
        shard: A part of these runs.
        data: A folder with data sets.
        execute: Makes runs elsewhere than in processes of this computer.
        overwrite: Whether results that were made from other data are computed again.
        progress: Called with the name of a run, its epochs done and all its epochs.
        on_cell: Called with the name of each run that ends.

    Returns:
        How many runs are finished, and which failed.

    Raises:
        ConfigError: The directory has results of other settings or of other data.
        OutputError: The directory has files that are not of a run.

    >>> import tempfile
    >>> from scmil.studies.plan import make_plan
    >>> rows = [f"bag{i},{i % 2},{i % 2 + j / 9}" for i in range(8) for j in range(2)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = Path(folder) / "bags.csv"
    ...     _ = table.write_text("\\n".join(["bag,label,f0", *rows]))
    ...     config = {
    ...         "data": {"dataset": str(table)},
    ...         "protocol": {"folds": 2},
    ...         "model": {"aggregator": "mean", "embed": [4]},
    ...         "training": {"epochs": 1},
    ...     }
    ...     outcome = run(make_plan(config, "mine"), Path(folder) / "out", jobs=1)
    >>> outcome.finished, outcome.failed
    (1, {})
    """
    # The report needs it: an error now is better than after hours of training.
    import_extra("scipy", "statistics")
    out.mkdir(parents=True, exist_ok=True)
    tables = ResultTables.of_plan(plan, out)
    _check_directory(plan, out, tables)
    write_json(out / EXPERIMENT, describe_plan(plan, data), indent=2)
    wanted = chosen_cells(plan, only, shard)
    current = CurrentInputs(out, data)
    notes = _check_data(plan.cells, wanted, out, tables, current, overwrite)
    waiting = [cell for cell in wanted if not is_done(out, cell)]
    failed: dict[str, str] = {}
    earlier_failures = {cell.name: _read_failure(out, cell) for cell in waiting}
    tables.gather()
    todo, execute = waiting, execute or partial(_execute, jobs=jobs or os.cpu_count() or 1)
    while todo:
        taken = set()
        for name, error in execute(todo, out, data, progress):
            if error == TAKEN:
                taken.add(name)
                continue
            if error is not None:
                failed[name] = error
            tables.gather()
            if on_cell:
                on_cell(name)
        todo = [cell for cell in todo if cell.name in taken]
        failed |= _wait_for_others(todo, out, earlier_failures)
        for cell in [cell for cell in todo if cell.name in failed or is_done(out, cell)]:
            todo.remove(cell)
            if on_cell:
                on_cell(cell.name)
    release_run_bags()
    return ExperimentOutcome(
        out, len(wanted) - len(waiting), len(waiting) - len(failed), failed, notes
    )


def chosen_cells(plan: Plan, only: str | None = None, shard: Shard = ALL) -> list[Cell]:
    """The runs whose names match a pattern, or a shard of them."""
    matching = [cell for cell in plan.cells if only is None or fnmatch.fnmatch(cell.name, only)]
    if not matching:
        names = ", ".join(cell.name for cell in plan.cells[:8])
        raise ConfigError(f"--only {only}: no run has such a name. Runs: {names} …")
    return shard.of(matching)


def _wait_for_others(
    cells: Sequence[Cell], out: Path, earlier: Mapping[str, Row | None]
) -> dict[str, str]:
    """Wait until no other process works on any of the runs; returns those that failed there."""
    for cell in cells:
        with locked(cell_folder(out, cell), wait=True):
            pass
    failures = {cell.name: _read_failure(out, cell) for cell in cells if not is_done(out, cell)}
    return {
        name: failure["error"]
        for name, failure in failures.items()
        if failure and failure != earlier[name]
    }


def _read_failure(out: Path, cell: Cell) -> Row | None:
    path = cell_folder(out, cell) / FAILED
    return read_json_file(path) if path.is_file() else None


def _check_directory(plan: Plan, out: Path, tables: ResultTables) -> None:
    """Raise an error for files that are not of a run, and for results of other settings."""
    path = out / EXPERIMENT
    check_unclaimed(out, EXPERIMENT, FILES, "run")
    if path.is_file() and not str(read_json_file(path).get("format")).startswith("scmil-run-"):
        raise OutputError(
            f"{path} was not written by scmil run. Choose another --out, or move the file away."
        )
    results = tables.results()
    different = [
        cell.name
        for cell in plan.cells
        if cell.name in results and results[cell.name].get("digest") != cell.digest
    ]
    if different:
        raise ConfigError(
            f"{out}: {len(different)} results were made with other settings; the first is "
            f"{different[0]!r}. Choose another --out, or delete that directory."
        )


def _check_data(
    cells: Sequence[Cell],
    wanted: Sequence[Cell],
    out: Path,
    tables: ResultTables,
    current: CurrentInputs,
    overwrite: bool,
) -> tuple[str, ...]:
    """Reject results of other data, or delete them with `overwrite`; record the current data."""
    results = tables.results()
    more = any(cell.name not in results for cell in wanted)
    again, notes = check_results(cells, results, current, out, more=more, overwrite=overwrite)
    for cell in again:
        (cell_folder(out, cell) / RESULT).unlink(missing_ok=True)
    for cell in wanted:
        current.of(cell)
    current.record()
    return tuple(notes)


# ------------------------------------------------------------------------------------- processes


def _execute(
    cells: Sequence[Cell], out: Path, data: Path | None, progress: Progress | None, jobs: int
) -> Iterable[tuple[str, str | None]]:
    """Make runs, and yield each one's name and error as it ends; `TAKEN` if it is locked."""
    if not cells:
        return
    jobs = min(jobs, len(cells))
    if jobs == 1:
        for cell in cells:
            yield cell.name, guarded_cell(cell, out, data, progress)
        return
    release_run_bags()  # the processes read their own
    with processes.manager() as shared:
        messages = shared.Queue()
        with processes.process_pool(jobs) as pool:
            names: dict[Future[str | None], str] = {
                pool.submit(_run_in_worker, cell, out, data, messages): cell.name for cell in cells
            }
            while names:
                done, _ = wait(names, timeout=0.2, return_when=FIRST_COMPLETED)
                while progress and not messages.empty():
                    progress(*messages.get())
                for future in done:
                    name = names.pop(future)
                    try:
                        yield name, future.result()
                    except Exception as error:  # the process died: out of memory, killed
                        yield name, f"{type(error).__name__}: {error}"


def _run_in_worker(cell: Cell, out: Path, data: Path | None, messages: Any) -> str | None:
    return guarded_cell(cell, out, data, lambda *message: messages.put(message))


def guarded_cell(cell: Cell, out: Path, data: Path | None, progress: Progress | None) -> str | None:
    """Make a run unless another process does; a failure is recorded and returned."""
    folder = cell_folder(out, cell)
    with locked(folder, wait=False) as ours:
        if not ours:
            return TAKEN
        if is_done(out, cell):  # by another process, in the meantime
            return None
        try:
            run_cell(cell, folder, data, progress)
            (folder / FAILED).unlink(missing_ok=True)
            return None
        except Exception as error:
            trace = None if isinstance(error, ScmilError) else traceback.format_exc()
            return write_failure(out, cell, f"{type(error).__name__}: {error}", trace)


def write_failure(out: Path, cell: Cell, cause: str, trace: str | None = None) -> str:
    """Record why and when a run failed, in its folder; returns the cause."""
    failure = {"error": cause, "traceback": trace, "when": datetime.now(UTC).isoformat()}
    write_atomically(cell_folder(out, cell) / FAILED, json.dumps(failure, indent=2).encode())
    return cause
