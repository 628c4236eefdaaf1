"""The coordinator's state of a private tree between levels, and the result that it gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting import checkpoints
from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree, close
from hedgerow.boosting.trees.decision_tree import MODEL_FILE, DecisionTree

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.dp_tree.parameters import DPTree


@dataclass(frozen=True, slots=True, eq=False)
class PrivateTree:
    """A tree after one of its levels.

    Parameters
    ----------
    tree : BinnedTree
    content : ndarray of shape (n_counted, n_classes), float64
        Noisy class counts of the nodes that are no longer open.
    ledger : BudgetLedger
    """

    tree: BinnedTree
    content: NDArray[np.float64]
    ledger: BudgetLedger

    def closed(self, schema: Schema) -> DecisionTree:
        """Return the tree with its open nodes as leaves."""
        return close(self.tree, schema, self.content)

    def encode(self) -> bytes:
        """Return the state as a checkpoint."""
        tree = self.tree
        arrays = {
            "feature": tree.feature,
            "left": tree.left,
            "right": tree.right,
            "goes_left": tree.goes_left,
            "content": self.content,
        }
        about = {
            "level": tree.level,
            "edges": [own.tolist() for own in tree.edges],
            "ledger": self.ledger.encode().decode(),
        }
        return checkpoints.dump(arrays, about)

    @classmethod
    def decode(cls, data: bytes) -> PrivateTree:
        """Return the state of :meth:`encode`; raises DataError for anything else."""
        with checkpoints.readable("a checkpoint of a private tree"):
            return cls._decode(*checkpoints.load(data))

    @classmethod
    def _decode(cls, arrays: Mapping[str, NDArray[Any]], about: Mapping[str, Any]) -> PrivateTree:
        column = partial(checkpoints.array, arrays)
        tree = BinnedTree(
            checkpoints.whole(about["level"]),
            tuple(np.array(own, dtype=np.float32) for own in about["edges"]),
            column("feature", "<i4"),
            column("left", "<i4"),
            column("right", "<i4"),
            column("goes_left", "|b1", 2),
        )
        ledger = BudgetLedger.decode(about["ledger"].encode())
        return cls(tree, column("content", "<f8", 2), ledger)


def artefact(parameters: DPTree, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
    """Return the tree in four forms, and the ledger of the budget."""
    found = PrivateTree.decode(checkpoint)
    ledger = found.ledger.encode() + b"\n"
    files = {**found.closed(schema).files(), "epsilon-ledger.json": ledger}
    return Artefact(files, MODEL_FILE)
