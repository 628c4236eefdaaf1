"""The coordinator's state of a private tree between levels, and the result that it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.checkpoints import Stored
from hedgerow.boosting.dataset import Schema
from hedgerow.boosting.payloads import Float64Table
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.dp_tree.noisy_tree import BinnedTree, close
from hedgerow.boosting.trees.decision_tree import MODEL_FILE, DecisionTree

if TYPE_CHECKING:
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.dp_tree.parameters import DPTree


@dataclass(frozen=True, slots=True, eq=False)
class PrivateTree(Stored):
    """A tree after one of its levels."""

    what = "a checkpoint of a private tree"

    tree: BinnedTree
    content: Float64Table
    """Of shape (n_counted, n_classes), float64. Noisy class counts of the nodes that are no longer
    open."""
    ledger: BudgetLedger

    def closed(self, schema: Schema) -> DecisionTree:
        """Return the tree with its open nodes as leaves."""
        return close(self.tree, schema, self.content)


def artefact(parameters: DPTree, job: JobParameters, schema: Schema, checkpoint: bytes) -> Artefact:
    """Return the tree in four forms, and the ledger of the budget."""
    found = PrivateTree.decode(checkpoint)
    ledger = found.ledger.encode() + b"\n"
    files = {**found.closed(schema).files(), "epsilon-ledger.json": ledger}
    return Artefact(files, MODEL_FILE)
