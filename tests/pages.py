"""The pages of the documentation as the tests read them: blocks of code, lines of commands, what is
not run and why.
"""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
# Made from docstrings, which are tested themselves.
PAGES = [page for page in PAGES if "reference" not in page.parts]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
LANGUAGES = {"sh", "python", "text", "toml", "pycon", "{toctree}"}


class Block(NamedTuple):
    """A fenced block: its language and its text."""

    language: str
    text: str


class Line(NamedTuple):
    """A command as a reader would type it; with a reason, it needs what the tests have not got."""

    words: list[str]
    reason: str


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    for found in re.finditer(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```", page.read_text(), re.S | re.M):
        yield Block(found[2], textwrap.dedent(found[3]))


def lines(block: Block) -> Iterator[Line]:
    """The commands of a block. One whose comment, or the comment above it, begins with "needs"
    gives that as its reason.

    >>> [*lines(Block("sh", "# Needs a GPU.\\nscmil train x\\n\\nscmil ls  # what there is"))]
    [Line(words=['scmil', 'train', 'x'], reason='Needs a GPU.'),
     Line(words=['scmil', 'ls'], reason='')]
    """
    above = ""
    for line in block.text.replace("\\\n", " ").splitlines():
        command, _, comment = line.partition("# ")
        if not command.strip():
            above = comment  # it holds until the next comment or empty line
            continue
        reason = next(
            (text.strip() for text in (comment, above) if text.lower().startswith("needs")), ""
        )
        for part in command.split("&&"):
            yield Line(shlex.split(part), reason)


def commands_in_sentences(page: Path) -> Iterator[list[str]]:
    """What stands between backticks in a sentence and begins with `scmil`."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(), flags=re.S | re.M)
    for code in re.findall(r"`(scmil [^`]+)`", text):
        yield code.replace("…", "").replace("'", "").replace('"', "").split()
