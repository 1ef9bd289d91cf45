"""Imports of optional dependencies, with the installation command in the error message."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from scmil.errors import MissingExtraError


def import_extra(module: str, extra: str) -> ModuleType:
    """Import a module of an optional dependency, or raise an error with the command to install it.

    >>> import_extra("json", "slides").dumps([1])
    '[1]'
    >>> import_extra("no_such_module", "slides")
    Traceback (most recent call last):
    ...
    scmil.errors.MissingExtraError: this needs the module 'no_such_module', which is not installed:
    pip install 'scmil[slides]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            # The module is installed but one of its own imports is not: keep its error message.
            raise
        raise MissingExtraError(
            f"this needs the module {error.name!r}, which is not installed: "
            f"pip install 'scmil[{extra}]'"
        ) from None
