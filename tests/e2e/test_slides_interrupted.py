"""From slides to bags: killed processes, shared folders, full disks and folders without access."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

pytest.importorskip("openslide")
# Not imported here: its import fails beside another build of torch, which scmil handles.
if not find_spec("torchvision"):
    pytest.skip("torchvision is not installed", allow_module_level=True)

from command import SCMIL, scmil

from scmil.bags.hdf5 import read_bag
from scmil.core.jobs.locks import locked
from scmil.slides.synthetic import paint

ENCODER = "resnet18, random weights of seed 0"


@pytest.fixture
def four_slides(tmp_path: Path) -> Path:
    folder = tmp_path / "slides"
    folder.mkdir()
    paint(folder / "0.svs", size=(2500, 2500), seed=1)
    for number in (1, 2, 3):
        shutil.copy(folder / "0.svs", folder / f"{number}.svs")
    return folder


def start(slides: Path, work: Path) -> subprocess.Popen[str]:
    command = [SCMIL, "encode", slides, "--out", work, "--random", "0", "--batch", "4"]
    return subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def visible(work: Path) -> list[Path]:
    return sorted(path for path in work.rglob("*.h5") if not path.name.startswith("."))


def test_killed_in_the_middle_no_half_file_is_left_and_the_rest_is_made(
    four_slides: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    with locked(work / "bags" / ENCODER / "3.h5", wait=False):  # it cannot end before the kill
        running = start(four_slides, work)
        deadline = time.monotonic() + 300
        while not list(work.glob("bags/*/*.h5")) and time.monotonic() < deadline:
            time.sleep(0.02)
        running.send_signal(signal.SIGKILL)
        running.communicate()
    made = list(work.glob("bags/*/*.h5"))
    assert 1 <= len(made) < 4
    stamps = {path: path.stat().st_mtime_ns for path in made}
    for path in made:
        read_bag(path)  # whole
    done = start(four_slides, work)
    _, outputs = done.communicate(timeout=300)
    assert done.returncode == 0, outputs
    bags = [read_bag(path) for path in visible(work / "bags")]
    assert [bag.id for bag in bags] == ["0", "1", "2", "3"]
    assert all(torch.equal(bag.features, bags[0].features) for bag in bags)
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


def test_two_processes_share_the_work(four_slides: Path, tmp_path: Path) -> None:
    work = tmp_path / "work"
    both = [start(four_slides, work) for _ in range(2)]
    outputs = [process.communicate(timeout=300) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert len(visible(work / "bags")) == 4
    made = [
        line for _, errors in outputs for line in errors.splitlines() if line.startswith("done: ")
    ]
    assert len(made) == 8, (
        outputs
    )  # each slide once tiled and once encoded, in one of the processes


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(folder)], capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"a disk in memory cannot be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_reported_as_full(small_disk: Path, tmp_path: Path) -> None:
    slide = paint(tmp_path / "slide.svs", size=(6000, 6000), seed=1).path
    done = scmil("tile", slide, "--out", small_disk / "work", code=1)
    assert "DiskFullError: No space left" in done.stderr
    assert not [path for path in (small_disk / "work").rglob("*") if path.suffix == ".h5"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_rejected_before_any_work(tmp_path: Path) -> None:
    slide = paint(tmp_path / "slide.svs", size=(1000, 1000), seed=1).path
    (tmp_path / "locked").mkdir(mode=0o500)
    assert (
        "Cannot write to"
        in scmil("tile", slide, "--out", tmp_path / "locked" / "work", code=1).stderr
    )


def test_a_folder_below_a_file_is_rejected_before_any_work(tmp_path: Path) -> None:
    slide = paint(tmp_path / "slide.svs", size=(1000, 1000), seed=1).path
    (tmp_path / "file").write_text("")
    assert (
        "Cannot write to"
        in scmil("tile", slide, "--out", tmp_path / "file" / "work", code=1).stderr
    )
