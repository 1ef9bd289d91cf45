from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from scmil import Bag, BagSet, build_model, studies
from scmil.bags.formats import export_bags
from scmil.errors import DataError, OutputError
from scmil.viz.pca import draw_pca
from scmil.viz.pca.figure import make_drawing, render_svg
from scmil.viz.pca.project import Panel, line_auc, principal_plane, tile_features
from scmil.viz.pca.sample import balanced

pytest.importorskip("PIL.Image")

MADE = {
    "encoder": "uni_v1",
    "size_px": 256,
    "mpp": 0.5,
    "side_level0": 256.0,
    "slide_mpp": 0.5,
    "overlap_px": 0,
}


def bags(count: int = 10) -> BagSet:
    generator = torch.Generator().manual_seed(0)
    made = [
        Bag(
            f"s{i}",
            torch.randn(6, 9, generator=generator) + 4 * (i % 2),
            label=i % 2,
            patient=f"p{i}",
            xy=256 * torch.arange(12).reshape(6, 2),
            provenance=MADE,
        )
        for i in range(count)
    ]
    return BagSet(made, ["normal", "tumour"])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("model")
    export_bags(bags(), home / "bags", "clam")
    data = studies.open_data(home / "bags", home / "bags" / "labels.csv")
    studies.train(data, home / "model", aggregator="abmil", epochs=1)
    return home / "model"


def stored(model: Path) -> BagSet:
    from scmil.bags.formats import open_bags
    from scmil.bags.labels import read_labels

    folder = model.parent / "bags"
    return open_bags(folder, labels=read_labels(folder / "labels.csv"))


def test_the_plane_is_that_of_a_singular_value_decomposition() -> None:
    x = np.random.default_rng(0).normal(size=(50, 7)) * np.arange(1, 8)
    plane, explained = principal_plane(x)
    u, s, _ = np.linalg.svd(x - x.mean(0), full_matrices=False)
    assert np.allclose(np.abs(plane), np.abs(u[:, :2] * s[:2]))
    assert explained == pytest.approx(tuple(s[:2] ** 2 / (s**2).sum()))


def test_the_plane_is_the_same_each_time_and_needs_no_second_dimension() -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    assert np.array_equal(principal_plane(x)[0], principal_plane(x.copy())[0])
    plane, explained = principal_plane(x[:, :1])
    assert plane.shape == (20, 2)
    assert explained == (1.0, 0.0)
    assert principal_plane(np.ones((4, 3)))[1] == (0.0, 0.0)


def test_the_linear_classifier_is_tested_on_other_slides_than_it_was_fitted_to() -> None:
    """Each slide is its own cluster with a random label: within slides the classes separate,
    across slides nothing.
    """
    generator = np.random.default_rng(0)
    centres, labels = 100 * generator.normal(size=(40, 2)), np.arange(40) % 2
    plane = np.repeat(centres, 10, axis=0) + generator.normal(size=(400, 2))
    slides = [f"s{i // 10}" for i in range(400)]
    assert line_auc(plane, np.repeat(labels, 10), slides) < 0.65
    apart = plane + 1000 * np.repeat(labels, 10)[:, None]
    assert line_auc(apart, np.repeat(labels, 10), slides) == 1.0


def test_more_colours_are_each_compared_with_the_rest_and_one_has_no_auc() -> None:
    generator = np.random.default_rng(0)
    colour = np.arange(90) % 3
    plane = np.array([[0, 0], [50, 0], [0, 50]])[colour] + generator.normal(size=(90, 2))
    slides = [f"s{i % 10}" for i in range(90)]
    assert line_auc(plane, colour, slides) > 0.8
    assert math.isnan(line_auc(plane, np.zeros(90, np.int64), slides))
    assert math.isnan(line_auc(plane[:2], np.array([0, 1]), ["a", "b"]))


def test_tiles_are_spread_over_slides_and_repeat_for_a_seed() -> None:
    groups = np.array([0] * 1000 + [1] * 10 + [2] * 10)
    colour = np.zeros(1020, np.int64)
    chosen = balanced(groups, colour, 30, seed=0)
    assert np.bincount(groups[chosen]).tolist() == [10, 10, 10]
    assert np.array_equal(chosen, balanced(groups, colour, 30, seed=0))
    assert not np.array_equal(chosen, balanced(groups, colour, 30, seed=1))


