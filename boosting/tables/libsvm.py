"""LIBSVM files as dense Arrow tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError


def with_zeros(table: Any, features: Sequence[str]) -> Any:
    """Add the columns of ``features`` that no row of a LIBSVM file lists."""
    import pyarrow as pa

    lacking = [f for f in features if re.fullmatch(r"f\d+", f) and f not in table.column_names]
    if not lacking:
        return table
    zeros = pa.array(np.zeros(table.num_rows, dtype=np.float32))
    names = [*table.column_names, *lacking]
    return pa.Table.from_arrays([*table.columns, *[zeros] * len(lacking)], names)


def read_libsvm(data: bytes, name: str) -> Any:
    """Return a LIBSVM file's bytes as a ``pyarrow.Table``.

    Raises
    ------
    DataError
        A line is no LIBSVM text, or the dense table would be too large.
    """
    import pyarrow as pa

    labels: list[float] = []
    counts: list[int] = []
    parts: list[NDArray[np.float64]] = []
    for number, line in enumerate(data.splitlines(), start=1):
        text = line.partition(b"#")[0]
        if not text.strip():
            continue
        try:
            head, *tokens = re.sub(rb"\bqid:\d+", b"", text).replace(b":", b" ").split()
            labels.append(float(head))
            parts.append(np.array(tokens, dtype="S").astype(np.float64).reshape(-1, 2))
        except ValueError as error:
            raise DataError(f"{name}: line {number} is not LIBSVM text") from error
        counts.append(len(parts[-1]))
    pairs = np.concatenate(parts) if parts else np.zeros((0, 2))
    index = pairs[:, 0].astype(np.int64)
    if (index != pairs[:, 0]).any() or (index < 0).any():
        raise DataError(f"{name}: expected feature indices that are whole numbers from 0 or 1")
    first = 0 if (index == 0).any() else 1
    width = int(index.max()) + 1 - first if len(index) else 0
    if len(labels) * width > 1 << 32:
        raise DataError(f"{name} is too large for a dense table: {len(labels)} by {width}")
    X = np.zeros((len(labels), width), dtype=np.float32, order="F")
    X[np.repeat(np.arange(len(labels)), counts), index - first] = pairs[:, 1]
    columns = [pa.array(X[:, k]) for k in range(width)]
    names = [f"f{k + first}" for k in range(width)]
    return pa.Table.from_arrays([pa.array(np.array(labels)), *columns], ["label", *names])
