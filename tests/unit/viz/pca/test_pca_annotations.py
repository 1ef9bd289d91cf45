"""`scmil pca` finds annotations in the same way as `locate`, `heatmap` and `view`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("shapely")

from shapely import MultiPolygon, box

from scmil import Bag, BagSet, studies
from scmil.bags.formats import export_bags
from scmil.slides.annotations import lookup
from scmil.slides.annotations.asap import write_asap
from scmil.slides.annotations.geojson import Region, write_geojson
from scmil.slides.annotations.lookup import find_annotation
from scmil.viz.pca import draw_pca

PROVENANCE = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": 256.0,
    "slide_mpp": 0.5,
    "overlap_px": 0,
}


def make_bags(*names: str) -> list[Bag]:
    """Bags of six tiles side by side; every second slide has the label tumour."""
    generator = torch.Generator().manual_seed(0)
    xy = torch.stack([256 * torch.arange(6), torch.zeros(6, dtype=torch.int64)], dim=1)
    return [
        Bag(
            name,
            torch.randn(6, 9, generator=generator) + 4 * (number % 2),
            label=number % 2,
            patient=f"p{number}",
            xy=xy,
            provenance=PROVENANCE,
        )
        for number, name in enumerate(names)
    ]


def write_lesion(path: Path, tiles: int) -> None:
    """An annotation that covers the first tiles of a slide."""
    region = Region("lesion", MultiPolygon([box(0, 0, 256 * tiles, 256)]), "Tumor")
    (write_asap if path.suffix == ".xml" else write_geojson)([region], path)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("model")
    bags = BagSet(make_bags(*(f"s{number}" for number in range(10))), ["normal", "tumour"])
    export_bags(bags, home / "bags", "clam")
    data = studies.open_data(home / "bags", home / "bags" / "labels.csv")
    studies.train(data, home / "model", aggregator="abmil", epochs=1)
    return home / "model"


def test_a_bag_id_cannot_lead_to_an_annotation_outside_the_folder(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    annotations, secret = tmp_path / "annotations", tmp_path / "secret"
    annotations.mkdir()
    secret.mkdir()
    write_lesion(annotations / "s1.geojson", tiles=2)
    write_lesion(secret / "a.geojson", tiles=4)
    read: list[Path] = []
    read_geojson = lookup.read_geojson  # type: ignore[attr-defined]
    monkeypatch.setattr(
        lookup, "read_geojson", lambda path: read.append(Path(path)) or read_geojson(path)
    )
    first, second = make_bags("s0", "s1")
    outside = replace(second, id="../secret/a")
    result = draw_pca(
        [model],
        BagSet([first, second, outside], ["normal", "tumour"]),
        tmp_path / "out" / "pca.png",
        annotations=annotations,
        tiles=40,
    )
    assert list(result.failed) == ["../secret/a"]
    assert read == [annotations / "s1.geojson"]
    assert result.counts["tumour tiles"] == 2


def test_pca_takes_the_annotation_file_that_the_other_commands_take(
    model: Path, tmp_path: Path
) -> None:
    annotations = tmp_path / "annotations"
    annotations.mkdir()
    write_lesion(annotations / "b.xml", tiles=2)
    write_lesion(annotations / "b.geojson", tiles=4)
    assert find_annotation("b", annotations) == annotations / "b.xml"
    result = draw_pca(
        [model],
        BagSet(make_bags("a", "b"), ["normal", "tumour"]),
        tmp_path / "out" / "pca.png",
        annotations=annotations,
        tiles=40,
    )
    assert result.counts["tumour tiles"] == 2
