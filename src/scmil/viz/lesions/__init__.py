"""How well the tile scores of a model find annotated lesions."""

from scmil.viz.lesions.evaluate import Located, locate
from scmil.viz.lesions.results import describe_rule

__all__ = ["Located", "describe_rule", "locate"]
