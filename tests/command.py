"""The command `scmil`: the installed one, and the same in the process of the tests."""

from __future__ import annotations

import io
import logging
import os
import sys
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from scmil import cli

SCMIL = Path(sys.executable).with_name("scmil")


class Finished(NamedTuple):
    """What a command leaves behind."""

    returncode: int
    stdout: str
    stderr: str


def scmil(*words: object, code: int | None = 0) -> Finished:
    """Run the command with its own arguments, output and exit code, in this process: a new one
    takes more than a second to import torch. It has to exit with `code`, unless that is None.
    """
    out, err, status = io.StringIO(), io.StringIO(), 0
    reader = logging.getLogger("tifffile")
    level = reader.level
    with (
        patch.object(sys, "argv", ["scmil", *map(str, words)]),
        patch.dict(os.environ),
        warnings.catch_warnings(),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            reader.setLevel(level)
    assert code is None or status == code, err.getvalue()
    return Finished(status, out.getvalue(), err.getvalue())
