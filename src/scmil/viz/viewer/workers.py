"""Threads that handle requests and do not keep the program from ending."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Workers(Executor):
    """An executor with daemon threads: unlike `ThreadPoolExecutor`, Python does not wait for them
    when it exits.

    >>> workers = Workers(2, "example")
    >>> workers.submit(max, 3, 4).result(), workers.stop(seconds=5)
    (4, True)
    """

    def __init__(self, count: int, name: str) -> None:
        self._waiting: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads = [
            Thread(target=self._work, name=f"{name}_{i}", daemon=True) for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(
        self, fn: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """Run a call in the next free thread."""
        future: Future[Result] = Future()
        self._waiting.put((future, lambda: fn(*args, **kwargs)))
        return future

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            future, call = item
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = call()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

    def stop(self, seconds: float) -> bool:
        """Cancel waiting calls, wait up to `seconds` for running ones, and return whether all
        threads have ended.
        """
        try:
            while item := self._waiting.get_nowait():
                item[0].cancel()
        except Empty:
            pass
        for _ in self._threads:
            self._waiting.put(None)
        end = time.monotonic() + seconds
        for thread in self._threads:
            thread.join(max(end - time.monotonic(), 0))
        return not any(thread.is_alive() for thread in self._threads)
