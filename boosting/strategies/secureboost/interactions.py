"""Interaction constraints over parties: which features may divide nodes below which others.

As in XGBoost the root may be divided by any feature. Below, a feature may divide where some group
has it and all features on the path from the root. A feature of no group is a group of its own: it
is followed by itself alone, and that only its owner can see to, who knows which feature it was.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Bits = NDArray[np.bool_]


def membership(
    groups: Mapping[int, tuple[str, ...]], n_groups: int, names: tuple[str, ...]
) -> Bits:
    """Return which of a party's features are in which groups, shape (n_groups, n_features).

    Parameters
    ----------
    groups : Mapping
        The party's columns in a group, by number of the group.
    """
    out = np.zeros((n_groups, len(names)), np.bool_)
    for group, columns in groups.items():
        out[group] = np.isin(names, columns)
    return out


class Interactions:
    """Which candidates of all parties may divide each node of a tree, at the active party.

    Parameters
    ----------
    own : ndarray of shape (n_groups, n_features), bool
        Groups of the active party's features.
    """

    def __init__(self, own: Bits) -> None:
        self._groups = {0: own}
        self._open: dict[int, Bits] = {}
        """By node below the root: the groups that have all features of its path."""
        self._alone = (-1, -1)
        """Owner and own feature of a root that a feature of no group divides."""

    def note(self, party: int, said: Mapping[int, Bits], n_candidates: int) -> None:
        """Note which of a passive party's candidates are in which groups, by number of a group."""
        out = np.zeros((len(self._groups[0]), n_candidates), np.bool_)
        for group, bits in said.items():
            out[group] = bits
        self._groups[party] = out

    def allowed(self, node: int, party: int) -> Bits:
        """Return which features of the active party (0), or candidates of another, may divide."""
        groups = self._groups[party]
        if node not in self._open:
            return np.ones(groups.shape[1], np.bool_)
        path = self._open[node]
        if path.any():
            return np.asarray(groups[path].any(axis=0))
        owner, feature = self._alone
        if owner != party:
            return np.zeros(groups.shape[1], np.bool_)
        if party:  # whose features they are the party knows; it rules out the others
            return np.asarray(~groups.any(axis=0))
        return np.asarray(np.arange(groups.shape[1]) == feature)

    def divide(self, node: int, left: int, party: int, chosen: int) -> None:
        """Note what divides a node: a feature of the active party, or a candidate of another."""
        groups = self._groups[party][:, chosen]
        if node not in self._open and not groups.any():
            self._alone = (party, chosen)
        path = self._open.get(node, np.ones(len(groups), np.bool_)) & groups
        self._open[left] = self._open[left + 1] = path
