"""A command that is killed and started again loses nothing: a short form of the campaign."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

CAMPAIGN = Path(__file__).parents[2] / "campaign"


def test_a_killed_and_restarted_training_ends_with_the_same_files(
    tmp_path: Path,
) -> None:
    out = tmp_path / "kill.json"
    command = [
        sys.executable,
        CAMPAIGN / "kill.py",
        "--kills",
        "1",
        "--only",
        "train",
        "--seed",
        "1",
        "--out",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = json.loads(out.read_text())
    assert page["kills"] == 1
    assert page["endings"] >= 1
    assert page["by_verb"]["train"]["files"] >= 8
