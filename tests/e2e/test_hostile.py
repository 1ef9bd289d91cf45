"""Files that mean harm: none of them fills the memory, opens another file, runs, or is shown as anything but text."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pickle
import resource
import struct
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from scmil import studies as study
from scmil.bags.hdf5 import map_features, read_bag, read_header, write_bag
from scmil.bags.bag import Bag, BagSet
from scmil.errors import BagError, ConfigError, DataError, ModelFileError, SlideError
from scmil.bags.formats import export, open_bags
from scmil.bags.labels import read_labels
from scmil.models.model import build_model
from scmil.models.files import load_model, save_model
from scmil.studies.plan import read_plan
from scmil.models.tile_scores import read_scores
from scmil.bags.splits import Split, load_splits, save_splits
from scmil.core.jobs.work import Ledger, safe_name

HTML = "<img src=x onerror=alert(1)>"
FORMULA = "=HYPERLINK(http://evil.example)"
NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    "a\nb",
    "a\0b",
    HTML,
    FORMULA,
    "@SUM(1+1)",
    "-2+3|cmd",
    "+1+1",
    "\t=1",
    "con",
]


@pytest.fixture(autouse=True)
def _little_memory_and_time() -> Iterator[None]:
    """A gigabyte beside what is in use, and ten seconds."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, before[1]))
    start = time.monotonic()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
    assert time.monotonic() < start + 60  # the machine may be busy; alone each takes a part of a second


# ---------------------------------------------------------------------------------------- bombs and absurd dimensions


def a_bag(id: str = "slide", rows: int = 4) -> Bag:
    features = torch.arange(rows * 3.0).reshape(rows, 3)
    return Bag(id, features, xy=torch.zeros(rows, 2, dtype=torch.int64), provenance={"side_level0": 256.0})


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def test_a_png_that_claims_a_billion_pixels_a_side_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    header = struct.pack(">IIBBBBB", 10**9, 10**9, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(bytes(10**6)))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b""))
    with pytest.raises(SlideError, match=r"bomb\.png says that it is 1000000000 x 1000000000 px"):
        open_slide(tmp_path / "bomb.png")


@pytest.mark.parametrize("suffix", ["tif", "svs"])
def test_a_tiff_that_claims_a_billion_pixels_a_side_fails_alone_and_at_once(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("openslide")
    from scmil.encoding.cohort import find_cohort, tile_slides

    (tmp_path / "slides").mkdir()
    (tmp_path / "slides" / f"bomb.{suffix}").write_bytes(tiff_of(10**9, 10**9, aperio=suffix == "svs"))
    outcome = tile_slides(find_cohort(tmp_path / "slides", 0.5), tmp_path / "work")
    assert outcome.failed == ("bomb",)
    assert not outcome.bugs
    [failure] = Ledger(tmp_path / "work").read()
    assert "bomb" in failure.cause


def tiff_of(width: int, height: int, aperio: bool, tile: int = 256) -> bytes:
    """A tiled TIFF of one tile of 256 pixels, whose header says other sizes."""
    said = b"Aperio Image Library v11\r\nmade by a test|AppMag = 20|MPP = 0.5\0" if aperio else b"a picture\0"
    tags = [
        (256, 4, 1, width), (257, 4, 1, height), (258, 3, 3, None), (259, 3, 1, 1), (262, 3, 1, 2), (270, 2, len(said), None),
        (277, 3, 1, 3), (322, 4, 1, tile), (323, 4, 1, tile), (324, 4, 1, 1024), (325, 4, 1, 256 * 256 * 3),
    ]  # fmt: skip
    at = {258: 400, 270: 500}
    entries = [struct.pack("<HHII", tag, kind, n, at.get(tag, value or 0)) for tag, kind, n, value in tags]
    content = bytearray(b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags)) + b"".join(entries) + bytes(4))
    content += bytes(1024 - len(content)) + bytes(256 * 256 * 3)
    content[400:406] = struct.pack("<HHH", 8, 8, 8)
    content[500 : 500 + len(said)] = said
    return bytes(content)


def test_a_slide_with_tiles_of_billions_of_pixels_is_refused_and_ends_no_process(tmp_path: Path) -> None:
    """OpenSlide ends the whole process if the memory for a tile is not there: found by the fuzz campaign."""
    pytest.importorskip("openslide")
    from scmil.slides import open_slide

    (tmp_path / "bomb.svs").write_bytes(tiff_of(70_000, 70_000, aperio=True, tile=2**16))
    with pytest.raises(SlideError, match=r"bomb\.svs"), open_slide(tmp_path / "bomb.svs") as slide:
        slide.thumbnail(64)


