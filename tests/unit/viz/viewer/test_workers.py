"""Worker threads."""

from __future__ import annotations

from threading import Event

import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from scmil.viz.viewer.workers import Workers


def test_stopped_workers_cancel_waiting_calls() -> None:
    workers, started, go = Workers(1, "test"), Event(), Event()
    first = workers.submit(lambda: started.set() or go.wait(20))
    second = workers.submit(int)
    assert started.wait(20)
    assert not workers.stop(0.05)
    assert second.cancelled()
    go.set()
    assert first.result(20)
    with pytest.raises(ZeroDivisionError):
        Workers(1, "test").submit(lambda: 1 // 0).result(20)
