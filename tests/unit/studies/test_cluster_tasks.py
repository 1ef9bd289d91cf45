"""Tasks on a cluster: those of crashed workers are restarted, up to a limit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scmil.errors import ClusterError, DiskFullError
from scmil.studies import cluster_tasks
from scmil.studies.cluster_tasks import Environment, Lost, cause_of_giving_up, run_tasks
from scmil.studies.ray_cluster import Cluster


class Died(Exception):
    """Base class of the errors that Ray raises when a worker dies."""


class WorkerCrashedError(Died): ...


class NodeDiedError(Died): ...


class OutOfMemoryError(Died): ...


class NeverRaised(Exception): ...


class RayTaskError(Exception):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class StandIn:
    """As much of Ray as `run_tasks` needs: tasks run one at a time, in this process, when their
    result is fetched.
    """

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.options: dict[str, Any] = {}
        names = (WorkerCrashedError, NodeDiedError, OutOfMemoryError, RayTaskError)
        others = dict.fromkeys(
            ("LocalRayletDiedError", "ObjectLostError", "RaySystemError"), NeverRaised
        )
        self.exceptions = SimpleNamespace(**{one.__name__: one for one in names}, **others)

    def remote(self, **options: Any) -> Callable[..., Any]:
        self.options = options

        def start(_: Any, item: Any, environment: Environment) -> Any:
            self.started.append(item)
            return (len(self.started), item)

        return lambda function: SimpleNamespace(remote=start)

    def put(self, do: Any) -> Any:
        self.do = do
        return "reference"

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        try:
            return self.do(task[1])
        except Died:
            raise
        except Exception as error:
            raise RayTaskError(error) from None

    def cancel(self, task: Any, force: bool) -> None:
        self.cancelled.append(task[1])


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    ray = StandIn()

    @contextmanager
    def connected(self: Cluster) -> Iterator[StandIn]:
        yield ray

    monkeypatch.setattr(Cluster, "connected", connected)
    return ray


def failing(**deaths: list[type[Exception]]) -> Callable[[str], str]:
    """A function that raises these errors for an item, one per call, and then succeeds."""

    def do(item: str) -> str:
        if deaths.get(item):
            raise deaths[item].pop(0)("dead")
        return item.upper()

    return do


def test_a_task_whose_worker_dies_is_restarted(stand_in: StandIn) -> None:
    do = failing(b=[WorkerCrashedError])
    assert dict(run_tasks(Cluster(), do, "abc")) == {"a": "A", "b": "B", "c": "C"}
    assert stand_in.started.count("b") == 2
    assert stand_in.options["max_retries"] == 0  # retries by Ray would multiply ours


def test_a_task_that_crashes_twice_is_lost_and_the_others_continue(stand_in: StandIn) -> None:
    do = failing(b=[WorkerCrashedError] * 9)
    answers = dict(run_tasks(Cluster(), do, "abc"))
    assert isinstance(answers["b"], Lost)
    assert "died twice" in answers["b"].cause
    assert (answers["a"], answers["c"], stand_in.started.count("b")) == ("A", "C", 2)


def test_a_lost_node_does_not_count_as_a_crash_of_its_task(stand_in: StandIn) -> None:
    do = failing(b=[NodeDiedError, WorkerCrashedError, NodeDiedError, NodeDiedError])
    assert dict(run_tasks(Cluster(), do, "b")) == {"b": "B"}


def test_a_task_that_loses_five_nodes_is_not_restarted(stand_in: StandIn) -> None:
    [(_, answer)] = run_tasks(Cluster(), failing(b=[NodeDiedError] * 99), "b")
    assert isinstance(answer, Lost)
    assert "lost 5 times because nodes left the cluster" in answer.cause
    assert stand_in.started == ["b"] * 5


def test_the_cause_names_memory_if_memory_ran_out(stand_in: StandIn) -> None:
    [(_, answer)] = run_tasks(Cluster(), failing(b=[OutOfMemoryError] * 2), "b")
    assert isinstance(answer, Lost)
    assert "memory ran out" in answer.cause


def test_an_scmil_error_ends_the_run_and_cancels_the_other_tasks(stand_in: StandIn) -> None:
    def do(item: str) -> str:
        raise DiskFullError("no space is left")

    with pytest.raises(DiskFullError, match="no space"):
        list(run_tasks(Cluster(), do, "abc"))
    assert stand_in.cancelled == ["b", "c"]


def test_an_unexpected_exception_fails_only_its_own_task(stand_in: StandIn) -> None:
    def do(item: str) -> str:
        raise KeyError(item)

    answers = dict(run_tasks(Cluster(), do, "ab"))
    assert [answer.cause for answer in answers.values() if isinstance(answer, Lost)] == [
        "KeyError('a') (a bug: please report it)",
        "KeyError('b') (a bug: please report it)",
    ]


def test_the_number_of_submitted_tasks_is_bounded(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_tasks, "MAX_SUBMITTED", 3)
    seen = [
        len(stand_in.started) - done for done, _ in enumerate(run_tasks(Cluster(), str, range(10)))
    ]
    assert max(seen) == 3


def test_a_crash_and_a_lack_of_memory_count_together() -> None:
    assert cause_of_giving_up(["memory"]) is None
    assert cause_of_giving_up(["killed", "memory"]) is not None


def test_another_version_of_scmil_is_rejected() -> None:
    with pytest.raises(ClusterError, match=r"started with 0\.0\.1\. Install the same version"):
        Environment("0.0.1", ".", {}).enter()


def test_a_task_has_the_folder_and_the_variables_of_the_process_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCMIL_DATA", "there")
    environment = Environment.current()
    assert environment.variables["SCMIL_DATA"] == "there"
    assert "PATH" not in environment.variables
    monkeypatch.chdir("/")
    monkeypatch.delenv("SCMIL_DATA")
    environment.enter()
    assert (Path.cwd(), os.environ["SCMIL_DATA"]) == (tmp_path, "there")
    monkeypatch.setenv("SCMIL_DATA", "")  # so that monkeypatch restores it