def npy_header(shape: str, dtype: str = "<f4") -> bytes:
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def test_an_npy_that_claims_more_than_it_has_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    (tmp_path / "bomb.npy").write_bytes(npy_header("(1000000000, 1000)") + bytes(100))
    with pytest.raises(DataError, match=r"bomb\.npy.*has 4000000000000 bytes, but only 100 are there"):
        open_bags(tmp_path)[0]


def test_a_negative_shape_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bomb.npy").write_bytes(npy_header("(-1, 4)") + bytes(100))
    with pytest.raises(DataError, match=r"bomb\.npy"):
        open_bags(tmp_path)[0]


def zip_bomb(path: Path, names: list[str]) -> None:
    """An archive of some kilobytes with hundreds of megabytes of zeros."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            with archive.open(name, "w", force_zip64=True) as file:
                file.write(npy_header(f"({160 * 2**20},)", "|u1"))
                for _ in range(160):
                    file.write(bytes(2**20))


def test_a_bomb_in_an_npz_is_not_unpacked(tmp_path: Path) -> None:
    zip_bomb(tmp_path / "slide.npz", ["page.npy", "xy.npy"])
    with pytest.raises(DataError, match=r"slide\.npz.*no data, but a bomb"):
        read_scores(tmp_path / "slide.npz")


def test_a_bomb_in_a_pt_is_not_unpacked(tmp_path: Path) -> None:
    zip_bomb(tmp_path / "slide.pt", ["archive/data.pkl", "archive/data/0"])
    with pytest.raises(DataError, match=r"slide\.pt.*no data, but a bomb"):
        open_bags(tmp_path)[0]


def test_a_bomb_in_a_workbook_is_not_unpacked(tmp_path: Path) -> None:
    pytest.importorskip("openpyxl")
    zip_bomb(tmp_path / "labels.xlsx", ["xl/workbook.xml", "xl/worksheets/sheet1.xml"])
    with pytest.raises(DataError, match=r"labels\.xlsx.*no data, but a bomb"):
        read_labels(tmp_path / "labels.xlsx")


@pytest.mark.parametrize("compression", ["gzip", None])
def test_an_hdf5_array_that_swells_is_not_read(tmp_path: Path, compression: str | None) -> None:
    """Chunks that were never written are zeros, and cost nothing in the file."""
    write_bag(a_bag(), tmp_path / "slide.h5")
    with h5py.File(tmp_path / "slide.h5", "r+") as file:
        del file["features"]
        file.create_dataset("features", (10**7, 1000), np.float32, chunks=(1024, 1000), compression=compression)
    with pytest.raises(DataError, match=r"slide\.h5.*no data, but a bomb"):
        read_bag(tmp_path / "slide.h5")
    with pytest.raises(DataError, match=r"slide\.h5.*no data, but a bomb"):
        open_bags(tmp_path)[0]


def test_a_safetensors_header_of_gigabytes_is_refused(tmp_path: Path) -> None:
    model = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path / "model")
    with (model / "model.safetensors").open("wb") as file:  # a sparse file: 8 GiB that take no space
        file.write(struct.pack("<Q", 8 * 2**30))
        file.truncate(8 * 2**30 + 8)
    with pytest.raises(ModelFileError, match=r"model\.safetensors.*It was not read"):
        load_model(model)
    (tmp_path / "bags").mkdir()
    (tmp_path / "bags" / "slide.safetensors").write_bytes(struct.pack("<Q", 8 * 2**30) + b"{}")
    with pytest.raises(DataError, match=r"slide\.safetensors"):
        open_bags(tmp_path / "bags")[0]


def test_a_model_page_that_asks_for_terabytes_is_compared_and_not_obeyed(tmp_path: Path) -> None:
    folder = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path)
    page = json.loads((folder / "model.json").read_text())
    page["model"]["embed"] = [10**6, 10**6]
    (folder / "model.json").write_text(json.dumps(page))
    with pytest.raises(ModelFileError):
        load_model(folder)


def test_a_pickle_that_announces_gigabytes_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    for number, opcode in enumerate((b"\x8e" + struct.pack("<Q", 2**40), b"\x96" + struct.pack("<Q", 2**40))):
        (tmp_path / "mDATA.pkl").write_bytes(b"\x80\x05" + opcode + b"x" * 100 + b".")
        with pytest.raises(DataError, match=r"mDATA\.pkl.*announced"):
            open_bags(tmp_path, "dtfd", trust_pickle=True)
        assert number < 2
    (tmp_path / "mDATA.pkl").write_bytes(b"\x80\x04}r" + struct.pack("<I", 2**32 - 1) + b".")  # a note with number 2^32
    with pytest.raises(DataError, match="has no bag"):
        open_bags(tmp_path, "dtfd", trust_pickle=True)


def test_a_gzip_bomb_that_is_called_a_table_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_bytes(gzip.compress(bytes(10**7)))
    with pytest.raises(DataError, match=r"labels\.csv"):
        read_labels(tmp_path / "labels.csv")


# ------------------------------------------------------------------------------------------- pipes, devices and endless links


def a_folder(format: str, home: Path) -> tuple[Path, str]:
    """A folder with the bag `good`, and the name of a second bag's file in it."""
    good, values = Bag("good", torch.ones(2, 3), xy=torch.zeros(2, 2)), np.ones((2, 3), np.float32)
    known = {"encoder": "uni", "mpp": 0.5, "size_px": 256, "side_level0": 256.0, "slide_mpp": 0.5}
    if format == "scmil":
        write_bag(good, home / "good.h5")
        return home, "bad.h5"
    if format in ("clam", "trident", "torchmil"):
        export([good], home, format, known)
        place = {"clam": "pt_files", "trident": "20x_256px_0px_overlap/features_uni", "torchmil": "features"}[format]
        return home, f"{place}/bad{next((home / place).iterdir()).suffix}"
    if format == "dsmil":
        (home / "a").mkdir()
        (home / "a" / "good.csv").write_text("0,1\n1,2\n")
        return home, "a/bad.csv"
    if format == "stamp":
        with h5py.File(home / "good.h5", "w") as file:
            file["feats"] = values
        return home, "bad.h5"
    if format == "slideflow":
        (home / "bags_config.json").write_text("{}")
        torch.save(torch.ones(2, 3), home / "good.pt")
        return home, "bad.pt"
    suffix = format.partition(" ")[2]
    if suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file({"features": torch.ones(2, 3)}, home / "good.safetensors")
    elif suffix == ".npy":
        np.save(home / "good.npy", values)
    else:
        torch.save(torch.ones(2, 3), home / "good.pt")
    return home, f"bad{suffix}"


