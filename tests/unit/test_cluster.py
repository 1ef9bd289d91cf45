"""Slides and cells on a Ray cluster: the same files as at home, and what dies there is begun anew, but not for ever."""

from __future__ import annotations

import csv
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from scmil.studies import cluster as room
from scmil.cli import app
from scmil.cli.options import cluster_of
from scmil.studies.cluster import Cluster, Home, Lost, cells_on, given_up, run_tasks, slides_on
from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, tile_slides
from scmil.encoding.encoders import Encoder
from scmil.errors import ClusterError, DiskFullError, MissingExtraError, OptionError
from scmil.studies.runner import run
from scmil.studies.plan import Plan, make_plan
from scmil.core.jobs.work import Ledger

SETTINGS = TileSettings(size_px=100, mpp=0.5, min_tissue=0.5, preset="biopsy", pen=False)
needs_ray = pytest.mark.skipif(not find_spec("ray"), reason="ray is not installed: pip install 'scmil[ray]'")


# ------------------------------------------------------------------------------------------------------- a stand-in ray


class Died(Exception):
    """Stands for the errors by which Ray tells of deaths."""


class WorkerCrashedError(Died): ...


class NodeDiedError(Died): ...


class OutOfMemoryError(Died): ...


class Never(Exception): ...


class RayTaskError(Exception):
    def __init__(self, cause: BaseException) -> None:
        super().__init__(str(cause))
        self.cause = cause


class StandIn:
    """As much of Ray as `run_tasks` needs: tasks are run when they are looked at, one at a time, in this process."""

    def __init__(self) -> None:
        self.started: list[Any] = []
        self.cancelled: list[Any] = []
        self.asked: dict[str, Any] = {}
        names = (WorkerCrashedError, NodeDiedError, OutOfMemoryError, RayTaskError)
        others = dict.fromkeys(("LocalRayletDiedError", "ObjectLostError", "RaySystemError"), Never)
        self.exceptions = SimpleNamespace(**{one.__name__: one for one in names}, **others)

    def remote(self, **asked: Any) -> Callable[..., Any]:
        self.asked = asked

        def start(_: Any, item: Any, home: Home) -> Any:
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
    from contextlib import contextmanager

    ray = StandIn()

    @contextmanager
    def joined(self: Cluster) -> Iterator[StandIn]:
        yield ray

    monkeypatch.setattr(Cluster, "joined", joined)
    return ray


def dying(**deaths: list[type[Exception]]) -> Callable[[str], str]:
    """Items that die of these, one after the other, and then live."""

    def do(item: str) -> str:
        if deaths.get(item):
            raise deaths[item].pop(0)("dead")
        return item.upper()

    return do


def test_a_task_whose_worker_dies_is_begun_anew(stand_in: StandIn) -> None:
    do = dying(b=[WorkerCrashedError])
    assert dict(run_tasks(Cluster(), do, "abc")) == {"a": "A", "b": "B", "c": "C"}
    assert stand_in.started.count("b") == 2
    assert stand_in.asked["max_retries"] == 0  # ours alone: they would be multiplied


def test_a_task_that_kills_twice_is_lost_and_the_others_go_on(stand_in: StandIn) -> None:
    do = dying(b=[WorkerCrashedError] * 9)
    answers = dict(run_tasks(Cluster(), do, "abc"))
    assert isinstance(answers["b"], Lost)
    assert "died twice" in answers["b"].cause
    assert (answers["a"], answers["c"], stand_in.started.count("b")) == ("A", "C", 2)


def test_a_computer_that_vanishes_is_not_the_fault_of_its_task(stand_in: StandIn) -> None:
    do = dying(b=[NodeDiedError, WorkerCrashedError, NodeDiedError, NodeDiedError])
    assert dict(run_tasks(Cluster(), do, "b")) == {"b": "B"}


def test_computers_do_not_vanish_for_ever_under_one_task(stand_in: StandIn) -> None:
    [(_, answer)] = run_tasks(Cluster(), dying(b=[NodeDiedError] * 99), "b")
    assert isinstance(answer, Lost)
    assert "5 computers" in answer.cause
    assert stand_in.started == ["b"] * 5


def test_too_little_memory_is_called_so(stand_in: StandIn) -> None:
    [(_, answer)] = run_tasks(Cluster(), dying(b=[OutOfMemoryError] * 2), "b")
    assert isinstance(answer, Lost)
    assert "no memory was left" in answer.cause


