"""An estimator in scikit-learn's form that puts the rows of queries in order."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.ranking import NDCG, labels_refused
from hedgerow.coordinator.operator.library.arrays import values_of
from hedgerow.coordinator.operator.library.estimators import EvalSets, _Federated

Floats = NDArray[np.float64]


class FederatedRanker(_Federated):
    """A ranker whose training queries are in silos; see :class:`FederatedClassifier`.

    Its strategy is ``histogram`` or ``bagging``, its objective ``rank:ndcg``, ``rank:pairwise`` or
    ``rank:map``.
    """

    def fit(
        self,
        X: Any,
        y: Any,
        silos: ArrayLike | int | None = None,
        *,
        qid: ArrayLike,
        eval_set: EvalSets = None,
        eval_qid: list[ArrayLike] | None = None,
    ) -> FederatedRanker:
        """Train.

        Parameters
        ----------
        y : array of shape (n_samples,)
            How relevant rows are: whole numbers from 0 to 31.
        silos : array of names, or int, optional
            Each row's silo, or how many silos get the queries. Rows of one query that are in two
            silos are two queries.
        qid : array of shape (n_samples,)
            Each row's query; rows of a query are next to each other.
        eval_set, eval_qid : sequence of (X, y), and of their queries, optional
            Rows that are scored after each round.
        """
        rows = self._rows(X, reset=True)
        labels = _graded(self._labels(X, y, rows, numeric=True), qid, "qid")
        sets = self._sets(eval_set, None, numeric=True)
        queries = list(eval_qid or ())
        if len(queries) != len(sets):
            raise ValueError(
                f"eval_qid: expected {len(sets)} arrays, one a set of eval_set, received "
                f"{len(queries)}"
            )
        known = {
            name: (own, _graded(grades, given, f"eval_qid: {name}"))
            for (name, (own, grades)), given in zip(sets.items(), queries, strict=True)
        }
        self._train(rows, labels, silos, None, Task.RANKING, 0, known)
        return self

    def predict(self, X: Any) -> Floats:
        """Return scores, shape (n_samples,): of a query's rows the greatest is the first."""
        return self._margins(X)

    def score(self, X: Any, y: Any, qid: ArrayLike) -> float:
        """Return the mean NDCG of the queries."""
        rows = self._rows(X, reset=False)
        labels = _graded(self._labels(X, y, rows, numeric=True), qid, "qid")
        objective = self.model_.objective
        return metrics.evaluate(["ndcg"], labels, self.predict(X), objective=objective)["ndcg"]


def _graded(y: Floats, qid: ArrayLike, what: str) -> Floats:
    """Return labels with the number of each row's query, shape (n_samples, 2)."""
    queries = np.asarray(values_of(qid, what))
    if queries.shape != y.shape or y.ndim != 1:
        raise ValueError(f"{what}: expected a query of each of {len(y)} rows and one label a row")
    starts = np.flatnonzero(np.append(True, queries[1:] != queries[:-1]))[: len(queries)]
    if len(set(queries[starts].tolist())) < len(starts):
        raise ValueError(f"{what}: expected the rows of a query next to each other: sort by it")
    number = np.repeat(np.arange(float(len(starts))), np.diff(np.append(starts, len(queries))))
    graded = np.stack([y, number], axis=1)
    if why := labels_refused(NDCG, graded):
        raise ValueError(f"y beside {what}: {why}, received others")
    return graded
