"""The pictures of the documentation, each by the command that it shows.   python docs/make_pictures.py --work runs/pictures

It paints 24 slides, encodes them, trains a model with and one without sparse coding, and looks at them with the verbs of
`scmil`: a quarter of an hour on two cores. What the work folder has already is used again. `--only heatmap.jpg` makes one.
The pictures of pages need chromium. "workflow.svg" is drawn by hand: the file is its own source.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

IMAGES = Path(__file__).parent / "img"
SCMIL = Path(sys.executable).with_name("scmil")
ENCODER = "efficientnet-lite0"
BROWSER = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]


def main() -> None:
    """Prepare what is missing, then make the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/pictures"))
    parser.add_argument("--only", choices=PICTURES, action="append")
    given = parser.parse_args()
    prepare(given.work)
    for name in given.only or PICTURES:
        print(name, flush=True)
        PICTURES[name](given.work, IMAGES / name)


def scmil(*words: object) -> None:
    """Run a verb; a failure ends all."""
    subprocess.run([SCMIL, *map(str, words)], check=True, stdout=subprocess.DEVNULL)


def prepare(work: Path) -> None:
    """Slides, bags and the two models."""
    if not (work / "slides" / "labels.csv").exists():
        scmil("paint", "--out", work / "slides", "--slides", 24, "--side", 3000, "--seed", 1)
    if not (work / "bags").exists():
        scmil("encode", work / "slides", "--out", work / "encoded", "--encoder", ENCODER)
        shutil.copytree(work / "encoded" / "bags" / ENCODER, work / "bags")
    for name, words in {"model_sc": ["--sc"], "model_plain": []}.items():
        if not (work / name / "study.json").exists():
            scmil("train", work / "bags", work / "slides" / "labels.csv", *words, "--epochs", 40, "--out", work / name)


def shown(work: Path) -> str:
    """The slide of the pictures: the first with a tumour that the models have not seen."""
    labels = {row["slide_id"]: row["label"] for row in csv.DictReader((work / "slides" / "labels.csv").open())}
    unseen = json.loads((work / "model_sc" / "study.json").read_text())["split"]["test"]
    return next(slide for slide in sorted(unseen) if labels[slide] == "tumour")


def heatmap(work: Path, picture: Path) -> None:
    """The sheet of one slide."""
    out, slide = work / "heatmap", shown(work)
    scmil("heatmap", work / "model_sc", work / "bags", "--slides", work / "slides", "--only", slide, "--out", out)
    shrink(out / f"{slide}.png", picture, 1100)


def froc(work: Path, picture: Path) -> None:
    """The curve over all slides: how it looks, not how good a model is."""
    words = ["--annotations", work / "slides", "--part", "all", "--smooth-um", 128, "--out", work / "locate"]
    scmil("locate", work / "model_sc", work / "bags", *words)
    shutil.copy(work / "locate" / "froc.svg", picture)


def pca(work: Path, picture: Path) -> None:
    """Tiles as both models see them."""
    words = ["--with", work / "model_sc", "--annotations", work / "slides", "--out", work / "pca.png"]
    scmil("pca", work / "model_plain", work / "bags", *words)
    shrink(work / "pca.png", picture, 1000)


def atlas(work: Path, picture: Path) -> None:
    """The top of the atlas's page."""
    scmil("atlas", work / "model_sc", work / "bags", "--slides", work / "slides", "--out", work / "atlas")
    photograph((work / "atlas" / "index.html").resolve().as_uri(), work / "atlas.png", (1400, 1300))
    shrink(work / "atlas.png", picture, 1100)


def viewer(work: Path, picture: Path) -> None:
    """Two models side by side, with a tile chosen."""
    words = ["--bags", work / "bags", "--with", work / "model_plain", "--no-open"]
    command = [SCMIL, "view", work / "model_sc", work / "slides", *words]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise SystemExit("the viewer says nothing")
        address = next(line.strip() for line in process.stdout if line.startswith("http://"))

        def choose(page: Any) -> None:
            page.get_by_text(shown(work)).first.click()
            page.wait_for_timeout(3000)  # until the slide is drawn
            page.keyboard.press("n")  # the tile with the highest score
            page.wait_for_timeout(1500)

        photograph(address, work / "viewer.png", (1400, 880), choose)
        shrink(work / "viewer.png", picture, 1280)
    finally:
        process.terminate()
        process.wait()


def photograph(
    address: str, picture: Path, size: tuple[int, int], before: Callable[[Any], None] = lambda page: None
) -> None:
    """A page as the browser shows it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, args=BROWSER)
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.goto(address)
        before(page)
        page.screenshot(path=picture)
        browser.close()


def shrink(source: Path, picture: Path, width: int) -> None:
    """The same as JPEG, as wide as a page wants it."""
    from PIL import Image

    with Image.open(source) as image:
        height = round(image.height * width / image.width)
        image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS).save(picture, quality=85)


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "heatmap.jpg": heatmap,
    "froc.svg": froc,
    "pca.jpg": pca,
    "atlas.jpg": atlas,
    "viewer.jpg": viewer,
}

if __name__ == "__main__":
    main()
