"""Slides and cells on a Ray cluster: the same work as at home, and the same files, on any number of computers.

A task is one slide or one cell. It is run by the very function that runs it at home, in a folder that all computers see, so
that locks, ledgers and finished files hold here too: a run may be stopped, begun at home and ended on a cluster.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from scmil import __version__
from scmil.encoding.cohort import Deal, Job, OnSlide, Source, joined, tell
from scmil.errors import ClusterError, MissingExtraError, OptionError, ScmilError
from scmil.studies.runner import EXPERIMENT, Execute, Progress, guarded_cell, write_failure
from scmil.core.extras import need
from scmil.studies.plan import Cell
from scmil.core.jobs.work import Outcome

Item = TypeVar("Item")
Answer = TypeVar("Answer")

KILLS = 2  # workers that a task may kill before it is given up: a slide that crashes its reader crashes it every time
NODES = 5  # computers that may vanish under a task: that is not its fault, but an end has to be
WINDOW = 1000  # tasks that are handed to Ray at a time; it keeps each of them in memory
SECONDS_TO_ANSWER = 10
HERE = "local"  # as Ray calls a cluster that it starts itself
# Ray speaks gRPC, that is HTTP/2: who sends the greeting and an empty frame of settings is sent a frame of settings.
GREETING, SETTINGS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]), bytes([4])
ADVICE = (
    "Look whether it runs (on its head: ray status), whether the address is that of its head, whether this computer belongs "
    "to it (ray start --address=...), and whether a firewall is between."
)


class Lost(NamedTuple):
    """A task that was given up: why."""

    cause: str


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and what each task takes of it: processors and GPUs, also parts of one.

    `address` is that of its head, as `10.0.0.1:6379`, or "auto" for the cluster that this computer belongs to. Without one it
    is what RAY_ADDRESS names, or a cluster of this computer alone, which is started for this run.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    @contextmanager
    def joined(self) -> Iterator[Any]:
        """Be in the cluster for a while; who is in it already stays in it."""
        address = self.address or os.environ.get("RAY_ADDRESS") or HERE
        ray = _ray(address)
        if ray.is_initialized():
            self._check_size(ray)
            yield ray
            return
        _join(ray, address)
        try:
            self._check_size(ray)
            yield ray
        finally:
            ray.shutdown()

    def _check_size(self, ray: Any) -> None:
        """Refuse what no computer of the cluster has: Ray would wait for it for ever."""
        sizes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(size.get("CPU", 0) >= self.cpus and size.get("GPU", 0) >= self.gpus for size in sizes):
            return
        said = "; ".join(f"{size.get('CPU', 0):g} processors, {size.get('GPU', 0):g} GPUs" for size in sizes[:5])
        raise OptionError(
            f"--task-cpus {self.cpus:g} --task-gpus {self.gpus:g}: no computer of the cluster has that many. It has "
            f"{len(sizes)}: {said}. Ask for less, or add a computer first."
        )


# --------------------------------------------------------------------------------------------------------- slides, cells


def slides_on(cluster: Cluster) -> Deal:
    """Deals slides out to a cluster, for `tile_slides` and `encode_slides`."""

    def deal(job: Job, on_slide: OnSlide | None) -> Outcome:
        outcomes: list[Outcome] = []

        def note(source: Source, outcome: Outcome) -> None:
            outcomes.append(outcome)
            tell(on_slide, source, outcome)

        left = []
        for source in job.sources:
            if job.is_done(source):
                note(source, Outcome(kept=(source.id,)))
            else:
                left.append(source)
        do = partial(_do_slide, job=job._replace(sources=()))  # no task needs the whole list
        for source, answer in run_tasks(cluster, do, left):
            note(source, job.give_up(source, answer.cause) if isinstance(answer, Lost) else answer)
        return joined(outcomes)

    return deal


def _do_slide(source: Source, job: Job) -> Outcome:
    _check_sees(job.work / "slides.csv")
    return job.alone(source)


def cells_on(cluster: Cluster) -> Execute:
    """Runs cells on a cluster, for `experiment.run`."""

    def execute(
        cells: Sequence[Cell], out: Path, data: Path | None, progress: Progress | None
    ) -> Iterable[tuple[str, str | None]]:
        out, data = out.absolute(), data.absolute() if data else None
        with cluster.joined() as ray:
            board = _board(ray) if progress else None

            def show() -> None:
                for news in _news(ray, board):
                    if progress:
                        progress(*news)

            do = partial(_do_cell, out=out, data=data, board=board)
            for cell, answer in run_tasks(cluster, do, cells, show):
                error = write_failure(out, cell, answer.cause) if isinstance(answer, Lost) else answer
                yield cell.name, error

    return execute


def _do_cell(cell: Cell, out: Path, data: Path | None, board: Any) -> str | None:
    _check_sees(out / EXPERIMENT)
    progress = (lambda *news: board.tell.remote(*news)) if board else None
    return guarded_cell(cell, out, data, progress)


def _check_sees(path: Path) -> None:
    if not path.is_file():
        raise ClusterError(
            f"the computer {socket.gethostname()} does not see {path.absolute()}. Every computer of the cluster needs the "
            "same disk under the same name: write to a folder that all of them share."
        )


class _Board:
    """Where cells write how far they are, and the one who waits reads it."""

    def __init__(self) -> None:
        self.news: dict[str, tuple[str, int, int]] = {}

    def tell(self, name: str, done: int, total: int) -> None:
        self.news[name] = (name, done, total)

    def read(self) -> list[tuple[str, int, int]]:
        news, self.news = list(self.news.values()), {}
        return news


def _news(ray: Any, board: Any) -> list[tuple[str, int, int]]:
    try:
        return ray.get(board.read.remote()) if board else []
    except ray.exceptions.RayError:  # it is gone with its computer: the cells go on, and are told when they end
        return []


def _board(ray: Any) -> Any:
    strategies = need("ray.util.scheduling_strategies", "ray")
    here = strategies.NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    return ray.remote(num_cpus=0, scheduling_strategy=here)(_Board).remote()


# --------------------------------------------------------------------------------------------------------------- tasks


def run_tasks(
    cluster: Cluster,
    do: Callable[[Item], Answer],
    items: Iterable[Item],
    on_look: Callable[[], None] | None = None,
) -> Iterator[tuple[Item, Answer | Lost]]:
    """Give every item with what `do` says of it, as they end; what a worker that dies was at is begun anew elsewhere.

    An item that kills its worker twice is `Lost`, and so is one under which five computers vanish. An error of ours that
    `do` raises ends the run. `do` is sent once to each computer, with all that it holds; `on_look` is called now and then.
    """
    with cluster.joined() as ray:
        run = _Run(ray, cluster, do)
        try:
            yield from run.answers(deque(items), on_look)
        finally:
            run.stop()


class _Run(Generic[Item, Answer]):
    """The tasks that are under way, and how often each was lost."""

    def __init__(self, ray: Any, cluster: Cluster, do: Callable[[Item], Answer]) -> None:
        self.ray = ray
        # No retries of Ray's own: it does not tell a slide that kills from a computer that is switched off.
        self.task = ray.remote(num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=0)(_do)
        self.home = Home.here()
        self.box = [ray.put(do)]  # in a list, so that Ray does not unpack it for every task
        self.under_way: dict[Any, tuple[Item, list[str]]] = {}

    def start(self, item: Item, deaths: list[str]) -> None:
        self.under_way[self.task.remote(self.box, item, self.home)] = (item, deaths)

    def answers(self, waiting: deque[Item], on_look: Callable[[], None] | None) -> Iterator[tuple[Item, Answer | Lost]]:
        while waiting or self.under_way:
            while waiting and len(self.under_way) < WINDOW:
                self.start(waiting.popleft(), [])
            ended, _ = self.ray.wait(list(self.under_way), timeout=1)
            for task in ended:
                item, deaths = self.under_way.pop(task)
                answer, death = self.look_at(task)
                if death is None:
                    yield item, answer
                elif cause := given_up([*deaths, death]):
                    yield item, Lost(cause)
                else:
                    self.start(item, [*deaths, death])
            if on_look:
                on_look()

    def look_at(self, task: Any) -> tuple[Any, str | None]:
        """What a task says, or the kind of death that it died."""
        known = self.ray.exceptions
        try:
            return self.ray.get(task), None
        except known.RayTaskError as error:
            if isinstance(error.cause, ScmilError):
                raise error.cause from None
            return None, f"error: {error.cause!r}"
        except known.OutOfMemoryError:
            return None, "memory"
        except known.WorkerCrashedError:
            return None, "killed"
        except (known.NodeDiedError, known.LocalRayletDiedError, known.ObjectLostError, known.RaySystemError):
            return None, "node"

    def stop(self) -> None:
        for task in self.under_way:
            self.ray.cancel(task, force=True)


def given_up(deaths: Sequence[str]) -> str | None:
    """Why a task that died so often is not begun anew; None if it is.

    >>> given_up(["killed"]), given_up(["node", "killed"]), given_up(["killed", "node", "killed"])
    (None, None, 'its process died twice on the cluster: the file, or a library that reads it, is broken')
    """
    last, kills = deaths[-1], [death for death in deaths if death != "node"]
    if last.startswith("error: "):
        return last.removeprefix("error: ") + " (a bug: please report it)"
    if len(kills) >= KILLS and last == "memory":
        return "its process was stopped twice on the cluster: no memory was left. Fewer at a time: more --task-cpus"
    if len(kills) >= KILLS:
        return "its process died twice on the cluster: the file, or a library that reads it, is broken"
    if len(deaths) - len(kills) >= NODES:
        return f"{NODES} computers of the cluster vanished while they were at it. Try again when the cluster is calm"
    return None


class Home(NamedTuple):
    """What a task needs to find of the process that began the run: its version, its folder, our own variables."""

    version: str
    folder: str
    variables: dict[str, str]

    @staticmethod
    def here() -> Home:
        """Of this process."""
        ours = {name: value for name, value in os.environ.items() if name.startswith("SCMIL_")}
        return Home(__version__, os.getcwd(), ours)

    def enter(self) -> None:
        """Make another process like that one, or refuse."""
        if self.version != __version__:
            raise ClusterError(
                f"the computer {socket.gethostname()} has scmil {__version__}, and the run was begun with {self.version}. "
                "Install the same version on all."
            )
        os.environ.update(self.variables)
        if Path(self.folder).is_dir():  # else relative names lead nowhere, and that is told by whoever needs one
            os.chdir(self.folder)


def _do(box: list[Any], item: Any, home: Home) -> Any:
    home.enter()
    try:
        do = _unpacked(box[0])
    except Exception as error:  # of this computer, and so of every task on it
        raise ClusterError(
            f"the computer {socket.gethostname()} cannot read what it is to do: {_first_line(error)}. Install the same "
            "packages in the same versions on all."
        ) from None
    return do(item)


@lru_cache(maxsize=1)
def _unpacked(reference: Any) -> Callable[[Any], Any]:
    """What is to be done, an encoder in it: unpacked once in each process."""
    import ray

    from scmil.encoding.encoders.torchvision_models import torchvision

    with suppress(MissingExtraError):
        torchvision()  # which knows how to import it where it fits badly: a network in the parcel may be made of it
    return ray.get(reference)


# -------------------------------------------------------------------------------------------------------------- joining


def _ray(address: str) -> Any:
    """Ray itself, told before it is imported what it asks only then."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody outside
    if address == HERE:  # by the loopback: what is for this computer alone opens no port to others
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    return need("ray", "ray")


def _join(ray: Any, address: str) -> None:
    """Join a cluster, or start one on this computer alone; one that cannot be reached is told within half a minute."""
    if address not in (HERE, "auto"):
        _check_answers(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises errors of many kinds here, also plain ones
        if address == HERE:
            raise ClusterError(
                f"a Ray cluster could not be started on this computer: {_first_line(error)} Try again when it is less busy, "
                "or work without: leave --on away."
            ) from None
        if address == "auto":
            raise ClusterError(
                "no Ray cluster runs on this computer. Start one: ray start --head. Or let one be started for this run "
                "alone: --on ray"
            ) from None
        raise ClusterError(f"the Ray cluster at {address} cannot be joined: {_first_line(error)} {ADVICE}") from None


def _check_answers(address: str) -> None:
    """Refuse an address where nothing answers as Ray does: it would be tried for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"--on ray={address}: the address of a cluster's head is needed, such as 10.0.0.1:6379.")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                line.sendall(GREETING)
                if line.recv(9)[3:4] != SETTINGS:
                    raise OSError("something else than Ray is there")
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster answers at {address} ({error}). {ADVICE}") from None


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
