from __future__ import annotations

from pathlib import Path

import h5py
import pytest
from work_folders import GLASS, SETTINGS, causes, cohort, picture

from scmil.encoding.cohort import Source, tile_slides, tiles_file


@pytest.mark.slow
def test_two_processes_give_the_same_files_as_one(tmp_path: Path) -> None:
    sources = [
        *cohort(tmp_path, "ab"),
        Source("glass", picture(tmp_path / "glass.png", colour=GLASS), 0.5),
    ]
    outcomes, reports, files = [], [], []
    for jobs in (1, 2):
        work = tmp_path / f"work{jobs}"
        events: list[tuple[str, str]] = []
        outcomes.append(
            tile_slides(
                sources,
                work,
                SETTINGS,
                jobs=jobs,
                on_slide=lambda *event, events=events: events.append(event),
            )
        )
        reports.append(events)
        files.append(
            {
                path.name: path.read_bytes()
                for path in work.rglob("*")
                if path.suffix in (".geojson", ".jpg")
            }
        )
        with h5py.File(tiles_file(work, "b")) as file:
            files[-1]["b.h5"] = file["coords"][()].tobytes() + file["fraction"][()].tobytes()
        assert list(causes(work)) == [("glass", "tile")]
    assert outcomes[0] == outcomes[1]
    assert outcomes[1].done == ("a", "b")
    assert reports[0] == reports[1]
    assert files[0] == files[1]
