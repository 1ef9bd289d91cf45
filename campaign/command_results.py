"""The numbers and pictures that each command leaves, without times and paths."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from timeless import timeless

if TYPE_CHECKING:
    from commands import Command

Results = dict[str, bytes]


def _option(command: Command, home: Path, name: str) -> Path:
    word = command.words[command.words.index(name) + 1]
    return Path(word.replace("HOME", str(home)))


def _place(command: Command, home: Path, number: int) -> Path:
    return Path(command.words[number].replace("HOME", str(home)))


def arrays_of(path: Path) -> bytes:
    """The arrays of an HDF5 file, without its attributes."""
    import h5py

    found = []
    with h5py.File(path, "r") as file:
        for name in sorted(file):
            values = file[name][()]
            found.append(f"{name} {values.dtype} {values.shape} ".encode() + values.tobytes())
    return b"\n".join(found)


def pixels_of(path: Path) -> bytes:
    """The pixels of a picture."""
    from PIL import Image

    with Image.open(path) as picture:
        return f"{picture.size} {picture.mode} ".encode() + picture.tobytes()


def _page(out: str) -> dict[str, Any]:
    """The JSON that a command printed, or an empty dictionary."""
    try:
        return dict(json.loads(out))
    except ValueError:
        return {}


def tiled(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The tiles of each completed slide."""
    stage, work = _page(out).get("tile", {}), _option(command, home, "--out")
    ids = [*stage.get("done", ()), *stage.get("kept", ())]
    return {f"{slide_id}: tiles": arrays_of(work / "tiles" / f"{slide_id}.h5") for slide_id in ids}


def encoded(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The features of each completed slide."""
    page = _page(out)
    stage = page.get("encode", {})
    work = Path(page["out"]) if page else None
    return (
        {f"{slide_id}: bag": arrays_of(bag_of(work, command, slide_id)) for slide_id in done(stage)}
        if work
        else {}
    )


def done(stage: dict[str, Any]) -> list[str]:
    """The slides that a stage has completed, now or before."""
    return [*stage.get("done", ()), *stage.get("kept", ())]


def bag_of(work: Path, command: Command, slide_id: str) -> Path:
    """The path of the bag that a command wrote for a slide."""
    from scmil.encoding.cohort import bags_folder

    words = command.words
    name = words[words.index("--encoder") + 1]
    if "--random" in words:
        name += f", random weights of seed {words[words.index('--random') + 1]}"
    return bags_folder(work, name, 2 if "--two-scales" in words else 1) / f"{slide_id}.h5"


def trained(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The numbers and the weights of a model."""
    folder = _option(command, home, "--out")
    if code:
        return {}
    study = json.loads((folder / "study.json").read_text())
    recorded = {
        key: study[key]
        for key in ("classes", "threshold", "contract", "split", "best_epoch", "epochs")
    }
    names = ("predictions.csv", "metrics.json", "history.csv", "model.safetensors")
    return {"study.json": json.dumps(recorded, sort_keys=True).encode()} | {
        name: timeless(name, (folder / name).read_bytes()) for name in names
    }


def predicted(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The predictions, as printed and as in the table."""
    rows = _page(out).get("predictions", ())
    found = {
        f"{row['slide_id']}: printed": json.dumps(row, sort_keys=True).encode() for row in rows
    }
    if rows:
        with _option(command, home, "--out").open(newline="") as file:
            for row in csv.DictReader(file):
                found[f"{row['slide_id']}: in the table"] = json.dumps(row, sort_keys=True).encode()
    return found


def compared(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """Each row of the tables of an experiment, and the report if all its runs are complete."""
    folder = _option(command, home, "--out")
    if code:
        return {}
    found, cells = {}, set()
    for name in ("results.csv", "folds.csv"):
        text = timeless(name, (folder / name).read_bytes()).decode()
        for row in csv.DictReader(io.StringIO(text)):
            key = " ".join(
                row.get(part, "") for part in ("cell", "protocol", "repeat", "fold")
            ).rstrip()
            found[f"{name}: {key}"] = json.dumps(row, sort_keys=True).encode()
            cells.add(row["cell"])
    if len(cells) == (4 if command.verb == "compare" else 2):
        found["report.md"] = timeless("report.md", (folder / "report.md").read_bytes())
    return found


def drawn(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The pixels of each heatmap, and the tiles for QuPath."""
    page = _page(out)
    found = {}
    for slide_id in done(page):
        folder = Path(page["out"])
        found[f"{slide_id}: picture"] = pixels_of(folder / f"{slide_id}.png")
        found[f"{slide_id}: tiles for QuPath"] = (folder / f"{slide_id}.geojson").read_bytes()
    return found


def located(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The measures of localisation, and all detections."""
    folder = _option(command, home, "--out")
    if code:
        return {}
    page = {key: value for key, value in _page(out).items() if key not in ("out", *NOT_NUMBERS)}
    found = {"result": json.dumps(page, sort_keys=True).encode()}
    own = [folder / "froc.csv", *sorted((folder / "detections").glob("slide_*.csv"))]
    return found | {path.name: path.read_bytes() for path in own if path.is_file()}


def atlas(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The table of atoms and the pictures."""
    page = _page(out)
    if code or not page:
        return {}
    folder = Path(page["out"])
    found = {"atlas.csv": (folder / "atlas.csv").read_bytes()}
    for path in sorted((folder / "tiles").rglob("*.jpg"))[:40]:
        found[str(path.relative_to(folder))] = pixels_of(path)
    return found


def viewed(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """What a browser received from the viewer."""
    return {name: bytes.fromhex(content) for name, content in json.loads(seen or b"{}").items()}


def nothing(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """A command without numbers."""
    return {}


NOT_NUMBERS = (
    "versions",
    "annotations",
    "bags",
    "command",
    "inputs",
    "input",
    "digest",
    "fingerprint",
)
RESULTS_OF: dict[str, Callable[[Path, Command, int, str, bytes], Results]] = {
    "tile": tiled,
    "encode": encoded,
    "train": trained,
    "predict": predicted,
    "predict slides": predicted,
    "compare": compared,
    "run": compared,
    "heatmap": drawn,
    "locate": located,
    "atlas": atlas,
    "view": viewed,
    "paint": nothing,
}
