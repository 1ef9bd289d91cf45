"""The errors a user can meet: each says what was met, what was expected, and what to do."""

from __future__ import annotations


class ScmilError(Exception):
    """Anything that scmil refuses, so that `except scmil.ScmilError` catches our refusals and no bug."""


class UnknownNameError(ScmilError, LookupError):
    """A name that is not registered; the message has the nearest one that is."""


class OptionError(ScmilError, TypeError):
    """An option that a registered thing does not take; the message lists those it does."""


class MissingExtraError(ScmilError, ImportError):
    """An optional dependency is not installed; the message is the command that installs it."""


class BagError(ScmilError, ValueError):
    """A bag that no model can read: empty, not a matrix, not finite."""


class ShapeError(BagError):
    """Features of another dimension than the model was built for."""


class ModelFileError(ScmilError, ValueError):
    """A model folder that is incomplete, damaged, foreign or not meant for this version."""


class SplitError(ScmilError, ValueError):
    """A split that the bags do not allow."""


class DataError(ScmilError, ValueError):
    """A data set that is missing, damaged or not what its name says."""


class ConfigError(ScmilError, ValueError):
    """An experiment file with mistakes; the message lists all of them."""


class SlideError(ScmilError, ValueError):
    """A slide that cannot be opened, read or measured."""


class WeightsError(ScmilError, ValueError):
    """Weights of an encoder that are missing, damaged or those of another network."""


class DiskFullError(ScmilError, OSError):
    """No space is left where results are written; every further slide would fail too."""


class OutputError(ScmilError, OSError):
    """A folder that results cannot be written to."""


class ClusterError(ScmilError, ConnectionError):
    """A cluster that cannot be reached, or whose computers do not see what they need."""
