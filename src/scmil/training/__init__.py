"""Training: fit one model or all folds at once, recipes, optimisers, estimators, the baseline.

`scmil.training.fit` and `scmil.training.predict` are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__all__ = ["History", "fit", "predict"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from scmil.training import fitting

        return getattr(fitting, name)
    raise AttributeError(f"module 'scmil.training' has no attribute {name!r}")


if TYPE_CHECKING:
    from scmil.training.fitting import fit as fit
    from scmil.training.fitting import predict as predict
    from scmil.training.history import History as History
