"""The command `scmil`: one function a verb. Imports are inside the functions, so that `--help` is quick."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from typing import Annotated

import typer

app = typer.Typer(
    name="scmil",
    help="Sparse coding in front of any multiple instance learning aggregator (SC-MIL).",
    epilog="Start with: scmil demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from scmil import __version__
        from scmil.cli.options import say

        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Take what concerns every verb."""


def main() -> None:
    """Run the command; a refusal of ours is a sentence, not a traceback."""
    from scmil.cli.options import say
    from scmil.errors import ScmilError

    logging.getLogger("tifffile").setLevel(logging.CRITICAL)  # what it says of damaged files, our errors say
    try:
        app()
    except ScmilError as error:
        say(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # a disk that is full, a right that is missing: of the machine, and not a bug
        from scmil.core.jobs.work import plain_words

        say(
            f"The system refuses: {plain_words(error)}. What is finished is kept; start again when it is mended.",
            err=True,
        )
        sys.exit(1)


# The order here is the order in `scmil --help`: from pixels to report.
for _room in (
    "slides", "bags", "demo", "learning", "heatmap", "locate", "atlas", "view", "ls",
):  # fmt: skip
    import_module(f"{__name__}.{_room}")
