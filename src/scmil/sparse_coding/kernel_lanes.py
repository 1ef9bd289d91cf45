"""Blocks of rows on several threads: each thread takes whole blocks through all layers.

torch divides each operation among its threads, and all wait for the last one: a training step on a
slide has several hundred such sections. If another process uses one of the cores, each section
waits for the thread that shares it. Here a thread works on its rows from the first operation to the
last, with one thread per operation, and the threads wait for each other twice in a pass.

The thread of the caller works as well, so that a pass does not depend on when the others are
started: those that have not begun when all work is taken are not waited for.

For gradients, blocks are assigned to *lanes*, and each lane has its own sums, which are added in
the order of the lanes. So the result does not depend on which thread takes which lane, or when.
There are more lanes than threads, so that a thread that is faster takes more of them.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from threading import Barrier, get_native_id
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

# Multiply-adds below which operations are not divided among the threads.
SHORTEST_DIVIDED = 2_000_000
# Codes of a thread below which its operations are so short that the threads wait for Python's lock.
SHORTEST_LANE = 2**16
# Rows from which on a thread has two lanes: each has its own sums of gradients, which cost as much
# as some hundred rows.
LONG_LANE = 1024

T = TypeVar("T")


class Lanes(NamedTuple):
    """`number` lanes on `threads` threads; with one thread, all run in the thread of the caller."""

    number: int
    threads: int

    @classmethod
    def of(cls, x: Tensor, m: int) -> Lanes:
        """The lanes for a bag and m atoms. Of smaller bags, in stacks of models, and on other
        devices torch divides each operation: the one lane runs in the thread of the caller.

        >>> Lanes.of(torch.zeros(3, 12_000, 64), m=256)
        Lanes(number=1, threads=1)
        """
        threads = torch.get_num_threads()
        if x.ndim != 2 or x.device.type != "cpu" or threads == 1:
            return cls(1, 1)
        # A multiple of the threads, so that equally fast ones end together.
        rows = len(x) // threads
        if rows * m < SHORTEST_LANE:
            return cls(1, 1)
        return cls(threads * (2 if rows >= 2 * LONG_LANE else 1), threads)

    def run(self, task: Callable[[int], T], count: int | None = None) -> list[T]:
        """The results of `task` for the number of each lane, or for the numbers below `count`; an
        error of a task is raised here.
        """
        count = self.number if count is None else count
        if self.threads == 1:
            return [task(index) for index in range(count)]
        left = deque(range(count))
        results: list[Any] = [None] * count

        def work() -> None:
            with torch.no_grad():  # a property of the thread
                while left:
                    try:
                        index = left.popleft()
                    except IndexError:  # another thread has taken the last one
                        return
                    results[index] = task(index)

        pool, cores = _pool(self.threads, os.getpid())
        with cores.kept_apart():
            helpers = [pool.submit(work) for _ in range(self.threads - 1)]
            try:
                work()
            finally:
                left.clear()  # if there was an error
                for helper in helpers:
                    if not helper.cancel():
                        helper.result()
        return results

    def for_product(self, multiply_adds: int) -> Lanes:
        """The lanes for one product: all of them, or one in the thread of the caller if it is so
        short that the others take longer to start.
        """
        return self if multiply_adds > SHORTEST_DIVIDED else Lanes(1, 1)

    @contextmanager
    def one_thread(self) -> Iterator[None]:
        """One thread for each operation of the caller, whose other threads would wait in a loop and
        take the cores of the lanes. Afterwards it has as many as before.
        """
        if self.threads == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self.threads)

    def share(self, lane: int, size: int) -> slice:
        """The part of `size` rows that a lane computes of something that all lanes need.

        >>> [Lanes(2, 2).share(lane, 5) for lane in range(2)]
        [slice(0, 3, None), slice(3, 5, None)]
        """
        each = -(-size // self.number)
        return slice(min(lane * each, size), min((lane + 1) * each, size))


class _Cores:
    """Keeps the threads of a pool and their caller on different cores.

    A thread that is woken is often started on the core of the thread that has woken it, and moved
    to an idle one only after some milliseconds, when short passes are over: two threads then took
    as long as one. That happens at the start of a pass, and to the caller whenever it has waited
    for Python's lock. On systems that do not bind threads to cores nothing is done.
    """

    def __init__(self, threads: Sequence[int]) -> None:
        self.threads, self.left_out = threads, -1
        self._core_of_caller = _find_core_of_caller()

    @contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Bind the caller to its core, until the end of the block, and the threads to all others of
        the process; 10 microseconds.
        """
        if self._core_of_caller is None:
            yield
            return
        allowed, core = os.sched_getaffinity(0), self._core_of_caller()
        with suppress(OSError):  # the system does not permit it, or a thread is no longer there
            if core != self.left_out:
                for thread in self.threads:
                    os.sched_setaffinity(thread, (allowed - {core}) or allowed)
                self.left_out = core
            os.sched_setaffinity(0, {core})
        try:
            yield
        finally:
            with suppress(OSError):
                os.sched_setaffinity(0, allowed)


def _find_core_of_caller() -> Callable[[], int] | None:
    """The C library's function for it, on Linux."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    return getattr(ctypes.CDLL(None), "sched_getcpu", None)


@cache
def _pool(threads: int, process: int) -> tuple[ThreadPoolExecutor, _Cores]:
    """The other threads of this process; those of its parent do not exist in it."""
    pool = ThreadPoolExecutor(threads - 1, "scmil-lanes")
    # A thread takes torch's present number with its first operation, and setting it anywhere
    # changes it for threads to come: all of them start now, and then the number is restored.
    before, together = torch.get_num_threads(), Barrier(threads - 1)

    def start() -> int:
        torch.set_num_threads(1)
        torch.get_num_threads()  # the first operation
        together.wait()
        return get_native_id()

    started = [pool.submit(start) for _ in range(threads - 1)]
    numbers = [each.result() for each in started]
    torch.set_num_threads(before)
    return pool, _Cores(numbers)
