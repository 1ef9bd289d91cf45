"""Child processes that end when this process ends, also if it is killed."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.managers import SyncManager

PR_SET_PDEATHSIG = 1  # of Linux's <sys/prctl.h>
SPAWN = multiprocessing.get_context("spawn")


def process_pool(processes: int) -> ProcessPoolExecutor:
    """A pool of new processes, which end with this one, also if it is killed."""
    return ProcessPoolExecutor(processes, mp_context=SPAWN, initializer=end_with_parent)


def manager() -> SyncManager:
    """A started manager of shared objects; its process ends with this one, also if it is killed."""
    started = SyncManager(ctx=SPAWN)
    started.start(end_with_parent)
    return started


def end_with_parent() -> None:
    """End this process when its parent ends.

    A killed parent cannot notify its children. Linux kills the child at once. On other systems, and
    if the parent ended before this call, a thread waits until the pipe to the parent is closed.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_wait_for_parent, daemon=True, name="end-with-parent").start()


def _wait_for_parent() -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)
