from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from scmil.bags import formats
from scmil.bags.bag import Bag
from scmil.bags.hdf5 import read_bag, write_bag
from scmil.cli import app
from scmil.encoding import encoders
from scmil.errors import DataError, OptionError, ScmilError, SlideError, UnknownNameError
from scmil.slides.tissue import PRESETS

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("shapely")


def scmil(*words: object, code: int = 0) -> Result:
    """Run the command in this process; it has to end with this code, and not by an error."""
    done = CliRunner().invoke(app, list(map(str, words)))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done


def page_of(*words: object, code: int = 0) -> Any:
    return json.loads(scmil(*words, "--json", code=code).stdout)


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "pink [1].png"
    Image.new("RGB", (600, 400), (200, 80, 160)).save(path)
    return path


# --------------------------------------------------------------------------------------------- info


def test_info_prints_slide_metadata(picture: Path) -> None:
    result = scmil("info", picture, "--mpp-of", 0.25).stdout
    for words in ("pink [1]", "600, 400", "mpp source", "given", "0.15, 0.1"):  # millimetres
        assert words in result


def test_info_prints_json(picture: Path) -> None:
    facts = page_of("info", picture, "--mpp-of", 0.5)
    assert (facts["id"], facts["size_px"], facts["mpp"], facts["mpp_source"]) == (
        "pink [1]",
        [600, 400],
        0.5,
        "given",
    )
    assert facts["tiles_that_fit"] == {"size_px": 256, "mpp": 0.5, "count": 2}


def test_info_does_not_need_microns(picture: Path) -> None:
    facts = page_of("info", picture)
    assert (facts["mpp"], facts["mpp_source"], facts["size_mm"]) == (None, "unknown", None)
    assert "unknown" in scmil("info", picture).stdout


def test_info_reads_microns_from_a_table_as_other_commands_do(
    picture: Path, tmp_path: Path
) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("slide,mpp\npink [1].png,0.25\nother.svs,0.5\n")
    assert page_of("info", picture, "--mpp-of", table)["mpp"] == 0.25
    table.write_text("slide,mpp\nother.svs,0.5\n")
    assert page_of("info", picture, "--mpp-of", table)["mpp"] is None
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        scmil("info", picture, "--mpp-of", tmp_path / "nowhere.csv")


def test_info_warns_of_implausible_values(picture: Path) -> None:
    [warning] = page_of("info", picture, "--mpp-of", 50)["warnings"]
    assert "50" in warning
    assert "warning:" in scmil("info", picture, "--mpp-of", 50).stdout


def test_info_rejects_files_that_are_not_slides(tmp_path: Path) -> None:
    (tmp_path / "text.svs").write_text("not a slide")
    with pytest.raises(SlideError, match=r"text\.svs"):
        scmil("info", tmp_path / "text.svs")
    with pytest.raises(SlideError, match="mpp = -1"):
        scmil("info", tmp_path / "text.svs", "--mpp-of=-1")


# ----------------------------------------------------------------------------------------------- ls


def test_ls_encoders_lists_input_and_output_of_each() -> None:
    rows = page_of("ls", "encoders")
    assert [row["name"] for row in rows] == encoders.names()
    [row] = [row for row in rows if row["name"] == "ctranspath"]
    assert (row["dim"], row["tile"], type(row["ready"])) == ("768", "256 px at 1 µm", bool)
    assert row["weights"]  # where they are, or how to get them
    result = scmil("ls", "encoders").stdout
    assert all(name in result for name in encoders.names())
    assert "timm:NAME" in result


def test_ls_encoders_fits_into_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = scmil("ls", "encoders").stdout
    assert max(map(len, result.splitlines()[:-1])) <= 80
    assert "…" not in result
    assert {"name", "width", "tile", "licence", "gated"} <= set(result.split("\n")[0].split())
    [line] = [line for line in result.splitlines() if line.startswith("resnet18 ")]
    name, *rest, weights = line.split()
    assert (name, rest) == ("resnet18", ["512", "256", "px", "BSD-3-Clause", "no"])
    assert weights in ("installed", "download")


def test_ls_formats_lists_which_can_be_exported() -> None:
    rows = page_of("ls", "formats")
    assert [row["name"] for row in rows] == formats.names()
    assert [row["name"] for row in rows if row["written_too"]] == formats.writable()
    result = scmil("ls", "formats").stdout
    assert all(row["name"] in result for row in rows)


def test_ls_presets_shows_their_numbers() -> None:
    rows = {row["name"]: row["how_tissue_is_found"] for row in page_of("ls", "presets")}
    assert list(rows) == list(PRESETS)
    assert "sthresh 15" in rows["biopsy"]
    result = scmil("ls", "presets").stdout
    assert all(name in result for name in PRESETS)


def test_ls_of_an_unknown_kind_lists_the_known_ones() -> None:
    with pytest.raises(
        OptionError,
        match=r"scmil ls tissues: unknown kind\. Known: .*encoders, features, formats, presets",
    ):
        scmil("ls", "tissues")


