"""Is a file with an odd structure ever more than rejected?   python campaign/structure.py --inputs 20000 --seed 0

Files of every kind that scmil reads are written by generators that know their format (see `structures.py`): filters used
twice, strides, types, counts, nesting, numbers at bounds, bombs. Each is read in a process that may take 1.5 GiB beside
what it had at the start. For each input one of these is expected: it is read, or it is rejected with an error of scmil that
names the file. A finding is anything else:

    crash     the process died
    hang      it took longer than 10 seconds of work, or 40 seconds in a library
    memory    it asked for more than 1.5 GiB
    error     an exception that is none of scmil's
    nameless  a rejection that does not say which file
    wrote     a file was written that is not a result

`--only h5 --case 812` does one input again and shows what happens. The result is `results/structure.json`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))

import fuzz
from fuzz import Case, Limits, Outcome, told
from shared import RESULTS, write_result
from structures import GENERATORS, SIZES, zeros
from targets import FOREIGN, TARGETS, Target, own_files, read_own_bag, read_slide, read_tiles, slides

LIMITS = Limits(seconds=10, memory=3 * 2**29, silence=40)
OUT = "out"  # the folder that a reader may write to


def main() -> int:
    """Read the inputs, write the result, and say whether something was found."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=KINDS, nargs="+")
    options.add_argument("--case", type=int)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--out", type=Path, default=RESULTS / "structure.json")
    asked = options.parse_args()
    prepare(asked.only or list(KINDS))
    if asked.case is not None:
        return fuzz.show(asked.only[0], asked.seed, asked.case, StructuredCase, LIMITS)
    shares = {name: KINDS[name].share for name in asked.only or KINDS}
    page = fuzz.fuzz(asked.inputs, asked.seed, shares, asked.processes, asked.out, StructuredCase, LIMITS)
    for finding in page["findings"]:
        finding["inputs"] = [described(finding["target"], asked.seed, number) for number in finding["cases"]]
    write_result(asked.out, page)
    status = told(page)
    for finding in page["findings"]:
        print(f"{finding['target']} {finding['kind']}: {finding['what']}: {finding['inputs'][0]}")
    return status


def prepare(names: list[str]) -> None:
    """Read every good file once, and pack the bombs, for all processes that are forked from this one."""
    import logging
    import warnings

    import torch
    from tiny import register_encoder

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    register_encoder()
    for size in SIZES:
        zeros(size)
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            StructuredCase(name, Path(home)).check()


def described(name: str, seed: int, number: int) -> str:
    """What is odd about an input."""
    with tempfile.TemporaryDirectory() as home:
        file, content, words = StructuredCase(name, Path(home)).make(Random(f"{seed} {name} {number}"))
    return f"{file.name}, {len(content)} bytes: {words}"


class StructuredCase(Case):
    """A good folder, of which one file at a time is replaced by one of another structure."""

    def __init__(self, name: str, folder: Path) -> None:
        self.targets: Mapping[str, Target] = KINDS
        super().__init__(name, folder)
        self.good = {path: content for path, content in self.good.items() if path.suffix in GENERATORS}
        self.own = self._files()

    def make(self, random: Random) -> tuple[Path, bytes, str]:
        """A file, what it is to be, and what is odd about it."""
        file = random.choice(list(self.good))
        content, words = GENERATORS[file.suffix](self.good[file], random)
        return file, content, words

    def outcome(self, random: Random, seconds: float) -> Outcome:
        """What becomes of one file, and whether another was written on the way."""
        os.chdir(self.folder)
        found = super().outcome(random, seconds)
        shutil.rmtree(self.folder / OUT, ignore_errors=True)
        if strange := self._files() - self.own:
            for path in strange:
                path.unlink()
            return "wrote", ", ".join(sorted(str(path.relative_to(self.folder)) for path in strange))[:80]
        return found

    def check(self) -> None:
        """Read the good files, which write no others."""
        for file in self.good:
            self.target.read(self.folder, file)
            shutil.rmtree(self.folder / OUT, ignore_errors=True)

    def _files(self) -> set[Path]:
        return {path for path in self.folder.rglob("*") if not path.is_dir() and ".locks" not in path.parts}


