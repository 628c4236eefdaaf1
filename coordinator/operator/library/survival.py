"""An estimator in scikit-survival's form: which rows have an event sooner."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hedgerow.boosting import metrics
from hedgerow.boosting.dataset import Task
from hedgerow.coordinator.operator.library.estimators import EvalSets, _Federated

Floats = NDArray[np.float64]


class FederatedSurvival(_Federated):
    """A model of times until an event, whose training rows are in silos.

    Labels, predictions and score are as scikit-survival's. See :class:`FederatedClassifier` for the
    parameters; the objective is ``survival:aft`` (``histogram``, ``bagging``) or ``survival:cox``
    (``histogram``).
    """

    of_times: ClassVar[bool] = True

    def fit(
        self, X: Any, y: Any, silos: ArrayLike | int | None = None, *, eval_set: EvalSets = None
    ) -> FederatedSurvival:
        """Train.

        Parameters
        ----------
        y : structured array of shape (n_samples,)
            Two fields: whether the event was seen (bool), and when, or until when it was not.
        silos : array of names, or int, optional
            Each row's silo, or how many silos get the rows.
        eval_set : sequence of (X, y), optional
            Rows that are scored after each round.
        """
        rows = self._rows(X, reset=True)
        sets = self._sets(eval_set, None, numeric=True)
        labels = self._labels(X, y, rows, numeric=True)
        self._train(rows, labels, silos, None, Task.SURVIVAL, 0, sets)
        return self

    def _labels(self, X: Any, y: Any, rows: Any, *, numeric: bool) -> Floats:
        return _bounds(y, rows.n_samples)

    def predict(self, X: Any) -> Floats:
        """Return risks, shape (n_samples,): a row with a greater one has its event sooner.

        Of ``survival:cox`` it is the hazard, relative to the baseline's; of ``survival:aft`` minus
        the logarithm of the predicted time.
        """
        margins = self._margins(X)
        of_cox = self.model_.objective == "survival:cox"
        return self.model_.predictions(margins) if of_cox else -margins

    def score(self, X: Any, y: Any) -> float:
        """Return the concordance: the share of pairs of rows in the order of their times."""
        rows = self._rows(X, reset=False)
        labels, objective = self._labels(X, y, rows, numeric=True), self.model_.objective
        margins = self._margins(X)
        return metrics.evaluate(["c-index"], labels, margins, objective=objective)["c-index"]


def _bounds(y: Any, n_rows: int) -> Floats:
    """Return bounds of each row's time, shape (n_samples, 2), from events and times."""
    found = np.asarray(y)
    names = found.dtype.names or ()
    if len(names) != 2 or found.dtype[0] != np.bool_ or found.dtype[1].kind not in "iuf":
        raise ValueError(
            "y: expected a structured array of two fields, whether the event was seen (bool) and "
            f"the time (a number), as scikit-survival's, received {found.dtype}"
        )
    if found.shape != (n_rows,):
        raise ValueError(f"y: expected {n_rows} rows as X, received shape {found.shape}")
    time = found[names[1]].astype(np.float64)
    if not np.all(np.isfinite(time) & (time > 0)):
        raise ValueError("y: expected finite times above 0, received others")
    return np.stack([time, np.where(found[names[0]], time, np.inf)], axis=1)
