"""Cut points: where a numeric feature is divided into bins.

The convention is XGBoost's: bin ``b`` of a numeric feature holds
``values[b - 1] <= x < values[b]``, so a split after bin ``b`` is ``x < values[b]``, exactly
the test that an exported model makes. The last value of a feature is a fence above every training
value, and ``lower`` is a fence below; both are used only by splits of missing from present values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.engine.summaries import Summary, merge_summaries, summarise
from hedgerow.boosting.errors import DataError

FENCE = np.float32(np.finfo(np.float32).max)
"""Upper fence of our own cuts; no training value may reach it."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Bins of every feature; the same at every silo."""

    values: NDArray[np.float32]
    """Of shape (n_total_bins,), float32. Strictly increasing within a feature. For a categorical
    feature the codes 0, 1, …."""
    offsets: NDArray[np.int64]
    """Of shape (n_features + 1,), int64. Feature ``j`` owns ``values[offsets[j]:offsets[j + 1]]``;
    it has as many bins."""
    categorical: NDArray[np.bool_]
    """Of shape (n_features,), bool."""
    lower: NDArray[np.float32]
    """Of shape (n_features,), float32. Below every training value: the threshold that sends all
    present values right."""

    def __post_init__(self) -> None:
        n_features = self.categorical.shape[0]
        if self.offsets.shape != (n_features + 1,) or self.lower.shape != (n_features,):
            raise DataError("cuts: offsets, lower and categorical disagree on the feature count")
        if self.offsets[0] != 0 or self.offsets[-1] != self.values.shape[0]:
            raise DataError("cuts: offsets do not span the values")
        if np.any(np.diff(self.offsets) < 1):
            raise DataError("cuts: every feature needs at least one bin")
        inside = np.ones(self.values.shape[0], dtype=bool)
        inside[self.offsets[:-1]] = False
        if not np.all(np.isfinite(self.values)) or np.any(
            np.diff(self.values, prepend=np.float32(-np.inf))[inside] <= 0
        ):
            raise DataError("cuts: values must be finite and strictly increasing in a feature")

    @property
    def n_features(self) -> int:
        """Number of features."""
        return int(self.categorical.shape[0])

    @property
    def n_bins(self) -> NDArray[np.int64]:
        """Bins of each feature, shape (n_features,); missing is not among them."""
        return np.diff(self.offsets)

    def of(self, feature: int) -> NDArray[np.float32]:
        """Return the values of one feature."""
        return self.values[self.offsets[feature] : self.offsets[feature + 1]]

    def threshold(self, feature: int, last_left_bin: int) -> np.float32:
        """Return ``t`` such that ``x < t`` holds exactly for bins up to ``last_left_bin``.

        ``last_left_bin`` is -1 where no present value goes left.
        """
        if last_left_bin < 0:
            return np.float32(self.lower[feature])
        return np.float32(self.values[self.offsets[feature] + last_left_bin])


def numeric_features(schema: Schema) -> list[int]:
    """Return the indices of the numeric features."""
    return [j for j, feature in enumerate(schema.features) if not feature.is_categorical]


def cuts_from_thresholds(schema: Schema, thresholds: Sequence[NDArray[np.float32]]) -> Cuts:
    """Build cuts from the inner thresholds of each numeric feature; fences are added.

    Parameters
    ----------
    schema : Schema
        The bins of a categorical feature are its codes.
    thresholds : sequence of ndarrays, float32
        One array per numeric feature, strictly increasing, possibly empty.
    """
    inner = iter(thresholds)
    blocks: list[NDArray[np.float32]] = []
    for feature in schema.features:
        if feature.categories is not None:
            n_codes = max(1, len(feature.categories))
            blocks.append(np.arange(n_codes, dtype=np.float32))
            continue
        found = next(inner, None)
        if found is None:
            raise DataError(f"cuts: no thresholds for the numeric feature {feature.name!r}")
        found = np.asarray(found, dtype=np.float32)
        blocks.append(np.append(found[found < FENCE], FENCE))
    if next(inner, None) is not None:
        raise DataError("cuts: more thresholds than numeric features")
    return Cuts(
        values=np.concatenate(blocks) if blocks else np.empty(0, np.float32),
        offsets=np.concatenate([[0], np.cumsum([b.shape[0] for b in blocks])]).astype(np.int64),
        categorical=np.array([f.is_categorical for f in schema.features], dtype=np.bool_),
        lower=np.full(schema.n_features, -FENCE, dtype=np.float32),
    )


def merged_cuts(schema: Schema, silos: Sequence[Sequence[Summary]], max_bin: int) -> Cuts:
    """Return cuts at even ranks of the union of the silos' rows.

    Parameters
    ----------
    silos : sequence of sequences of Summary
        Per silo, the summary of each numeric feature.
    """
    merged = [merge_summaries(parts, max_bin) for parts in zip(*silos, strict=True)]
    return cuts_from_thresholds(schema, merged)


def local_cuts(dataset: Dataset, max_bin: int, error: float = 0.0) -> Cuts:
    """Return cuts from one table's own summaries.

    Parameters
    ----------
    error : float
        Rank error of a cut, at most, relative to the rows that have a value; 0 for
        ``1 / (8 max_bin)``.
    """
    # Points at regular steps lie on the cuts' ranks, and a cut is between its point and the next.
    n_points = 8 * max_bin
    if error:
        n_points = max_bin * ceil(min(1 / error, dataset.n_samples) / max_bin)
    readers = dataset.columns.readers
    own = [summarise(readers[j](), n_points) for j in numeric_features(dataset.schema)]
    return merged_cuts(dataset.schema, [own], max_bin)