# ------------------------------------------------------------------------------------------- import


def foreign(folder: Path, names: str = "ab") -> Path:
    """Features as plain arrays, 4 instances of 6 numbers a slide."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(names):
        torch.save(
            torch.rand(4, 6, generator=torch.Generator().manual_seed(number)), folder / f"{name}.pt"
        )
    return folder


def test_import_writes_scmil_bags_and_keeps_existing_ones(tmp_path: Path) -> None:
    folder, out = foreign(tmp_path / "theirs"), tmp_path / "ours"
    assert "2 made, 0 kept, 0 failed" in scmil("import", folder, "--out", out).stdout
    for name in "ab":
        torch.testing.assert_close(
            read_bag(out / f"{name}.h5").features,
            torch.load(folder / f"{name}.pt"),
            atol=1e-3,
            rtol=0,
        )
    page = page_of("import", folder, "--out", out)
    assert page == {
        "out": str(out),
        "done": [],
        "kept": ["a", "b"],
        "failed": [],
        "taken": [],
        "failures": [],
    }


def test_import_continues_after_a_damaged_file_and_exits_with_code_1(tmp_path: Path) -> None:
    folder, out = foreign(tmp_path / "theirs"), tmp_path / "ours"
    (folder / "a.pt").write_bytes(b"broken")
    page = page_of("import", folder, "--out", out, code=1)
    assert (page["done"], page["failed"]) == (["b"], ["a"])
    assert "a.pt" in page["failures"][0]["cause"]
    assert "failed: a: " in scmil("import", folder, "--out", out, code=1).stderr
    foreign(folder)  # made good
    assert page_of("import", folder, "--out", out, code=1)["failed"] == ["a"]
    assert page_of("import", folder, "--out", out, "--retry-failed")["done"] == ["a"]


def test_import_rejects_an_empty_folder_and_an_unknown_type(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no format that scmil supports"):
        scmil("import", tmp_path, "--out", tmp_path / "ours")
    with pytest.raises(OptionError, match="dtype 'float64' is not supported"):
        scmil(
            "import", foreign(tmp_path / "theirs"), "--out", tmp_path / "ours", "--dtype", "float64"
        )
    with pytest.raises(OptionError, match="does not support the option slide_mpp"):
        scmil("import", tmp_path / "theirs", "--out", tmp_path / "ours", "--mpp-of", 0.5)
    assert not (tmp_path / "ours").exists()


# ------------------------------------------------------------------------------------------- export


@pytest.fixture
def ours(tmp_path: Path) -> Path:
    """Eight bags of ours with which nothing is wrong, and a table of their labels beside them."""
    provenance = {
        "encoder": "mean",
        "size_px": 256,
        "mpp": 0.5,
        "slide_mpp": 0.25,
        "side_level0": 512.0,
    }
    rows = [("case_id", "slide_id", "label")]
    for number in range(8):
        features = torch.randn(6, 4, generator=torch.Generator().manual_seed(number))
        xy = torch.arange(6)[:, None] * torch.tensor([512, 0])
        write_bag(
            Bag(f"s{number}", features, xy=xy, provenance=provenance),
            tmp_path / "ours" / f"s{number}.h5",
        )
        rows.append((f"p{number}", f"s{number}", ("normal", "tumour")[number % 2]))
    with (tmp_path / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return tmp_path / "ours"


def test_export_writes_clam_files_with_labels_and_keeps_existing_ones(
    ours: Path, tmp_path: Path
) -> None:
    out, words = tmp_path / "clam", ("export", ours, "--to", "clam", "--out", tmp_path / "clam")
    result = scmil(*words, "--labels", tmp_path / "labels.csv").stdout
    assert "8 bags written for clam" in result
    features = torch.load(out / "pt_files" / "s3.pt", weights_only=True)
    assert torch.equal(features.float(), read_bag(ours / "s3.h5").features)
    assert (out / "labels.csv").read_text().splitlines()[:3] == [
        "case_id,slide_id,label",
        "p0,s0,normal",
        "p1,s1,tumour",
    ]
    page = page_of(*words, "--labels", tmp_path / "labels.csv")
    assert (page["written"], len(page["kept"])) == ([], 8)


def test_exported_bags_can_be_imported(ours: Path, tmp_path: Path) -> None:
    scmil("export", ours, "--to", "clam", "--out", tmp_path / "clam")
    scmil("import", tmp_path / "clam", "--out", tmp_path / "back")
    there, back = read_bag(ours / "s5.h5"), read_bag(tmp_path / "back" / "s5.h5")
    assert torch.equal(there.features, back.features)
    assert there.xy is not None
    assert back.xy is not None
    assert torch.equal(there.xy, back.xy)


@pytest.mark.parametrize(("to", "error"), [("stamp", DataError), ("clamm", UnknownNameError)])
def test_export_rejects_formats_that_it_cannot_write(
    ours: Path, tmp_path: Path, to: str, error: type[ScmilError]
) -> None:
    with pytest.raises(error, match="clam"):
        scmil("export", ours, "--to", to, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()


# -------------------------------------------------------------------------------------------- audit


def test_audit_exits_with_code_0_without_errors(ours: Path, tmp_path: Path) -> None:
    result = scmil("audit", ours, tmp_path / "labels.csv").stdout
    assert "8 bags of 8 patients, 4-dimensional features" in result
    assert "normal 4, tumour 4" in result
    page = page_of("audit", ours, tmp_path / "labels.csv")
    assert (page["ok"], page["findings"], page["counts"]["bags"]) == (True, [], 8)


def test_audit_exits_with_code_1_for_errors(ours: Path, tmp_path: Path) -> None:
    (ours / "s7.h5").write_bytes((ours / "s6.h5").read_bytes()[:500])
    bag = read_bag(ours / "s0.h5")
    write_bag(Bag("s2", bag.features, xy=bag.xy, provenance=bag.provenance), ours / "s2.h5")
    page = page_of("audit", ours, tmp_path / "labels.csv", code=1)
    found = {
        finding["code"]: finding["slides"]
        for finding in page["findings"]
        if finding["severity"] == "error"
    }
    assert found["unreadable"] == ["s7"]
    assert not page["ok"]
    result = scmil("audit", ours, tmp_path / "labels.csv", code=1).stdout
    assert "unreadable: a bag cannot be read" in result
    assert "s0, s2" in result  # the same features twice


def test_audit_reads_splits_and_finds_the_patient_on_both_sides(ours: Path, tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text(table.read_text().replace("p7,", "p0,"))
    splits = tmp_path / "splits_0.csv"
    rows = [
        ("", "train", "val", "test"),
        (0, "s0", "s4", "s6"),
        (1, "s1", "s5", "s7"),
        (2, "s2", "", ""),
        (3, "s3", "", ""),
    ]
    with splits.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    page = page_of("audit", ours, table, "--splits", splits, code=1)
    [leak] = [finding for finding in page["findings"] if finding["severity"] == "error"]
    assert "p0" in json.dumps(leak)


def test_audit_works_without_labels(ours: Path) -> None:
    page = page_of("audit", ours)
    assert page["counts"]["classes"] == {}
    assert page["counts"]["without_label"] == 8


# ------------------------------------------------------------------------------ paint, tile, encode


def test_paint_writes_slides_with_labels_and_annotations(tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    assert (
        "2 slides and "
        in scmil("paint", "--slides", 2, "--side", 1000, "--seed", 3, "--out", tmp_path).stdout
    )
    names = [f"slide_{number:03d}.{end}" for number in (1, 2) for end in ("geojson", "svs", "xml")]
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["labels.csv", *names]
    with (tmp_path / "labels.csv").open() as file:
        assert sorted(row["label"] for row in csv.DictReader(file)) == ["normal", "tumour"]


def test_paint_rejects_slides_that_are_too_small(tmp_path: Path) -> None:
    assert "'--side'" in scmil("paint", "--side", 999, "--out", tmp_path / "out", code=2).output
    assert not (tmp_path / "out").exists()


def test_tile_prints_json(picture: Path, tmp_path: Path) -> None:
    words = (
        "tile",
        picture,
        "--out",
        tmp_path / "work",
        "--mpp-of",
        0.5,
        "--mag",
        20,
        "--size",
        200,
        "--preset",
        "biopsy",
    )
    page = page_of(*words)
    assert (page["tile"]["done"], page["failures"]) == (["pink [1]"], [])
    assert json.loads((tmp_path / "work" / "tiling.json").read_text())["mpp"] == 0.5
    assert "0 made, 1 kept, 0 failed" in scmil(*words).stdout


def test_tile_reports_failures_and_exits_with_code_1(picture: Path, tmp_path: Path) -> None:
    done = scmil("tile", picture, "--out", tmp_path / "work", code=1)
    assert "0 made, 0 kept, 1 failed" in done.stdout
    assert (
        "failed: pink [1] (tile): slide 'pink [1]' contains neither its resolution" in done.stderr
    )
    assert "--retry-failed" in done.stderr


@pytest.mark.parametrize(
    ("options", "result"),
    [
        (("--mag", 20, "--mpp", 0.5), "Specify only one of them"),
        (("--mag", 0), "expected a positive magnification"),
    ],
)
def test_tile_rejects_invalid_resolutions(
    picture: Path, tmp_path: Path, options: tuple[Any, ...], result: str
) -> None:
    with pytest.raises(OptionError, match=result):
        scmil("tile", picture, "--out", tmp_path / "work", *options)
    assert not (tmp_path / "work").exists()


def test_encode_asks_for_a_folder_before_it_loads_anything(picture: Path) -> None:
    with pytest.raises(OptionError, match="contains slides, not tiles"):
        scmil("encode", picture, "--encoder", "no-such-encoder")