def test_a_refusal_of_ours_ends_the_run_and_what_waits_is_cancelled(stand_in: StandIn) -> None:
    def do(item: str) -> str:
        raise DiskFullError("no space is left")

    with pytest.raises(DiskFullError, match="no space"):
        list(run_tasks(Cluster(), do, "abc"))
    assert stand_in.cancelled == ["b", "c"]


def test_a_bug_in_a_task_is_its_own_failure(stand_in: StandIn) -> None:
    def do(item: str) -> str:
        raise KeyError(item)

    answers = dict(run_tasks(Cluster(), do, "ab"))
    assert [answer.cause for answer in answers.values() if isinstance(answer, Lost)] == [
        "KeyError('a') (a bug: please report it)",
        "KeyError('b') (a bug: please report it)",
    ]


def test_of_very_many_items_few_are_under_way(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "WINDOW", 3)
    seen = [len(stand_in.started) - done for done, _ in enumerate(run_tasks(Cluster(), str, range(10)))]
    assert max(seen) == 3


def test_a_kill_and_a_lack_of_memory_count_together() -> None:
    assert given_up(["memory"]) is None
    assert given_up(["killed", "memory"]) is not None


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("words", ["spark", "ray=", "Ray", "=x", ""])
def test_another_engine_is_refused_with_the_right_form(words: str) -> None:
    with pytest.raises(OptionError, match=r"--on .*such as ray=10\.0\.0\.1:6379"):
        cluster_of(words, 1, 0)


def test_the_words_of_the_command_become_a_cluster() -> None:
    assert cluster_of(None, 1, 0) is None
    assert cluster_of("ray", 2, 0) == Cluster(None, 2, 0)
    assert cluster_of("ray=10.0.0.1:6379", 1, 0.5) == Cluster("10.0.0.1:6379", 1, 0.5)


