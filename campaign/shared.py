"""What all scripts of the campaign use: a small cohort, and result files with their origin."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scmil.core.atomic import write_atomically

RESULTS = Path(__file__).parent / "results"


def paint_cohort(folder: Path, slides: int, side_px: int, seed: int) -> Path:
    """Write small synthetic slides with annotations, and return the path of the labels."""
    from scmil.slides.synthetic import paint_cohort as paint

    return paint(
        folder, slides=slides, size=(side_px, side_px), mpp=0.5, seed=seed, annotations=True
    )


def write_result(path: Path, page: dict[str, Any]) -> None:
    """Write a result with the command, the machine and the versions."""
    from importlib.metadata import version

    about = {
        "command": "python campaign/"
        + Path(sys.argv[0]).name
        + "".join(f" {shlex.quote(word)}" for word in sys.argv[1:]),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "versions": {"python": platform.python_version()}
        | {
            name: version(name)
            for name in ("torch", "numpy", "h5py", "tifffile", "openslide-python")
        },
    }
    write_atomically(path, (json.dumps(about | page, indent=1, ensure_ascii=False) + "\n").encode())


def say(words: str) -> None:
    """Print a line without buffering."""
    print(words, flush=True)
