"""A ``DMatrix`` as the table of a silo."""

from __future__ import annotations

import re
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import xgboost

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import Booster
from hedgerow.xgboost import collective
from hedgerow.xgboost.collective import COLUMNS

LABEL = "label"
WEIGHT = "weight"
UPPER = "label_upper"
"""Upper bound of a time, whose lower one is the label."""
QUERY = "label_query"
"""Number of a row's query."""
EVENT = "label_event"
"""1 of a time that is of an event that was seen, 0 of one until which it was not."""


class QuantileDMatrix(xgboost.QuantileDMatrix):  # type: ignore[misc]  # XGBoost is skipped
    """XGBoost's own; in a context it has values, as a DMatrix, for silos find cut points together.

    So a booster predicts on it what it predicts on a DMatrix: trees have the silos' cut points.
    """

    def __init__(self, data: Any, *args: Any, **kwargs: Any) -> None:
        self.has_values = collective.joined() is not None
        if not self.has_values:
            super().__init__(data, *args, **kwargs)
            return
        if isinstance(data, xgboost.DataIter):
            raise InvalidJob(
                "QuantileDMatrix: batches of a DataIter are not kept: give DMatrix or "
                "QuantileDMatrix all rows of this site"
            )
        self.max_bin, ref = kwargs.pop("max_bin", None), kwargs.pop("ref", None)
        if ref is not None:
            self.ref = weakref.ref(ref)  # as XGBoost, whose train asks for it
            check_bins(self, n_bins(ref) or n_bins(self))
        kwargs.pop("max_quantile_batches", None)
        xgboost.DMatrix.__init__(self, data, *args, **kwargs)

    def get_quantile_cut(self) -> Any:
        """Return XGBoost's cut points of this site's rows."""
        if not self.has_values:
            return super().get_quantile_cut()
        return self._binned().get_quantile_cut()

    def _binned(self) -> xgboost.QuantileDMatrix:
        ref: Any = self.ref and self.ref()
        weight = self.get_weight()
        if getattr(ref, "has_values", False):
            ref = ref._binned()
        return xgboost.QuantileDMatrix(
            self.get_data(), weight=weight if weight.size else None, ref=ref, max_bin=self.max_bin,
            feature_names=self.feature_names, feature_types=self.feature_types,
        )  # fmt: skip


def n_bins(matrix: xgboost.DMatrix) -> int:
    """Return ``max_bin`` of a matrix of quantiles; 0 of others."""
    if not isinstance(matrix, xgboost.QuantileDMatrix):
        return 0
    return Booster().max_bin if matrix.max_bin is None else int(matrix.max_bin)


def check_bins(matrix: xgboost.DMatrix, expected: int) -> None:
    """Refuse a matrix of quantiles with another ``max_bin``, as XGBoost does."""
    if n_bins(matrix) not in (0, expected):
        raise InvalidJob(
            f"Inconsistent `max_bin` ({expected} vs. {n_bins(matrix)}). `max_bin` should be the "
            "same across different QuantileDMatrix, and consistent with the Booster being trained"
        )


class _StockToo(type):
    """Of a class that every stock Booster counts as one of."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, xgboost.Booster)


class SiteBooster(xgboost.Booster, metaclass=_StockToo):  # type: ignore[misc]
    """XGBoost's own, for loading models; what ``train`` returns is a stock ``xgboost.Booster``.

    In a context it grows no trees by itself: they would be of this site's rows alone.
    """

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Boost once, outside of a context."""
        _refuse("update")
        super().update(*args, **kwargs)

    def boost(self, *args: Any, **kwargs: Any) -> None:
        """Boost once by given gradients, outside of a context."""
        _refuse("boost")
        super().boost(*args, **kwargs)


def _refuse(name: str) -> None:
    if collective.joined() is not None:
        raise InvalidJob(f"Booster.{name}: it would see this site's rows alone: use train")