def test_without_ray_the_command_that_installs_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[ray\]'"), Cluster().joined():
        pass


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, r"could not be started on this computer: too slow.*leave --on away"),
        ("auto", r"no Ray cluster runs on this computer.*ray start --head"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_told_in_words(
    address: str | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("too slow\nand much more")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(room, "_ray", lambda address: ray)
    with pytest.raises(ClusterError, match=said), Cluster(address).joined():
        pass


@pytest.fixture
def port() -> Iterator[Callable[[bytes | None], int]]:
    """A server on this computer that says something to everyone who calls, or, with None, nothing at all."""
    servers: list[socket.socket] = []
    calls: list[socket.socket] = []  # kept: one that is forgotten is hung up

    def serve(words: bytes | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def answer() -> None:
            while True:
                try:
                    calls.append(server.accept()[0])
                except OSError:
                    return
                if words is not None:
                    calls[-1].sendall(words)

        threading.Thread(target=answer, daemon=True).start()
        return int(server.getsockname()[1])

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
    for one in [*servers, *calls]:
        one.close()


def test_an_address_where_nothing_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(ClusterError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{free} .*ray status"):
        room._check_answers(f"127.0.0.1:{free}")
    assert time.monotonic() - began < room.SECONDS_TO_ANSWER


@pytest.mark.parametrize("words", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail"])
def test_something_else_than_ray_is_told_in_time(
    words: bytes | None, port: Callable[[bytes | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SECONDS_TO_ANSWER", 0.3)
    with pytest.raises(ClusterError, match="no Ray cluster answers at"):
        room._check_answers(f"127.0.0.1:{port(words)}")


def test_what_speaks_as_ray_does_is_let_through(port: Callable[[bytes | None], int]) -> None:
    room._check_answers(f"127.0.0.1:{port(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))}")


@pytest.mark.parametrize("address", ["10.0.0.1", ":6379", "head:port", "10.0.0.1:99999999"])
def test_a_malformed_address_is_refused(address: str) -> None:
    with pytest.raises((OptionError, ClusterError), match=r"ray|Ray"):
        room._check_answers(address)


def test_more_than_any_computer_has_is_refused() -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}]
    ray = SimpleNamespace(nodes=lambda: nodes)
    Cluster(cpus=4)._check_size(ray)
    with pytest.raises(OptionError, match=r"--task-cpus 1 --task-gpus 1: no computer .* has 1: 4 processors, 0 GPUs"):
        Cluster(gpus=1)._check_size(ray)


def test_a_gpu_has_to_be_asked_for_on_a_cluster(tmp_path: Path) -> None:
    words = [
        "encode",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--device",
        "cuda",
        "--on",
        "ray",
        "--random",
        "0",
    ]
    assert "--task-gpus 1" in str(CliRunner().invoke(app, words).exception)


def test_another_version_of_scmil_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"begun with 0\.0\.1\. Install the same version"):
        Home("0.0.1", ".", {}).enter()


def test_a_task_finds_the_folder_and_the_variables_of_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCMIL_DATA", "there")
    home = Home.here()
    assert home.variables["SCMIL_DATA"] == "there"
    assert "PATH" not in home.variables
    monkeypatch.chdir("/")
    monkeypatch.delenv("SCMIL_DATA")
    home.enter()
    assert (Path.cwd(), os.environ["SCMIL_DATA"]) == (tmp_path, "there")
    monkeypatch.setenv("SCMIL_DATA", "")  # so that what was entered is left again


def test_a_computer_without_the_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"does not see .*slides\.csv.*the same disk"):
        room._check_sees(tmp_path / "slides.csv")


# ------------------------------------------------------------------------------------------------------------- real ray


class Deadly(nn.Module):
    """The mean colour of a tile; a tile that is more blue than red kills the process, as a broken library does."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        colour = x.mean((2, 3))
        if (colour[:, 2] > colour[:, 0]).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return colour


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A real one, of this computer alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_raylet_start_wait_time_s": "180",
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }.items():
            patch.setenv(name, value)
        joined = Cluster().joined()
        try:
            ray = joined.__enter__()
        except ClusterError as error:
            pytest.skip(str(error))
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import tests
        yield Cluster()
        joined.__exit__(None, None, None)


def pictures(folder: Path, **colours: tuple[int, int, int]) -> Path:
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("shapely")
    folder.mkdir(parents=True, exist_ok=True)
    for name, colour in colours.items():
        image.new("RGB", (260, 260), colour).save(folder / f"{name}.png")
    return folder


def files_of(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and ".locks" not in path.parts)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(paths)}


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_slides_on_a_cluster_give_the_files_of_home_and_a_poisoned_one_is_written_down(
    cluster: Cluster, tmp_path: Path
) -> None:
    encoder = Encoder("mean", 3, Deadly(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    slides = pictures(tmp_path / "slides", a=(200, 80, 160), b=(210, 80, 150), poison=(150, 60, 210))
    told: list[tuple[str, str]] = []
    for name, deal in (("home", None), ("there", slides_on(cluster))):
        tile_slides(find_cohort(slides, 0.5), tmp_path / name, SETTINGS, deal=deal)
        harmless = ["a", "b"] if deal is None else None
        outcome = encode_slides(
            tmp_path / name,
            replace(encoder),
            only=harmless,
            deal=deal,
            device="cpu",
            precision="float32",
            on_slide=lambda *news: told.append(news),
        )
    assert (sorted(outcome.done), outcome.failed) == (["a", "b"], ("poison",))
    assert sorted(told[2:]) == [("a", "done"), ("b", "done"), ("poison", "failed")]
    [failure] = Ledger(tmp_path / "there").read()
    assert (failure.slide, failure.stage) == ("poison", "encode mean")
    assert "died twice" in failure.cause
    (tmp_path / "there" / "failures.csv").unlink()
    assert files_of(tmp_path / "there") == files_of(tmp_path / "home")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    with (tmp_path / "bags.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "f0", "f1"])
        drawn = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(0))
        writer.writerows([f"b{bag}", bag % 2, *(x + bag % 2).tolist()] for bag in range(12) for x in drawn[bag])
    document = {
        "data": {"dataset": str(tmp_path / "bags.csv")},
        "protocol": {"folds": 2, "repeats": 1, "selection": ["last"]},
        "model": {"embed": [4]},
        "training": {"epochs": 2},
        "arms": [{"name": name, "model": {"aggregator": name}} for name in ("mean", "max")],
    }
    return make_plan(document, "mine")


@needs_ray
@pytest.mark.filterwarnings("ignore")
def test_cells_on_a_cluster_give_the_predictions_of_home_and_tell_how_far_they_are(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    told: list[tuple[str, int, int]] = []
    run(plan, tmp_path / "home", jobs=1)
    outcome = run(plan, tmp_path / "there", execute=cells_on(cluster), progress=lambda *news: told.append(news))
    assert (outcome.finished, outcome.failed) == (2, {})
    for cell in plan.cells:
        for name in ("predictions.csv", "history.csv"):
            there = [tmp_path / place / "cells" / cell.name / name for place in ("home", "there")]
            assert there[0].read_bytes() == there[1].read_bytes()
    assert {name for name, *_ in told} <= {cell.name for cell in plan.cells}
    assert run(plan, tmp_path / "there", execute=cells_on(cluster)).before == 2
