"""Does a cluster lose results if a node fails?   python campaign/ray_two_nodes.py

A Ray cluster of two nodes on this computer encodes synthetic slides, of which one kills every
process that reads it, and then runs an experiment. During each, one node is killed with all its
processes, and a new one is added later. Checked:

- every slide and every run is completed, with the same bytes as without a cluster;
- the slide that kills its worker is in the failure log after two attempts, and no other slide is;
- a local run afterwards has nothing to do and finds no incomplete file;
- an address that does not answer is reported within thirty seconds.

Needs `pip install 'scmil[ray]'`. The result is `results/ray.json`.
"""

from __future__ import annotations

import argparse
import csv
import os
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.update(
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # only the loopback network is always available
    RAY_USAGE_STATS_ENABLED="0",
    RAY_raylet_start_wait_time_s="40",
    RAY_agent_register_timeout_ms="240000",
    RAY_worker_niceness="0",
    RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO="0",
    OMP_NUM_THREADS="1",  # as on the cluster: the order of a sum changes its rounding
)
sys.path.insert(0, str(Path(__file__).parent))

import torch
from shared import RESULTS, paint_cohort, say, write_result
from torch import Tensor, nn
from whole import what_is_wrong

from scmil.core.jobs.failure_log import FailureLog
from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, tile_slides
from scmil.encoding.encoders import Encoder, load_encoder
from scmil.errors import ClusterError
from scmil.studies import cluster_tasks
from scmil.studies.cluster import cells_on, slides_on
from scmil.studies.plan import Plan, make_plan
from scmil.studies.ray_cluster import Cluster
from scmil.studies.runner import run

CRASHING, PINK = "crashing", (200, 80, 160)
ATTEMPTS = 5
TILES = TileSettings(preset="biopsy", pen=False)
NODE = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 200 * 2**20}
PORTS = (
    "metrics_agent_port",
    "metrics_export_port",
    "dashboard_agent_listen_port",
    "runtime_env_agent_port",
)
SECONDS_ALLOWED = 30


class CrashingNetwork(nn.Module):
    """A network that kills its process at a tile of one colour, as a library may do."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Features, unless a tile has a single colour."""
        if (x.amax((2, 3)) == x.amin((2, 3))).all(1).any():
            os.kill(os.getpid(), signal.SIGKILL)
        features: Tensor = self.network(x)
        return features


class TwoNodes:
    """A cluster whose second node can be killed and replaced."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as LocalCluster

        self.cluster = LocalCluster()
        self._start(include_dashboard=False, include_log_monitor=False, no_monitor=True)
        self.second = self._start()
        self.removed = self.replaced = 0

    def _start(self, **more: Any) -> Any:
        """Start a node; on a busy computer its processes may miss Ray's limit of 15 seconds."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self.cluster.add_node(**node(), **more)
            except Exception as error:
                say(f"  no node in attempt {attempt}: {error}")
                if attempt == ATTEMPTS:
                    raise

    @property
    def address(self) -> str:
        """The address of the head node."""
        return str(self.cluster.address)

    def lose(self) -> None:
        """Kill the second node without a shutdown."""
        say("  a node is killed")
        self.cluster.remove_node(self.second, allow_graceful=False)
        self.removed += 1

    def replace(self) -> None:
        """Add a new second node."""
        say("  a node is added")
        self.second = self._start()
        self.replaced += 1


