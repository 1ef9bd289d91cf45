"""Commands of scmil in forked processes, and fresh runs on copies of their inputs."""

from __future__ import annotations

import contextlib
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
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
from browser import Browser, look
from command_results import RESULTS_OF, Results
from tiny import register_encoder

SECONDS = 60  # limit for a command, which takes about one
SHORT = 300  # bytes; a longer result is represented by its hash


@dataclass(frozen=True)
class Command:
    """A command: its arguments, and the files and folders that it reads, relative to the home."""

    verb: str
    words: tuple[str, ...]
    inputs: tuple[str, ...]
    fresh_words: tuple[str, ...] = ()  # the arguments of a fresh run, if they differ
    left_out: tuple[str, ...] = ()  # names below the inputs that are not copied
    browser: bool = field(default=False)

    def __str__(self) -> str:
        return " ".join(self.words)


@dataclass(frozen=True)
class Ended:
    """The exit code, output and results of a command."""

    code: int
    out: str
    err: str
    results: Results
    hung: bool = False


def prepare() -> None:
    """Import everything once for the processes forked from this one, and reduce some defaults."""
    import torch

    import scmil.studies.model_metrics
    import scmil.viz.heatmaps.slide_files

    torch.set_num_threads(1)  # a thread pool does not survive a fork
    with contextlib.suppress(ImportError):
        from threadpoolctl import threadpool_limits

        threadpool_limits(1)
    scmil.studies.model_metrics.DRAWS, scmil.viz.heatmaps.slide_files.PANEL_PX = 20, 120
    register_encoder()
    _warm_up()
    gc.collect()
    gc.freeze()


def _warm_up() -> None:
    """Run each command once in this process: most imports of scmil are inside functions."""
    from command_actions import warm_up_words
    from world import make_pool

    from scmil.cli import app

    with tempfile.TemporaryDirectory() as home:
        pool = make_pool(Path(home) / "pool", 0, slides=8)
        for words in warm_up_words(Path(home), pool):
            quiet = io.StringIO()
            with (
                contextlib.redirect_stdout(quiet),
                contextlib.redirect_stderr(quiet),
                contextlib.suppress(SystemExit),
            ):
                app(list(words), standalone_mode=False)
    with contextlib.suppress(ImportError):
        import uvicorn.protocols.http.h11_impl  # noqa: F401


def run(
    command: Command, home: Path, memory: Path | None = None, port: int = 0, fresh: bool = False
) -> Ended:
    """Run a command in its own process, with `HOME` replaced, and collect its results."""
    words = command.fresh_words if fresh and command.fresh_words else command.words
    placed = [word.replace("HOME", str(home)).replace("PORT", str(port)) for word in words]
    with tempfile.TemporaryDirectory(dir=home.parent) as place:
        streams = [Path(place) / name for name in ("out", "err", "seen")]
        child = os.fork()
        if child == 0:
            _child(placed, streams, memory)
        hung = not _wait_for(child)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out, err = (
            path.read_text(errors="replace") if path.is_file() else "" for path in streams[:2]
        )
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


def _wait_for(child: int) -> bool:
    """Whether a process ends in time; otherwise it is killed. The caller collects its status."""
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
            _replace_serve(streams[2], memory)
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


def _replace_serve(seen: Path, memory: Path | None) -> None:
    """Let `scmil view` stop as soon as a browser has requested its pages."""
    import scmil.viz.viewer

    def serve(library: Any, port: int = 0, *_: Any, **__: Any) -> None:
        server = scmil.viz.viewer.Server(library, port)
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

    scmil.viz.viewer.serve = serve


def _shortened(content: bytes) -> bytes:
    return (
        content
        if len(content) <= SHORT
        else b"sha256 " + hashlib.sha256(content).hexdigest().encode()
    )


class Fresh:
    """Commands on copies of their inputs in an empty folder, once for each state of the inputs."""

    MOST = 20_000

    def __init__(self, home: Path) -> None:
        self.home, self.known = home, dict[str, Ended]()

    def of(self, command: Command, home: Path) -> Ended:
        """The outcome of the command on a copy of its present inputs in an empty folder."""
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
    """The digest of the names and contents below a folder, without hidden files (locks)."""
    found = hashlib.sha256()
    for file in [path] if path.is_file() else visible(path):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        found.update(f"{file.relative_to(path)} {content}\n".encode())
    return found.hexdigest()


def visible(folder: Path) -> list[Path]:
    """All files below a folder that are not hidden."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return [
        path
        for path in paths
        if not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]


def copy_tree(source: Path, target: Path, left_out: tuple[str, ...] = ()) -> None:
    """Copy a file or folder without hidden and `left_out` names; times are not copied."""
    if source.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    elif source.is_dir():
        ignored = shutil.ignore_patterns(".*", *left_out)
        shutil.copytree(
            source, target, copy_function=shutil.copyfile, ignore=ignored, dirs_exist_ok=True
        )


def noise_like(values: Any, seed: int) -> Any:
    """Random numbers of the same shape and type."""
    return np.random.default_rng(seed).normal(0, 1, values.shape).astype(values.dtype)
