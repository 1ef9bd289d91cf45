"""Create the images of the documentation, each with the command that it shows.

    python docs/make_pictures.py --work runs/pictures

Generates and encodes 24 synthetic slides, trains a model with and one without sparse coding, and
runs the visualisation commands of `scmil`; takes 15 minutes on two cores. Existing files in the
work folder are reused. `--only heatmap.jpg` creates one image. Screenshots need Chromium.
"workflow.svg" is drawn by hand.
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
BROWSER = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
]


def main() -> None:
    """Create missing inputs, then the images."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/pictures"))
    parser.add_argument("--only", choices=PICTURES, action="append")
    options = parser.parse_args()
    prepare(options.work)
    for name in options.only or PICTURES:
        print(name, flush=True)
        PICTURES[name](options.work, IMAGES / name)


def scmil(*arguments: object) -> None:
    """Run a command; raise if it fails."""
    subprocess.run([SCMIL, *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def prepare(work: Path) -> None:
    """Create slides, bags and the two models."""
    if not (work / "slides" / "labels.csv").exists():
        scmil("paint", "--out", work / "slides", "--slides", 24, "--side", 3000, "--seed", 1)
    if not (work / "bags").exists():
        scmil("encode", work / "slides", "--out", work / "encoded", "--encoder", ENCODER)
        shutil.copytree(work / "encoded" / "bags" / ENCODER, work / "bags")
    for name, arguments in {"model_sc": ["--sc"], "model_plain": []}.items():
        if not (work / name / "study.json").exists():
            scmil(
                "train",
                work / "bags",
                work / "slides" / "labels.csv",
                *arguments,
                "--epochs",
                40,
                "--out",
                work / name,
            )


def find_slide(work: Path) -> str:
    """The slide in the images: the first tumour slide of the test split."""
    labels = {
        row["slide_id"]: row["label"]
        for row in csv.DictReader((work / "slides" / "labels.csv").open())
    }
    test_slides = json.loads((work / "model_sc" / "study.json").read_text())["split"]["test"]
    return next(slide for slide in sorted(test_slides) if labels[slide] == "tumour")


def heatmap(work: Path, picture: Path) -> None:
    """The heatmap sheet of one slide."""
    out, slide = work / "heatmap", find_slide(work)
    scmil(
        "heatmap",
        work / "model_sc",
        work / "bags",
        "--slides",
        work / "slides",
        "--only",
        slide,
        "--out",
        out,
    )
    shrink(out / f"{slide}.png", picture, 1100)


def froc(work: Path, picture: Path) -> None:
    """The FROC curve over all slides, including training slides: an example, not a result."""
    arguments = [
        "--annotations",
        work / "slides",
        "--split",
        "all",
        "--smooth-um",
        128,
        "--out",
        work / "locate",
    ]
    scmil("locate", work / "model_sc", work / "bags", *arguments)
    shutil.copy(work / "locate" / "froc.svg", picture)


def pca(work: Path, picture: Path) -> None:
    """Tiles in two principal components of both models."""
    arguments = [
        "--with",
        work / "model_sc",
        "--annotations",
        work / "slides",
        "--out",
        work / "pca.png",
    ]
    scmil("pca", work / "model_plain", work / "bags", *arguments)
    shrink(work / "pca.png", picture, 1000)


def atlas(work: Path, picture: Path) -> None:
    """The top of the page of the atlas."""
    scmil(
        "atlas",
        work / "model_sc",
        work / "bags",
        "--slides",
        work / "slides",
        "--out",
        work / "atlas",
    )
    take_screenshot(
        (work / "atlas" / "index.html").resolve().as_uri(), work / "atlas.png", (1400, 1300)
    )
    shrink(work / "atlas.png", picture, 1100)


def viewer(work: Path, picture: Path) -> None:
    """The viewer with two models side by side and a selected tile."""
    arguments = ["--bags", work / "bags", "--with", work / "model_plain", "--no-open"]
    command = [SCMIL, "view", work / "model_sc", work / "slides", *arguments]
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    try:
        if process.stdout is None:
            raise SystemExit("the viewer printed no address")
        address = next(line.strip() for line in process.stdout if line.startswith("http://"))

        def select_tile(page: Any) -> None:
            page.get_by_text(find_slide(work)).first.click()
            page.wait_for_timeout(3000)  # until the slide is drawn
            page.keyboard.press("n")  # the tile with the highest score
            page.wait_for_timeout(1500)

        take_screenshot(address, work / "viewer.png", (1400, 880), select_tile)
        shrink(work / "viewer.png", picture, 1280)
    finally:
        process.terminate()
        process.wait()


def take_screenshot(
    address: str,
    picture: Path,
    size: tuple[int, int],
    before: Callable[[Any], None] = lambda page: None,
) -> None:
    """Save a screenshot of a page."""
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
    """Save an image as JPEG with this width."""
    from PIL import Image

    with Image.open(source) as image:
        height = round(image.height * width / image.width)
        image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS).save(
            picture, quality=85
        )


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "heatmap.jpg": heatmap,
    "froc.svg": froc,
    "pca.jpg": pca,
    "atlas.jpg": atlas,
    "viewer.jpg": viewer,
}

if __name__ == "__main__":
    main()
