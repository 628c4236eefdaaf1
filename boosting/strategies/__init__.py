"""Hedgerow's own strategies, a package each; :mod:`hedgerow.boosting.registry` finds all."""

from hedgerow.boosting.registry import NAMES

__all__ = ["NAMES"]
