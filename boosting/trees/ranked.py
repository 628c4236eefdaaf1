"""A silo's rows with values replaced by their ranks, made once for all trees fitted to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task

CATEGORICAL_ORDERS = ("ordinal", "target")
"""How the values of a categorical feature are ordered before they are cut."""


class RankedColumns(NamedTuple):
    """The arrays of a :class:`RankedTable`; a named tuple, which compiled code can take."""

    codes: NDArray[np.int32]
    values: NDArray[np.float32]
    starts: NDArray[np.int64]
    categorical: NDArray[np.bool_]
    by_target: bool
    sums: NDArray[np.float64]
    weight: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class RankedTable:
    """A silo's rows with each value replaced by its rank among the feature's distinct values."""

    dataset: Dataset
    codes: NDArray[np.int32]
    """Of shape (n_features, n_samples), int32. Rank of the value from 0, -1 where it is missing."""
    values: NDArray[np.float32]
    """Of shape (sum of distinct values,), float32. Distinct values, ascending, feature after
    feature."""
    starts: NDArray[np.int64]
    """Of shape (n_features + 1,), int64. Where each feature's values begin in ``values``."""
    categorical: NDArray[np.bool_]
    """Of shape (n_features,), bool."""
    sums: NDArray[np.float64]
    """Of shape (n_samples, n_sums), float64. What a split adds up: the row's weight in the column
    of its class, or weight times the centred label in the only column."""
    weight: NDArray[np.float64]
    """Of shape (n_samples,), float64."""
    center: float
    """The weighted mean of the labels of a regression, 0 for classification."""
    by_target: bool
    """Whether categories are ordered by their label statistics in the node instead of by code."""

    def values_of(self, feature: int) -> NDArray[np.float32]:
        """Return a feature's distinct values, ascending."""
        return self.values[self.starts[feature] : self.starts[feature + 1]]

    @property
    def columns(self) -> RankedColumns:
        """The arrays, as compiled code takes them."""
        return RankedColumns(
            self.codes,
            self.values,
            self.starts,
            self.categorical,
            self.by_target,
            self.sums,
            self.weight,
        )

    @property
    def is_regression(self) -> bool:
        """Whether leaves are means instead of classes."""
        return self.dataset.schema.task is Task.REGRESSION

    @property
    def n_samples(self) -> int:
        """Number of rows."""
        return self.dataset.n_samples

    @property
    def all_rows(self) -> NDArray[np.int64]:
        """Positions of all rows."""
        return np.arange(self.n_samples, dtype=np.int64)


def rank_table(dataset: Dataset, categorical_order: str = "target") -> RankedTable:
    """Return the table with its values ranked, once for all structures.

    Parameters
    ----------
    categorical_order : {"ordinal", "target"}
        ``"target"`` orders the categories within a node by the share of class 1 (binary), of the
        node's most frequent class (multiclass) or by the mean label (regression); the best cut of
        that order is the best of all two-way partitions for binary labels and means (Breiman et
        al., theorem 4.5). ``"ordinal"`` cuts the global category list in its own order.
    """
    if categorical_order not in CATEGORICAL_ORDERS:
        raise ValueError(f"categorical_order is one of {CATEGORICAL_ORDERS}")
    schema, n_samples = dataset.schema, dataset.n_samples
    codes = np.empty((schema.n_features, n_samples), dtype=np.int32)
    distinct: list[NDArray[np.float32]] = []
    for feature in range(schema.n_features):
        column = dataset.X[:, feature]
        present = ~np.isnan(column)
        found, rank = np.unique(column[present], return_inverse=True)
        codes[feature] = -1
        codes[feature, present] = rank.reshape(-1)
        distinct.append(found.astype(np.float32))
    weight = np.ones(n_samples) if dataset.weight is None else dataset.weight
    labels, center = dataset.labels, 0.0
    if schema.task is Task.REGRESSION:
        total = float(weight.sum())
        center = float(weight @ labels) / total if total > 0 else 0.0
        sums = (weight * (labels - center))[:, np.newaxis]
    else:
        sums = np.zeros((n_samples, max(2, schema.n_classes)))
        sums[np.arange(n_samples), labels.astype(np.int64)] = weight
    return RankedTable(
        dataset,
        codes,
        np.concatenate(distinct) if distinct else np.empty(0, dtype=np.float32),
        np.cumsum([0, *(len(found) for found in distinct)], dtype=np.int64),
        np.array([feature.is_categorical for feature in schema.features], dtype=np.bool_),
        np.ascontiguousarray(sums),
        np.ascontiguousarray(weight, dtype=np.float64),
        center,
        categorical_order == "target",
    )
