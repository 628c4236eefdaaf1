"""How the coordinator scores rounds: on its own rows, and by secure sums over the silos' rows."""

from __future__ import annotations

import numpy as np

from hedgerow.boosting import metrics
from hedgerow.boosting.exchange import ExchangeKey
from hedgerow.boosting.ports import CoordinatorStart
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.boosting.rounds.coordinator import scores_by_set
from hedgerow.boosting.strategies.histogram.plan import HistogramPlan, Setup
from hedgerow.boosting.strategies.histogram.steps import SCORES, RowsScored
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.requests import SumOutcome
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.local import MarginRows

Scores = dict[str, dict[str, float]]


class RoundScores(BestRound):
    """Scores of rounds, and which round is the best so far.

    Attributes
    ----------
    scored : RowsScored
        Rows of the silos that are scored each round.
    best_round : int
        By the validation rows, or by the training rows where the job stops by these; else, or where
        no score is defined, the last round.
    best_score : float
    """

    def __init__(self, plan: HistogramPlan, start: CoordinatorStart) -> None:
        self._plan = plan
        self._start = start
        self._test_rows: MarginRows | None = None
        super().__init__(best_round=0)
        alone = start.test is None or plan.parameters.early_stopping_rounds
        self.scored = plan.scorable[-1 if alone else 0]
        self._chooses = bool(
            plan.parameters.early_stopping_rounds or RowsScored.VALID.value in self.scored.sets
        )

    def begin(self, ensemble: Ensemble) -> None:
        """Load the coordinator's own rows, with the margins of ``ensemble``."""
        if self._start.test is not None:
            first = self._start.starting or ensemble.slice(0)
            self._test_rows = MarginRows(self._start.test, first, 1)
            self._test_rows.add(ensemble)

    def add(self, part: Ensemble) -> Scores:
        """Add a round's trees; return the scores on the coordinator's own rows."""
        if self._test_rows is None:
            return {}
        self._test_rows.add(part)
        return scores_by_set(self._start, self._plan.metric_names, self._test_rows.margins)

    async def sum(
        self, sums: CoordinatorSums, opening: Setup, round_: int
    ) -> tuple[Scores, SumOutcome]:
        """Score the silos' rows; the sum is to be answered with what follows the round."""
        names, n_outputs = self._plan.metric_names, self._plan.schema.n_scored
        summed, sets = self._plan.metric_sums(opening), self.scored.sets
        outcome = await sums.sum(SCORES, ExchangeKey(round_), len(sets) * summed.n_residues)
        assert outcome.total is not None, "only sums over a fixed set are abandoned"
        found = {
            name: metrics.combine(names, summed.totals(total), n_outputs=n_outputs)
            for name, total in zip(sets, np.split(outcome.total, len(sets)), strict=True)
        }
        scores = found[sets[-1]]
        if self._chooses:
            self.note(names[0], round_, scores[names[0]], self._plan.parameters.tol)
        return found, outcome
