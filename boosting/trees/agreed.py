"""Whether a model file is the model that a silo has helped to train.

The coordinator writes the file. A silo knows the trees from its own half of the job, so that no
coordinator can have it keep, or score its rows with, another model. Covers and gains are left out:
no prediction follows from them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.loading import load


def fingerprint(tree: Tree, *, leaves: bool = True) -> bytes:
    """Return the SHA-256 of all that a tree's predictions follow from.

    Parameters
    ----------
    leaves : bool
        Whether with the leaves' values.
    """
    if not leaves:
        tree = replace(tree, threshold=np.where(tree.is_leaf, np.float32(0), tree.threshold))
    whole = hashlib.sha256()
    _add(whole, tree.structure)
    return whole.digest()


def _add(whole: hashlib._Hash, value: object) -> None:
    if isinstance(value, tuple):
        for part in value:
            _add(whole, part)
    else:
        piece = np.asarray(value)
        whole.update(f"{piece.dtype.str}{piece.shape}".encode() + piece.tobytes())


def fingerprints(trees: Iterable[Tree]) -> list[bytes]:
    """Return the fingerprint of each tree."""
    return [fingerprint(tree) for tree in trees]


def check_trees(
    files: Mapping[str, bytes],
    name: str,
    start: Ensemble,
    known: Sequence[bytes],
    ends: Collection[int],
    *,
    leaves: bool = True,
) -> None:
    """Check the trees of a result's model file against those that a silo knows.

    Parameters
    ----------
    start : Ensemble
        Has the header of the model: objective and base score.
    known : sequence of bytes
        Fingerprints of the trees, in order.
    ends : collection of int
        How many of them the model may have: all, or those of the best round.
    leaves : bool
        Whether the silo knows the leaves' values.

    Raises
    ------
    ModelRejected
        It is another model, or no sound one.
    """
    if name not in files:
        raise ModelRejected(f"the result: expected a file {name}, received none")
    found = load(files[name], sender="the coordinator's result")
    own = [fingerprint(tree, leaves=leaves) for tree in found.trees]
    if len(own) not in ends or own != list(known[: len(own)]) or found.about != start.about:
        raise ModelRejected(f"{name} is not the model that this silo has helped to train")
