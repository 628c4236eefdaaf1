"""Intervals around predictions, as a model's file has them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import ModelRejected
from hedgerow.boosting.trees.ensemble import INTERVAL

Floats = NDArray[np.float64]
COVERAGE = "coverage"
"""Score of a model with an interval: the share of rows whose label is inside."""


@dataclass(frozen=True, slots=True)
class PredictionInterval:
    """An interval around a predicted number, or two quantiles, from the errors of rows held back.

    References
    ----------
    Romano, Patterson and Candes, Conformalized quantile regression, 2019.
    """

    share: float
    """Of rows that it is to hold, at least."""
    width: float
    """Half of it, on the label's scale; of quantiles what both ends are moved by, perhaps
    inwards."""
    rows: int
    """Held back in all silos."""

    @classmethod
    def of(cls, attributes: Mapping[str, str]) -> PredictionInterval | None:
        """Return that of a model's attributes; raises :class:`ModelRejected` for none that is."""
        text = attributes.get(INTERVAL)
        if text is None:
            return None
        try:
            told = json.loads(text)
            found = cls(float(told["share"]), float(told["width"]), int(told["rows"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelRejected("the model's interval cannot be read") from error
        if not (0 < found.share < 1 and math.isfinite(found.width) and found.rows >= 0):
            raise ModelRejected("the model's interval: expected a share and a finite width")
        return found

    def ends(self, predictions: Floats) -> Floats:
        """Return both ends, shape (n_samples, 2), around predictions or the outer quantiles.

        Parameters
        ----------
        predictions : ndarray of shape (n_samples,) or (n_samples, n_quantiles), float64
        """
        low, high = outer(predictions)
        return np.stack([low - self.width, high + self.width], axis=1)

    def coverage(self, predictions: Floats, labels: NDArray[np.floating]) -> float:
        """Return the share of rows whose label is inside."""
        low, high = self.ends(predictions).T
        return float(((low <= labels) & (labels <= high)).mean())


def outer(predictions: Floats) -> tuple[Floats, Floats]:
    """Return the first and the last prediction of each row, which may be one."""
    found = predictions[:, np.newaxis] if predictions.ndim == 1 else predictions
    return found[:, 0], found[:, -1]


def errors(predictions: Floats, labels: NDArray[np.floating]) -> Floats:
    """Return by how much an interval must be wider at both ends to hold each row's label.

    Of one prediction it is the distance, of quantiles less than 0 where the label is between them.
    """
    low, high = outer(predictions)
    return np.asarray(np.maximum(low - labels, labels - high))
