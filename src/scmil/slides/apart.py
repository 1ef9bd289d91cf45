"""Annotations read in a process of their own, with limits on time and memory: a hostile one stops no other work.

`python -m scmil.slides.apart FILE` is that process. It prints the outlines, or what is wrong with the file, as JSON.
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

COMMAND = (sys.executable, "-P", "-m", "scmil.slides.apart")  # -P: no module of the folder in which it was started
SECONDS = 30
MOST_BYTES = 4 * 2**30  # of memory


class Outlines:
    """Reads annotations, each in a process that is ended after `seconds`, or by `stop`."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds, self._stopped, self._lock = seconds, False, Lock()
        self._running: set[subprocess.Popen[bytes]] = set()

    def read(self, path: Path) -> list[list[float]]:
        """The outlines of an annotation, holes included: x, y, x, y, …; DataError if they cannot be read, or not in time."""
        process = self._start(path)
        try:
            content, _ = process.communicate(timeout=self.seconds)
        except subprocess.TimeoutExpired:
            raise DataError(
                f"{path} takes longer than {self.seconds:g} s to read. Simplify the annotation, or delete it."
            ) from None
        finally:
            self._end(process)
        try:
            said: dict[str, Any] = json.loads(content)
        except ValueError:
            raise DataError(f"{path}: the process that read it has ended without an answer.") from None
        if "error" in said:
            raise DataError(said["error"])
        outlines: list[list[float]] = said["outlines"]
        return outlines

    def stop(self) -> None:
        """End all readings, and begin none."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                process.kill()

    def _start(self, path: Path) -> subprocess.Popen[bytes]:
        places = (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, places))}
        command = [*COMMAND, os.fspath(path)]
        with self._lock:
            if self._stopped:
                raise DataError(f"{path} is not read: the program is about to end.")
            # In a session of its own an interrupt from the keyboard does not reach it: `stop` ends it.
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env=environment, start_new_session=True,
            )  # fmt: skip
            self._running.add(process)
        return process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(process)
        process.kill()
        process.communicate()


def main(path: Path) -> None:
    """Print the outlines of an annotation."""
    _limit()
    from scmil.slides.annotations.lookup import read_outlines

    try:
        outlines = [ring.round(1).ravel().tolist() for ring in read_outlines(path)]
        said = json.dumps({"outlines": outlines}, allow_nan=False)
    except (ScmilError, OSError) as error:
        said = json.dumps({"error": str(error)})
    except (MemoryError, RecursionError, ValueError) as error:
        said = json.dumps({"error": f"{path} cannot be read: {type(error).__name__} {error}"})
    print(said)


def _limit() -> None:
    """Limit the memory, and the time, should nobody be left to end this process."""
    try:
        import resource
    except ImportError:  # there is none on Windows
        return
    for kind, most in ((resource.RLIMIT_AS, MOST_BYTES), (resource.RLIMIT_CPU, 2 * SECONDS)):
        _, hard = resource.getrlimit(kind)
        if hard == resource.RLIM_INFINITY or hard > most:
            resource.setrlimit(kind, (most, hard))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
