"""Write docs/reliability.md from the results of the campaign: `python campaign/page.py`.

Sections without a committed result say so.
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

START = """# Reliability

In a run over ten thousand slides a disk may be full, a node may fail, or a slide may be copied
incompletely. Guarantees: **output files are written atomically; completed work is never repeated;
a corrupt slide does not stop the run; every error message names the file and says what to do.**
These guarantees are tested: `make campaign` repeats everything on this page with the same seeds.
The tables are written from `campaign/results/*.json` by `python campaign/page.py`.
"""
NONE = "No result is committed yet. To create it: `python campaign/{}.py`\n"


def main() -> int:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0


def page() -> str:
    """Return the page."""
    parts = [START]
    for name, (heading, about, table) in SECTIONS.items():
        found = read(name)
        parts.append(f"## {heading}\n\n{about}\n")
        parts.append(
            f"{table(found)}\n\n{made_by(found)}\n"
            if found
            else NONE.format(SCRIPTS.get(name, name))
        )
    return "\n".join(parts)


def read(name: str) -> Found | None:
    """Return a result, or None if there is none."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def made_by(found: Found) -> str:
    """Return the command, seed, date and machine of a result."""
    return f"`{found['command']}`, seed {found.get('seed', 0)}, {found['date']}, {found['machine']}"


