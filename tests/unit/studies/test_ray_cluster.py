"""The connection to a Ray cluster: unreachable clusters and wrong addresses are reported soon."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from scmil.cli import app
from scmil.cli.options import cluster_of
from scmil.errors import ClusterError, MissingExtraError, OptionError
from scmil.studies import ray_cluster
from scmil.studies.ray_cluster import Cluster


@pytest.mark.parametrize("value", ["spark", "ray=", "Ray", "=x", ""])
def test_another_engine_is_rejected_with_the_expected_form(value: str) -> None:
    with pytest.raises(OptionError, match=r"--on .*such as ray=10\.0\.0\.1:6379"):
        cluster_of(value, 1, 0)


def test_the_options_of_the_command_become_a_cluster() -> None:
    assert cluster_of(None, 1, 0) is None
    assert cluster_of("ray", 2, 0) == Cluster(None, 2, 0)
    assert cluster_of("ray=10.0.0.1:6379", 1, 0.5) == Cluster("10.0.0.1:6379", 1, 0.5)


def test_without_ray_the_error_names_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        pytest.raises(MissingExtraError, match=r"pip install 'scmil\[ray\]'"),
        Cluster().connected(),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (None, r"could not be started on this computer: too slow.*omit --on"),
        ("auto", r"no Ray cluster runs on this computer.*ray start --head"),
    ],
)
def test_a_failed_connection_is_reported_with_a_remedy(
    address: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**_: object) -> None:
        raise Exception("too slow\nand much more")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray_cluster, "_import_ray", lambda address: ray)
    with pytest.raises(ClusterError, match=message), Cluster(address).connected():
        pass


@pytest.fixture
def port() -> Iterator[Callable[[bytes | None], int]]:
    """Start a server on this computer that sends these bytes on every connection, or, with None,
    nothing.
    """
    servers: list[socket.socket] = []
    calls: list[socket.socket] = []  # an unreferenced connection would be closed

    def serve(reply: bytes | None) -> int:
        server = socket.create_server(("127.0.0.1", 0))
        servers.append(server)

        def answer() -> None:
            while True:
                try:
                    calls.append(server.accept()[0])
                except OSError:
                    return
                if reply is not None:
                    calls[-1].sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        return int(server.getsockname()[1])

    yield serve
    for server in servers:
        server.shutdown(socket.SHUT_RDWR)
    for one in [*servers, *calls]:
        one.close()


def test_an_address_where_nothing_listens_is_reported_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(
        ClusterError, match=rf"no Ray cluster answers at 127\.0\.0\.1:{free} .*ray status"
    ):
        ray_cluster._check_is_ray(f"127.0.0.1:{free}")
    assert time.monotonic() - began < ray_cluster.SECONDS_TO_ANSWER


@pytest.mark.parametrize("reply", [None, b"HTTP/1.1 400 Bad Request\r\n\r\n", b"220 mail"])
def test_a_server_that_is_not_ray_is_reported_in_time(
    reply: bytes | None, port: Callable[[bytes | None], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_ANSWER", 0.3)
    with pytest.raises(ClusterError, match="no Ray cluster answers at"):
        ray_cluster._check_is_ray(f"127.0.0.1:{port(reply)}")


def test_a_server_that_answers_as_ray_does_is_accepted(port: Callable[[bytes | None], int]) -> None:
    ray_cluster._check_is_ray(f"127.0.0.1:{port(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))}")


@pytest.mark.parametrize("address", ["10.0.0.1", ":6379", "head:port", "10.0.0.1:99999999"])
def test_a_malformed_address_is_rejected(address: str) -> None:
    with pytest.raises((OptionError, ClusterError), match=r"ray|Ray"):
        ray_cluster._check_is_ray(address)


def test_more_resources_than_any_node_has_are_rejected() -> None:
    nodes = [
        {"Alive": True, "Resources": {"CPU": 4.0}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}},
    ]
    ray = SimpleNamespace(nodes=lambda: nodes)
    Cluster(cpus=4)._check_resources(ray)
    with pytest.raises(
        OptionError,
        match=r"--task-cpus 1 --task-gpus 1: no node .* Nodes: 1 \(4 CPUs, 0 GPUs\)",
    ):
        Cluster(gpus=1)._check_resources(ray)


def test_cuda_on_a_cluster_needs_task_gpus(tmp_path: Path) -> None:
    command = [
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
    assert "--task-gpus 1" in str(CliRunner().invoke(app, command).exception)
