"""Public features: listed first, resumed, checked, unpacked safely, and readable."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path

import feature_server as served
import pytest
import torch
from feature_server import FeatureServer, feature_server
from typer.testing import CliRunner, Result

from scmil.bags.datasets.feature_download import RECORD, download_features, list_files
from scmil.bags.datasets.feature_sets import FeatureSet, find_feature_set, read_feature_sets
from scmil.bags.formats import names as format_names
from scmil.bags.formats import open_bags
from scmil.cli import app
from scmil.encoding.encoders import card_of
from scmil.errors import DataError, ScmilError, UnknownNameError

SLIDES = {"normal_001": 0, "tumor_001": 1, "test_001": 1}
SETS = read_feature_sets()
# The layout of each set on its server; folders with several encoders are opened by one of them.
LAYOUTS = {
    "camelyon16-torchmil": served.torchmil_files(SLIDES),
    "panda-torchmil": served.torchmil_files(SLIDES, "resnet50_bt"),
    "camelyon-cpath": served.clam_files(SLIDES, "c16"),
    "tcga-nsclc-cpath": served.clam_files(SLIDES, "nsclc"),
    "tcga-brca-cpath": served.clam_files(SLIDES, "brca"),
    "camelyon-aem": {"c16.zip": served.zipped(served.array_files(SLIDES, "c16"))},
    "camelyon16-hippo": served.array_files(SLIDES, "embeddings"),
    "uni2-h-features": {"TCGA.tar.gz": served.tar(served.array_files(SLIDES, "TCGA"))},
    "camelyon16-histossl": served.histossl_files(SLIDES),
    "camelyon16-dsmil": served.dsmil_files(SLIDES),
    "tcga-lung-dsmil": served.dsmil_files(SLIDES),
    "camelyon16-dgrmil": served.dsmil_files(SLIDES),
}
FEATURES = {
    "camelyon-cpath": "c16/uni",
    "tcga-nsclc-cpath": "uni",
    "tcga-brca-cpath": "uni",
    "camelyon-aem": "c16",
    "uni2-h-features": "TCGA",
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FeatureServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    with feature_server() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.address)
        yield running


def scmil(*words: object, code: int = 0) -> Result:
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def publish(server: FeatureServer, name: str) -> str | None:
    """Put a set on the server; the address of its archive, for those that have no other."""
    chosen = SETS[name]
    if chosen.hub:
        server.sets[chosen.hub] = LAYOUTS[name]
        return None
    server.files[f"/{name}.zip"] = served.zipped(LAYOUTS[name])
    return f"{server.address}/{name}.zip"


def test_every_set_has_its_layout_here_and_names_what_exists() -> None:
    assert set(LAYOUTS) == set(SETS)
    for each in SETS.values():
        assert each.hub or each.hint
        assert each.licence
        assert each.protocol
        assert each.format in ("", *format_names())
        for card in each.encoders.values():
            assert card_of(card).output.width > 0


@pytest.mark.parametrize("name", SETS)
def test_each_set_downloads_and_loads(name: str, server: FeatureServer, tmp_path: Path) -> None:
    chosen, url = SETS[name], publish(server, name)
    listing = list_files(chosen, url)
    place = download_features(chosen, listing, tmp_path / "out")
    bags = open_bags(place / FEATURES.get(name, ""), chosen.format or None)
    assert sorted(bags.ids) == sorted(SLIDES)
    for bag in bags:
        expected = torch.from_numpy(served.features_of(bag.id))
        assert torch.allclose(bag.features, expected, atol=1e-4)
    record = json.loads((tmp_path / "out" / RECORD).read_text())
    assert (record["name"], record["licence"]) == (name, chosen.licence)
    assert all(len(digest) == 64 for digest in record["sha256"].values())
    assert not list((tmp_path / "out").rglob("*.tar.gz"))
    asked = len(server.asked)
    assert download_features(chosen, listing, tmp_path / "out") == place  # it is there
    assert len(server.asked) == asked


def test_size_and_licence_are_printed_before_anything_moves(
    server: FeatureServer, tmp_path: Path
) -> None:
    publish(server, "camelyon16-torchmil")
    page = json.loads(
        scmil("get", "camelyon16-torchmil", "--dry-run", "--json", "--out", tmp_path / "o").stdout
    )
    assert (page["files"], page["checksums"]) == (5, "published")  # and not the README
    assert page["size"].endswith("GB")
    assert "CC0" in page["licence"]
    assert page["encoders"] == "UNI = uni, resnet50_bt = lunit-rn50-bt"
    assert not (tmp_path / "o").exists()
    done = scmil("get", "camelyon16-torchmil", "--out", tmp_path / "o")
    assert "licence: " in done.stderr
    assert f"is ready: {tmp_path / 'o' / 'dataset'}" in done.stdout
    rows = json.loads(scmil("ls", "features", "--json").stdout)
    assert {row["name"] for row in rows} == set(SETS)


@pytest.mark.parametrize("name", SETS)
def test_each_download_resumes_after_a_break(
    name: str, server: FeatureServer, tmp_path: Path
) -> None:
    chosen, url = SETS[name], publish(server, name)
    listing = list_files(chosen, url)
    before, server.cut = len(server.asked), 100
    if chosen.gated:  # the client of the hub tries again by itself, in steps of 10 MB
        place = download_features(chosen, listing, tmp_path)
        assert server.cut is None
    else:
        with pytest.raises(DataError, match=r"ended after 100 of|cannot be downloaded"):
            download_features(chosen, listing, tmp_path)
        assert not (tmp_path / RECORD).exists()
        place = download_features(chosen, listing, tmp_path)
        (path, _), *rest = server.asked[before:]
        assert (path, "bytes=100-") in rest
    assert len(open_bags(place / FEATURES.get(name, ""), chosen.format or None)) == len(SLIDES)


@pytest.mark.parametrize("name", [name for name in SETS if SETS[name].hub])
def test_a_published_digest_is_checked(name: str, server: FeatureServer, tmp_path: Path) -> None:
    publish(server, name)
    server.wrong_digest = True
    with pytest.raises(DataError, match=r"sha256 [0-9a-f]{64}, expected 0+"):
        download_features(SETS[name], list_files(SETS[name]), tmp_path)
    assert not (tmp_path / RECORD).exists()


@pytest.mark.parametrize("name", [name for name in SETS if not SETS[name].hub])
def test_the_digest_of_the_first_download_is_checked(
    name: str, server: FeatureServer, tmp_path: Path
) -> None:
    url = publish(server, name)
    scmil("get", name, "--url", url, "--out", tmp_path / "first")
    scmil("get", name, "--url", url, "--out", tmp_path / "second")
    server.files[f"/{name}.zip"] += b"another"
    with pytest.raises(DataError, match=r"expected \w+, as recorded .*delete (\S+)\. ") as raised:
        scmil("get", name, "--url", url, "--out", tmp_path / "third")
    assert not list((tmp_path / "third").glob("*.zip"))
    Path(str(raised.value).partition(", delete ")[2].partition(". ")[0]).unlink()
    scmil("get", name, "--url", url, "--out", tmp_path / "third")


def test_a_set_that_is_too_large_is_rejected_before_it_moves(
    server: FeatureServer, tmp_path: Path
) -> None:
    publish(server, "camelyon16-torchmil")
    before = len(server.asked)
    with pytest.raises(DataError, match=r"are allowed\. Allow more with --max-size"):
        scmil("get", "camelyon16-torchmil", "--out", tmp_path / "o", "--max-size", 0.000001)
    assert [path for path, _ in server.asked[before:] if "resolve" in path] == []


def test_archives_stay_in_their_folder(server: FeatureServer, tmp_path: Path) -> None:
    chosen = FeatureSet("own", "s", "p", "l", hint="nowhere")
    link = io.BytesIO()
    with tarfile.open(fileobj=link, mode="w") as archive:
        member = tarfile.TarInfo("link")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    evil = {
        "/up.zip": served.zipped({"../evil": b"x"}),
        "/up.tar.gz": served.tar({"../evil": b"x"}),
        "/link.tar": link.getvalue(),
        "/broken.zip": b"PK",
    }
    for path, content in evil.items():
        server.files[path] = content
        out = tmp_path / path[1:].partition(".")[0]
        with pytest.raises(DataError, match=r"outside the folder|cannot be unpacked"):
            download_features(chosen, list_files(chosen, server.address + path), out)
    assert not (tmp_path / "evil").exists()
    server.sets["own/set"] = {"../evil.npy": b"x"}
    hub = FeatureSet("own", "s", "p", "l", hub="own/set")
    with pytest.raises(DataError, match="outside the folder"):
        download_features(hub, list_files(hub), tmp_path / "o")


def test_what_cannot_be_listed_is_explained(
    server: FeatureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"dsmil-wsi links to its archive.*--url ADDRESS"):
        list_files(SETS["camelyon16-dsmil"])
    with pytest.raises(DataError, match="its files cannot be listed"):
        list_files(SETS["camelyon-aem"])
    server.sets["Dearcat/CPathPatchFeature"] = {"luad/x.pt": b"x"}
    with pytest.raises(DataError, match=r"no files that match nsclc/\*\. It has: luad"):
        list_files(SETS["tcga-nsclc-cpath"])
    with pytest.raises(DataError, match=r"is gated .*Request access on that page"):
        list_files(SETS["camelyon16-hippo"])
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody answers
        with pytest.raises(DataError, match=r"camelyon16-uni cannot be reached .*Try again"):
            list_files(SETS["camelyon16-hippo"])
    with pytest.raises(UnknownNameError, match="Did you mean 'camelyon16-dsmil'"):
        find_feature_set("camelyon16-dsmill")
    (tmp_path / RECORD).write_text('{"name": "other"}')
    chosen = SETS["camelyon16-dsmil"]
    listing = list_files(chosen, f"{server.address}/x.zip")
    with pytest.raises(ScmilError, match="has the features 'other', and not 'camelyon16-dsmil'"):
        download_features(chosen, listing, tmp_path)
