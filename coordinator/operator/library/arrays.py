"""What scikit-learn's estimators are given, as arrays and tables: features, labels and weights."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array, check_consistent_length, column_or_1d
from sklearn.utils._missing import is_pandas_na, is_scalar_nan
from sklearn.utils.validation import assert_all_finite

from hedgerow.boosting.dataset import check_dense
from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.job import MOST_WEIGHT
from hedgerow.boosting.tables.indexes import ID
from hedgerow.coordinator.operator.library.arguments import number
from hedgerow.coordinator.operator.library.frames import arrow_of


def table_of(X: Any) -> Any:
    """Return a frame's columns as an Arrow table, in its order; None of what is no frame.

    A pandas index is none of them, not even one named ``_id``.
    """
    if not hasattr(X, "__arrow_c_stream__") or not hasattr(X, "columns"):
        return None
    table = arrow_of(X, "X")
    if hasattr(X, "column_names"):  # Arrow's own, with the index of the frame that it is from
        return table.select([name for name in table.column_names if name != ID])
    return table.select([str(name) for name in X.columns])


def dense_of(found: Any) -> NDArray[Any]:
    """Return an array of a sparse matrix in rows: what it does not list is missing, as in XGBoost.

    Any other array is returned as it is.
    """
    if not hasattr(found, "indptr"):
        return np.asarray(found)
    check_dense("X", *found.shape)
    if not found.has_canonical_format:  # a value in parts is their sum
        found = found.copy()
        found.sum_duplicates()
    dense = np.full(found.shape, np.nan, found.dtype)
    dense[np.repeat(np.arange(found.shape[0]), np.diff(found.indptr)), found.indices] = found.data
    return dense


def is_numeric(table: Any) -> bool:
    """Return whether an Arrow table has nothing but numbers, truth values and empty columns."""
    import pyarrow as pa

    checks = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_null)
    return all(any(check(kind) for check in checks) for kind in table.schema.types)


def values_of(given: Any, what: str) -> Any:
    """Return labels, or the silos of rows, in an array of their own type.

    Nullable columns of pandas stay whole numbers, truth values or text.

    Raises
    ------
    ValueError
        Some are missing: as text they would be a class, or a silo, of their own.
    """
    if hasattr(given, "iloc") and not isinstance(getattr(given, "dtype", None), np.dtype | None):
        given = given.to_numpy()
    found = np.asarray(given)
    if isinstance(given, list | tuple) and found.dtype.kind in "US":  # with NaN as a word
        found = np.asarray(given, dtype=object)
    if found.dtype.kind in "mM":
        gone = int(np.isnat(found).sum())
    elif found.dtype.kind == "O":
        gone = sum(v is None or is_scalar_nan(v) or is_pandas_na(v) for v in found.ravel())
    else:
        gone = int(np.isnan(found).sum()) if found.dtype.kind == "f" else 0
    if gone:
        raise ValueError(
            f"Input {what} contains NaN: {gone} of {found.size} are missing; leave these rows out"
        )
    return given if isinstance(given, list | tuple) else found


def labels_of(X: Any, y: Any, n_rows: int, *, numeric: bool, owner: str) -> NDArray[Any]:
    """Return labels as a column of ``n_rows``, or as several where they are numbers."""
    if y is None:
        raise ValueError(f"{owner} requires y to be passed, but the target y is None")
    shape = tuple(getattr(y, "shape", ()))
    if len(shape) == 2 and shape[1] > 1 and not numeric:
        raise ValueError(
            f"y should be a 1d array, got an array of shape {shape} instead: this estimator has "
            "one column of classes; for several a job has label = [...], and "
            "sklearn.multioutput.MultiOutputClassifier around it trains a model for each column"
        )
    if len(shape) == 2 and shape[1] > 1:
        several = check_array(values_of(y, "y"), dtype=np.float64, input_name="y")
        check_consistent_length(X, several)
        return np.asarray(several)
    found = column_or_1d(values_of(y, "y"), warn=True)
    if numeric and found.dtype.kind in "mM":
        raise ValueError(f"y: expected numbers, received {found.dtype}")
    if found.dtype.kind in "fc" or (numeric and found.dtype.kind == "O"):
        found = found.astype(np.float64) if found.dtype.kind != "c" else found
        assert_all_finite(found, input_name="y")
    check_consistent_length(X, found)
    if not n_rows:
        raise ValueError("X: expected at least 1 row, received 0")
    return np.asarray(found, dtype=np.float64) if numeric else np.asarray(found)


def weights_of(
    given: ArrayLike | None, n_rows: int, what: str = "sample_weight"
) -> NDArray[np.float64] | None:
    """Return what each row counts; None where all count the same."""
    if given is None:
        return None
    found = np.asarray(given, np.float64)
    if found.shape == ():
        found = np.full(n_rows, float(found))
    if found.shape != (n_rows,):
        raise ValueError(f"{what}.shape: expected ({n_rows},), received {found.shape}")
    if not np.isfinite(found).all() or (found < 0).any():
        raise ValueError(f"{what}: expected finite numbers from 0, received others")
    if not 2.0**-64 < found.max() < MOST_WEIGHT:
        raise ValueError(
            f"{what}: expected weights that are not all zero, the largest between 2^-64 and 2^64"
        )
    return found


def seed_of(random_state: Any) -> int | None:
    """Return a job's seed; a generator of NumPy is asked for one, as scikit-learn does.

    Raises
    ------
    InvalidJob
        It is neither a whole number from 0, nor a generator, nor None.
    """
    if random_state is None:
        return None
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    found: int = number("random_state", random_state, int)
    if not 0 <= found < 2**32:
        raise InvalidJob(f"random_state: expected 0 to 2^32 - 1, received {found}")
    return found
