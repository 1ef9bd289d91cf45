"""A folder in which a user works: the slides, labels and results that are there, and what was found wrong with them."""

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

SLIDES = 8  # of a folder
FOLDERS = ("A", "B")  # slides of other patients under the same names
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
    """What is wrong, in which command, and after how many lines of the log."""

    kind: str
    verb: str
    what: str
    after: int

    def as_page(self) -> dict[str, Any]:
        """The same for JSON."""
        return {"kind": self.kind, "verb": self.verb, "what": self.what}


def make_pool(folder: Path, seed: int, slides: int = 3 * SLIDES) -> Path:
    """Slides and their outlines to fill folders with and to replace others by; every second one has a tumour."""
    folder.mkdir(parents=True)
    for number in range(slides):
        content, outline = tiny.slide(1000 * seed + number, tumour=bool(number % 2))
        (folder / f"{number:02}.svs").write_bytes(content)
        (folder / f"{number:02}.geojson").write_bytes(outline)
    return folder


def fill(folder: Path, pool: Path, first: int) -> None:
    """A folder of slides with outlines and labels."""
    folder.mkdir(parents=True)
    rows = [("case_id", "slide_id", "label")]
    for number in range(SLIDES):
        name, source = f"slide_{number + 1:03}", f"{first + number:02}"
        (folder / f"{name}.svs").write_bytes(tiny.filled_up((pool / f"{source}.svs").read_bytes()))
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
    """One sequence: the folder, what was asked for last, and the findings."""

    def __init__(self, home: Path, pool: Path, fresh: Fresh, seed: int, loud: bool = False) -> None:
        self.home, self.pool, self.fresh, self.loud = home, pool, fresh, loud
        self.findings: list[Finding] = []
        self.log: list[str] = []
        self.outcomes: dict[str, Counter[str]] = {}
        self.last: dict[tuple[str, str], Command] = {}
        self.edited: dict[
            Path, tuple[str, str]
        ] = {}  # bags of the user's own making: digests of the bag and of its slide
        self.own: dict[Path, bytes] = {}
        self.plan: tuple[str, str, int] | None = None  # bags, labels and epochs of the experiment
        self.commands, self.port = 0, free_port()
        for place, name in enumerate(FOLDERS):
            fill(home / name, pool, SLIDES * place)

    def act(self, name: str, action: Callable[[World, Random], str | None], random: Random) -> None:
        """Do one action; what it says is a line of the log."""
        said = action(self, random)
        if said:
            self.note(f"{name}: {said}")

    def note(self, words: str) -> None:
        """A line of the log."""
        self.log.append(words)
        if self.loud:
            say(words)

    # --------------------------------------------------------------------------------------------------------- commands

    def command(self, command: Command, remember: bool = True) -> Ended:
        """Run a command, and hold what it gives against a fresh run."""
        before = self.user_files()
        memory = self.home / ".browser.json"
        ended = run(command, self.home, memory, self.port)
        self.commands += 1
        self.note(f"scmil {command}  [exit {ended.code}]" + (f" {ended.err.strip()[-160:]!r}" if ended.code else ""))
        outcome = self._judge(command, ended, before)
        self.outcomes.setdefault(command.verb, Counter())[outcome] += 1
        if remember and (not ended.code or (command.verb, _output(command)) not in self.last):
            self.last[command.verb, _output(command)] = command
        return ended

    def ask_again(self) -> None:
        """The last command of each kind into each folder once more: all that is there must be of the data as they are."""
        for command in list(self.last.values()):
            if command.verb != "paint" and all((self.home / name).exists() for name in command.inputs):
                self.command(command, remember=False)

    def _judge(self, command: Command, ended: Ended, before: dict[str, str]) -> str:
        count = len(self.findings)
        if ended.hung:
            self._found("hang", command, "it took longer than a minute")
        elif "Traceback (most recent call last)" in ended.err or ended.code < 0 or ended.code == 70:
            self._found("traceback", command, ended.err.strip().splitlines()[-1] if ended.err.strip() else "a signal")
        elif ended.code and not (ended.err + ended.out).strip():
            self._found("silent", command, f"exit code {ended.code} without a message")
        after = self.user_files()
        if changed := [name for name in before if after.get(name) != before[name]]:
            self._found("overwrote", command, f"{', '.join(changed[:3])} of the user was changed or deleted")
        expected = self.fresh.of(command, self.home)
        excused = self._excused(command)
        stale = dict[str, str]()  # the first of each sort
        for name, content in ended.results.items():
            if content == expected.results.get(name) or name in excused or not expected.results:
                continue
            other = _shown(expected.results[name]) if name in expected.results else "none"
            stale.setdefault(_sort(command, name), f"{name}: {_shown(content)}, and a fresh run has {other}")
        for sort, what in stale.items():
            self._found(f"stale{sort}", command, what)
        if not ended.code:
            if expected.code:
                self._found(
                    "accepted", command, f"a fresh run is rejected: {(expected.err + expected.out).strip()[-300:]}"
                )
            elif absent := [
                name for name in expected.results if name not in ended.results and not _optional(command, name)
            ]:
                self._found("missing", command, f"{', '.join(absent[:3])}, which a fresh run gives")
        if len(self.findings) > count:
            return "found"
        return "rejected" if ended.code else "equal"

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
        """Bags that the user has put in place of those of the same slides: encode may keep them."""
        from commands import bag_of

        if command.verb != "encode":
            return set()
        folder = self.home / command.inputs[0]
        work = Path(command.fresh_words[command.fresh_words.index("--out") + 1]) if command.fresh_words else None
        work = work or Path(command.words[command.words.index("--out") + 1])
        found = set()
        for path in folder.glob("*.svs"):
            bag = bag_of(Path(str(work).replace("HOME", str(self.home))), command, path.stem)
            if bag.is_file() and self.edited.get(bag) == (digest(bag), digest(path)):
                found.add(f"{path.stem}: bag")
        return found

    # ------------------------------------------------------------------------------------------------------------ files

    def user_files(self) -> dict[str, str]:
        """All files that no command of scmil has made, by their digests."""
        paths = [path for name in FOLDERS for path in sorted((self.home / name).glob("*"))] + list(self.own)
        paths += [self.home / "plan.toml"]
        return {str(path.relative_to(self.home)): digest(path) for path in paths if path.is_file()}

    def bag_folders(self) -> list[str]:
        """Folders of bags, relative to the home."""
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
        """The file of the slide that a bag is of, by the table of its work folder."""
        table = bag.parents[2] / "slides.csv"
        if not table.is_file():
            return None
        with table.open(newline="") as file:
            paths = {row["slide"]: Path(row["path"]) for row in csv.DictReader(file)}
        return paths.get(bag.stem)


def digest(path: Path) -> str:
    """Of the content of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def free_port() -> int:
    """A port of this computer that nobody has."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def replace_file(path: Path, content: bytes, keep_time: bool) -> None:
    """Put another content under a name, with the time of the old one if asked."""
    stat = path.stat()
    path.write_bytes(content)
    if keep_time:
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def _output(command: Command) -> str:
    words = command.words
    return words[words.index("--out") + 1] if "--out" in words else words[1]


def _sort(command: Command, name: str) -> str:
    """Pictures of a viewer are another matter than its numbers."""
    return " picture" if command.verb == "view" and name.endswith((": tile", "level 8")) else ""


def _optional(command: Command, name: str) -> bool:
    """Whether a result of a fresh run may be absent: of a run of some cells, the others and the report."""
    return command.verb == "run" and "--only" in command.words and bool(command.fresh_words)


def _shown(content: bytes) -> str:
    return content.decode(errors="replace")[:120]
