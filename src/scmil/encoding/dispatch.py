"""Stages of the work on a slide, and how slides are dispatched to processes.

A stage makes one file per slide. `run_stage` runs it in this process; `run_in_processes` and a Ray
cluster (`scmil.studies.cluster`) dispatch the slides of a `Job` to several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.processes import process_pool
from scmil.core.jobs.resume import JobOutcome, for_each
from scmil.encoding.work_folder import Source

# Called with the name of a slide and its state, one of STATES.
OnSlide = Callable[[str, str], None]
STATES = ("done", "kept", "failed", "taken")


class Stage(Protocol):
    """One step of the work on a slide: the file that it makes, and how."""

    @property
    def work(self) -> Path:
        """The work folder."""
        ...

    @property
    def name(self) -> str:
        """The name of the stage in the failure log."""
        ...

    @property
    def retry_failed(self) -> bool:
        """Whether slides that failed before are tried again."""
        ...

    def prepare(self) -> None:
        """Load what all slides need, once per process; an error here ends the run."""
        ...

    def target(self, source: Source) -> Path:
        """The file that the stage makes for a slide."""
        ...

    def make(self, source: Source) -> None:
        """Make this file."""
        ...


class Job(NamedTuple):
    """The slides that wait for a stage, in this process or in another one that sees the folder."""

    stage: Stage
    sources: Sequence[Source]

    def run(self, on_slide: OnSlide | None = None) -> JobOutcome:
        """Process all slides in this process."""
        return run_stage(self.stage, self.sources, on_slide)

    def run_one(self, source: Source) -> JobOutcome:
        """Process one slide in this process."""
        return run_stage(self.stage, [source])

    def is_done(self, source: Source) -> bool:
        """Whether a slide has its file and no logged failure, so that it need not be dispatched."""
        failure_log = _failure_log(self.stage.work)
        return self.stage.target(source).exists() and not failure_log.of(source.id, self.stage.name)

    def log_failure(self, source: Source, cause: str) -> JobOutcome:
        """Log the failure of a slide whose process cannot log it any more."""
        _failure_log(self.stage.work).add(source.id, self.stage.name, cause, str(source.path))
        return JobOutcome(failed=(source.id,))


Dispatch = Callable[[Job, OnSlide | None], JobOutcome]


def run_stage(
    stage: Stage, sources: Sequence[Source], on_slide: OnSlide | None = None
) -> JobOutcome:
    """Make the files of a stage for some slides, in this process."""

    def report(source: Source, state: str) -> None:
        if on_slide:
            on_slide(source.id, state)

    stage.prepare()
    return for_each(
        sources,
        stage.make,
        target=stage.target,
        stage=stage.name,
        retry_failed=stage.retry_failed,
        failure_log=_failure_log(stage.work),
        name=lambda source: source.id,
        source=lambda source: source.path,
        on_done=report,
        prepared=True,
    )


def run_in_processes(job: Job, on_slide: OnSlide | None, processes: int) -> JobOutcome:
    """Run a job in several processes; each takes the next slide when it has finished one."""
    if processes <= 1 or len(job.sources) <= 1:
        return job.run(on_slide)
    outcomes = []
    run_one = job._replace(sources=()).run_one  # the processes do not need the whole list
    with process_pool(min(processes, len(job.sources))) as pool:
        for source, outcome in zip(job.sources, pool.map(run_one, job.sources), strict=True):
            outcomes.append(outcome)
            report_slide(on_slide, source, outcome)
    return merge_outcomes(outcomes)


def report_slide(on_slide: OnSlide | None, source: Source, outcome: JobOutcome) -> None:
    """Report the state of a slide that was processed alone."""
    if on_slide:
        on_slide(source.id, next(state for state in STATES if source.id in getattr(outcome, state)))


def merge_outcomes(outcomes: Sequence[JobOutcome]) -> JobOutcome:
    """Concatenate outcomes."""
    return JobOutcome(
        **{
            name: tuple(one for outcome in outcomes for one in getattr(outcome, name))
            for name in (*STATES, "bugs", "unknown")
        }
    )


def reject_slides(
    names: Sequence[str], on_slide: OnSlide | None, unknown: Sequence[str]
) -> JobOutcome:
    """Report slides that failed before the stage was run; `unknown` are those not comparable."""
    for name in names if on_slide else ():
        on_slide(name, "failed")  # type: ignore[misc]
    return JobOutcome(failed=tuple(names), unknown=tuple(unknown))


@lru_cache(maxsize=8)
def _failure_log(work: Path) -> FailureLog:
    """The failure log of a folder, kept between slides: it reads only new lines."""
    return FailureLog(work)
