"""Names of categories inside a stock XGBoost model, so that it reads data frames by itself.

XGBoost 3.1 and later keep, for each feature, the names behind its codes (``cats``), and recode a
pandas or Arrow frame by them. Without names XGBoost takes a frame's own codes, which are others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from hedgerow.boosting.errors import ModelRejected

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Schema
    from hedgerow.boosting.job import Booster

Names = tuple[str, ...] | None
"""Names of a feature's categories by code; None where the feature is numeric."""

MAX_NAMES = 1 << 24
MAX_NAME_BYTES = 1 << 28
"""Most names of all features of a received model, and most bytes of them."""


def bytes_of_sets(schema: Schema, booster: Booster, *, pooled: bool = False) -> tuple[float, int]:
    """Return how many bytes the categories of splits take in packed trees.

    A split by partition keeps about half of a feature's n categories, also those that no row here
    has, in a bit each. The more there are, the fewer splits they are divided by: of those that the
    share of such features would have, one in ``1 + q n / 300 + n / 1970`` beside a share q of
    numeric features. That is fitted to trees of bagging and FedXGBllr on 30 to 8,000 categories,
    alone and with three numbers, and is within a factor of two of them.

    Parameters
    ----------
    pooled : bool
        Whether gradients are sums over similar rows, by which categories look better than numbers:
        they do not compete with them then, and the square root of their share is divided, one
        in ``1 + n / 1200``.

    Returns
    -------
    float
        The mean of all splits, of numbers, too.
    int
        The most of any split: no Golomb code takes more for all sets together than the one that
        writes a gap in as many bits and one, which is two for each category that could be there.
    """
    sizes = [n for n in schema.n_categories if n > 1]
    if not sizes:
        return 0.0, 0
    share = len(sizes) / schema.n_features
    numbers = 0.0 if pooled else 1.0 - share
    found = 0.0
    for n in sizes:
        own = 2.0 if n < (booster.max_cat_to_onehot or 4) else n / 8.0 + 1.0
        found += own / (1.0 + numbers * n / 300.0 + n / (1200.0 if pooled else 1970.0))
    return (math.sqrt(share) if pooled else share) * found / len(sizes), max(sizes) // 4 + 16


def encode(features: Sequence[Names]) -> dict[str, Any]:
    """Return XGBoost's ``cats``; with nothing in it where no feature has categories."""
    if not any(features):
        none = np.empty(0, np.int32)
        return {"enc": [], "feature_segments": none, "sorted_idx": none}
    ranks: list[int] = []
    columns = []
    for names in features:
        raw = [name.encode() for name in names or ()]
        ends = [0, *accumulate(map(len, raw))] if raw else []
        columns.append(
            {
                "offsets": np.array(ends, np.int32),
                "values": np.frombuffer(b"".join(raw), np.int8),
            }
        )
        # XGBoost searches the names by their bytes as signed numbers.
        signed = [bytes(byte ^ 0x80 for byte in name) for name in raw]
        ranks += sorted(range(len(raw)), key=signed.__getitem__)
    sizes = [len(names or ()) for names in features]
    return {
        "enc": columns,
        "feature_segments": np.array([0, *accumulate(sizes)], np.int32),
        "sorted_idx": np.array(ranks, np.int32),
    }


def decode(cats: Any, types: Sequence[str], n_features: int) -> tuple[Names, ...]:
    """Return the names that a model of any origin has; empty where it has none.

    The search index is not read: :func:`encode` computes it.

    Raises
    ------
    ModelRejected
        Names that are not text, are repeated or too many, or whose ends are out of order.
    """
    columns = cats.get("enc", ())
    if not len(columns):
        return ()
    if len(columns) != n_features:
        raise ModelRejected("expected category names of all features, or of none")
    left = MAX_NAME_BYTES
    found: list[Names] = []
    for column, kind in zip(columns, types or ("",) * n_features, strict=True):
        names = _names(column)
        left -= len(column["values"])
        if kind and (kind == "c") != bool(names):
            raise ModelRejected("expected category names of the categorical features, no others")
        found.append(names or None)
    if left < 0 or sum(len(names or ()) for names in found) > MAX_NAMES:
        raise ModelRejected(f"category names that take more than {MAX_NAME_BYTES} bytes")
    return tuple(found)


def _names(column: Any) -> tuple[str, ...]:
    if "offsets" not in column:
        raise ModelRejected("the model has categories that are numbers; only text is supported")
    ends, values = (np.asarray(column[key]) for key in ("offsets", "values"))
    numbers = all(a.ndim == 1 and (a.dtype.kind == "i" or not a.size) for a in (ends, values))
    if not numbers or len(ends) > MAX_NAMES or len(values) > MAX_NAME_BYTES:
        raise ModelRejected("expected category names as bytes and their ends")
    if not len(ends):
        return ()
    if ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] != len(values):
        raise ModelRejected("expected category names one after another")
    if ((values < -128) | (values > 127)).any():
        raise ModelRejected("expected category names as bytes")
    raw = values.astype(np.int8).tobytes()
    try:
        names = tuple(raw[a:b].decode() for a, b in pairwise(ends))
    except UnicodeDecodeError as error:
        raise ModelRejected("expected category names in UTF-8") from error
    if len(set(names)) != len(names):
        raise ModelRejected("expected category names that differ")
    return names
