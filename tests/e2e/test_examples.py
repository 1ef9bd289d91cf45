"""Each example runs in less than a minute."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example(path: Path) -> None:
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    # CPU time, because other processes may be running.
    seconds = end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime
    assert seconds < 60
