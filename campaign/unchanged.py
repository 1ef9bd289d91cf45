"""Are the outputs the same bytes as those of an earlier revision?

    python campaign/unchanged.py --against REVISION

A small study is run twice with the same commands in the same folder: by the source of the given
revision of the repository and by the source beside this script. Synthetic slides are encoded; a
model is trained; an experiment and a comparison are run; tiles are scored; heatmaps, lesions, an
atlas, a principal component plot and predictions are made. Each file is then compared with its
counterpart apart from times, durations and versions.

Files of numbers and pictures have to be equal. Pages (HTML, Markdown, LaTeX) are counted
separately, because their wording may be changed on purpose; with `--pages` a different page is a
failure, too. In the other files, what people read is left out: warnings and sentences in JSON and
CSV, the text of SVG files, and the captions of heatmaps, of which the map itself is compared. So
are the values in CHANGED, which are computed in another way on purpose. The result, with a SHA-256
of each file of the present source, is `results/unchanged.json`.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from kill_checks import content_of
from kill_commands import PLAN
from shared import RESULTS, say, write_result
from timeless import timeless

ROOT = Path(__file__).parents[1]
PAGES = (".html", ".md", ".tex", ".css", ".js")
# Versions, and the nanoseconds since 1970 of a file.
CHANGING = re.compile(
    rb'"versions": \{[^{}]*\}|scmil \d+\.\d+\.\d+|"scmil": "\d+\.\d+\.\d+"|\b1[0-9]{18}\b'
)
SLIDES, SIDE_PX = 8, 1200
WORDS = {"warnings", "sentence", "notes", "columns"}
# Intervals of small samples, and the step of each epoch.
CHANGED = {"low", "high", "accuracy_low", "accuracy_high", "intervals", "step"}
SVG_TEXT = re.compile(rb"(?s)<(text|title|desc)\b[^>]*>.*?</\1>|aria-label=\"[^\"]*\"")


def commands(home: Path) -> list[list[str]]:
    """The commands of the study, in order; all paths are below `home`."""
    slides, work, out = home / "slides", home / "work", home / "out"
    labels, bags, model = (
        slides / "labels.csv",
        work / "bags" / "resnet18, random weights of seed 0",
        out / "model",
    )
    (home / "plan.toml").write_text(PLAN.format(bags=bags, labels=labels))
    parts = ["--valid", "0.25", "--test", "0.25"]
    common = ["--epochs", "3", "--jobs", "1"]
    compare = ["compare", bags, labels, "--aggregator", "mean,abmil"]
    return [[str(word) for word in words] for words in (
        ["paint", "--out", slides, "--slides", SLIDES, "--side", SIDE_PX, "--seed", "0"],
        ["encode", slides, "--out", work, "--encoder", "resnet18", "--random", "0"],
        ["train", bags, labels, "--out", model, "--sc", "--epochs", "4", *parts],
        ["run", home / "plan.toml", "--out", out / "run", "--jobs", "1"],
        [*compare, "--folds", "2", "--repeats", "1", *common, "--out", out / "compared"],
        ["heatmap", model, bags, "--slides", slides],
        ["locate", model, bags, "--annotations", slides, "--part", "all", "--out", out / "located"],
        ["atlas", model, bags, "--slides", slides],
        ["pca", model, bags, "--annotations", slides, "--out", out / "pca.png"],
        ["predict", model, bags, "--out", out / "predictions.csv"],
        ["export", bags, "--to", "trident", "--out", out / "exported"],
    )]  # fmt: skip


def study(source: Path, home: Path) -> dict[str, bytes]:
    """The output files of the commands of a source tree, without what differs between runs."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    for words in commands(home):
        start = time.monotonic()
        program = [sys.executable, "-c", "from scmil.cli import main; main()", *words]
        ended = subprocess.run(program, env=environment, capture_output=True, text=True)
        say(f"  {words[0]}: exit {ended.returncode}, {time.monotonic() - start:.0f} s")
        if ended.returncode:
            raise SystemExit(f"scmil {' '.join(words)}\n{ended.stdout}{ended.stderr}")
    return {
        name: CHANGING.sub(b"", timeless(name, without_words(name, content)))
        for name, content in content_of(home).items()
    }


def without_words(name: str, content: bytes) -> bytes:
    """The content of a file without what people read in it, and without the values in CHANGED."""
    suffix = Path(name).suffix
    if suffix == ".json":
        return json.dumps(_without_keys(json.loads(content))).encode()
    if suffix == ".csv":
        rows = list(csv.reader(io.StringIO(content.decode())))
        columns = [i for i, head in enumerate(rows[0]) if head not in WORDS | CHANGED]
        text = io.StringIO()
        csv.writer(text).writerows([row[i] for i in columns] for row in rows)
        return text.getvalue().encode()
    if suffix == ".svg":
        return SVG_TEXT.sub(b"", content)
    return _map_of_sheet(content) if suffix == ".png" and "/maps/" in name else content


def _without_keys(value: Any) -> Any:
    if isinstance(value, dict):
        unread = WORDS | CHANGED
        return {key: _without_keys(item) for key, item in value.items() if key not in unread}
    return [_without_keys(item) for item in value] if isinstance(value, list) else value


def _map_of_sheet(content: bytes) -> bytes:
    """A heatmap without title, legend and texts: its sheet says where the map is."""
    from PIL import Image

    with Image.open(io.BytesIO(content)) as sheet:
        described = [text for text in sheet.info.values() if '"panel"' in str(text)]
        panel = sheet.crop(json.loads(described[0])["panel"]) if described else sheet.copy()
    drawn = io.BytesIO()
    panel.save(drawn, "PNG")
    return drawn.getvalue()


def main() -> int:
    """Run the study with both sources, and return 1 if a file differs."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--against", required=True, metavar="REVISION")
    options.add_argument("--pages", action="store_true")
    options.add_argument("--out", type=Path, default=RESULTS / "unchanged.json")
    arguments = options.parse_args()
    revision = _git("rev-parse", arguments.against)
    with tempfile.TemporaryDirectory(prefix="unchanged") as folder:
        earlier = Path(folder) / "earlier"
        _git("worktree", "add", "--detach", str(earlier), revision)
        try:
            found = {}
            for name, source in {"earlier": earlier / "src", "present": ROOT / "src"}.items():
                say(f"{name} source")
                found[name] = study(source, Path(folder) / "study")
        finally:
            _git("worktree", "remove", "--force", str(earlier))
    before, after = found["earlier"], found["present"]
    different = sorted(
        name for name in before.keys() | after.keys() if before.get(name) != after.get(name)
    )
    pages = [name for name in different if Path(name).suffix in PAGES or name.endswith("pca.png")]
    wrong = [name for name in different if name not in pages]
    say(f"{len(after)} files, {len(wrong)} differ; {len(pages)} pages differ")
    for name in different:
        say(f"  {name}")
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(after.items())}
    page = {
        "against": revision,
        "files": len(digests),
        "different": wrong,
        "different_pages": pages,
    }
    write_result(arguments.out, page | {"sha256": digests})
    return 1 if wrong or (arguments.pages and pages) else 0


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
