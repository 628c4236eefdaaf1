"""Hedgerow: gradient-boosted trees across organisations whose data must not move.

The folders of the repository (``boosting``, ``crypto``, ...) are parts of this package by links, so
that what is installed is ``hedgerow`` and nothing else (docs/adr/0001-one-package.md).
"""
