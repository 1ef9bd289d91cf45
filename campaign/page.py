"""Write docs/reliability.md from the results of the campaign.   python campaign/page.py

What has no result yet is said to have none.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from shared import RESULTS

PAGE = RESULTS.parents[1] / "docs" / "reliability.md"
Found = dict[str, Any]

START = """# What holds when things go wrong

A run over ten thousand slides meets a disk that is full, a node that dies, a slide that was copied half. What scmil promises
for such days: **a file under its final name is whole; what is finished is not done again; one bad slide stops nothing; every
refusal names the file and says what to do.** These promises are not argued here but tried: `make campaign` does everything on
this page again, with the same seeds. The tables are written from `campaign/results/*.json` by `python campaign/page.py`.
"""
NONE = "No result is committed yet. Make it: `python campaign/{}.py`\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


def page() -> str:
    """The page, from the results that are there."""
    parts = [START]
    for name, (heading, about, table) in SECTIONS.items():
        found = read(name)
        parts.append(f"## {heading}\n\n{about}\n")
        parts.append(f"{table(found)}\n\n{made_by(found)}\n" if found else NONE.format(SCRIPTS.get(name, name)))
    return "\n".join(parts)


def read(name: str) -> Found | None:
    """A result, if there is one."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def made_by(found: Found) -> str:
    """The line that says how to do it again."""
    return f"`{found['command']}`, seed {found.get('seed', 0)}, {found['date']}, {found['machine']}"


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A table of Markdown.

    >>> print(table(["a", "b"], [[1, 2]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "|" + "|".join(line) + "|" if set(line) == {"---"} else "| " + " | ".join(map(str, line)) + " |"
        for line in lines
    )


def kill(found: Found) -> str:
    """What became of the kills."""
    rows = [
        [f"`{name}`", one["kills"], one["endings"], one["files"], one["seconds_unbroken"], len(one["problems"])]
        for name, one in found["by_verb"].items()
    ]
    rows.append(["**all**", f"**{found['kills']}**", found["endings"], "", "", f"**{len(found['problems'])}**"])
    header = ["command", "kills", "runs that ended", "files compared", "seconds unbroken", "problems"]
    return table(header, rows) + "\n" + "".join(f"\n- {problem}" for problem in found["problems"][:20])


def fuzz(found: Found) -> str:
    """What became of the mutated inputs."""
    harm = sorted({kind for one in found["by_kind_of_file"].values() for kind in one} - {"ok", "refused"})
    rows = [
        [name, sum(one.values()), one.get("ok", 0), one.get("refused", 0), *(one.get(kind, 0) for kind in harm)]
        for name, one in found["by_kind_of_file"].items()
    ]
    said = found["outcomes"]
    total = [
        f"**{sum(said.values())}**",
        said.get("ok", 0),
        said.get("refused", 0),
        *(said.get(kind, 0) for kind in harm),
    ]
    words = (
        ""
        if harm
        else "\n\nNo crash, no hang, no input that took more than 2 GiB, no error that is not ours, no file unnamed."
    )
    return table(["kind of file", "inputs", "read", "refused by name", *harm], [*rows, ["**all**", *total]]) + words


def structure(found: Found) -> str:
    """What became of the inputs of odd structure."""
    return fuzz(found).replace("2 GiB", "1.5 GiB")


def sequence(found: Found) -> str:
    """What became of the commands of the sequences."""
    rows = [
        [f"`{name}`", sum(one.values()), one.get("equal", 0), one.get("rejected", 0), one.get("found", 0)]
        for name, one in found["by_command"].items()
    ]
    said = found["outcomes"]
    total = [f"**{found['commands']}**", said.get("equal", 0), said.get("rejected", 0), f"**{said.get('found', 0)}**"]
    words = f"{found['sequences']} sequences of {found['actions'] // max(found['sequences'], 1)} actions"
    words += f" in {found['seconds'] / 60:.0f} minutes.\n\n"
    header = ["command", "times", "equal to a fresh run", "rejected with a message", "findings"]
    findings = "".join(f"\n- {one['count']} x {one['kind']}: {one['what'][:200]}" for one in found["findings"])
    return words + table(header, [*rows, ["**all**", *total]]) + ("\n" + findings if findings else "")


def faults(found: Found) -> str:
    """What became of the faults."""
    rows = [[one["fault"], one["outcome"], " ".join(one["words"].split())] for one in found["faults"]]
    return table(["fault", "outcome", "what happened"], rows)


def soak(found: Found) -> str:
    """What became of memory and handles."""
    early, late = found["second_quarter"], found["last_quarter"]
    rows = [
        [words, early[key], late[key]]
        for key, words in (("rss_mib", "memory, MiB"), ("handles", "file handles"), ("threads", "threads"))
    ]
    last = found["samples"][-1]["minute"]
    ended = "" if found["finished"] else " (not ended yet)"
    words = f"{found['rounds']} rounds in {last:.0f} minutes{ended}, {len(found['failed_rounds'])} of them failed; "
    flat = "flat" if found["flat"] else "**not flat**"
    return words + f"{flat}.\n\n" + table(["median of", "second quarter", "last quarter"], rows)


def ray(found: Found) -> str:
    """What the cluster's campaign says of itself, in the order in which it says it."""
    plain = {key: value for key, value in found.items() if isinstance(value, str | int | float | bool)}
    rows = [
        [key.replace("_", " "), {True: "yes", False: "**no**"}[value] if isinstance(value, bool) else value]
        for key, value in plain.items()
        if key not in ("command", "date", "machine", "seed")
    ]
    return table(["", ""], rows)


SCRIPTS = {"ray": "ray_two_nodes", "kill_paths": "kill"}
KILLED = """\
Each command is started on tiny data, killed with SIGKILL at a random moment of its life, and started again with the same
words until it ends. After every kill all files under final names are opened and read whole, and what was finished before
must be the same file still (for a training: the epoch must not go back; a model is finished with its `study.json`). After
every ending the folder must be that of a run that was never stopped, byte for byte, apart from what is measured: times and
peak memory in tables, the chapter of a report that prints them, and pictures, which are compared by their pixels, since
their notes hold the times of files."""
FUZZED = """\
Good files of every kind are damaged at random: bits, lengths, chunks, ends, words that readers stumble over; archives
around damaged members, models whose hash is set right again. Each is read in a process that may take 2 GiB and ten seconds.
It has to be read, or be refused with an error of scmil that names it. What was found on the way is mended, and kept as a test
in `tests/e2e/test_hostile.py`:

- an HDF5 file with a damaged heap of texts, on which the HDF5 library never returns (HDFGroup/hdf5#1707): looked for before
  the library is asked;
- .npy headers that Python's own parser tripped over, zip members in methods that nobody has, XML in encodings that nobody
  knows: errors that were not ours;
- pickles of DTFD-MIL that announce gigabytes: read by the unpickler in Python, with a limit;
- one bit that makes a list of variable length of a text in an HDF5 file, on which the HDF5 library crashes: such
  attributes are refused before they are read;
- a TIFF whose pages lead back to one of them, which tifffile follows for ever; a chunk of a PNG that claims two gigabytes;
  a label of billions, for which as many classes were made; tiles that no memory holds, over which OpenSlide ends the
  process."""
PATHS_KILLED = """\
The same for commands that begin with results that are there: `replaced` encodes a folder in which two slides were replaced
and half of the bags are made, `predict` goes from slides by way of `--work`, `heatmap` and `locate` score and draw. A
command that an unbroken run rejects has to be rejected in the same way after a kill."""
STRUCTURED = """\
Files of every format, written by generators that know it: HDF5 with filters twice, types, links, chunks and attributes at
bounds; tensors with any stride, size and device; pickles that ask for names; headers of NumPy and safetensors that say
something else than the file has; MATLAB, Excel, CSV, TOML and JSON with numbers at bounds, many of everything and nested
deep; rings of thousands of random points and holes that overlap; TIFF, PNG and JPEG with sizes, tags and pages at bounds.
Each is read in a process that may take 1.5 GiB and ten seconds, and that may write no file. It has to be read, or be
rejected with an error of scmil that names it."""
SEQUENCED = """\
Random sequences of what users do in one folder: encode, replace a slide by another of the same name (also of the same size,
with the old time), swap folders, edit labels, replace bags by noise, delete and add bags, train, predict, compare, run, draw
heatmaps, start the viewer on another folder with the same port and a browser that keeps what it may. After each command,
and for the last command of each kind once more at the end, every number and every pixel is compared with the same command on
a copy of its inputs in a new folder. It has to be equal, or the command has to be rejected with a message. No file of the
user may be changed."""
FAULTY = """\
Each fault is made for real where the machine allows it: a full disk is a small tmpfs, a read-only folder one that is
mounted so. It has to end in words or in no error, and when it is gone, the same command has to finish the work."""
SOAKED = """\
Tile, encode, train, predict, score, draw heatmaps, ask the viewer: again and again. Flat means that the median memory of
the last quarter is at most 5 % above that of the second, and not one handle or thread more is open."""
CLUSTER = (
    "Two nodes of Ray encode and run a table of experiments while one is killed, and a slide kills whoever looks at it."
)
SECTIONS: dict[str, tuple[str, str, Any]] = {
    "kill": ("Killed", KILLED, kill),
    "kill_paths": ("Killed on the way to results", PATHS_KILLED, kill),
    "sequence": ("Sequences of actions", SEQUENCED, sequence),
    "fuzz": ("Fuzzed", FUZZED, fuzz),
    "structure": ("Odd structures", STRUCTURED, structure),
    "faults": ("Disks, clocks, other processes", FAULTY, faults),
    "soak": ("An hour in one process", SOAKED, soak),
    "ray": ("A cluster that loses a node", CLUSTER, ray),
}

if __name__ == "__main__":
    sys.exit(main())
