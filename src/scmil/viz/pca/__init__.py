"""The PCA figure of the paper: the same tiles in two principal components of each model."""

from scmil.viz.pca.draw import draw_pca

__all__ = ["draw_pca"]
