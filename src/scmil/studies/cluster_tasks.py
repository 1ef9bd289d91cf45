"""Run a function on many items as Ray tasks; restart tasks whose worker crashes, up to a limit."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from scmil import __version__
from scmil.errors import ClusterError, MissingExtraError, ScmilError
from scmil.studies.ray_cluster import Cluster, first_line

Item = TypeVar("Item")
Answer = TypeVar("Answer")

# A slide that crashes its reader crashes it every time; a node that leaves the cluster is not the
# fault of the task, so that more such losses are allowed.
MAX_CRASHES = 2
MAX_LOST_NODES = 5
MAX_SUBMITTED = 1000  # Ray keeps every submitted task in memory


class Lost(NamedTuple):
    """A task that is not restarted, with the cause."""

    cause: str


def run_tasks(
    cluster: Cluster,
    do: Callable[[Item], Answer],
    items: Iterable[Item],
    on_poll: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Answer | Lost]]:
    """Call `do` on every item on the cluster, and yield each item with its result as it ends.

    A task whose worker crashes is restarted once, and a task whose node leaves the cluster up to
    four times; then the item is yielded with `Lost`. A `ScmilError` raised by `do` ends all tasks.

    Args:
        cluster: Where to run.
        do: The function; it is sent once to each node, with everything that it refers to.
        items: The arguments, one per task.
        on_poll: Called about once a second.
    """
    with cluster.connected() as ray:
        tasks = _Tasks(ray, cluster, do)
        try:
            yield from tasks.run(deque(items), on_poll)
        finally:
            tasks.cancel()


class _Tasks(Generic[Item, Answer]):
    """The submitted tasks, and how each of them was lost before."""

    def __init__(self, ray: Any, cluster: Cluster, do: Callable[[Item], Answer]) -> None:
        self.ray = ray
        # No retries by Ray: it does not distinguish a slide that crashes its worker from a node
        # that is switched off.
        self.task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=0)(
            _call_in_worker
        )
        self.environment = Environment.current()
        self.box = [ray.put(do)]  # in a list, so that Ray does not unpack it for every task
        self.submitted: dict[Any, tuple[Item, list[str]]] = {}

    def submit(self, item: Item, losses: list[str]) -> None:
        self.submitted[self.task.remote(self.box, item, self.environment)] = (item, losses)

    def run(
        self, waiting: deque[Item], on_poll: Callable[[], None] | None
    ) -> Iterator[tuple[Item, Answer | Lost]]:
        while waiting or self.submitted:
            while waiting and len(self.submitted) < MAX_SUBMITTED:
                self.submit(waiting.popleft(), [])
            ended, _ = self.ray.wait(list(self.submitted), timeout=1)
            for task in ended:
                item, losses = self.submitted.pop(task)
                answer, loss = self.fetch(task)
                if loss is None:
                    yield item, answer
                elif cause := cause_of_giving_up([*losses, loss]):
                    yield item, Lost(cause)
                else:
                    self.submit(item, [*losses, loss])
            if on_poll:
                on_poll()

    def fetch(self, task: Any) -> tuple[Any, str | None]:
        """Return the result of a task, or how it was lost."""
        ray_errors = self.ray.exceptions
        try:
            return self.ray.get(task), None
        except ray_errors.RayTaskError as error:
            if isinstance(error.cause, ScmilError):
                raise error.cause from None
            return None, f"error: {error.cause!r}"
        except ray_errors.OutOfMemoryError:
            return None, "memory"
        except ray_errors.WorkerCrashedError:
            return None, "killed"
        except (
            ray_errors.NodeDiedError,
            ray_errors.LocalRayletDiedError,
            ray_errors.ObjectLostError,
            ray_errors.RaySystemError,
        ):
            return None, "node"

    def cancel(self) -> None:
        for task in self.submitted:
            self.ray.cancel(task, force=True)


def cause_of_giving_up(losses: Sequence[str]) -> str | None:
    """Return why a task with these losses is not restarted; None if it is.

    >>> cause_of_giving_up(["killed"]), cause_of_giving_up(["node", "killed"])
    (None, None)
    >>> cause_of_giving_up(["killed", "node", "killed"])
    'its process died twice on the cluster: the file, or a library that reads it, is broken'
    """
    last, crashes = losses[-1], [loss for loss in losses if loss != "node"]
    if last.startswith("error: "):
        return last.removeprefix("error: ") + " (a bug: please report it)"
    if len(crashes) >= MAX_CRASHES and last == "memory":
        return (
            "its process was stopped twice on the cluster because memory ran out. Use more "
            "--task-cpus, so that fewer tasks run at the same time"
        )
    if len(crashes) >= MAX_CRASHES:
        return (
            "its process died twice on the cluster: the file, or a library that reads it, is broken"
        )
    if len(losses) - len(crashes) >= MAX_LOST_NODES:
        return (
            f"the task was lost {MAX_LOST_NODES} times because nodes left the cluster. Retry when "
            "the cluster is stable"
        )
    return None


class Environment(NamedTuple):
    """The version, working directory and SCMIL_ variables of the process that starts the tasks."""

    version: str
    folder: str
    variables: dict[str, str]

    @staticmethod
    def current() -> Environment:
        """Return that of this process."""
        ours = {name: value for name, value in os.environ.items() if name.startswith("SCMIL_")}
        return Environment(__version__, os.getcwd(), ours)

    def enter(self) -> None:
        """Apply it to this process.

        Raises:
            ClusterError: This computer has another version of scmil.
        """
        if self.version != __version__:
            raise ClusterError(
                f"the node {socket.gethostname()} has scmil {__version__}, but the run was started "
                f"with {self.version}. Install the same version on all nodes."
            )
        os.environ.update(self.variables)
        # If it does not exist here, the code that opens a relative path raises the error.
        if Path(self.folder).is_dir():
            os.chdir(self.folder)


def _call_in_worker(box: list[Any], item: Any, environment: Environment) -> Any:
    environment.enter()
    try:
        do = _unpack(box[0])
    except Exception as error:  # of this node, and so of every task on it
        raise ClusterError(
            f"the node {socket.gethostname()} cannot unpack the task: {first_line(error)}. Install "
            "the same packages in the same versions on all nodes."
        ) from None
    return do(item)


@lru_cache(maxsize=1)
def _unpack(reference: Any) -> Callable[[Any], Any]:
    """Return the function of the tasks, which may contain an encoder: unpacked once per process."""
    import ray

    from scmil.encoding.encoders.torchvision_models import torchvision

    with suppress(MissingExtraError):
        # The encoder may be of torchvision, which this imports even where its version does not
        # match that of torch.
        torchvision()
    return ray.get(reference)
