"""Structures of decision trees, and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Nodes = Sequence[Mapping[str, Any]]
"""The nodes of a ``tree.json``, the root first."""


def n_decisions(nodes: Nodes) -> int:
    """Return the number of decision nodes."""
    return sum("feature" in node for node in nodes)


def edit_distance(nodes: Nodes, others: Nodes) -> float:
    """Return the normalised tree edit distance of two trees' decision features.

    Nodes are decision nodes, without thresholds and leaves; to relabel, insert or delete one costs
    1. The sum is divided by the larger number of nodes: 0 for equal structures, 1 at most.
    """
    from apted import APTED
    from apted.helpers import Tree

    def structure(of: Nodes, position: int) -> Any:
        node = of[position]
        below = (node["left"], node["right"])
        return Tree(node["feature"], *(structure(of, at) for at in below if "feature" in of[at]))

    most = max(n_decisions(nodes), n_decisions(others))
    if not min(n_decisions(nodes), n_decisions(others)):
        return float(most > 0)
    pair = APTED(structure(nodes, 0), structure(others, 0))
    return float(pair.compute_edit_distance()) / most