def table(header: list[str], rows: list[list[Any]]) -> str:
    """Return a Markdown table.

    >>> print(table(["a", "b"], [[1, 2]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(
        "|" + "|".join(line) + "|"
        if set(line) == {"---"}
        else "| " + " | ".join(map(str, line)) + " |"
        for line in lines
    )


def kill(found: Found) -> str:
    """Return the table of killed commands."""
    rows = [
        [
            f"`{name}`",
            one["kills"],
            one["endings"],
            one["files"],
            one["seconds_unbroken"],
            len(one["problems"]),
        ]
        for name, one in found["by_verb"].items()
    ]
    rows.append(
        [
            "**all**",
            f"**{found['kills']}**",
            found["endings"],
            "",
            "",
            f"**{len(found['problems'])}**",
        ]
    )
    header = [
        "command",
        "kills",
        "completed runs",
        "files compared",
        "seconds without kills",
        "problems",
    ]
    return (
        table(header, rows) + "\n" + "".join(f"\n- {problem}" for problem in found["problems"][:20])
    )


def fuzz(found: Found) -> str:
    """Return the table of damaged files."""
    harm = sorted(
        {kind for one in found["by_kind_of_file"].values() for kind in one} - {"ok", "refused"}
    )
    rows = [
        [
            name,
            sum(one.values()),
            one.get("ok", 0),
            one.get("refused", 0),
            *(one.get(kind, 0) for kind in harm),
        ]
        for name, one in found["by_kind_of_file"].items()
    ]
    counts = found["outcomes"]
    total = [
        f"**{sum(counts.values())}**",
        counts.get("ok", 0),
        counts.get("refused", 0),
        *(counts.get(kind, 0) for kind in harm),
    ]
    words = (
        ""
        if harm
        else "\n\nNo crash, no hang, no input that took more than 2 GiB, no exception of another "
        "library, and no error message without the file name."
    )
    return (
        table(
            ["kind of file", "inputs", "read", "rejected with the file name", *harm],
            [*rows, ["**all**", *total]],
        )
        + words
    )


def structure(found: Found) -> str:
    """Return the table of files with unusual structure."""
    return fuzz(found).replace("2 GiB", "1.5 GiB")


def sequence(found: Found) -> str:
    """Return the table of user actions."""
    rows = [
        [
            f"`{name}`",
            sum(one.values()),
            one.get("equal", 0),
            one.get("rejected", 0),
            one.get("found", 0),
        ]
        for name, one in found["by_command"].items()
    ]
    counts = found["outcomes"]
    total = [
        f"**{found['commands']}**",
        counts.get("equal", 0),
        counts.get("rejected", 0),
        f"**{counts.get('found', 0)}**",
    ]
    length = found["actions"] // max(found["sequences"], 1)
    words = f"{found['sequences']} sequences of {length} actions"
    words += f" in {found['seconds'] / 60:.0f} minutes.\n\n"
    header = ["command", "times", "equal to a reference run", "rejected with a message", "findings"]
    findings = "".join(
        f"\n- {one['count']} x {one['kind']}: {one['what'][:200]}" for one in found["findings"]
    )
    return (
        words + table(header, [*rows, ["**all**", *total]]) + ("\n" + findings if findings else "")
    )


def faults(found: Found) -> str:
    """Return the table of faults."""
    rows = [
        [one["fault"], PASSED.get(one["outcome"], one["outcome"]), " ".join(one["words"].split())]
        for one in found["faults"]
    ]
    return table(["fault", "outcome", "what happened"], rows)


def soak(found: Found) -> str:
    """Return the table of memory, file handles and threads."""
    early, late = found["second_quarter"], found["last_quarter"]
    rows = [
        [words, early[key], late[key]]
        for key, words in (
            ("rss_mib", "memory, MiB"),
            ("handles", "file handles"),
            ("threads", "threads"),
        )
    ]
    last = found["samples"][-1]["minute"]
    ended = "" if found["finished"] else " (not finished)"
    failed = len(found["failed_rounds"])
    words = f"{found['rounds']} rounds in {last:.0f} minutes{ended}, {failed} of them failed; "
    flat = "constant" if found["flat"] else "**not constant**"
    return words + f"{flat}.\n\n" + table(["median of", "second quarter", "last quarter"], rows)


def ray(found: Found) -> str:
    """Return the table of the cluster campaign, in the order of its result file."""
    plain = {
        key: value for key, value in found.items() if isinstance(value, str | int | float | bool)
    }
    rows = [
        [
            LABELS.get(key, key.replace("_", " ")),
            {True: "yes", False: "**no**"}[value] if isinstance(value, bool) else value,
        ]
        for key, value in plain.items()
        if key not in ("command", "date", "machine", "seed")
    ]
    return table(["", ""], rows)


def mutants(found: Found) -> str:
    """How many planted faults the tests catch, by package."""
    packages: dict[str, list[str]] = {}
    for one in found["outcomes"]:
        packages.setdefault(one["package"], []).append(one["state"])
    rows = [[f"`{name}`", len(states), states.count("caught")] for name, states in packages.items()]
    total = ["**all**", f"**{found['faults']}**", f"**{found['caught']}**"]
    missed = [
        f"\n- not caught: {one['name']}" for one in found["outcomes"] if one["state"] != "caught"
    ]
    missed += [f"\n- not planted: {name}" for name in found["not_found"]]
    return table(["package", "faults", "caught"], [*rows, total]) + "".join(missed)


PASSED = {"stood": "passed"}
# Names of the result file that are not plain enough for the page.
LABELS = {
    "slides_with_the_bytes_of_home": "slides equal to a local run",
    "cells_finished": "runs finished",
    "cells_with_the_bytes_of_home": "runs equal to a local run",
    "seconds_until_a_silent_address_is_told": "seconds until a silent address is reported",
}
SCRIPTS = {"ray": "ray_two_nodes", "kill_paths": "kill"}
KILLED = """\
Each command is started on a small data set, killed with SIGKILL at a random time, and started
again with the same arguments until it completes. After every kill all files under their final
names are read completely, and completed results must be unchanged (for a training, the epoch must
not go back; a model is complete with its `study.json`). After every completion the folder must be
identical, byte for byte, to that of an uninterrupted run, except for measurements: times and peak
memory in tables, the section of a report that prints them, and pictures, which are compared by
their pixels because their metadata contain the times of files."""
FUZZED = """\
Valid files of every kind are damaged at random: bits, lengths, chunks, ends, words that are
special for a parser; archives with damaged members, models with an adapted hash. Each file is
read in a process with limits of 2 GiB and ten seconds. It has to be read, or rejected with an
error of scmil that names it. The problems that were found are fixed, and are tested in
`tests/e2e/hostile/`:

