"""What a coordinator does for a model that grows by rounds: reading offers, scoring test rows."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hedgerow.boosting import metrics
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.trees.ensemble import Ensemble, Tree, blank
from hedgerow.boosting.trees.limits import TreeLimits, read_upload
from hedgerow.boosting.trees.local import MarginRows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hedgerow.boosting.engine.start import Score
    from hedgerow.boosting.ports import CoordinatorStart
    from hedgerow.boosting.rounds.log import TreeLog
    from hedgerow.boosting.rounds.steps import TreeOffer


@dataclass(frozen=True, slots=True)
class Upload:
    """A sound offer; without trees from a silo that adds none."""

    version: int
    data: bytes
    gain: float
    trees: list[Tree]


def read_offer(
    log: TreeLog, silo: Silo, offer: TreeOffer, steps: int, limits: TreeLimits | None
) -> Upload:
    """Return the trees of an offer after checking them.

    Parameters
    ----------
    steps : int
        Boosting steps of a silo that adds trees.
    limits : TreeLimits or None
        None where the silo adds none in this round.

    Raises
    ------
    OfferRejected
        Trees of a silo that takes no part, of another version, or beyond the limits.
    """
    if offer.version > log.version:
        raise OfferRejected(f"expected {log.version} rounds, received {offer.version}")
    if offer.steps == 0 and not offer.data:
        return Upload(offer.version, b"", 0.0, [])
    if limits is None:
        raise OfferRejected(f"{silo} offers trees but takes no part in this round")
    if offer.version != log.version:
        raise OfferRejected(f"expected trees for version {log.version}, received {offer.version}")
    if offer.steps != steps:
        raise OfferRejected(f"expected {steps} steps, received {offer.steps}")
    if not (math.isfinite(offer.gain) and offer.gain >= 0):
        raise OfferRejected("expected a finite total gain from zero up")
    return Upload(offer.version, offer.data, offer.gain, read_upload(offer.data, limits))


class ScoredTest:
    """Scores of the growing model on the coordinator's test rows, if it has any."""

    def __init__(self, start: CoordinatorStart, log: TreeLog, base_score: Score) -> None:
        job = start.job
        self.start, self.names = start, job.metrics or metrics.defaults(job.task)
        self.blank = blank(start.schema, job.objective, job.booster, base_score)
        self.rows: MarginRows | None = None
        if start.test is not None and start.test.n_samples:
            self.rows = MarginRows(start.test, start.starting or self.blank, 1)
            self.rows.add(log.ensemble(self.blank))

    def add(self, trees: Sequence[Tree], n_steps: int) -> dict[str, dict[str, float]]:
        """Add trees, and return the scores after them; empty without test rows."""
        if self.rows is None:
            return {}
        self.rows.add(self.blank.extend(list(trees), n_steps=n_steps))
        return scores_by_set(self.start, self.names, self.rows.margins)


def scores_by_set(
    start: CoordinatorStart, names: Sequence[str], margins: NDArray[np.floating]
) -> dict[str, dict[str, float]]:
    """Return scores of each set of the coordinator's test rows from the margins of all of them."""
    rows, found, first = start.test, {}, 0
    assert rows is not None
    for data, n_rows, metric in start.test_parts or (("test", rows.n_samples, None),):
        part = slice(first, first := first + n_rows)
        found[data] = metrics.evaluate(
            names,
            rows.labels[part],
            margins[part],
            objective=start.job.objective,
            weight=None if rows.weight is None else rows.weight[part],
            metric=metric,
        )
    return found


def stock_artefact(log: TreeLog, ensemble: Ensemble, n_rounds: int) -> Artefact:
    """Return the files of a stock XGBoost model, and where each of its trees is from."""
    blocks: list[dict[str, Any]] = [
        {"round": round, "silo": silo, "steps": added.steps, "factor": factor}
        for round, added in enumerate(log.rounds[:n_rounds])
        for silo, factor in zip(added.silos, added.factors, strict=True)
    ]
    provenance = {"trees": ensemble.version, "digest": log.digest.hex(), "blocks": blocks}
    text = json.dumps(provenance, indent=1).encode()
    return Artefact({"model.ubj": ensemble.save(), "provenance.json": text}, "model.ubj")
