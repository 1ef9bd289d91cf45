"""Names with paths, markup or formulas stay in their folder and are shown as text."""

from __future__ import annotations

import csv
import io
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

from scmil import studies as study
from scmil.bags.bag import Bag, BagSet
from scmil.bags.formats import export_bags, open_bags
from scmil.bags.labels import read_labels
from scmil.bags.splits import Split, load_splits, save_splits
from scmil.core.jobs.failure_log import FailureLog
from scmil.core.jobs.locks import safe_name
from scmil.errors import BagError, ConfigError, DataError
from scmil.studies.plan import read_plan

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


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_a_slide_leaves_its_folder(name: str) -> None:
    safe = safe_name(name)
    assert Path("folder", safe).parent == Path("folder")
    assert not set(safe) & set('/\\\0\n\t<>:"|?*')
    assert safe not in (".", "..")


@pytest.mark.parametrize("name", ["../up", "/abs", "..", "a/b", "a\\b", ".hidden", "a\0b"])
def test_no_bag_is_exported_out_of_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(BagError if not name else DataError, match="is not a valid one"):
        export_bags(
            BagSet([Bag(name, torch.ones(2, 3), label=0)], ["a", "b"]), tmp_path / "out", "clam"
        )
    assert sorted(path.name for path in tmp_path.rglob("*")) in ([], ["out"])


def test_an_experiment_cannot_write_out_of_its_folder(tmp_path: Path) -> None:
    bags = tmp_path / "bags"
    export_bags(cohort(), bags, "trident")
    text = f'[data]\ndataset = "{bags}"\nname = "../../up"\nlabels = "{bags / "labels.csv"}"\n'
    text += '[[arms]]\nname = "../x"\n[[arms]]\nname = "/y"\nmodel.aggregator = "mean"\n'
    text += "[protocol]\nfolds = 2\n"
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
        self.found += [
            (tag, key, value) for key, value in attributes if key.startswith("on") or value == "x"
        ]


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
    export_bags(bags, home / "bags", "trident")
    data = study.open_data(home / "bags", home / "bags" / "labels.csv")
    study.train(data, home / "model", aggregator="mean", epochs=2)
    opened = open_bags(home / "bags", labels=read_labels(home / "bags" / "labels.csv"))
    study.predict_folder(home / "model", opened, home / "new" / "predictions.csv")
    study.score_folder(home / "model", opened)
    return home


def test_names_are_read_back_unchanged_from_our_tables(trained: Path) -> None:
    bags, read = cohort(), read_labels(trained / "bags" / "labels.csv")
    assert set(read.ids) == set(bags.ids)
    assert set(read.classes) == set(bags.classes)
    assert set(read.patients) == set(bags.patients)


def test_no_cell_of_our_tables_is_a_formula(trained: Path) -> None:
    tables = list(trained.rglob("*.csv"))
    assert len(tables) >= 4
    cells = [
        cell for path in tables for row in csv.reader(io.StringIO(path.read_text())) for cell in row
    ]
    assert any(cell.startswith("'=") for cell in cells)
    for cell in cells:
        assert not cell.startswith(("=", "@", "\t", "\r"))
        assert not cell.startswith(("+", "-")) or float(cell) is not None


def test_the_failure_log_and_the_splits_keep_such_names_and_write_no_formulas(
    tmp_path: Path,
) -> None:
    failure_log = FailureLog(tmp_path)
    names = [name for name in NAMES if "\0" not in name]
    for name in names:
        failure_log.add(name, "tile", f"={name}", FORMULA)
    assert [failure.slide for failure in FailureLog(tmp_path).read()] == names
    save_splits(tmp_path / "splits.csv", [[Split((0, 1), (2,), ())]], [FORMULA, HTML, "@x"])
    assert load_splits(tmp_path / "splits.csv", [FORMULA, HTML, "@x"]) == [
        [Split((0, 1), (2,), ())]
    ]
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
    from scmil.viz.viewer.responses import Responses

    answers = Responses(Library([trained / "model"], None))
    try:
        assert any(HTML.replace("/", "") in slide["id"] for slide in answers.slides()["slides"])
    finally:
        answers.close()
    static = Path(__file__).parents[3] / "src" / "scmil" / "viz" / "viewer" / "static"
    for script in static.glob("*.js"):
        if "openseadragon" not in script.name:
            assert not any(
                word in script.read_text()
                for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(")
            )
