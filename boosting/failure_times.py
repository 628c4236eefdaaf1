"""Accelerated failure time: how likely an event's time is between two bounds, as XGBoost has it.

The logarithm of a time is the margin plus ``scale`` times a draw of a distribution. A row's label
is the earliest and the latest time of its event: the same of one that was seen, infinite as latest
of one that was not (right-censored), 0 as earliest of one that was before (left-censored).

References
----------
Barnwal, Cho and Hocking, Survival regression with accelerated failure time model in XGBoost, 2022.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob

Floats = NDArray[np.float64]

DISTRIBUTIONS = ("normal", "logistic", "extreme")
LEAST_SCALE, MOST_SCALE = 1e-3, 1e3
_LEAST = 1e-12  # below which a likelihood is taken for it

_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True)
class FailureTimes:
    """A distribution of the logarithm of times."""

    distribution: str = "normal"
    scale: float = 1.0

    @classmethod
    def of(cls, text: str, name: str) -> FailureTimes:
        """Return what follows the @ of a metric's name: the distribution, a colon and the scale.

        Raises
        ------
        InvalidJob
        """
        distribution, _, number = text.partition(":")
        try:
            scale = float(number or 1.0)
        except ValueError:
            scale = math.nan
        if distribution not in DISTRIBUTIONS or not LEAST_SCALE <= scale <= MOST_SCALE:
            raise InvalidJob(
                f"metrics: '{name}': expected one of {', '.join(DISTRIBUTIONS)}, a colon and a "
                f"scale in [{LEAST_SCALE:g}, {MOST_SCALE:g}] after the @"
            )
        return cls(distribution, scale)

    @property
    def suffix(self) -> str:
        """What follows a metric's name; empty for XGBoost's default."""
        return "" if self == FailureTimes() else f"@{self.distribution}:{self.scale:g}"

    def losses(self, margin: Floats, y: Floats) -> Floats:
        """Return the negative log-likelihood of each row, at most that of 1e-12.

        Parameters
        ----------
        margin : ndarray of shape (n_samples,), float64
        y : ndarray of shape (n_samples, 2), float64

        Returns
        -------
        ndarray of shape (n_samples,), float64
        """
        lower, upper = y.astype(np.float32).astype(np.float64).T  # as XGBoost holds them
        scale = float(np.float32(self.scale))
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            first, last = ((np.log(time) - margin) / scale for time in (lower, upper))
            seen = self._density(first) / (scale * lower)
            likely = np.where(lower == upper, seen, self._below(last) - self._below(first))
            return np.asarray(-np.log(np.maximum(likely, _LEAST)))

    def survival(self, time: float, margin: Floats) -> Floats:
        """Return of each row the chance of no event until a time."""
        return np.asarray(1.0 - self._below((math.log(time) - margin) / self.scale))

    def _density(self, z: Floats) -> Floats:
        if self.distribution == "normal":
            return np.asarray(np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        if self.distribution == "logistic":
            w = np.exp(-np.abs(z))
            return np.asarray(w / np.square(1 + w))
        w = np.exp(z)
        return np.asarray(np.where(np.isinf(w), 0.0, w * np.exp(-w)))

    def _below(self, z: Floats) -> Floats:
        """Return the distribution's probability of a draw of at most z."""
        if self.distribution == "normal":
            return np.asarray(0.5 * (1 + np.asarray(_erf(z / math.sqrt(2)), np.float64)))
        if self.distribution == "logistic":
            w = np.exp(-np.abs(z))
            return np.asarray(np.where(z > 0, 1.0, w) / (1 + w))
        return np.asarray(-np.expm1(-np.exp(z)))


def within_bounds(time: Floats, y: Floats) -> Floats:
    """Return 1.0 of rows whose predicted time is between their bounds, both included, else 0.0."""
    return np.asarray((time >= y[:, 0]) & (time <= y[:, 1]), dtype=np.float64)


def is_event(y: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return of which rows the event was seen, from both bounds of its time."""
    return np.asarray(y[:, 0] == y[:, 1])
