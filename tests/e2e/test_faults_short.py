"""Vanished files, a full disk and locks: a short form of the campaign, on two slides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openslide")
CAMPAIGN = Path(__file__).parents[2] / "campaign"
QUICK = [
    "full disk",
    "read-only folder",
    "vanished file",
    "an HDF5 file that another process has locked",
]


def test_a_fault_is_reported_and_the_work_is_finished_once_it_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "faults.json"
    command = [
        sys.executable,
        CAMPAIGN / "faults.py",
        "--slides",
        "2",
        "--out",
        out,
        "--only",
        *QUICK,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {one["fault"]: one["outcome"] for one in json.loads(out.read_text())["faults"]}
    assert set(found) == set(QUICK)
    assert found["vanished file"] == "stood"
    assert set(found.values()) <= {"stood", "skipped"}