- an HDF5 file with a damaged heap of strings, on which the HDF5 library never returns
  (HDFGroup/hdf5#1707): detected before the library is called;
- .npy headers that Python's parser rejects, zip members with unknown compression methods, XML in
  unknown encodings: exceptions of other libraries;
- pickles of DTFD-MIL that announce gigabytes: read by the unpickler in Python, with a limit;
- one bit that turns a string in an HDF5 file into a list of variable length, on which the HDF5
  library crashes: such attributes are rejected before they are read;
- a TIFF file with a cycle of pages, which tifffile follows forever; a PNG chunk that claims two
  gigabytes; a label of billions, which created as many classes; tiles that do not fit into
  memory, for which OpenSlide ends the process."""
PATHS_KILLED = """\
The same for commands that start from existing results: `replaced` encodes a folder in which two
slides were replaced and half of the bags exist, `predict` starts from slides with `--work`,
`heatmap` and `locate` compute scores and draw. A command that is rejected in an uninterrupted run
has to be rejected in the same way after a kill."""
STRUCTURED = """\
Files of every format are written by generators: HDF5 with repeated filters, and types, links,
chunks and attributes at their limits; tensors with any stride, size and device; pickles that
request classes; headers of NumPy and safetensors that contradict the file; MATLAB, Excel, CSV,
TOML and JSON with numbers at their limits, many elements and deep nesting; polygons of thousands
of random points with overlapping holes; TIFF, PNG and JPEG with sizes, tags and pages at their
limits. Each file is read in a process with limits of 1.5 GiB and ten seconds that may not write
files. It has to be read, or rejected with an error of scmil that names it."""
SEQUENCED = """\
Random sequences of user actions in one folder: encode, replace a slide by another one of the same
name (also of the same size and modification time), swap folders, edit labels, replace bags by
noise, delete and add bags, train, predict, compare, run, draw heatmaps, start the viewer on
another folder with the same port and a caching browser. After each command, and for the last
command of each kind again at the end, every number and every pixel is compared with the same
command on a copy of its inputs in a new folder. The result has to be equal, or the command has to
be rejected with a message. No file of the user may be changed. The problem that the run below found
(earlier scores of a deleted bag hid that all other bags had failed) is fixed since, and tested in
`tests/unit/studies/test_score_tiles.py`."""
FAULTY = """\
Faults are real where the machine allows it: a full disk is a small tmpfs, a read-only folder is a
read-only mount. The command has to succeed or end with an error message, and after the fault is
removed the same command has to complete the work."""
SOAKED = """\
Tile, encode, train, predict, score, draw heatmaps and query the viewer in a loop. Memory use
counts as constant if the median of the last quarter is at most 5 % above that of the second
quarter, and no additional file handle or thread is open."""
CLUSTER = """\
Two Ray nodes encode slides and run an experiment while one node is killed, and one slide crashes
its worker."""
PLANTED = """\
Would the tests notice a mistake? One-line faults are planted in a copy of the package: data that
leaks between splits, wrong groups, values that are off by one, missing normalisation, ignored
options, swapped classes and axes, outdated caches, unchecked paths. For each, a test that is
named with it has to fail, and to pass without the fault. The list is
[campaign/mutants.toml](../campaign/mutants.toml)."""
SECTIONS: dict[str, tuple[str, str, Any]] = {
    "kill": ("Killed processes", KILLED, kill),
    "kill_paths": ("Killed processes with existing results", PATHS_KILLED, kill),
    "sequence": ("Sequences of user actions", SEQUENCED, sequence),
    "fuzz": ("Damaged files", FUZZED, fuzz),
    "structure": ("Files with unusual structure", STRUCTURED, structure),
    "faults": ("Disks, clocks, other processes", FAULTY, faults),
    "soak": ("Memory use over an hour", SOAKED, soak),
    "ray": ("Node failure in a cluster", CLUSTER, ray),
    "mutants": ("Planted faults", PLANTED, mutants),
}

if __name__ == "__main__":
    sys.exit(main())
