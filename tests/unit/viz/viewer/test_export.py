"""The layer that is exported for QuPath."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="starlette is not installed")
pytest.importorskip("openslide", reason="openslide is not installed")
from viewer_case import (
    ask,
    get,
    running,
    scored,
)

from scmil.viz.viewer import Library, Server


def test_the_exported_layer_has_detections_for_qupath(server: Server) -> None:
    attention = scored("one", True).attention
    least = float(np.sort(attention)[-5])
    answer, content = ask(
        server, f"/api/slide/0/layer.geojson?model=0&kind=attention&least={least!r}"
    )
    features = json.loads(content)["features"]
    assert len(features) == 5
    assert answer.headers["content-disposition"] == "attachment"
    for feature in features:
        [ring] = feature["geometry"]["coordinates"]
        assert ring[0] == ring[-1]
        assert feature["properties"]["objectType"] == "detection"
        assert feature["properties"]["measurements"]["attention"] >= least * (1 - 1e-5)


def test_the_layer_of_an_atom_has_the_tiles_that_use_it(server: Server) -> None:
    features = json.loads(get(server, "/api/slide/0/layer.geojson?model=0&kind=atom:3"))["features"]
    assert len(features) == np.count_nonzero(scored("one", True).of("atom:3"))


def test_the_exported_layer_has_the_spread_over_models(home: Path) -> None:
    expected = np.std([scored("one", sparse).attention for sparse in (True, False)], axis=0, ddof=1)
    with running(Library([home / "sc"], home / "slides", also=[home / "plain"])) as server:
        shown = np.frombuffer(get(server, "/api/slide/0/scores?kind=spread:attention"), "<f4")
        least = float(np.sort(expected)[-4])
        path = f"/api/slide/0/layer.geojson?kind=spread:attention&least={least!r}"
        features = json.loads(get(server, path))["features"]
    np.testing.assert_allclose(shown, expected, rtol=1e-5)
    assert len(features) == 4
    for feature in features:
        assert feature["properties"]["measurements"]["spread:attention"] >= least * (1 - 1e-5)
