"""Trees as columns of numbers, and ensembles of them as stock XGBoost models.

Node order is XGBoost's own; node 0 is the root. A numeric node sends ``x < threshold`` left; a
missing value follows ``default_left``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tree:
    """One regression tree; all arrays have one entry a node.

    Parameters
    ----------
    left, right : ndarray of shape (n_nodes,), int32
        Child positions, -1 at leaves.
    feature : ndarray of shape (n_nodes,), int32
        Feature index of a split; 0 at leaves.
    threshold : ndarray of shape (n_nodes,), float32
        ``x < threshold`` goes left at a numeric split; the leaf value (shrinkage included) at a
        leaf; 0 at a categorical split. Same convention as XGBoost's ``split_conditions``.
    default_left : ndarray of shape (n_nodes,), bool
    categories : tuple of (node, codes)
        For each categorical split, the sorted int32 codes that go **right** (XGBoost's
        convention).
    gain : ndarray of shape (n_nodes,), float32
        XGBoost's ``loss_changes``; 0 when scrubbed.
    cover : ndarray of shape (n_nodes,), float32
        XGBoost's ``sum_hessian``; 0 when scrubbed.
    weight : ndarray of shape (n_nodes,), float32
        XGBoost's ``base_weights`` (unshrunken); 0 when scrubbed.
    group : int
        Class index of the output the tree adds to.
    """

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float32]
    default_left: NDArray[np.bool_]
    gain: NDArray[np.float32]
    cover: NDArray[np.float32]
    weight: NDArray[np.float32]
    categories: tuple[tuple[int, NDArray[np.int32]], ...] = ()
    group: int = 0

    @property
    def n_nodes(self) -> int:
        """Number of nodes, splits and leaves."""
        return int(self.left.shape[0])