FORMATS = ["scmil", "clam", "trident", "torchmil", "dsmil", "stamp", "slideflow", "arrays .pt", "arrays .npy"]


@pytest.mark.parametrize("kind", ["pipe", "device", "loop"])
@pytest.mark.parametrize("format", [*FORMATS, "arrays .safetensors"])
def test_one_bag_that_is_not_a_file_is_named_and_the_others_are_read(tmp_path: Path, format: str, kind: str) -> None:
    folder, name = a_folder(format, tmp_path)
    if kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).symlink_to("/dev/zero" if kind == "device" else Path(name).name)
    bags = open_bags(folder)
    assert bags.ids == ("bad", "good")
    assert bags[1].features.shape[0] > 0
    with pytest.raises(DataError, match=r"bad\.\w+.*cannot be read"):
        bags[0]


def test_a_description_that_is_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    torch.save(torch.ones(2, 3), tmp_path / "good.pt")
    os.mkfifo(tmp_path / "bags_config.json")
    with pytest.raises(DataError, match=r"bags_config\.json.*this is not a file, but a pipe"):
        open_bags(tmp_path)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_model_that_is_a_pipe_is_not_waited_for(tmp_path: Path, name: str) -> None:
    folder = save_model(build_model(8, 2, "abmil", embed=[8], seed=0), tmp_path)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(ModelFileError, match="not a file, but a pipe"):
        load_model(folder)


@pytest.mark.parametrize("dtype", ["<f16", "|V0", "<c8", "<M8[s]"])
def test_numbers_that_torch_does_not_have_are_rejected_by_name(tmp_path: Path, dtype: str) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header("(2, 3)", dtype) + bytes(96))
    with pytest.raises(DataError, match=r"a\.npy"):
        open_bags(tmp_path)[0]