def n_labels(matrix: xgboost.DMatrix) -> int:
    """Return how many labels a row has; 1 where there are none."""
    return max(1, int(matrix.get_label().size) // max(int(matrix.num_row()), 1))


def margins_of(n: int) -> tuple[str, ...]:
    """Return the names of the columns of base margins of ``n`` outputs."""
    return tuple(f"base_margin_{k}" for k in range(n))


def n_margins(matrix: xgboost.DMatrix) -> int:
    """Return how many base margins a row has; 0 where there are none."""
    return int(matrix.get_base_margin().size) // max(int(matrix.num_row()), 1)


def labels_of(n: int) -> tuple[str, ...]:
    """Return the names of the columns of ``n`` labels."""
    return (LABEL, *(f"{LABEL}_{k}" for k in range(1, n)))


def with_values(matrix: xgboost.DMatrix) -> xgboost.DMatrix:
    """Return the matrix; raises InvalidJob for one of quantiles alone."""
    if isinstance(matrix, xgboost.QuantileDMatrix) and not getattr(matrix, "has_values", False):
        raise InvalidJob(
            "QuantileDMatrix: its values are kept inside of a context only: make it there, of "
            "hedgerow.xgboost"
        )
    return matrix


def names_of(matrix: xgboost.DMatrix) -> list[str]:
    """Return the features' names: XGBoost's own where they have none.

    Raises
    ------
    InvalidJob
        One is the index of a pandas frame, which an Arrow table made of it has as a column: where
        rows are sorted by label, it would be the label.
    """
    names = list(matrix.feature_names or (f"f{k}" for k in range(matrix.num_col())))
    index = next((name for name in names if re.fullmatch(r"__index_level_\d+__", name)), None)
    if index is not None:
        raise InvalidJob(
            f"dtrain: feature {index!r} is the index of a pandas frame: make the Arrow table with "
            "preserve_index=False"
        )
    return names


def refuse_columns(matrix: xgboost.DMatrix, what: str) -> None:
    """Refuse a matrix of some columns, with the strategy that has them; its parts tell no more."""
    split = getattr(matrix, "data_split_mode", None)  # not since XGBoost 3.4
    if split is not None and split() is xgboost.core.DataSplitMode.COL:
        raise InvalidJob(f"{what}: data_split_mode = COL: {COLUMNS}")


MOST_CODES = 1 << 24
"""Categories that XGBoost's float32 codes tell apart."""


def table_of(
    matrix: xgboost.DMatrix,
    what: str,
    *,
    classes: int,
    weighted: bool,
    bounded: bool = False,
    ranked: bool = False,
    signed: bool = False,
    n_labels: int = 1,
    n_starts: int = 0,
) -> pa.Table:
    """Return a matrix as the table of a silo.

    Parameters
    ----------
    classes : int
        How many classes labels are of, as whole numbers from 0; 0 where they are numbers.
    weighted : bool
        Whether the table has weights; 1 where the matrix has none.
    bounded : bool
        Whether labels are bounds of times.
    ranked : bool
        Whether rows are of queries.
    signed : bool
        Whether they are times, negative where the event was not seen by then.
    n_labels : int
        Labels a row.
    n_starts : int
        Base margins a row.

    Raises
    ------
    InvalidJob
        The matrix has what a silo's table has no place for.
    """
    bounds = [
        matrix.get_float_info(f"label_{end}_bound").astype(np.float64) for end in ("lower", "upper")
    ]
    refuse_columns(matrix, what)
    groups = matrix.get_uint_info("group_ptr")
    if ranked and not len(groups):
        raise InvalidJob(f"{what}: expected group or qid of rows that are ranked, received none")
    for absent, why in (
        ([] if ranked else groups, "group, qid: objectives that rank have them, as rank:ndcg"),
        ([] if bounded else bounds[0], "label_lower_bound: survival:aft alone has bounds"),
        (
            matrix.get_label() if bounded else [],
            "label: survival:aft has label_lower_bound and label_upper_bound in its place",
        ),
    ):
        if len(absent):
            raise InvalidJob(f"{what}: {why}")
    csr, names = with_values(matrix).get_data(), names_of(matrix)
    labels, starts = labels_of(n_labels), margins_of(n_starts)
    if n_margins(matrix) != n_starts:
        raise InvalidJob(
            f"{what}: expected {n_starts} base margins a row, as dtrain has, received "
            f"{n_margins(matrix)}"
        )
    if taken := {*labels, *starts, WEIGHT} & {*names}:
        raise InvalidJob(f"{what}: no feature may be called {min(taken)}")
    columns: dict[str, Any] = {}
    dense = np.full(csr.shape, np.nan, np.float32)
    at = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    dense[at, csr.indices] = csr.data
    types = matrix.feature_types or ()
    named = categories_of(matrix)
    for k, name in enumerate(names):
        column = dense[:, k]
        columns[name] = (
            _categories(column, named[k], f"{what}: feature {name}")
            if types and types[k] == "c"
            else pa.array(column)
        )
    if bounded:
        for name, values in zip((LABEL, UPPER), bounds, strict=True):
            if len(values) != matrix.num_row():
                raise InvalidJob(
                    f"{what}: expected label_lower_bound and label_upper_bound of "
                    f"{matrix.num_row()} rows, received {len(values)}"
                )
            columns[name] = values
    else:
        found = _labels(matrix, what, classes=classes, n_labels=n_labels)
        if signed:
            columns[EVENT] = (found[:, 0] > 0).astype(np.int64)
            found = np.abs(found)
        columns |= zip(labels, found.T, strict=True)
    if n_starts:
        columns |= zip(starts, matrix.get_base_margin().reshape(-1, n_starts).T, strict=True)
    if ranked:
        columns[QUERY] = np.repeat(np.arange(len(groups) - 1), np.diff(groups))
    if weighted:
        weight = matrix.get_weight()
        ones = np.ones(csr.shape[0], np.float32)
        columns[WEIGHT] = weight if len(weight) else ones
    return pa.table(columns)


def categories_of(matrix: xgboost.DMatrix) -> list[list[str] | None]:
    """Return each feature's names of categories; None where its values are codes, or numbers."""
    found = matrix.get_categories(export_to_arrow=True).to_arrow()
    if not found:
        return [None] * matrix.num_col()
    if any(names is not None and max(_bytes(names), default=0) > 127 for _, names in found):
        raise InvalidJob(
            "enable_categorical: expected names of categories in ASCII, received others, which "
            "XGBoost 3.2 cuts in the wrong places; rename them, or give codes with feature_types"
        )
    return [None if names is None else [str(n) for n in names.to_pylist()] for _, names in found]


def _bytes(names: pa.Array) -> bytes:
    """Return the text of an array of names; codes have none."""
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type)):
        return b""
    data = names.buffers()[-1]
    return b"" if data is None else bytes(data.to_pybytes())


