"""`scmil heatmap`: from synthetic slides to heatmaps, with exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

pytest.importorskip("openslide")

from command import scmil

from scmil import studies as study
from scmil.bags.bag import Bag
from scmil.bags.hdf5 import write_bag
from scmil.slides.synthetic import paint

SIDE = 256


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("home")
    slide_path = paint(
        home / "slides" / "slide_001.svs", size=(1024, 1280), mpp=0.5, annotations=True
    ).path
    labels = home / "labels.csv"
    labels.write_text(
        "slide_id,label\n" + "".join(f"slide_{i:03},{'ab'[i % 2]}\n" for i in range(1, 7))
    )
    places = torch.tensor([(SIDE * x, SIDE * y) for y in range(5) for x in range(4)])
    made = {
        "encoder": "uni_v1",
        "size_px": SIDE,
        "mpp": 0.5,
        "side_level0": float(SIDE),
        "slide_mpp": 0.5,
    }
    for i in range(1, 7):
        features = torch.randn(20, 8, generator=torch.Generator().manual_seed(i))
        slide_id = f"slide_{i:03}"
        if i > 1:
            slide_path.with_stem(slide_id).symlink_to(slide_path)
        write_bag(
            Bag(slide_id, features, xy=places, provenance={**made, "slide_size": [1024, 1280]}),
            home / "bags" / f"{slide_id}.h5",
        )
    data = study.open_data(home / "bags", labels)
    study.train(data, home / "model", aggregator="mean", epochs=1, valid=0.34, test=0.33)
    return home


def test_every_slide_of_a_cohort_has_its_heatmap(home: Path) -> None:
    import openslide

    out = home / "maps"
    words = [
        "heatmap",
        home / "model",
        home / "bags",
        "--slides",
        home / "slides",
        "--out",
        out,
        "--tiff",
    ]
    result = scmil(*words)
    assert "attention: 6 made, 0 kept, 0 failed. Open" in result.stdout
    assert sorted(path.suffix for path in out.glob("slide_001.*")) == [".geojson", ".png", ".tiff"]
    with openslide.OpenSlide(out / "slide_001.tiff") as overlay:
        mpp = float(overlay.properties["openslide.mpp-x"])
        assert (overlay.dimensions[0] * mpp, overlay.dimensions[1] * mpp) == (
            1024 * 0.5,
            1280 * 0.5,
        )
    page = json.loads(scmil(*words, "--json").stdout)
    assert len(page["kept"]) == 6
    assert (page["done"], page["failed"], page["score"]) == ([], {}, "attention")


def test_only_selects_slides_by_name_with_one_scale_and_given_labels(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "labels.csv").write_text("slide_id,label\nslide_002,somebody\nslide_003,else\n")
    words = [
        "--only",
        "slide_00[23]",
        "--same-scale",
        "--labels",
        tmp_path / "labels.csv",
        "--no-geojson",
    ]
    result = scmil("heatmap", home / "model", home / "bags", *words, "--out", tmp_path / "maps")
    assert (
        "(colours by value from 0.05 to 0.05, percentiles 1 to 99 of all slides, the same for all)"
        in result.stdout
    )
    assert "To compare slides, use --score ratio" in result.stderr
    assert {path.name for path in (tmp_path / "maps").glob("*.*")} >= {
        "slide_002.png",
        "slide_003.png",
        "index.html",
    }
    assert not list((tmp_path / "maps").glob("*.geojson"))
    text = (tmp_path / "maps" / "index.html").read_text()
    assert "label: somebody" in text
    assert "The attention is flat" in text  # mean pooling weights all tiles equally


def test_a_slide_that_fails_sets_the_exit_code_after_the_others_are_drawn(
    home: Path, tmp_path: Path
) -> None:
    slides = tmp_path / "slides"
    slides.mkdir()
    (slides / "slide_001.svs").symlink_to(home / "slides" / "slide_001.svs")
    words = [
        "heatmap",
        home / "model",
        home / "bags",
        "--slides",
        slides,
        "--out",
        tmp_path / "maps",
    ]
    result = scmil(*words, "--only", "slide_00[12]", code=1)
    assert "1 made, 0 kept, 1 failed" in result.stdout
    assert "failed: slide_002: " in result.stderr
    assert "slide_002" in (tmp_path / "maps" / "failures.csv").read_text()


def test_errors_are_sentences_without_a_traceback(home: Path) -> None:
    result = scmil("heatmap", home / "model", home / "bags", "--score", "lambda", code=1)
    assert "score 'lambda' is not available: the model has no sparse coding" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_pattern_without_a_match_is_rejected(home: Path) -> None:
    from typer.testing import CliRunner

    from scmil.cli import app
    from scmil.errors import OptionError

    result = CliRunner().invoke(
        app, ["heatmap", str(home / "model"), str(home / "bags"), "--only", "case*"]
    )
    assert isinstance(result.exception, OptionError)
    assert str(result.exception) == "--only 'case*' matches none of 6 slides, such as 'slide_001'."
