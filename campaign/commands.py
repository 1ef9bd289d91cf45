"""Commands of scmil in forked processes, what each leaves as results, and the same on a copy of its inputs."""

from __future__ import annotations

import contextlib
import csv
import gc
import hashlib
import io
import json
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from browser import Browser, look
from timeless import timeless
from tiny import register_encoder

SECONDS = 60  # for a command that takes one
SHORT = 300  # bytes of a result that are kept as they are, to be shown; of longer ones the hash
MEASURED_ITEMS = ("report.md",)
Results = dict[str, bytes]


@dataclass(frozen=True)
class Command:
    """A command: its words, the files and folders that it reads, all below a home that both begin with, and its result."""

    verb: str
    words: tuple[str, ...]
    inputs: tuple[str, ...]
    fresh_words: tuple[str, ...] = ()  # if a fresh run is to be asked for something else
    left_out: tuple[str, ...] = ()  # names below the inputs that are made of them, and not copied
    browser: bool = field(default=False)

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Ended:
    """How a command has ended, what it said, and its results."""

    code: int
    out: str
    err: str
    results: Results
    hung: bool = False


# ------------------------------------------------------------------------------------------------------------ running


def prepare() -> None:
    """Import all that the commands import, once, for the processes that are forked from this one; make some things small."""
    import torch

    import scmil.viz.heatmaps.slide_files
    import scmil.studies.model_metrics

    torch.set_num_threads(1)  # a thread pool would not survive the fork
    with contextlib.suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
    scmil.study.scores.DRAWS, scmil.heatmaps.maps.PANEL_PX = 20, 120
    register_encoder()
    _warm_up()
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """Each command once in this process: most imports of scmil are inside functions."""
    from actions import warm_up_words
    from world import make_pool

    from scmil.cli import app

    with tempfile.TemporaryDirectory() as home:
        pool = make_pool(Path(home) / "pool", 0, slides=8)
        for words in warm_up_words(Path(home), pool):
            quiet = io.StringIO()
            with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet), contextlib.suppress(SystemExit):
                app(list(words), standalone_mode=False)
    with contextlib.suppress(ImportError):
        import uvicorn.protocols.http.h11_impl  # noqa: F401


