"""The command `scmil`: one function per subcommand.

Imports are inside the functions, so that `scmil --help` is fast.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from importlib import import_module
from typing import Annotated

import typer

app = typer.Typer(
    name="scmil",
    help="Multiple instance learning on whole slide images, with and without sparse coding "
    "(SC-MIL): from slides to features, models, heatmaps and reports.",
    epilog="Start with: scmil demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from scmil import __version__
        from scmil.cli.output import say

        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Define the options of `scmil` itself."""


def _silence_warnings() -> None:
    """Keep Python warnings, which name files of the installation, off the terminal, also those of
    worker processes; `python -W` and PYTHONWARNINGS show them. What users need is in the results.
    """
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
        os.environ["PYTHONWARNINGS"] = "ignore"


def main() -> None:
    """Run the command; errors of scmil and of the system are printed without a traceback."""
    from scmil.cli.output import say
    from scmil.errors import ScmilError

    _silence_warnings()
    # scmil reports damaged files itself.
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    try:
        app()
    except ScmilError as error:
        say(f"{type(error).__name__}: {error}", err=True)
        sys.exit(1)
    except OSError as error:  # such as a full disk or a missing permission
        from scmil.core.text import describe_error

        say(
            f"Operating system error: {describe_error(error)}. Completed results were kept; run "
            "the command again once the problem is fixed.",
            err=True,
        )
        sys.exit(1)


# `scmil --help` lists the commands in this order.
COMMAND_MODULES = (
    "info",
    "slides",
    "paint",
    "bags",
    "plan",
    "train",
    "import_model",
    "predict",
    "test",
    "subgroups",
    "run",
    "get",
    "demo",
    "heatmap",
    "locate",
    "atlas",
    "view",
    "ls",
    "encoder",
)
for _module in COMMAND_MODULES:
    import_module(f"{__name__}.{_module}")
