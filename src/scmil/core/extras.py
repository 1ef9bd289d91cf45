"""Optional packages: imported when they are needed, and missed with the command that installs them."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from scmil.errors import MissingExtraError


def need(module: str, extra: str) -> ModuleType:
    """Import a module that belongs to an extra, or say how to install it.

    >>> need("json", "slides").dumps([1])
    '[1]'
    >>> need("no_such_module", "slides")
    Traceback (most recent call last):
    ...
    scmil.errors.MissingExtraError: this needs the module 'no_such_module', which is not installed:
    pip install 'scmil[slides]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise  # the module is there, and something that it imports is not: its own words are better
        raise MissingExtraError(
            f"this needs the module {error.name!r}, which is not installed: pip install 'scmil[{extra}]'"
        ) from None