def test_instances_without_a_feature_are_not_a_bag(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(npy_header("(1000000000000, 0)"))
    with pytest.raises(DataError, match=r"a\.npy.*1000000000000 instances without a feature"):
        open_bags(tmp_path)[0]


# -------------------------------------------------------------------------------------- links and lists out of the file


def link(kind: str, file: Any, name: str, secret: Path) -> None:
    """Make `name` lead to the features of another file."""
    if name in file:
        del file[name]
    if kind == "external link":
        file[name] = h5py.ExternalLink(str(secret), "features")
    elif kind == "soft link through an external one":
        file["door"] = h5py.ExternalLink(str(secret), "/")
        file[name] = h5py.SoftLink("/door/features")
    elif kind == "virtual":
        layout = h5py.VirtualLayout((4, 3), np.float16)
        layout[:] = h5py.VirtualSource(str(secret), "features", (4, 3), np.float16)
        file.create_virtual_dataset(name, layout)
    else:
        file.create_dataset(name, (4, 3), np.float16, external=[(str(secret), 0, 24)])


KINDS = ["external link", "soft link through an external one", "virtual", "bytes of another file"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["features", "coords"])
def test_an_hdf5_bag_cannot_show_another_file(tmp_path: Path, kind: str, name: str) -> None:
    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    write_bag(a_bag(), tmp_path / "bags" / "slide.h5")
    with h5py.File(tmp_path / "bags" / "slide.h5", "r+") as file:
        link(kind, file, name, tmp_path / "secret.bin")
    readers = (read_bag, read_header, map_features, lambda path: open_bags(path.parent, "scmil")[0])
    for read in readers:
        with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
            read(tmp_path / "bags" / "slide.h5")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("format", ["clam", "trident", "stamp", "torchmil"])
def test_nor_can_features_of_other_tools(tmp_path: Path, kind: str, format: str) -> None:
    names = {"clam": "h5_files", "trident": "features_uni", "stamp": ".", "torchmil": "features"}
    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    place = tmp_path / "job" / names[format]
    place.mkdir(parents=True)
    with h5py.File(place / "slide.h5", "w") as file:
        link(kind, file, "feats" if format == "stamp" else "features", tmp_path / "secret.bin")
    with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
        open_bags(tmp_path / "job", format)[0]


def test_tiles_cannot_be_those_of_another_file(tmp_path: Path) -> None:
    pytest.importorskip("shapely")
    from scmil.slides.tiling import read_tiling

    write_bag(a_bag("secret"), tmp_path / "secret.bin")
    with h5py.File(tmp_path / "slide.h5", "w") as file:
        file["coords"] = h5py.ExternalLink(str(tmp_path / "secret.bin"), "coords")
    with pytest.raises(DataError, match=r"slide\.h5.*link to another file"):
        read_tiling(tmp_path / "slide.h5")


def test_a_heap_of_texts_that_never_ends_is_refused(tmp_path: Path) -> None:
    """On this damage the HDF5 library does not return: found by the fuzz campaign."""
    write_bag(a_bag(), tmp_path / "slide.h5")
    content = bytearray((tmp_path / "slide.h5").read_bytes())
    at = content.index(b"GCOL") + 16
    while struct.unpack_from("<H", content, at)[0]:  # the free space at the end has the number 0
        at += 16 + -(-struct.unpack_from("<Q", content, at + 8)[0] // 8) * 8
    content[at + 8 : at + 16] = bytes(8)
    (tmp_path / "slide.h5").write_bytes(content)
    for read in (read_bag, read_header, lambda path: open_bags(path.parent, "scmil")[0]):
        with pytest.raises(DataError, match=r"slide\.h5.*heap of texts is damaged"):
            read(tmp_path / "slide.h5")


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.csv").write_text("0,1\n1,2\n")
    (tmp_path / "job" / "a").mkdir(parents=True)
    for path in ("../secret.csv", str(tmp_path / "secret.csv")):
        (tmp_path / "job" / "job.csv").write_text(f"0,label\n{path},0\n")
        with pytest.raises(DataError):
            open_bags(tmp_path / "job", "dsmil")[0]


# ------------------------------------------------------------------------------------------------------ XML and pickles


ENTITIES = {
    "of a file": '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><ASAP_Annotations>&x;</ASAP_Annotations>',
    "of each other": '<!DOCTYPE a [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><ASAP_Annotations>&b;</ASAP_Annotations>',
    "of a server": '<!DOCTYPE a SYSTEM "http://127.0.0.1:1/x.dtd"><ASAP_Annotations/>',
}


@pytest.mark.parametrize("content", ENTITIES.values(), ids=list(ENTITIES))
def test_entities_of_xml_are_not_read(tmp_path: Path, content: str) -> None:
    pytest.importorskip("defusedxml")
    from scmil.slides.annotations.asap import read_asap

    (tmp_path / "slide.xml").write_text(f'<?xml version="1.0"?>{content}')
    with pytest.raises(DataError, match=r"slide\.xml declares a document type or entities"):
        read_asap(tmp_path / "slide.xml")


@pytest.mark.parametrize("encoding", ["no-such-code", "utf-7", "hex"])
def test_xml_in_an_encoding_that_nobody_knows_is_refused(tmp_path: Path, encoding: str) -> None:
    pytest.importorskip("defusedxml")
    from scmil.slides.annotations.asap import read_asap

    (tmp_path / "slide.xml").write_text(f'<?xml version="1.0" encoding="{encoding}"?><ASAP_Annotations/>')
    with pytest.raises(DataError, match=r"slide\.xml is not XML"):
        read_asap(tmp_path / "slide.xml")


def test_an_attribute_on_which_the_hdf5_library_crashes_is_not_read(tmp_path: Path) -> None:
    """Found by the fuzz campaign: one bit makes a list of variable length of a text, and the library dies of it."""
    write_bag(Bag("slide", torch.zeros(2, 3)), tmp_path / "slide.h5")
    with h5py.File(tmp_path / "slide.h5", "r+") as file:
        lists = np.empty(1, object)
        lists[0] = np.arange(3)
        file.attrs.create("remarks", lists, dtype=h5py.vlen_dtype(np.int64))
    with pytest.raises(DataError, match=r"slide\.h5.*'remarks' is a list of variable length"):
        read_header(tmp_path / "slide.h5")


def test_a_png_whose_chunk_says_two_gigabytes_takes_none(tmp_path: Path) -> None:
    """Found by the fuzz campaign: so much memory was asked for before the file was."""
    image = pytest.importorskip("PIL.Image")
    from scmil.slides import open_slide

    image.fromarray(np.zeros((64, 96, 3), np.uint8)).save(tmp_path / "picture.png", dpi=(50_800, 50_800))
    content = bytearray((tmp_path / "picture.png").read_bytes())
    at = content.index(b"IDAT") - 4
    content[at : at + 4] = struct.pack(">I", 2**31 - 1)
    (tmp_path / "picture.png").write_bytes(content)
    with open_slide(tmp_path / "picture.png") as slide, suppress(SlideError):
        slide.thumbnail(48)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("big", [False, True])
def test_pages_that_lead_back_to_one_of_them_are_not_followed_for_ever(tmp_path: Path, order: str, big: bool) -> None:
    """Found by the fuzz campaign: tifffile goes round and round."""
    tifffile = pytest.importorskip("tifffile")
    from scmil.slides import open_slide

    path = tmp_path / "round.tif"
    with tifffile.TiffWriter(path, byteorder=order, bigtiff=big) as writer:
        for side in (64, 32, 16):
            writer.write(np.zeros((side, side, 3), np.uint8), photometric="rgb", tile=(16, 16), contiguous=False)
    with tifffile.TiffFile(path) as file:
        offsets = [page.offset for page in file.pages]
    content = path.read_bytes()
    last, first = (struct.pack(f"{order}{'Q' if big else 'I'}", offset) for offset in (offsets[2], offsets[1]))
    size = len(last)
    *_, at = (at for at in range(offsets[1], offsets[2]) if content[at : at + size] == last)
    path.write_bytes(content[:at] + first + content[at + size :])  # the second page is followed by itself
    with pytest.raises(SlideError, match=r"round\.tif.*leads back to itself"):
        open_slide(path)


def test_a_plan_with_a_number_that_no_machine_has_is_refused(tmp_path: Path) -> None:
    """Found by the fuzz campaign."""
    (tmp_path / "plan.toml").write_text(f"[data]\ndataset = 'musk1'\n[model]\nsparse_coding = {{ atoms = {10**30} }}\n")
    with pytest.raises(ConfigError, match=r"plan\.toml.*atoms: an integer has more than 64 bits"):
        read_plan(tmp_path / "plan.toml")


def test_a_pickle_that_ends_in_the_middle_of_a_number_is_refused_by_name(tmp_path: Path) -> None:
    """Found by the fuzz campaign: torch's reader says `struct.error`."""
    from scmil.bags.formats.reading import load_pt

    torch.save(torch.zeros(2, 3), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as whole, zipfile.ZipFile(tmp_path / "cut.pt", "w") as cut:
        for name in whole.namelist():
            content = whole.read(name)
            at = content.find(b"X") + 3  # a text's length has four bytes
            cut.writestr(name, content[:at] if name.endswith("data.pkl") else content)
    with pytest.raises(DataError, match=r"cut\.pt: no pickle of arrays"):
        load_pt(tmp_path / "cut.pt")


def test_a_label_of_billions_makes_no_billion_classes(tmp_path: Path) -> None:
    """Found by the fuzz campaign, in labels of torchmil; one bag is refused, and the others can be used."""
    for folder in ("features", "labels"):
        (tmp_path / folder).mkdir()
    for name, label in (("good", 1), ("bad", 2**40)):
        np.save(tmp_path / "features" / f"{name}.npy", np.zeros((2, 3), np.float32))
        np.save(tmp_path / "labels" / f"{name}.npy", np.array([label]))
    bags = open_bags(tmp_path, "torchmil")
    assert bags.labels == (None, 1)
    with pytest.raises(DataError, match=r"labels/bad: the label is \[1099511627776\]"):
        bags[0]
    with pytest.raises(DataError, match="bag 'a' has label 1099511627776"):
        BagSet([Bag("a", torch.zeros(1, 2), 2**40)])


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_no_pickle_runs_wherever_it_hides(tmp_path: Path) -> None:
    mark, bags = tmp_path / "it ran", tmp_path / "bags"
    bags.mkdir()
    evil = pickle.dumps({"slide": [Evil(mark)]}, protocol=2)
    torch.save(Evil(mark), bags / "a.pt")
    np.save(bags / "b.npy", np.array([Evil(mark)], object), allow_pickle=True)
    (bags / "c.pt").write_bytes(evil)
    opened = open_bags(bags, "arrays")
    for position in range(3):
        with pytest.raises(DataError, match=r"[abc]\.(pt|npy)"):
            opened[position]
    (tmp_path / "dtfd").mkdir()
    (tmp_path / "dtfd" / "mDATA.pkl").write_bytes(evil)
    with pytest.raises(DataError, match="can run any code"):
        open_bags(tmp_path / "dtfd")
    with pytest.raises(DataError, match="It was not run"):
        open_bags(tmp_path / "dtfd", trust_pickle=True)
    np.savez(tmp_path / "scores.npz", page=np.array([Evil(mark)], object))
    with pytest.raises(DataError, match=r"scores\.npz"):
        read_scores(tmp_path / "scores.npz")
    assert not mark.exists()


# ----------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_slide_leaves_its_folder(name: str) -> None:
    safe = safe_name(name)
    assert Path("folder", safe).parent == Path("folder")
    assert not set(safe) & set('/\\\0\n\t<>:"|?*')
    assert safe not in (".", "..")


@pytest.mark.parametrize("name", ["../up", "/abs", "..", "a/b", "a\\b", ".hidden", "a\0b"])
def test_no_bag_is_exported_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BagError if not name else DataError, match="cannot be one"):
        export(BagSet([Bag(name, torch.ones(2, 3), label=0)], ["a", "b"]), tmp_path / "out", "clam")
    assert sorted(path.name for path in tmp_path.rglob("*")) in ([], ["out"])


def test_an_experiment_cannot_write_out_of_its_folder(tmp_path: Path) -> None:
    bags = tmp_path / "bags"
    export(cohort(), bags, "trident")
    text = f'[data]\ndataset = "{bags}"\nname = "../../up"\nlabels = "{bags / "labels.csv"}"\n'
    text += '[[arms]]\nname = "../x"\n[[arms]]\nname = "/y"\nmodel.aggregator = "mean"\n[protocol]\nfolds = 2\n'
    (tmp_path / "evil.toml").write_text(text)
    try:
        cells = read_plan(tmp_path / "evil.toml").cells
    except ConfigError:
        return
    for cell in cells:
        assert (tmp_path / "run" / cell.name).resolve().parent == (tmp_path / "run").resolve()


class Tags(HTMLParser):
    """The images and scripts of a page, and every attribute that runs code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[Any] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found += [(tag, key, value) for key, value in attributes if key.startswith("on") or value == "x"]


def cohort() -> BagSet:
    """Slides, patients and classes with names that mean harm."""
    generator = torch.Generator().manual_seed(0)
    bags = [
        Bag(
            f"{(HTML.replace('/', ''), FORMULA.replace('/', ''))[i % 2]}{i}",
            torch.randn(5, 8, generator=generator) + 3 * torch.eye(8)[i // 2 % 2],
            label=i // 2 % 2,
            patient=f"@{HTML}{i // 2}",
            xy=256 * torch.arange(10).reshape(5, 2),
            provenance={
                "encoder": HTML,
                "side_level0": 256.0,
                "slide_mpp": 0.5,
                "slide_size": (3000, 3000),
                "size_px": 256,
            }
            | {"mpp": 0.5, "overlap_px": 0},
        )
        for i in range(24)
    ]
    return BagSet(bags, [f"-{HTML}", f"={HTML}"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its predictions and scores, all with names that mean harm."""
    home = tmp_path_factory.mktemp("hostile")
    bags = cohort()
    export(bags, home / "bags", "trident")
    data = study.open_data(home / "bags", home / "bags" / "labels.csv")
    study.train(data, home / "model", aggregator="mean", epochs=2)
    opened = open_bags(home / "bags", labels=read_labels(home / "bags" / "labels.csv"))
    study.predict_folder(home / "model", opened, home / "new" / "predictions.csv")
    study.score_folder(home / "model", opened)
    return home


def test_names_come_back_from_our_tables_as_they_were(trained: Path) -> None:
    bags, read = cohort(), read_labels(trained / "bags" / "labels.csv")
    assert set(read.ids) == set(bags.ids)
    assert set(read.classes) == set(bags.classes)
    assert set(read.patients) == set(bags.patients)


def test_no_cell_of_our_tables_is_a_formula(trained: Path) -> None:
    tables = list(trained.rglob("*.csv"))
    assert len(tables) >= 4
    cells = [cell for path in tables for row in csv.reader(io.StringIO(path.read_text())) for cell in row]
    assert any(cell.startswith("'=") for cell in cells)
    for cell in cells:
        assert not cell.startswith(("=", "@", "\t", "\r"))
        assert not cell.startswith(("+", "-")) or float(cell) is not None


def test_the_ledger_and_the_splits_keep_such_names_and_write_no_formulas(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    names = [name for name in NAMES if "\0" not in name]
    for name in names:
        ledger.add(name, "tile", f"={name}", FORMULA)
    assert [failure.slide for failure in Ledger(tmp_path).read()] == names
    save_splits(tmp_path / "splits.csv", [[Split((0, 1), (2,), ())]], [FORMULA, HTML, "@x"])
    assert load_splits(tmp_path / "splits.csv", [FORMULA, HTML, "@x"]) == [[Split((0, 1), (2,), ())]]
    for path in tmp_path.glob("*.csv"):
        for row in csv.reader(io.StringIO(path.read_text(), newline="")):
            assert not any(cell.startswith(("=", "@", "-", "+", "\t")) for cell in row)


def test_no_page_shows_a_name_as_markup(trained: Path) -> None:
    pages = list(trained.rglob("*.html"))
    assert pages
    for path in pages:
        assert not Tags(path.read_text()).found, path
        assert HTML not in path.read_text()


def test_the_viewer_sends_names_as_data_and_its_page_never_as_markup(trained: Path) -> None:
    pytest.importorskip("starlette", reason="starlette is not installed")
    pytest.importorskip("openslide", reason="openslide is not installed")
    from scmil.viz.viewer import Library
    from scmil.viz.viewer.responses import Answers

    answers = Answers(Library([trained / "model"], None))
    try:
        assert any(HTML.replace("/", "") in slide["id"] for slide in answers.slides()["slides"])
    finally:
        answers.close()
    static = Path(__file__).parents[2] / "src" / "scmil" / "viewer" / "static"
    for script in static.glob("*.js"):
        if "openseadragon" not in script.name:
            assert not any(
                word in script.read_text() for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(")
            )
