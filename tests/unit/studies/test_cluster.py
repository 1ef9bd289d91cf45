"""Slides and runs on a Ray cluster give the same files as on one computer."""

from __future__ import annotations

import csv
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

from scmil.core.jobs.failure_log import FailureLog
from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, tile_slides
from scmil.encoding.encoders import Encoder
from scmil.errors import ClusterError
from scmil.studies import cluster as cluster_module
from scmil.studies.cluster import cells_on, slides_on
from scmil.studies.plan import Plan, make_plan
from scmil.studies.ray_cluster import Cluster
from scmil.studies.runner import run

SETTINGS = TileSettings(size_px=100, mpp=0.5, min_tissue=0.5, preset="biopsy", pen=False)
needs_ray = pytest.mark.skipif(
    not find_spec("ray"), reason="ray is not installed: pip install 'scmil[ray]'"
)


def test_a_node_without_the_shared_folder_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"cannot find .*slides\.csv.*that all nodes share"):
        cluster_module._check_shared(tmp_path / "slides.csv")


class Crashing(nn.Module):
    """The mean colour of a tile; a tile that is more blue than red kills the process, as a bug in
    a C library does.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        colour = x.mean((2, 3))
        if (colour[:, 2] > colour[:, 0]).any():
            os.kill(os.getpid(), signal.SIGKILL)
        return colour


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A real Ray cluster on this computer."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "RAY_raylet_start_wait_time_s": "180",
            "RAY_agent_register_timeout_ms": "180000",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        }.items():
            patch.setenv(name, value)
        connection = Cluster().connected()
        try:
            ray = connection.__enter__()
        except ClusterError as error:
            pytest.skip(str(error))
        # Workers cannot import tests.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield Cluster()
        connection.__exit__(None, None, None)


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
def test_slides_on_a_cluster_give_the_same_files_and_a_crashing_one_is_logged(
    cluster: Cluster, tmp_path: Path
) -> None:
    encoder = Encoder(
        "mean", 3, Crashing(), "digest", "none", mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)
    )
    slides = pictures(
        tmp_path / "slides", a=(200, 80, 160), b=(210, 80, 150), crashing=(150, 60, 210)
    )
    reported: list[tuple[str, str]] = []
    for name, dispatch in (("local", None), ("cluster", slides_on(cluster))):
        tile_slides(find_cohort(slides, 0.5), tmp_path / name, SETTINGS, dispatch=dispatch)
        harmless = ["a", "b"] if dispatch is None else None
        outcome = encode_slides(
            tmp_path / name,
            replace(encoder),
            only=harmless,
            dispatch=dispatch,
            device="cpu",
            precision="float32",
            on_slide=lambda *message: reported.append(message),
        )
    assert (sorted(outcome.done), outcome.failed) == (["a", "b"], ("crashing",))
    assert sorted(reported[2:]) == [("a", "done"), ("b", "done"), ("crashing", "failed")]
    [failure] = FailureLog(tmp_path / "cluster").read()
    assert (failure.slide, failure.stage) == ("crashing", "encode mean")
    assert "died twice" in failure.cause
    (tmp_path / "cluster" / "failures.csv").unlink()
    assert files_of(tmp_path / "cluster") == files_of(tmp_path / "local")


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    with (tmp_path / "bags.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["bag", "label", "f0", "f1"])
        drawn = torch.randn(12, 3, 2, generator=torch.Generator().manual_seed(0))
        writer.writerows(
            [f"b{bag}", bag % 2, *(x + bag % 2).tolist()] for bag in range(12) for x in drawn[bag]
        )
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
def test_runs_on_a_cluster_give_the_same_predictions_and_report_their_progress(
    cluster: Cluster, plan: Plan, tmp_path: Path
) -> None:
    reported: list[tuple[str, int, int]] = []
    run(plan, tmp_path / "local", jobs=1)
    outcome = run(
        plan,
        tmp_path / "cluster",
        execute=cells_on(cluster),
        progress=lambda *message: reported.append(message),
    )
    assert (outcome.finished, outcome.failed) == (2, {})
    for cell in plan.cells:
        for name in ("predictions.csv", "history.csv"):
            files = [tmp_path / out / "cells" / cell.name / name for out in ("local", "cluster")]
            assert files[0].read_bytes() == files[1].read_bytes()
    assert {name for name, *_ in reported} <= {cell.name for cell in plan.cells}
    assert run(plan, tmp_path / "cluster", execute=cells_on(cluster)).before == 2
