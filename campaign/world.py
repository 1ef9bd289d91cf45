"""The folder of a sequence: its slides, labels and results, and the findings."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import tiny
from commands import Command, Ended, Fresh, run
from shared import say

SLIDES = 8  # in a folder
FOLDERS = ("A", "B")  # different patients, same slide names
CLASSES = ("normal", "tumour")
PLAN = """title = "tiny"
[data]
dataset = "{home}/{bags}"
name = "tiny"
labels = "{home}/{labels}"
[protocol]
folds = 2
[training]
epochs = {epochs}
[grid]
"model.aggregator" = ["mean", "abmil"]
"""


@dataclass(frozen=True)
class Finding:
    """A kind of problem, the command, a description, and the length of the log at that time."""

    kind: str
    verb: str
    what: str
    after: int

    def as_page(self) -> dict[str, Any]:
        """The finding as JSON."""
        return {"kind": self.kind, "verb": self.verb, "what": self.what}


def make_pool(folder: Path, seed: int, slides: int = 3 * SLIDES) -> Path:
    """Write slides and annotations to fill folders with; every second slide has a tumour."""
    folder.mkdir(parents=True)
    for number in range(slides):
        content, outline = tiny.slide(1000 * seed + number, tumour=bool(number % 2))
        (folder / f"{number:02}.svs").write_bytes(content)
        (folder / f"{number:02}.geojson").write_bytes(outline)
    return folder


def fill(folder: Path, pool: Path, first: int) -> None:
    """Fill a folder with slides, annotations and labels."""
    folder.mkdir(parents=True)
    rows = [("case_id", "slide_id", "label")]
    for number in range(SLIDES):
        name, source = f"slide_{number + 1:03}", f"{first + number:02}"
        (folder / f"{name}.svs").write_bytes(tiny.pad_slide((pool / f"{source}.svs").read_bytes()))
        shutil.copyfile(pool / f"{source}.geojson", folder / f"{name}.geojson")
        rows.append((f"patient_{number + 1}", name, CLASSES[(first + number) % 2]))
    write_rows(folder / "labels.csv", rows)


def read_rows(path: Path) -> list[list[str]]:
    """A table with its header."""
    return list(csv.reader(io.StringIO(path.read_text())))


def write_rows(path: Path, rows: Any) -> None:
    """Write a table."""
    csv.writer(text := io.StringIO(), lineterminator="\n").writerows(rows)
    path.write_text(text.getvalue())


class World:
    """One sequence: its folder, the last command of each kind, and the findings."""

    def __init__(self, home: Path, pool: Path, fresh: Fresh, seed: int, loud: bool = False) -> None:
        self.home, self.pool, self.fresh, self.loud = home, pool, fresh, loud
        self.findings: list[Finding] = []
        self.log: list[str] = []
        self.outcomes: dict[str, Counter[str]] = {}
        self.last: dict[tuple[str, str], Command] = {}
        # Bags that the user wrote: the digests of the bag and of its slide.
        self.edited: dict[Path, tuple[str, str]] = {}
        self.own: dict[Path, bytes] = {}
        self.plan: tuple[str, str, int] | None = None  # bags, labels and epochs of the experiment
        self.commands, self.port = 0, free_port()
        for place, name in enumerate(FOLDERS):
            fill(home / name, pool, SLIDES * place)

    def act(self, name: str, action: Callable[[World, Random], str | None], random: Random) -> None:
        """Run one action and log what it returns."""
        if description := action(self, random):
            self.note(f"{name}: {description}")

    def note(self, words: str) -> None:
        """Add a line to the log."""
        self.log.append(words)
        if self.loud:
            say(words)

    # ------------------------------------------------------------------------------------- commands

    def command(self, command: Command, remember: bool = True) -> Ended:
        """Run a command and compare its results with those of a fresh run."""
        before = self.user_files()
        memory = self.home / ".browser.json"
        ended = run(command, self.home, memory, self.port)
        self.commands += 1
        self.note(
            f"scmil {command}  [exit {ended.code}]"
            + (f" {ended.err.strip()[-160:]!r}" if ended.code else "")
        )
        outcome = self._judge(command, ended, before)
        self.outcomes.setdefault(command.verb, Counter())[outcome] += 1
        if remember and (not ended.code or (command.verb, _output(command)) not in self.last):
            self.last[command.verb, _output(command)] = command
        return ended

    def ask_again(self) -> None:
        """Repeat the last command of each kind for each output."""
        for command in list(self.last.values()):
            if command.verb != "paint" and all(
                (self.home / name).exists() for name in command.inputs
            ):
                self.command(command, remember=False)

    def _judge(self, command: Command, ended: Ended, before: dict[str, str]) -> str:
        count = len(self.findings)
        self._check_end(command, ended)
        after = self.user_files()
        if changed := [name for name in before if after.get(name) != before[name]]:
            self._found(
                "overwrote", command, f"{', '.join(changed[:3])} of the user was changed or deleted"
            )
        expected = self.fresh.of(command, self.home)
        self._check_results(command, ended, expected)
        if not ended.code:
            self._check_success(command, ended, expected)
        if len(self.findings) > count:
            return "found"
        return "rejected" if ended.code else "equal"

    def _check_end(self, command: Command, ended: Ended) -> None:
        """A command may not hang, show a traceback, or fail without a message."""
        if ended.hung:
            self._found("hang", command, "it took longer than a minute")
        elif "Traceback (most recent call last)" in ended.err or ended.code < 0 or ended.code == 70:
            lines = ended.err.strip().splitlines()
            self._found("traceback", command, lines[-1] if lines else "a signal")
        elif ended.code and not (ended.err + ended.out).strip():
            self._found("silent", command, f"exit code {ended.code} without a message")

    def _check_results(self, command: Command, ended: Ended, expected: Ended) -> None:
        """Every result is that of a fresh run."""
        excused = self._excused(command)
        stale = dict[str, str]()  # the first of each kind
        for name, content in ended.results.items():
            if content == expected.results.get(name) or name in excused or not expected.results:
                continue
            other = _shown(expected.results[name]) if name in expected.results else "none"
            stale.setdefault(
                _kind_of_result(command, name),
                f"{name}: {_shown(content)}, and a fresh run has {other}",
            )
        for kind, what in stale.items():
            self._found(f"stale{kind}", command, what)

    def _check_success(self, command: Command, ended: Ended, expected: Ended) -> None:
        """A command that succeeds has all results of a fresh run, which succeeds, too."""
        if expected.code:
            message = (expected.err + expected.out).strip()[-300:]
            self._found("accepted", command, f"a fresh run is rejected: {message}")
        elif absent := [
            name
            for name in expected.results
            if name not in ended.results and not _optional(command, name)
        ]:
            self._found("missing", command, f"{', '.join(absent[:3])}, which a fresh run gives")

    def _found(self, kind: str, command: Command, what: str) -> None:
        self.findings.append(
            Finding(
                kind,
                command.verb,
                what.replace(str(self.home), "HOME").replace(str(self.fresh.home), "FRESH"),
                len(self.log),
            )
        )
        self.note(f"!! {kind}: {what}")

    def _excused(self, command: Command) -> set[str]:
        """Bags that the user wrote for the same slides, which encode may keep."""
        from command_results import bag_of

        if command.verb != "encode":
            return set()
        folder = self.home / command.inputs[0]
        work = (
            Path(command.fresh_words[command.fresh_words.index("--out") + 1])
            if command.fresh_words
            else None
        )
        work = work or Path(command.words[command.words.index("--out") + 1])
        found = set()
        for path in folder.glob("*.svs"):
            bag = bag_of(Path(str(work).replace("HOME", str(self.home))), command, path.stem)
            if bag.is_file() and self.edited.get(bag) == (digest(bag), digest(path)):
                found.add(f"{path.stem}: bag")
        return found

    # ---------------------------------------------------------------------------------------- files

    def user_files(self) -> dict[str, str]:
        """The digests of all files that were not written by scmil."""
        paths = [path for name in FOLDERS for path in sorted((self.home / name).glob("*"))] + list(
            self.own
        )
        paths += [self.home / "plan.toml"]
        return {str(path.relative_to(self.home)): digest(path) for path in paths if path.is_file()}

    def bag_folders(self) -> list[str]:
        """The folders of bags, relative to the home folder."""
        found = {path.parent for path in self.home.glob("work*/bags/*/*.h5")}
        return sorted(str(path.relative_to(self.home)) for path in found)

    def models(self, sparse: bool = False) -> list[str]:
        """Finished models."""
        found = sorted(path.parent for path in self.home.glob("model*/study.json"))
        if sparse:
            pages = {path: json.loads((path / "study.json").read_text()) for path in found}
            found = [path for path in found if pages[path]["settings"]["model"]["sparse_coding"]]
        return [path.name for path in found]

    def slide_of(self, bag: Path) -> Path | None:
        """The slide of a bag, from the table of its work folder."""
        table = bag.parents[2] / "slides.csv"
        if not table.is_file():
            return None
        with table.open(newline="") as file:
            paths = {row["slide"]: Path(row["path"]) for row in csv.DictReader(file)}
        return paths.get(bag.stem)


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def free_port() -> int:
    """A port that is not in use."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def replace_file(path: Path, content: bytes, keep_time: bool) -> None:
    """Replace the content of a file, with the old modification time if `keep_time`."""
    stat = path.stat()
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _output(command: Command) -> str:
    words = command.words
    return words[words.index("--out") + 1] if "--out" in words else words[1]


def _kind_of_result(command: Command, name: str) -> str:
    """Pictures and numbers of the viewer are separate kinds of findings."""
    return " picture" if command.verb == "view" and name.endswith((": tile", "level 8")) else ""


def _optional(command: Command, name: str) -> bool:
    """Whether a result of a fresh run may be absent: a partial run has no report, for example."""
    return command.verb == "run" and "--only" in command.words and bool(command.fresh_words)


def _shown(content: bytes) -> str:
    return content.decode(errors="replace")[:120]