def node() -> dict[str, Any]:
    """The options of a node with free ports: if its processes choose them, Ray may time out."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return {**NODE, **dict(zip(PORTS, ports, strict=True))}


@contextmanager
def counted_deaths() -> Iterator[Counter[str]]:
    """Count the tasks that ended, by cause."""
    deaths: Counter[str] = Counter()
    fetch = cluster_tasks._Tasks.fetch

    def fetch_and_count(self: Any, task: Any) -> tuple[Any, str | None]:
        answer, loss = fetch(self, task)
        deaths.update([loss] if loss else [])
        return answer, loss

    cluster_tasks._Tasks.fetch = fetch_and_count  # type: ignore[method-assign]
    try:
        yield deaths
    finally:
        cluster_tasks._Tasks.fetch = fetch  # type: ignore[method-assign]


def on_the_way(nodes: TwoNodes, lose_after: int, replace_after: int) -> Callable[..., None]:
    """A callback that kills the node and later adds another, after so many items."""
    done = [0]

    def report(name: str, state: str = "done") -> None:
        done[0] += 1
        say(f"  {state}: {name}")
        if done[0] == lose_after:
            nodes.lose()
        if done[0] == replace_after:
            nodes.replace()

    return report


# ------------------------------------------------------------------------------------------- slides


def encoder() -> Encoder:
    """A real encoder that kills its process at the slide of one colour."""
    own = load_encoder("efficientnet-lite0", precision="float32")
    return replace(own, network=CrashingNetwork(own.network))


def slides(nodes: TwoNodes, home: Path, count: int, seed: int) -> dict[str, Any]:
    """Encode locally, then on two nodes of which one is killed, and compare."""
    from PIL import Image

    paint_cohort(home / "slides", count, 1500, seed)
    Image.new("RGB", (1500, 1500), PINK).save(home / "slides" / f"{CRASHING}.png")
    sources = find_cohort(home / "slides", 0.5)
    names = sorted(source.id for source in sources if source.id != CRASHING)
    tile_slides(sources, home / "alone", TILES)
    say(f"{count} slides locally")
    encode_slides(home / "alone", encoder(), only=names)
    say(f"{count} slides and a crashing one on two nodes")
    there = Cluster(nodes.address)
    with there.connected(), counted_deaths() as deaths:
        tile_slides(sources, home / "cluster", TILES, dispatch=slides_on(there))
        began = time.monotonic()
        outcome = encode_slides(
            home / "cluster",
            encoder(),
            dispatch=slides_on(there),
            device="cpu",
            precision="float32",
            on_slide=on_the_way(nodes, count // 3, 2 * count // 3),
        )
        seconds = time.monotonic() - began
    failures = FailureLog(home / "cluster").read()
    again = encode_slides(home / "cluster", encoder(), only=names)
    return {
        "slides": count,
        "seconds": round(seconds, 1),
        "deaths": dict(deaths),
        "encoded": len(outcome.done),
        "failures": {failure.slide: failure.cause for failure in failures},
        "same_bytes": bags(home / "cluster") == bags(home / "alone"),
        "left_to_do": len(again.done),
        "not_whole": what_is_wrong(home / "cluster"),
        "half_files": [path.name for path in (home / "cluster" / "bags").rglob(".*.h5.*")],
        "passed": len(outcome.done) == count
        and [failure.slide for failure in failures] == [CRASHING]
        and "died twice" in failures[0].cause
        and bags(home / "cluster") == bags(home / "alone")
        and not again.done
        and not what_is_wrong(home / "cluster"),
    }


def bags(work: Path) -> dict[str, bytes]:
    """The content of all bags."""
    return {path.name: path.read_bytes() for path in sorted((work / "bags").rglob("*.h5"))}


# -------------------------------------------------------------------------------------------- cells


def plan_of(folder: Path, seed: int) -> Plan:
    """An experiment of six methods on forty bags."""
    generator, path = torch.Generator().manual_seed(seed), folder / "bags.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", *(f"f{i}" for i in range(8))])
        for bag in range(40):
            rows = torch.randn(20, 8, generator=generator) + bag % 2
            writer.writerows([f"b{bag}", bag % 2, *row] for row in rows.tolist())
    names = ("mean", "max", "abmil", "abmil-gated", "dsmil", "transmil")
    document = {
        "data": {"dataset": str(path)},
        "protocol": {"folds": 4, "repeats": 1, "selection": ["last"]},
        "model": {"embed": [16]},
        "training": {"epochs": 15},
        "arms": [{"name": name, "model": {"aggregator": name}} for name in names],
    }
    return make_plan(document, "two-nodes")


def cells(nodes: TwoNodes, home: Path, seed: int) -> dict[str, Any]:
    """Run an experiment locally, then on two nodes of which one is killed, and compare."""
    plan = plan_of(home, seed)
    say(f"{len(plan.cells)} runs locally")
    run(plan, home / "run-alone", jobs=1)
    say(f"{len(plan.cells)} runs on two nodes")
    began = time.monotonic()
    with counted_deaths() as deaths:
        outcome = run(
            plan,
            home / "run-cluster",
            execute=cells_on(Cluster(nodes.address)),
            progress=lambda *_: None,
            on_cell=on_the_way(nodes, 2, 4),
        )
    same = all(
        (home / "run-alone" / "cells" / cell.name / name).read_bytes()
        == (home / "run-cluster" / "cells" / cell.name / name).read_bytes()
        for cell in plan.cells
        for name in ("predictions.csv", "history.csv")
    )
    return {
        "cells": len(plan.cells),
        "seconds": round(time.monotonic() - began, 1),
        "deaths": dict(deaths),
        "finished": outcome.finished,
        "failed": outcome.failed,
        "same_bytes": same,
        "passed": outcome.finished == len(plan.cells) and not outcome.failed and same,
    }


def unreachable() -> dict[str, Any]:
    """Connect to a port that accepts connections and does not answer."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began, cause = time.monotonic(), ""
        try:
            with Cluster(f"127.0.0.1:{silent.getsockname()[1]}").connected():
                pass
        except ClusterError as error:
            cause = str(error)
        seconds = time.monotonic() - began
    return {
        "seconds": round(seconds, 1),
        "cause": cause,
        "passed": bool(cause) and seconds < SECONDS_ALLOWED,
    }


def main() -> int:
    """Run all checks, write the result, and return 1 if one failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--slides", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "ray.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    page: dict[str, Any] = {"seed": arguments.seed, "unreachable": unreachable()}
    import ray

    nodes = TwoNodes()
    try:
        with tempfile.TemporaryDirectory(prefix="scmil-ray-") as folder:
            page["slides"] = slides(nodes, Path(folder), arguments.slides, arguments.seed)
            page["cells"] = cells(nodes, Path(folder), arguments.seed)
    finally:
        nodes.cluster.shutdown()
    page |= {
        "ray": ray.__version__,
        "nodes": 2,
        "nodes_killed": nodes.removed,
        "nodes_added": nodes.replaced,
        "slides_encoded": page["slides"]["encoded"],
        "slides_with_the_bytes_of_home": page["slides"]["same_bytes"],
        "slides_in_the_failure_log": ", ".join(page["slides"]["failures"]) or "none",
        "tasks_that_died": sum(page["slides"]["deaths"].values())
        + sum(page["cells"]["deaths"].values()),
        "cells_finished": page["cells"]["finished"],
        "cells_with_the_bytes_of_home": page["cells"]["same_bytes"],
        "seconds_until_a_silent_address_is_told": page["unreachable"]["seconds"],
        "passed": all(page[part]["passed"] for part in ("unreachable", "slides", "cells")),
    }
    write_result(arguments.out, page)
    say(f"{'passed' if page['passed'] else 'FAILED'}: {arguments.out}")
    return 0 if page["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
