"""Exception classes. Each message states what was found, what was expected and what to do."""

from __future__ import annotations


class ScmilError(Exception):
    """Base class of the errors for invalid input; bugs raise other exceptions."""


class UnknownNameError(ScmilError, LookupError):
    """A name is not registered; the message contains the nearest registered name."""


class OptionError(ScmilError, TypeError):
    """An option is unknown or invalid; the message lists the valid ones."""


class MissingExtraError(ScmilError, ImportError):
    """An optional dependency is not installed; the message contains the command to install it."""


class BagError(ScmilError, ValueError):
    """A bag is invalid: empty, not a matrix, or not finite."""


class ShapeError(BagError):
    """Features have another dimension than the model expects."""


class ModelFileError(ScmilError, ValueError):
    """A model folder is incomplete, damaged, or written by another program or version."""


class SplitError(ScmilError, ValueError):
    """A split is invalid or not possible with these bags."""


class DataError(ScmilError, ValueError):
    """Data are missing, damaged, or not of the expected kind."""


class ConfigError(ScmilError, ValueError):
    """An experiment config is invalid; the message lists all problems."""


class SlideError(ScmilError, ValueError):
    """A slide cannot be opened or read, or its resolution is unknown."""


class WeightsError(ScmilError, ValueError):
    """Weights of an encoder are missing, damaged, or belong to another network."""


class DiskFullError(ScmilError, OSError):
    """No space is left on the disk of the results."""


class OutputError(ScmilError, OSError):
    """A result cannot be written to this path."""


class ClusterError(ScmilError, ConnectionError):
    """A cluster cannot be reached, or its nodes lack required files or resources."""
