"""What fuzz.py reads: for each kind of file a valid folder, and how scmil reads it.

The folders of other tools are those of the tests, written without code of scmil.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "unit" / "bags" / "formats")]


@dataclass(frozen=True)
class Target:
    """A kind of input: `build` writes valid files, those that match `files` are read."""

    build: Callable[[Path], Any]
    files: str
    read: Callable[[Path, Path], Any]
    share: float = 1.0  # of the inputs, relative to the other kinds


# ----------------------------------------------------------------------------------------- building


def slides(folder: Path) -> None:
    """Small images: TIFF with tiles, strips, pyramids and codecs, Aperio, OME; PNG, JPEG."""
    import numpy as np
    import tifffile
    from PIL import Image
    from slide_files import ramp, rendered, write_svs, write_tiff

    levels = [rendered(ramp, (96, 64)), rendered(ramp, (48, 32), by=2)]
    write_svs(folder / "aperio.svs", levels)
    write_tiff(folder / "plain.tif", levels, tile=32)
    write_tiff(folder / "ome.ome.tif", levels, subifds=True, tile=32)
    for name in ("jpeg", "lzw", "jpeg2000", "webp", "packbits"):
        write_tiff(folder / f"{name}.tif", levels[:1], compression=name, tile=32)
    tifffile.imwrite(
        folder / "strips.tif", levels[0], rowsperstrip=16, photometric="rgb", metadata=None
    )
    tifffile.imwrite(
        folder / "grey16.tif", levels[0][..., 0].astype(np.uint16) * 200, metadata=None
    )
    tifffile.imwrite(
        folder / "big.tif", levels[0], bigtiff=True, tile=(32, 32), photometric="rgb", metadata=None
    )
    for suffix in ("png", "jpg"):
        Image.fromarray(levels[0]).save(folder / f"picture.{suffix}")


def write_annotations(folder: Path) -> None:
    """Two annotations, one with a hole, as ASAP and as QuPath write them."""
    from shapely import MultiPolygon, box

    from scmil.slides.annotations.asap import write_asap
    from scmil.slides.annotations.geojson import Region, write_geojson

    ring = MultiPolygon([box(0, 0, 90, 90) - box(30, 30, 60, 60)])
    regions = [
        Region("lesion", ring, "_0"),
        Region("other", MultiPolygon([box(100, 0, 140, 30)]), "_1"),
    ]
    write_asap(regions, folder / "slide.xml")
    write_geojson(regions, folder / "slide.geojson")


def tables(folder: Path) -> None:
    """Labels as CSV, TSV, UTF-16 and Excel, and tables of scmil."""
    from openpyxl import Workbook

    rows = [
        ("case_id", "slide_id", "label"),
        *((f"p{i}", f"s{i}.svs", ("normal", "tumor")[i % 2]) for i in range(6)),
    ]
    for name, mark, encoding in (
        ("a.csv", ",", "utf-8"),
        ("b.tsv", "\t", "utf-8-sig"),
        ("c.csv", ";", "utf-16"),
    ):
        (folder / name).write_text(
            "\n".join(mark.join(row) for row in rows) + "\n", encoding=encoding
        )
    book = Workbook()
    for row in rows:
        book.active.append(row)
    book.save(folder / "d.xlsx")


def plans(folder: Path) -> None:
    """Two of our experiments."""
    for name in ("quick_musk1", "table3_atoms"):
        (folder / f"{name}.toml").write_bytes((ROOT / "experiments" / f"{name}.toml").read_bytes())
    (folder / "published").mkdir()
    for path in (ROOT / "experiments" / "published").glob("*.csv"):
        (folder / "published" / path.name).write_bytes(path.read_bytes())


def own_files(folder: Path) -> None:
    """A bag, its tiles, a model and scores, as scmil writes them."""
    import numpy as np
    import torch
    from shapely import MultiPolygon, box

    from scmil.bags.bag import Bag
    from scmil.bags.hdf5 import write_bag
    from scmil.models.files import save_model
    from scmil.models.model import build_model
    from scmil.models.score_files import write_scores
    from scmil.models.tile_scores import score_bag
    from scmil.slides.tile_files import write_tiling
    from scmil.slides.tiling import Tiling
    from scmil.slides.tissue import Tissue

    xy = torch.tensor([(256 * (i % 3), 256 * (i // 3)) for i in range(9)])
    features = torch.randn(9, 8, generator=torch.Generator().manual_seed(0))
    bag = Bag("slide", features, xy=xy, provenance={"side_level0": 256.0, "slide_mpp": 0.5})
    (folder / "bags").mkdir()
    write_bag(bag, folder / "bags" / "slide.h5")
    model = build_model(8, 2, "abmil-gated", {"atoms": 4}, embed=[8], seed=0)
    save_model(model, folder / "model")
    (folder / "pristine.json").write_bytes((folder / "model" / "model.json").read_bytes())
    write_scores(score_bag(model, bag), folder)
    fraction = np.ones(9, np.float32)
    tiling = Tiling(
        "slide", xy.numpy(), 256, 0.5, 0.5, (800, 800), overlap_px=0, fraction=fraction, stride=256
    )
    tissue = Tissue(MultiPolygon([box(0, 0, 800, 800)]), "slide", (800, 800))
    write_tiling(tiling, tissue, folder / "tiles.h5")


def foreign(name: str) -> Callable[[Path], Any]:
    """A folder as another tool writes it."""

    def build(folder: Path) -> None:
        import foreign as makers
        from safetensors.torch import save_file

        place = getattr(makers, name)(folder / "job")
        if name == "clam":
            makers.clam_patches(folder / "job")
        if name == "arrays":
            import torch

            save_file(
                {"features": torch.from_numpy(makers.features("007"))},
                place / "008.safetensors",
            )

    return build


# ------------------------------------------------------------------------------------------ reading


def read_slide(folder: Path, file: Path) -> None:
    """Open a slide, describe it, and read pixels."""
    from scmil.slides import open_slide
    from scmil.slides.slide import slide_metadata

    with open_slide(file, mpp=0.5) as slide:
        slide_metadata(slide)
        slide.thumbnail(48)
        slide.read((10, 10), 32, mpp=0.8)


def read_annotation(folder: Path, file: Path) -> None:
    """Read annotations."""
    from scmil.slides.annotations.asap import read_asap
    from scmil.slides.annotations.geojson import read_geojson

    read_asap(file) if file.suffix == ".xml" else read_geojson(file)


def read_table(folder: Path, file: Path) -> None:
    """Read labels."""
    from scmil.bags.labels import read_labels

    read_labels(file)


def read_toml(folder: Path, file: Path) -> None:
    """Read and check an experiment."""
    from scmil.studies.plan import read_plan

    read_plan(file, only="nothing*" if file.stem == "table3_atoms" else None)


def read_own_bag(folder: Path, file: Path) -> None:
    """Read a bag with every reader."""
    from scmil.bags.formats import open_bags
    from scmil.bags.hdf5 import map_features, read_bag, read_header

    read_header(file)
    read_bag(file)
    map_features(file)
    for bag in open_bags(folder / "bags", "scmil"):
        bag.features.sum()


def read_tiles(folder: Path, file: Path) -> None:
    """Read tiles."""
    from scmil.slides.tile_files import read_tiling

    read_tiling(file)


def read_model(folder: Path, file: Path) -> None:
    """Load a model whose hash was adapted, so that its weights are read."""
    from scmil.models.files import load_model

    page = folder / "model" / "model.json"
    if file != page:
        pristine = json.loads((folder / "pristine.json").read_text())
        page.write_text(
            json.dumps({**pristine, "sha256": hashlib.sha256(file.read_bytes()).hexdigest()})
        )
    load_model(folder / "model")


def read_npz(folder: Path, file: Path) -> None:
    """Read the scores of a slide, and each kind of score."""
    from scmil.models.score_files import read_scores

    scores = read_scores(file)
    for kind in scores.kinds():
        scores.of(kind)


def read_foreign(name: str) -> Callable[[Path, Path], None]:
    """Open a folder of another tool and read all its bags."""

    def read(folder: Path, file: Path) -> None:
        from scmil.bags.formats import open_bags

        options: dict[str, Any] = {"trust_pickle": True} if name == "dtfd" else {}
        options |= {"slide_mpp": 0.5} if name in ("clam", "trident", "stamp") else {}
        bags = open_bags(folder / "job", name, **options)
        for position in range(len(bags)):
            bags[position]

    return read


FOREIGN = (
    "clam",
    "trident",
    "stamp",
    "torchmil",
    "dsmil",
    "slideflow",
    "histossl",
    "dtfd",
    "arrays",
)
TARGETS = {
    "slide": Target(slides, "*", read_slide, share=4),
    "asap": Target(write_annotations, "*.xml", read_annotation, share=2),
    "geojson": Target(write_annotations, "*.geojson", read_annotation, share=2),
    "labels": Target(tables, "*", read_table, share=2),
    "toml": Target(plans, "*.toml", read_toml, share=2),
    "bag": Target(own_files, "bags/*.h5", read_own_bag, share=3),
    "tiles": Target(own_files, "tiles.h5", read_tiles),
    "model": Target(own_files, "model/*", read_model, share=2),
    "scores": Target(own_files, "scores/*.npz", read_npz, share=2),
    **{name: Target(foreign(name), "job/**/*", read_foreign(name)) for name in FOREIGN},
}
