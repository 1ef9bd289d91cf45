"""Is a file with an unusual structure always read or rejected?

    python campaign/structure.py --inputs 20000 --seed 0

Generators for every format (`structures/`) write files with repeated filters, any stride, type or
count, deep nesting, extreme numbers, and data that expand to gigabytes. Each file is read in a
process that may allocate 1.5 GiB in addition to what it has at the start. It has to be read, or
rejected with an error of scmil that names the file. Anything else is a finding:

    crash     the process ended
    hang      it took more than 10 seconds of processor time, or 40 seconds in a library
    memory    it requested more than 1.5 GiB
    error     an exception that is not an ScmilError
    nameless  a rejection that does not name the file
    wrote     a file was written that is not a result

`--only bag --case 812` repeats one input and shows what happens. The result is
`results/structure.json`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent))
import fuzz
from fuzz import Case, Limits, Outcome, print_summary
from shared import RESULTS, write_result
from structure_targets import KINDS, OUT
from structures import GENERATORS
from structures.values import SIZES, zeros
from targets import (
    Target,
)

LIMITS = Limits(seconds=10, memory=3 * 2**29, silence=40)


def main() -> int:
    """Read the inputs, write the result, and return 1 if there is a finding."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--inputs", type=int, default=20_000)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", choices=KINDS, nargs="+")
    options.add_argument("--case", type=int)
    options.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options.add_argument("--out", type=Path, default=RESULTS / "structure.json")
    arguments = options.parse_args()
    prepare(arguments.only or list(KINDS))
    if arguments.case is not None:
        return fuzz.show(arguments.only[0], arguments.seed, arguments.case, StructuredCase, LIMITS)
    shares = {name: KINDS[name].share for name in arguments.only or KINDS}
    page = fuzz.fuzz(
        arguments.inputs,
        arguments.seed,
        shares,
        arguments.processes,
        arguments.out,
        StructuredCase,
        LIMITS,
    )
    for finding in page["findings"]:
        finding["inputs"] = [
            describe_input(finding["target"], arguments.seed, number) for number in finding["cases"]
        ]
    write_result(arguments.out, page)
    status = print_summary(page)
    for finding in page["findings"]:
        print(f"{finding['target']} {finding['kind']}: {finding['what']}: {finding['inputs'][0]}")
    return status


def prepare(names: list[str]) -> None:
    """Read every valid file once and compress the zeros, for all processes forked from this one."""
    import logging
    import warnings

    import torch
    from tiny import register_encoder

    torch.set_num_threads(1)  # a thread pool does not survive a fork
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    register_encoder()
    for size in SIZES:
        zeros(size)
    for name in names:
        with tempfile.TemporaryDirectory() as home:
            StructuredCase(name, Path(home)).check()


def describe_input(name: str, seed: int, number: int) -> str:
    """The name, size and description of an input."""
    with tempfile.TemporaryDirectory() as home:
        file, content, words = StructuredCase(name, Path(home)).make(
            Random(f"{seed} {name} {number}")
        )
    return f"{file.name}, {len(content)} bytes: {words}"


class StructuredCase(Case):
    """A valid folder, of which one file at a time is replaced by a generated one."""

    def __init__(self, name: str, folder: Path) -> None:
        self.targets: Mapping[str, Target] = KINDS
        super().__init__(name, folder)
        self.good = {
            path: content for path, content in self.good.items() if path.suffix in GENERATORS
        }
        self.own = self._files()

    def make(self, random: Random) -> tuple[Path, bytes, str]:
        """The path of a file, its new content, and a description of what is unusual about it."""
        file = random.choice(list(self.good))
        content, words = GENERATORS[file.suffix](self.good[file], random)
        return file, content, words

    def outcome(self, random: Random, seconds: float) -> Outcome:
        """Read one generated file; a file that the reader wrote is a finding."""
        os.chdir(self.folder)
        found = super().outcome(random, seconds)
        shutil.rmtree(self.folder / OUT, ignore_errors=True)
        if unexpected := self._files() - self.own:
            for path in unexpected:
                path.unlink()
            return "wrote", ", ".join(
                sorted(str(path.relative_to(self.folder)) for path in unexpected)
            )[:80]
        return found

    def check(self) -> None:
        """Read the valid files, which has to succeed."""
        for file in self.good:
            self.target.read(self.folder, file)
            shutil.rmtree(self.folder / OUT, ignore_errors=True)

    def _files(self) -> set[Path]:
        return {
            path
            for path in self.folder.rglob("*")
            if not path.is_dir() and ".locks" not in path.parts
        }


if __name__ == "__main__":
    sys.exit(main())
