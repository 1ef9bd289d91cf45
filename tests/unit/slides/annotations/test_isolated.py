"""Annotations that are read in a separate process, and those that take too long."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from threading import Thread

import pytest

import scmil
from scmil.errors import DataError
from scmil.slides.annotations import isolated
from scmil.slides.annotations.isolated import Outlines

pytest.importorskip("shapely", reason="the extra 'slides' is not installed")
SQUARE = [[0, 0], [10, 0], [10, 10.04], [0, 10], [0, 0]]


def annotation(path: Path, *rings: list[list[float]]) -> Path:
    geometry = {"type": "Polygon", "coordinates": rings}
    feature = {"type": "Feature", "geometry": geometry, "properties": {}}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
    return path


def test_outlines_are_read_with_their_holes(tmp_path: Path) -> None:
    hole = [[2, 2], [4, 2], [4, 4], [2, 2]]
    outer, inner = Outlines().read(annotation(tmp_path / "a b.geojson", SQUARE, hole))
    assert {tuple(outer[i : i + 2]) for i in range(0, len(outer), 2)} == {
        (0, 0),
        (10, 0),
        (10, 10),
        (0, 10),
    }
    assert {tuple(inner[i : i + 2]) for i in range(0, len(inner), 2)} == {(2, 2), (4, 2), (4, 4)}


def test_errors_of_a_file_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.geojson").write_text("{")
    with pytest.raises(DataError, match=r"a\.geojson"):
        Outlines().read(tmp_path / "a.geojson")


def test_a_module_in_the_current_folder_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shapely.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert len(Outlines().read(annotation(tmp_path / "a.geojson", SQUARE))) == 1


def test_the_process_imports_this_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = "import json, scmil; print(json.dumps({'outlines': [scmil.__file__]}))"
    monkeypatch.setattr(isolated, "COMMAND", (sys.executable, "-P", "-c", source))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert Outlines().read(tmp_path / "a.xml") == [scmil.__file__]


def sleeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        isolated, "COMMAND", (sys.executable, "-S", "-c", "import time; time.sleep(300)")
    )


def test_an_annotation_that_takes_too_long_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping(monkeypatch)
    with pytest.raises(DataError, match=r"a\.xml takes longer than 0.2 s"):
        Outlines(seconds=0.2).read(tmp_path / "a.xml")
    assert not children()


def test_stop_kills_running_processes_and_starts_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleeping(monkeypatch)
    outlines, errors = Outlines(), []

    def read() -> None:
        try:
            outlines.read(tmp_path / "a.xml")
        except DataError as error:
            errors.append(str(error))

    thread = Thread(target=read)
    thread.start()
    end = time.monotonic() + 120
    while not outlines._running and time.monotonic() < end:
        time.sleep(0.01)
    outlines.stop()
    thread.join(120)
    read()
    assert "without a result" in errors[0]
    assert "the program is ending" in errors[1]
    assert not children()


def children() -> list[str]:
    """The commands of the processes that this process has started and that sleep for the tests
    above.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = process.read_text().rpartition(")")[2].split()[1]
            command = (process.parent / "cmdline").read_text()
        except OSError:
            continue
        if parent == str(os.getpid()) and "time.sleep(300)" in command:
            found.append(command)
    return found