def _categories(column: np.ndarray[Any, Any], names: Sequence[str] | None, where: str) -> pa.Array:
    """Return codes by name; a code that has none is its own name."""
    missing = np.isnan(column)
    given = np.where(missing, 0, column)
    if not np.all((given >= 0) & (given < MOST_CODES) & (given == np.floor(given))):
        raise InvalidJob(
            f"{where}: expected categories as whole numbers from 0 to {MOST_CODES - 1}"
        )
    codes = given.astype(np.int32)
    if names is None:
        names = [str(code) for code in range(codes.max(initial=0) + 1)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=missing), pa.array(names))


def _labels(matrix: xgboost.DMatrix, what: str, *, classes: int, n_labels: int) -> Any:
    """Return the labels, shape (n_samples, n_labels)."""
    labels, n_rows = matrix.get_label(), matrix.num_row()
    if labels.size != n_rows * n_labels:
        shape = "none" if not labels.size else f"{labels.size // n_rows} a row"
        expected = "one label" if n_labels == 1 else f"{n_labels} labels"
        raise InvalidJob(f"{what}: expected {expected} a row, received {shape}")
    labels = labels.reshape(n_rows, n_labels)
    if not classes:
        return labels
    if not np.isin(labels, np.arange(classes)).all():
        raise InvalidJob(f"{what}: expected labels that are whole numbers from 0 to {classes - 1}")
    return labels.astype(np.int64)
