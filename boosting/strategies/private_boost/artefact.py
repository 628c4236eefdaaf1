"""The result: a stock XGBoost model that says how private it is, and the budget's ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.budget import BudgetLedger
from hedgerow.boosting.checkpoints import Stored
from hedgerow.boosting.payloads import Float64s, UInt16s
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.private_boost.mechanism import Floats, Mechanism
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.ports import JobParameters
    from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost


@dataclass(frozen=True, slots=True, eq=False)
class Boosted(Stored):
    """The coordinator's state after a batch."""

    what = "a checkpoint of private boosting"

    batches: int
    values: UInt16s
    """Leaf values of all trees, float16."""
    sums: Float64s
    """Noisy gradients and hessians of all leaves."""
    parts: Float64s
    """By batch: parts of the noise that its sums had, over those that make the whole noise."""

    def values_by_batch(self, plan: Mechanism) -> list[UInt16s]:
        """Return the leaf values by batch."""
        ends = np.cumsum([plan.n_values(batch) // 2 for batch in range(self.batches)])
        return np.split(self.values, ends[:-1]) if self.batches else []


def blank_of(plan: Mechanism) -> Ensemble:
    """Return the model without trees."""
    job = plan.job
    return blank(plan.schema, job.objective, job.booster, plan.base_score)


def trees_of(plan: Mechanism, values: Sequence[UInt16s], sums: Floats | None) -> list[Tree]:
    """Return the trees of leaf values by batch, with covers where sums of all leaves are given."""
    found, first = [], 0
    for batch, own in enumerate(values):
        for structure, leaves in zip(
            plan.structures(batch), plan.values_of(batch, own), strict=True
        ):
            whole = np.zeros((2, plan.n_outputs, plan.n_leaves))
            if sums is not None:
                whole = sums[first : first + whole.size].reshape(whole.shape)
                first += whole.size
            found += [
                structure.tree(plan.schema, leaves[k], whole[:, k], k)
                for k in range(plan.n_outputs)
            ]
    return found


def artefact(
    parameters: PrivateBoost, job: JobParameters, schema: Schema, checkpoint: bytes
) -> Artefact:
    """Return ``model.ubj``, and with a budget what was spent of it."""
    plan, state = Mechanism(parameters, job, schema, 3), Boosted.decode(checkpoint)
    trees = trees_of(plan, state.values_by_batch(plan), state.sums)
    ends = tuple(plan.trees_of(batch).stop for batch in range(state.batches))
    model = blank_of(plan).extend(trees, n_steps=len(trees) // plan.n_outputs, end_round=False)
    model = replace(model, round_ends=ends)
    if not plan.noisy:
        return Artefact({"model.ubj": model.save()}, "model.ubj")
    parts = math.sqrt(float(state.parts.max(initial=1.0)))
    deviation = plan.deviation * parts
    account = {
        "mechanism": "skellam",
        "rho": plan.rho,
        "batches": state.batches,
        # value = step * gradients / (hessians + added), of a leaf; deviations are of its sums.
        "deviation": deviation,
        "hessian_deviation": plan.hessian_deviation * parts,
        "added": plan.added(deviation),
        "step": plan.step_of(plan.rule.trees_per_exchange),
    }
    about = {
        "epsilon": repr(parameters.epsilon),
        "delta": repr(parameters.delta),
        "privacy_unit": "row",
        "privacy_account": json.dumps(account),
    }
    assert parameters.epsilon is not None
    assert parameters.delta is not None
    ledger = BudgetLedger(parameters.epsilon, delta=parameters.delta)
    ledger.charge({f"batch {batch}": plan.cost(batch) for batch in range(state.batches)})
    files = {
        "model.ubj": replace(model, attributes=about).save(),
        "epsilon-ledger.json": ledger.encode() + b"\n",
    }
    return Artefact(files, "model.ubj")