def test_features_are_codes_low_rank_outputs_or_embeddings() -> None:
    x, rows = torch.randn(7, 9), np.array([1, 4])
    with torch.no_grad():
        sparse = build_model(
            9, 2, "ilra", sparse_coding={"atoms": 8, "layers": 2}, embed=[9], seed=0
        ).eval()
        assert np.allclose(
            tile_features(sparse, x, rows), sparse.refine(sparse.embed(x))[[1, 4]], atol=1e-6
        )
        ilra = build_model(9, 2, {"name": "ilra", "width": 16}, seed=0).eval()
        layers: torch.nn.Module = ilra.aggregate.layers  # type: ignore[assignment]
        assert np.allclose(tile_features(ilra, x, rows), layers(x)[[1, 4]], atol=1e-6)
        plain = build_model(9, 2, "abmil", embed=[5], seed=0).eval()
        assert np.allclose(tile_features(plain, x, rows), plain.embed(x)[[1, 4]], atol=1e-6)


def test_the_figure_is_valid_xml_with_every_dot_and_escaped_names() -> None:
    plane = np.random.default_rng(0).normal(size=(30, 2))
    panel = Panel("<script>", "embeddings", plane, (0.6, 0.3), 0.91)
    svg = render_svg(*make_drawing([panel, panel], np.arange(30) % 2, ["normal", "tumour & more"]))
    root = ElementTree.fromstring(svg)
    paths = root.findall("{http://www.w3.org/2000/svg}path")
    assert sum((path.get("d") or "").count("M") for path in paths) == 2 * 30 + 2
    words = "".join(root.itertext())
    assert "linear AUC 0.910" in words
    assert "60 % of the variance" in words
    assert "tumour & more (15)" in words


def test_labels_colour_tiles_where_there_are_no_annotations(model: Path, tmp_path: Path) -> None:
    drawn = draw_pca([model], stored(model), tmp_path / "pca.png", tiles=20)
    assert drawn.counts == {"tiles of normal slides": 10, "tiles of tumour slides": 10}
    assert drawn.panels[0].auc > 0.9
    assert [path.name for path in drawn.files if path.is_file()] == [
        "pca.png",
        "pca.svg",
        "pca.csv",
    ]
    again = draw_pca([model], stored(model), tmp_path / "again.png", tiles=20)
    assert again.svg == drawn.svg
    assert again.files[0].read_bytes() == drawn.files[0].read_bytes()


def test_a_tumour_slide_without_annotation_is_excluded_and_listed(
    model: Path, tmp_path: Path
) -> None:
    ring = "".join(
        f'<Coordinate Order="{i}" X="{x}" Y="{y}"/>'
        for i, (x, y) in enumerate([(0, 0), (600, 0), (600, 600), (0, 600)])
    )
    (tmp_path / "s1.xml").write_text(
        '<ASAP_Annotations><Annotations><Annotation Name="a" Type="Polygon" PartOfGroup="Tumor">'
        f"<Coordinates>{ring}</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )
    (tmp_path / "s3.xml").write_text("broken")
    drawn = draw_pca(
        [model], stored(model), tmp_path / "out" / "pca.png", annotations=tmp_path, tiles=40
    )
    assert drawn.left_out == ["s5", "s7", "s9"]
    assert list(drawn.failed) == ["s3"]
    # One tile of s1 has its centre inside.
    assert drawn.counts == {"other tiles": 4, "tumour tiles": 1}
    assert "s3,pca" in (tmp_path / "out" / "failures.csv").read_text()


def test_no_tiles_to_draw_is_an_error(model: Path, tmp_path: Path) -> None:
    unlabelled = BagSet(
        [Bag(bag.id, bag.features, xy=bag.xy, provenance=bag.provenance) for bag in bags(4)]
    )
    with pytest.raises(DataError, match="No slide has a label or an annotation"):
        draw_pca([model], unlabelled, tmp_path / "pca.png")
    (tmp_path / "s0.geojson").write_text('{"type": "FeatureCollection", "features": []}')
    nowhere = BagSet([Bag("s0", bags()[0].features, label=0)])
    with pytest.raises(DataError, match="has no tile coordinates"):
        draw_pca([model], nowhere, tmp_path / "pca.png", annotations=tmp_path)
    with pytest.raises(DataError, match="is not a folder"):
        draw_pca([model], stored(model), tmp_path / "pca.png", annotations=tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["fig.png", "fig.svg", "fig.csv"])
def test_files_of_others_are_not_replaced_by_pca(name: str, model: Path, tmp_path: Path) -> None:
    (tmp_path / name).write_text("theirs")
    with pytest.raises(OutputError, match=f"{name} exists, and was not written by scmil pca"):
        draw_pca([model], stored(model), tmp_path / "fig.png", tiles=20)
    assert [path.name for path in tmp_path.iterdir()] == [name]  # nothing else was written
    draw_pca([model], stored(model), tmp_path / "fig.png", tiles=20, overwrite=True)
    draw_pca([model], stored(model), tmp_path / "fig.png", tiles=30)  # our own is replaced
    assert (tmp_path / name).read_bytes() != b"theirs"
