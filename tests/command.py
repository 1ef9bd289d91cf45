"""The installed command `scmil`, run in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCMIL = Path(sys.executable).with_name("scmil")


def scmil(*words: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run the command; it has to exit with this code."""
    finished = subprocess.run([SCMIL, *map(str, words)], capture_output=True, text=True)
    assert finished.returncode == code, finished.stderr
    return finished
