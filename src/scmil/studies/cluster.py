"""Slides and runs on a Ray cluster.

A task is one slide or one run. The function that processes it on one computer processes it here,
in a folder that all nodes share. Locks, failure logs and finished files therefore have the same
meaning, and a job may be started on one computer and finished on a cluster.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from scmil.core.extras import import_extra
from scmil.core.jobs.resume import JobOutcome
from scmil.encoding.dispatch import Dispatch, Job, OnSlide, merge_outcomes, report_slide
from scmil.encoding.work_folder import Source
from scmil.errors import ClusterError
from scmil.studies.cluster_tasks import Lost, run_tasks
from scmil.studies.plan import Cell
from scmil.studies.ray_cluster import Cluster
from scmil.studies.runner import EXPERIMENT, Execute, Progress, guarded_cell, write_failure


def slides_on(cluster: Cluster) -> Dispatch:
    """Return a dispatcher of slides to a cluster, for `tile_slides` and `encode_slides`."""

    def dispatch(job: Job, on_slide: OnSlide | None) -> JobOutcome:
        outcomes: list[JobOutcome] = []

        def add(source: Source, outcome: JobOutcome) -> None:
            outcomes.append(outcome)
            report_slide(on_slide, source, outcome)

        left = []
        for source in job.sources:
            if job.is_done(source):
                add(source, JobOutcome(kept=(source.id,)))
            else:
                left.append(source)
        do = partial(_process_slide, job=job._replace(sources=()))  # no task needs the whole list
        for source, answer in run_tasks(cluster, do, left):
            add(
                source,
                job.log_failure(source, answer.cause) if isinstance(answer, Lost) else answer,
            )
        return merge_outcomes(outcomes)

    return dispatch


def _process_slide(source: Source, job: Job) -> JobOutcome:
    _check_shared(job.stage.work / "slides.csv")
    return job.run_one(source)


def cells_on(cluster: Cluster) -> Execute:
    """Return a function that makes runs on a cluster, for `runner.run`."""

    def execute(
        cells: Sequence[Cell], out: Path, data: Path | None, progress: Progress | None
    ) -> Iterable[tuple[str, str | None]]:
        out, data = out.absolute(), data.absolute() if data else None
        with cluster.connected() as ray:
            board = _start_board(ray) if progress else None

            def show() -> None:
                for message in _read_board(ray, board):
                    if progress:
                        progress(*message)

            do = partial(_make_run, out=out, data=data, board=board)
            for cell, answer in run_tasks(cluster, do, cells, show):
                error = (
                    write_failure(out, cell, answer.cause) if isinstance(answer, Lost) else answer
                )
                yield cell.name, error

    return execute


def _make_run(cell: Cell, out: Path, data: Path | None, board: Any) -> str | None:
    _check_shared(out / EXPERIMENT)
    progress = (lambda *message: board.write.remote(*message)) if board else None
    return guarded_cell(cell, out, data, progress)


def _check_shared(path: Path) -> None:
    """Raise an error if this node does not have a file of the process that started the tasks."""
    if not path.is_file():
        raise ClusterError(
            f"the node {socket.gethostname()} cannot find {path.absolute()}. Write to a folder "
            "that all nodes share under the same path."
        )


class _Board:
    """A Ray actor: runs write their progress to it, and the process that started them reads it."""

    def __init__(self) -> None:
        self.messages: dict[str, tuple[str, int, int]] = {}

    def write(self, name: str, done: int, total: int) -> None:
        self.messages[name] = (name, done, total)

    def read(self) -> list[tuple[str, int, int]]:
        messages, self.messages = list(self.messages.values()), {}
        return messages


def _read_board(ray: Any, board: Any) -> list[tuple[str, int, int]]:
    try:
        return ray.get(board.read.remote()) if board else []
    except ray.exceptions.RayError:  # lost with its node: the runs continue without progress
        return []


def _start_board(ray: Any) -> Any:
    strategies = import_extra("ray.util.scheduling_strategies", "ray")
    here = strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=True
    )
    return ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()
