"""The connection to a Ray cluster: join an existing one, or start one on this computer."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from scmil.core.extras import import_extra
from scmil.errors import ClusterError, OptionError

SECONDS_TO_ANSWER = 10
LOCAL = "local"  # Ray's name for a cluster that it starts itself
# Ray uses gRPC, which uses HTTP/2: a server answers this preface and an empty SETTINGS frame with
# a SETTINGS frame, whose type is 4.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_TYPE = bytes([4])
ADVICE = (
    "Check that the cluster runs (on its head node: ray status), that the address is that of its "
    "head node, that this computer belongs to it (ray start --address=...), and that no firewall "
    "blocks the connection."
)


@dataclass(frozen=True)
class Cluster:
    """A Ray cluster, and the resources of each task.

    Args:
        address: Address of the head node, such as `10.0.0.1:6379`, or "auto" for the cluster that
            this computer belongs to. None uses the environment variable RAY_ADDRESS; if that is
            not set, a cluster is started on this computer for the duration of the run.
        cpus: CPUs per task; may be a fraction.
        gpus: GPUs per task; may be a fraction.
    """

    address: str | None = None
    cpus: float = 1
    gpus: float = 0

    @contextmanager
    def connected(self) -> Iterator[Any]:
        """Context manager: connect to Ray unless already connected."""
        address = self.address or os.environ.get("RAY_ADDRESS") or LOCAL
        ray = _import_ray(address)
        if ray.is_initialized():
            self._check_resources(ray)
            yield ray
            return
        _start_ray(ray, address)
        try:
            self._check_resources(ray)
            yield ray
        finally:
            ray.shutdown()

    def _check_resources(self, ray: Any) -> None:
        """Raise an error if no node can run a task: Ray would wait for such a node without end."""
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if any(
            node.get("CPU", 0) >= self.cpus and node.get("GPU", 0) >= self.gpus for node in nodes
        ):
            return
        sizes = "; ".join(
            f"{node.get('CPU', 0):g} CPUs, {node.get('GPU', 0):g} GPUs" for node in nodes[:5]
        )
        raise OptionError(
            f"--task-cpus {self.cpus:g} --task-gpus {self.gpus:g}: no node of the cluster has that "
            f"many. Nodes: {len(nodes)} ({sizes}). Request fewer, or add a node to the cluster."
        )


def _import_ray(address: str) -> Any:
    """Import Ray with the environment variables that it reads at import."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # do not send usage statistics
    if address == LOCAL:  # binds to the loopback interface: no port is open to other computers
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    return import_extra("ray", "ray")


def _start_ray(ray: Any, address: str) -> None:
    """Join a cluster, or start one on this computer.

    Raises:
        ClusterError: The cluster cannot be reached; raised within half a minute.
    """
    if address not in (LOCAL, "auto"):
        _check_is_ray(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises errors of many types here, also plain ones
        cause = first_line(error)
        if address == LOCAL:
            raise ClusterError(
                f"a Ray cluster could not be started on this computer: {cause} Try again when it "
                "is less busy, or omit --on to run without Ray."
            ) from None
        if address == "auto":
            raise ClusterError(
                "no Ray cluster runs on this computer. Start one with ray start --head, or use "
                "--on ray to start one for this run only."
            ) from None
        raise ClusterError(f"cannot join the Ray cluster at {address}: {cause} {ADVICE}") from None


def _check_is_ray(address: str) -> None:
    """Raise an error if no Ray server answers at an address: Ray itself retries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(
            f"--on ray={address}: expected the address of the head node, such as 10.0.0.1:6379."
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_ANSWER) as line:
            if os.environ.get("RAY_USE_TLS", "0") == "0":
                line.sendall(PREFACE)
                if line.recv(9)[3:4] != SETTINGS_TYPE:
                    raise OSError("the server there is not a Ray server")
    except (OSError, OverflowError) as error:
        raise ClusterError(f"no Ray cluster answers at {address} ({error}). {ADVICE}") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, or the type of an error without a message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