# ------------------------------------------------------------------------------------------------------------- building


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
    """A trained model, a bag of its kind, and a slide."""
    import tiny
    import torch

    from scmil.bags.hdf5 import write_bag
    from scmil.bags.bag import Bag
    from scmil.studies import open_data, train

    made = {"encoder": tiny.ENCODER, "size_px": tiny.TILE_PX, "mpp": tiny.MPP, "overlap_px": 0, "side_level0": 64.0}
    made |= {"slide_mpp": tiny.MPP, "slide_size": [320, 320], "encoder_digest": "None".rjust(64, "0")}
    (folder / "bags").mkdir()
    rows = ["case_id,slide_id,label"]
    for number in range(8):
        features = torch.randn(5, 48, generator=torch.Generator().manual_seed(number)) + number % 2
        write_bag(
            Bag(f"s{number}", features, xy=torch.tensor([(64 * n, 0) for n in range(5)]), provenance=made),
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
    for number, id in enumerate(("one", "two")):
        (folder / "slides" / f"{id}.svs").write_bytes(tiny.slide(number, tumour=True)[0])
    write_model(folder / "sc", ["one", "two"], sparse=True)
    tile = {"slide": "one", "x": 64, "y": 64, "side": 64, "code": 1.5, "file": "tiles/0/0.jpg"}
    rows = [{"atom": atom, "sentence": f"Atom {atom}.", "used": 0.5, "tiles": [tile, tile]} for atom in range(3)]
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


# -------------------------------------------------------------------------------------------------------------- reading


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
    from scmil.encoding.cohort import read_mpp
    from scmil.bags.labels import read_labels

    read_mpp(file) if file.name == "mpp.csv" else read_labels(file)


def read_pixels(folder: Path, file: Path) -> None:
    """Look at a slide as the verbs and the viewer do."""
    from scmil.slides import open_slide
    from scmil.viz.viewer.pixels import cut, depth, picture

    read_slide(folder, file)
    with open_slide(file, mpp=0.5) as slide:
        for level in {0, depth(slide.size) // 2, max(depth(slide.size) - 1, 0)}:
            cut(slide, level, 0, 0)
        picture(slide, (0, 0), 256.0)


def read_outline(folder: Path, file: Path) -> None:
    """Read outlines as locate, heatmap and the viewer do."""
    from targets import read_annotation

    from scmil.slides.annotations.lookup import read_lesions, read_outlines

    read_annotation(folder, file)
    read_outlines(file)
    read_lesions(file)


def read_study(folder: Path, file: Path) -> None:
    """Load a model, apply it to bags, and to a slide that is tiled as the model says."""
    from scmil.studies import encode_for, load_study, open_bags_to_predict, predict_folder

    load_study(folder / "model")
    predict_folder(folder / "model", open_bags_to_predict([folder / "bags"]), folder / OUT / "predictions.csv")
    _, failed = encode_for(folder / "model", [folder / "slides"], folder / OUT / "work")
    _raise_bugs(failed)


def _raise_bugs(failed: Mapping[str, str]) -> None:
    """A failure that is written down and not one of scmil's is a finding, too."""
    for cause in failed.values():
        if "Error:" in cause and cause.split("Error:")[0].isidentifier() and "internal" in cause:
            raise RuntimeError(cause)


def read_library(folder: Path, file: Path) -> None:
    """Ask the viewer for everything."""
    from scmil.errors import ScmilError
    from scmil.viz.viewer import Library
    from scmil.viz.viewer.responses import Answers

    library = Library([folder / "sc"], folder / "slides")
    answers = Answers(library)
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
            with suppress(KeyError, IndexError, ValueError, ScmilError, OSError):  # an answer of 400, 404 or 422
                ask()
    finally:
        answers.close()


def read_work(folder: Path, file: Path) -> None:
    """Take up the work of a folder: its slides, settings, tiles and bags."""
    import tiny

    from scmil.encoding.cohort import encode_slides, read_settings, read_sources, tile_slides
    from scmil.encoding.encoders import load_encoder
    from scmil.core.jobs.work import Ledger

    place = folder / OUT / "work"
    shutil.copytree(folder / "work", place)
    settings = read_settings(place)
    few = read_sources(place)[:3]  # a table of many slides is much work, and rightly so
    tile_slides(few, folder / OUT / "again", settings)
    encode_slides(place, load_encoder(tiny.ENCODER, precision="float32"), only=[source.id for source in few])
    Ledger(place).read()


def read_weights(folder: Path, file: Path) -> None:
    """Read the weights of an encoder."""
    from scmil.encoding.encoders.weights import read_state

    read_state(file)


def weights(folder: Path) -> None:
    """Weights as torch and as safetensors write them."""
    import torch
    from safetensors.torch import save_file

    state = {"a.weight": torch.zeros(3, 6), "a.bias": torch.zeros(3)}
    torch.save(state, folder / "weights.pt")
    save_file(state, folder / "weights.safetensors")


def pictures(folder: Path) -> None:
    """One good file of each suffix."""
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
    **{name: Target(TARGETS[name].build, TARGETS[name].files, TARGETS[name].read, share=1.5) for name in FOREIGN},
}


if __name__ == "__main__":
    sys.exit(main())