def run(command: Command, home: Path, memory: Path | None = None, port: int = 0, fresh: bool = False) -> Ended:
    """Run a command in a process of its own, with `HOME` in its words replaced; wait for it, and gather its results."""
    words = command.fresh_words if fresh and command.fresh_words else command.words
    placed = [word.replace("HOME", str(home)).replace("PORT", str(port)) for word in words]
    with tempfile.TemporaryDirectory(dir=home.parent) as place:
        streams = [Path(place) / name for name in ("out", "err", "seen")]
        child = os.fork()
        if child == 0:
            _child(placed, streams, memory)
        hung = not _waited(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = (path.read_text(errors="replace") if path.is_file() else "" for path in streams[:2])
        seen = streams[2].read_bytes() if streams[2].is_file() else b""
    results: Results = {}
    try:
        results = {
            name: _shortened(content.replace(str(home).encode(), b"HOME"))
            for name, content in RESULTS_OF[command.verb](home, command, code, out, seen).items()
        }
    except (OSError, ValueError, KeyError) as error:
        results = {"unreadable": repr(error).replace(str(home), "HOME").encode()}
    return Ended(code, out, err, results, hung)


def _waited(child: int) -> bool:
    """Whether a process has ended in time; it is killed if not. It is left to be collected."""
    end, pause = time.monotonic() + SECONDS, 0.002
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            return False
        time.sleep(pause)
        pause = min(pause * 1.3, 0.02)
    return True


def _child(words: list[str], streams: list[Path], memory: Path | None) -> None:
    code = 70
    try:
        for number, path in ((1, streams[0]), (2, streams[1])):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["scmil", *words]
        if words[0] == "view":
            _look_instead_of_serving(streams[2], memory)
        from scmil.cli import main

        main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _look_instead_of_serving(seen: Path, memory: Path | None) -> None:
    """Let `scmil view` serve until a browser has looked at it."""
    import scmil.viz.viewer

    def serve(library: Any, port: int = 0, *_: Any, **__: Any) -> None:
        server = scmil.viewer.Server(library, port)
        thread = Thread(target=server.run, daemon=True)
        thread.start()
        browser = Browser(memory)
        try:
            shown = look(server.address, browser)
        finally:
            browser.close()
            server.stop()
        seen.write_text(json.dumps({name: content.hex() for name, content in shown.items()}))
        thread.join(5)

    scmil.viewer.serve = serve


def _shortened(content: bytes) -> bytes:
    return content if len(content) <= SHORT else b"sha256 " + hashlib.sha256(content).hexdigest().encode()


# -------------------------------------------------------------------------------------------------------------- fresh


class Fresh:
    """Commands on copies of their inputs in an empty folder; each state of the inputs is asked for once."""

    MOST = 20_000

    def __init__(self, home: Path) -> None:
        self.home, self.known = home, dict[str, Ended]()

    def of(self, command: Command, home: Path) -> Ended:
        """How the command ends on the inputs as they are below `home` now, if nothing was ever done before."""
        key = hashlib.sha256(
            repr((command, [tree_digest(home / name) for name in command.inputs])).encode()
        ).hexdigest()
        if key not in self.known:
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir(parents=True)
            for name in command.inputs:
                copy_tree(home / name, self.home / name, command.left_out)
            if len(self.known) >= self.MOST:
                self.known.clear()
            self.known[key] = run(command, self.home, fresh=True)
        return self.known[key]


def tree_digest(path: Path) -> str:
    """Of all files below a folder by their names and contents; hidden ones are locks."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else visible(path):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        found.update(f"{file.relative_to(path)} {content}\n".encode())
    return found.hexdigest()


def visible(folder: Path) -> list[Path]:
    """All files below a folder with names that are not hidden."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def copy_tree(source: Path, target: Path, left_out: tuple[str, ...] = ()) -> None:
    """A copy without hidden files and without what is named, with times of its own."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    elif source.is_dir():
        ignored = shutil.ignore_patterns(".*", *left_out)
        shutil.copytree(source, target, copy_function=shutil.copyfile, ignore=ignored, dirs_exist_ok=True)


# ------------------------------------------------------------------------------------------------------------ results


def _option(command: Command, home: Path, name: str) -> Path:
    word = command.words[command.words.index(name) + 1]
    return Path(word.replace("HOME", str(home)))


def _place(command: Command, home: Path, number: int) -> Path:
    return Path(command.words[number].replace("HOME", str(home)))


def arrays_of(path: Path) -> bytes:
    """The numbers in an HDF5 file: not where and when it was made."""
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
    """The JSON that a command has printed; nothing if it has printed none."""
    try:
        return dict(json.loads(out))
    except ValueError:
        return {}


def tiled(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The tiles of each slide that is done."""
    stage, work = _page(out).get("tile", {}), _option(command, home, "--out")
    ids = [*stage.get("done", ()), *stage.get("kept", ())]
    return {f"{id}: tiles": arrays_of(work / "tiles" / f"{id}.h5") for id in ids}


def encoded(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The features of each slide that is done."""
    page = _page(out)
    stage = page.get("encode", {})
    work = Path(page["out"]) if page else None
    return {f"{id}: bag": arrays_of(bag_of(work, command, id)) for id in done(stage)} if work else {}


def done(stage: dict[str, Any]) -> list[str]:
    """The slides that a stage has finished, now or before."""
    return [*stage.get("done", ()), *stage.get("kept", ())]


def bag_of(work: Path, command: Command, id: str) -> Path:
    """Where a command has written the bag of a slide."""
    from scmil.encoding.cohort import bags_folder

    words = command.words
    name = words[words.index("--encoder") + 1]
    if "--random" in words:
        name += f", random weights of seed {words[words.index('--random') + 1]}"
    return bags_folder(work, name, 2 if "--two-scales" in words else 1) / f"{id}.h5"


def trained(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The numbers and the weights of a model."""
    folder = _option(command, home, "--out")
    if code:
        return {}
    study = json.loads((folder / "study.json").read_text())
    told = {key: study[key] for key in ("classes", "threshold", "contract", "split", "best_epoch", "epochs")}
    names = ("predictions.csv", "metrics.json", "history.csv", "model.safetensors")
    return {"study.json": json.dumps(told, sort_keys=True).encode()} | {
        name: timeless(name, (folder / name).read_bytes()) for name in names
    }


def predicted(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The predictions, as printed and as in the table."""
    rows = _page(out).get("predictions", ())
    found = {f"{row['slide_id']}: printed": json.dumps(row, sort_keys=True).encode() for row in rows}
    if rows:
        with _option(command, home, "--out").open(newline="") as file:
            for row in csv.DictReader(file):
                found[f"{row['slide_id']}: in the table"] = json.dumps(row, sort_keys=True).encode()
    return found


def compared(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """Each row of the tables of a run; the report if all cells are there."""
    folder = _option(command, home, "--out")
    if code:
        return {}
    found, cells = {}, set()
    for name in ("results.csv", "folds.csv"):
        text = timeless(name, (folder / name).read_bytes()).decode()
        for row in csv.DictReader(io.StringIO(text)):
            key = " ".join(row.get(part, "") for part in ("cell", "protocol", "repeat", "fold")).rstrip()
            found[f"{name}: {key}"] = json.dumps(row, sort_keys=True).encode()
            cells.add(row["cell"])
    if len(cells) == (4 if command.verb == "compare" else 2):
        found["report.md"] = timeless("report.md", (folder / "report.md").read_bytes())
    return found


def drawn(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """The pixels of each heatmap, and the tiles for QuPath."""
    page = _page(out)
    found = {}
    for id in done(page):
        folder = Path(page["out"])
        found[f"{id}: picture"] = pixels_of(folder / f"{id}.png")
        found[f"{id}: tiles for QuPath"] = (folder / f"{id}.geojson").read_bytes()
    return found


def located(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """What is known of the lesions, and all detections."""
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
    """What a browser has been shown."""
    return {name: bytes.fromhex(content) for name, content in json.loads(seen or b"{}").items()}


def nothing(home: Path, command: Command, code: int, out: str, seen: bytes) -> Results:
    """No numbers."""
    return {}


NOT_NUMBERS = ("versions", "annotations", "bags", "command", "inputs", "input", "digest", "fingerprint")
RESULTS_OF: dict[str, Callable[[Path, Command, int, str, bytes], Results]] = {
    "tile": tiled, "encode": encoded, "train": trained, "predict": predicted, "predict slides": predicted,
    "compare": compared, "run": compared, "heatmap": drawn, "locate": located, "atlas": atlas, "view": viewed,
    "paint": nothing,
}  # fmt: skip


def noise_like(values: Any, seed: int) -> Any:
    """Random numbers of the same shape and kind."""
    return np.random.default_rng(seed).normal(0, 1, values.shape).astype(values.dtype)
