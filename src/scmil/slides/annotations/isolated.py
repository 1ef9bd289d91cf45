"""Read annotations in a separate process with limits on time and memory.

A malicious annotation cannot stop other work. The process is
`python -m scmil.slides.annotations.isolated FILE`; it prints the outlines, or an error, as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Lock
from typing import Any

from scmil.errors import DataError, ScmilError

# -P: modules of the current directory are not imported.
COMMAND = (
    sys.executable,
    "-P",
    "-m",
    "scmil.slides.annotations.isolated",
)
SECONDS = 30
MOST_BYTES = 4 * 2**30  # limit of memory


class Outlines:
    """Reads annotations, each in a process that is killed after `seconds` or by `stop`."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds, self._stopped, self._lock = seconds, False, Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def read(self, path: Path) -> list[list[float]]:
        """Read the outlines of an annotation, including holes: x, y, x, y, …

        Raises:
            DataError: If the file cannot be read, or not in time.
        """
        process = self._start(path)
        try:
            content, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{path} takes longer than {self.seconds:g} s to read. Simplify the annotation, "
                "or delete it."
            ) from None
        finally:
            self._end(process)
        try:
            answer: dict[str, Any] = json.loads(content)
        except ValueError:
            raise DataError(
                f"{path}: the process that read it ended without a result. Simplify the annotation."
            ) from None
        if "error" in answer:
            raise DataError(answer["error"])
        outlines: list[list[float]] = answer["outlines"]
        return outlines

    def stop(self) -> None:
        """Kill all processes, and start no others."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        places = (str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        command = [*COMMAND, os.fspath(path)]
        with self._lock:
            if self._stopped:
                raise DataError(f"{path} was not read: the program is ending.")
            # In its own session it does not receive an interrupt from the keyboard; `stop` kills
            # it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,
            )
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        process.kill()
        process.communicate()


def print_outlines(path: Path) -> None:
    """Print the outlines of an annotation."""
    _limit_resources()
    from scmil.slides.annotations.lookup import read_outlines

    try:
        outlines = [ring.round(1).ravel().tolist() for ring in read_outlines(path)]
        answer = json.dumps({"outlines": outlines}, allow_nan=False)
    except (ScmilError, OSError) as error:
        answer = json.dumps({"error": str(error)})
    except (MemoryError, RecursionError, ValueError) as error:
        answer = json.dumps({"error": f"{path} cannot be read: {type(error).__name__} {error}"})
    print(answer)


def _limit_resources() -> None:
    """Limit memory, and time in case the parent process no longer exists."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return
    for kind, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, 2 * SECONDS)):
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(kind, (most, hard))


if __name__ == "__main__":
    print_outlines(Path(sys.argv[1]))
