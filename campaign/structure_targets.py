"""What structure.py reads: for each kind of file a valid folder, and how scmil reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from targets import (
    FOREIGN,
    TARGETS,
    Target,
    own_files,
    read_own_bag,
    read_slide,
    read_tiles,
    slides,
)

OUT = "out"  # the folder that a reader may write to


def tables(folder: Path) -> None:
    """The same table of bags in every format."""
    import numpy as np
    import scipy.io

    features, bag, y = (
        np.arange(24, dtype=np.float32).reshape(8, 3) / 8,
        np.repeat(np.arange(4), 2),
        np.array([0, 1, 0, 1]),
    )
    np.savez(folder / "bags.npz", X=features, bag=bag, y=y)
    scipy.io.savemat(folder / "bags.mat", {"X": features, "bag": bag + 1, "y": y})
    lines = [
        f"{n}:{b}:{y[b]} " + " ".join(f"{k + 1}:{v}" for k, v in enumerate(row))
        for n, (b, row) in enumerate(zip(bag, features))
    ]
    (folder / "bags.svm").write_text("\n".join(lines) + "\n")
    rows = [f"b{b},{y[b]},{','.join(map(str, row))}" for b, row in zip(bag, features)]
    (folder / "bags.csv").write_text("bag,label,f1,f2,f3\n" + "\n".join(rows) + "\n")


def split_tables(folder: Path) -> None:
    """A table of splits."""
    (folder / "splits_0.csv").write_text(",train,val,test\n0,s0,s2,s4\n1,s1,s3,s5\n")


def labels(folder: Path) -> None:
    """Labels as CSV, TSV and Excel; microns per pixel."""
    from targets import tables as label_tables

    label_tables(folder)
    (folder / "c.csv").unlink()  # UTF-16
    (folder / "mpp.csv").write_text("slide,mpp\ns0,0.5\ns1,0.25\n")


def study(folder: Path) -> None:
    """A trained model, bags for it, and a slide."""
    import tiny
    import torch

    from scmil.bags.bag import Bag
    from scmil.bags.hdf5 import write_bag
    from scmil.studies import open_data, train

    made = {
        "encoder": tiny.ENCODER,
        "size_px": tiny.TILE_PX,
        "mpp": tiny.MPP,
        "overlap_px": 0,
        "side_level0": 64.0,
    }
    made |= {
        "slide_mpp": tiny.MPP,
        "slide_size": [320, 320],
        "encoder_digest": "None".rjust(64, "0"),
    }
    (folder / "bags").mkdir()
    rows = ["case_id,slide_id,label"]
    for number in range(8):
        features = torch.randn(5, 48, generator=torch.Generator().manual_seed(number)) + number % 2
        write_bag(
            Bag(
                f"s{number}",
                features,
                xy=torch.tensor([(64 * n, 0) for n in range(5)]),
                provenance=made,
            ),
            folder / "bags" / f"s{number}.h5",
        )
        rows.append(f"p{number},s{number},{('normal', 'tumour')[number % 2]}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")
    train(
        open_data(folder / "bags", folder / "labels.csv"),
        folder / "model",
        aggregator="mean",
        epochs=1,
        valid=0.25,
        test=0.25,
    )
    for number in range(2, 8):
        (folder / "bags" / f"s{number}.h5").unlink()
    (folder / "slides").mkdir()
    (folder / "slides" / "a.svs").write_bytes(tiny.slide(0, tumour=True)[0])


def viewer(folder: Path) -> None:
    """A model with scores and an atlas, and two slides."""
    import tiny
    from viewer_case import write_atlas, write_model

    (folder / "slides").mkdir()
    for number, slide_id in enumerate(("one", "two")):
        (folder / "slides" / f"{slide_id}.svs").write_bytes(tiny.slide(number, tumour=True)[0])
    write_model(folder / "sc", ["one", "two"], sparse=True)
    tile = {"slide": "one", "x": 64, "y": 64, "side": 64, "code": 1.5, "file": "tiles/0/0.jpg"}
    rows = [
        {"atom": atom, "sentence": f"Atom {atom}.", "used": 0.5, "tiles": [tile, tile]}
        for atom in range(3)
    ]
    write_atlas(folder / "sc", rows)


def work(folder: Path) -> None:
    """A folder of scmil tile and encode."""
    import tiny

    from scmil.encoding.cohort import TileSettings, encode_slides, find_cohort, tile_slides
    from scmil.encoding.encoders import load_encoder

    (folder / "slides").mkdir()
    (folder / "slides" / "a.svs").write_bytes(tiny.slide(0, tumour=True)[0])
    sources = find_cohort(folder / "slides")
    tile_slides(sources, folder / "work", TileSettings(tiny.TILE_PX, tiny.MPP))
    encode_slides(folder / "work", load_encoder(tiny.ENCODER, precision="float32"))


def read_bag_table(folder: Path, file: Path) -> None:
    """Read a table of bags, and all its features."""
    from scmil.bags.datasets import load_dataset

    for bag in load_dataset(file):
        bag.features.sum()


def read_split_table(folder: Path, file: Path) -> None:
    """Read splits."""
    from scmil.bags.split_files import read_splits

    read_splits(file, [f"s{number}" for number in range(6)])


def read_label_table(folder: Path, file: Path) -> None:
    """Read labels, or microns per pixel."""
    from scmil.bags.labels import read_labels
    from scmil.encoding.cohort import read_mpp

    read_mpp(file) if file.name == "mpp.csv" else read_labels(file)


def read_pixels(folder: Path, file: Path) -> None:
    """Read a slide as the commands and the viewer do."""
    from scmil.slides import open_slide
    from scmil.viz.viewer.pixels import cut, depth, picture

    read_slide(folder, file)
    with open_slide(file, mpp=0.5) as slide:
        for level in {0, depth(slide.size) // 2, max(depth(slide.size) - 1, 0)}:
            cut(slide, level, 0, 0)
        picture(slide, (0, 0), 256.0)


def read_outline(folder: Path, file: Path) -> None:
    """Read annotations as locate, heatmap and the viewer do."""
    from targets import read_annotation

    from scmil.slides.annotations.lookup import read_lesions, read_outlines

    read_annotation(folder, file)
    read_outlines(file)
    read_lesions(file)


def read_study(folder: Path, file: Path) -> None:
    """Load a model, and apply it to bags and to a slide."""
    from scmil.studies import encode_for, load_trained_model, open_bags_to_predict, predict_folder

    load_trained_model(folder / "model")
    predict_folder(
        folder / "model", open_bags_to_predict([folder / "bags"]), folder / OUT / "predictions.csv"
    )
    _, failed = encode_for(folder / "model", [folder / "slides"], folder / OUT / "work")
    _raise_bugs(failed)


def _raise_bugs(failed: Mapping[str, str]) -> None:
    """An internal error in the failure log is a finding, too."""
    for cause in failed.values():
        if "Error:" in cause and cause.split("Error:")[0].isidentifier() and "internal" in cause:
            raise RuntimeError(cause)


def read_library(folder: Path, file: Path) -> None:
    """Request everything from the viewer."""
    from scmil.errors import ScmilError
    from scmil.viz.viewer import Library
    from scmil.viz.viewer.responses import Responses

    library = Library([folder / "sc"], folder / "slides")
    answers = Responses(library)
    questions: list[Callable[[], object]] = [
        lambda: answers.slide(0, 0),
        lambda: answers.tile(0, 0, 0),
        lambda: library.atom(0, 0),
        lambda: library.code(0, 0, 0),
        lambda: answers.atom_picture(0, 0, 0),
        lambda: answers.atom_picture(0, 0, 1),
    ]
    try:
        json.dumps(answers.slides(), allow_nan=False)
        for ask in questions:
            # The server answers these with 400, 404 or 422.
            with suppress(KeyError, IndexError, ValueError, ScmilError, OSError):
                ask()
    finally:
        answers.close()


def read_work(folder: Path, file: Path) -> None:
    """Resume a work folder: its slides, settings, tiles and bags."""
    import tiny

    from scmil.core.jobs.failure_log import FailureLog
    from scmil.encoding.cohort import encode_slides, read_settings, read_sources, tile_slides
    from scmil.encoding.encoders import load_encoder

    place = folder / OUT / "work"
    shutil.copytree(folder / "work", place)
    settings = read_settings(place)
    few = read_sources(place)[:3]  # a table may list many slides
    tile_slides(few, folder / OUT / "again", settings)
    encode_slides(
        place, load_encoder(tiny.ENCODER, precision="float32"), only=[source.id for source in few]
    )
    FailureLog(place).read()


def read_weights(folder: Path, file: Path) -> None:
    """Read the weights of an encoder."""
    from scmil.encoding.encoders.weights import read_state

    read_state(file)


def weights(folder: Path) -> None:
    """Weights in the formats of torch and safetensors."""
    import torch
    from safetensors.torch import save_file

    state = {"a.weight": torch.zeros(3, 6), "a.bias": torch.zeros(3)}
    torch.save(state, folder / "weights.pt")
    save_file(state, folder / "weights.safetensors")


def pictures(folder: Path) -> None:
    """One valid image of each suffix."""
    slides(folder)
    for path in folder.glob("*.tif"):
        if path.name != "plain.tif":
            path.unlink()


KINDS: dict[str, Target] = {
    "bag": Target(own_files, "bags/*.h5", read_own_bag, share=3),
    "tiles": Target(own_files, "tiles.h5", read_tiles, share=1.5),
    "slide": Target(pictures, "*", read_pixels, share=4),
    "asap": Target(TARGETS["asap"].build, "*.xml", read_outline, share=2),
    "geojson": Target(TARGETS["geojson"].build, "*.geojson", read_outline, share=2),
    "labels": Target(labels, "*", read_label_table, share=2),
    "splits": Target(split_tables, "*", read_split_table),
    "table": Target(tables, "*", read_bag_table, share=4),
    "toml": Target(TARGETS["toml"].build, "*.toml", TARGETS["toml"].read, share=2),
    "model": Target(own_files, "model/*", TARGETS["model"].read, share=2),
    "scores": Target(own_files, "scores/*.npz", TARGETS["scores"].read, share=1.5),
    "study": Target(study, "model/*.json", read_study, share=2),
    "viewer": Target(viewer, "sc/maps/**/*.json", read_library, share=1.5),
    "work": Target(work, "work/*.[cj]s*", read_work, share=1.5),
    "weights": Target(weights, "*", read_weights, share=2),
    **{
        name: Target(TARGETS[name].build, TARGETS[name].files, TARGETS[name].read, share=1.5)
        for name in FOREIGN
    },
}
