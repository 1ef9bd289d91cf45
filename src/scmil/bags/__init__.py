"""Bags: one slide, molecule or picture as the features of its instances."""

from __future__ import annotations

from scmil.bags.bag import Bag, BagSet

__all__ = ["Bag", "BagSet"]
