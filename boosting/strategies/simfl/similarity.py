"""Locality-sensitive hashes of rows, and the most similar rows of other silos."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.simfl.steps import FeatureRanges
from hedgerow.boosting.streams import Purpose, generator

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset

Hashes = NDArray[np.int64]
Rows = NDArray[np.int32]


class Similar(NamedTuple):
    """Of each own row the most similar row of another silo, and how many rows that silo has."""

    rows: Rows
    n_rows: int


_LARGEST = np.finfo(np.float32).max


def ranges_of(dataset: Dataset) -> FeatureRanges:
    """Return the least and largest values of a silo's numeric features."""
    low = np.full(dataset.schema.n_features, _LARGEST, np.float32)
    high = -low
    for j, feature in enumerate(dataset.schema.features):
        if not feature.is_categorical and dataset.n_samples:
            values = np.clip(dataset.X[:, j], -_LARGEST, _LARGEST)
            low[j] = np.fmin.reduce(values, initial=_LARGEST)
            high[j] = np.fmax.reduce(values, initial=-_LARGEST)
    return FeatureRanges(low, high)


def hashes_of(
    dataset: Dataset, ranges: FeatureRanges, n_hashes: int, width: float, seed: int
) -> Hashes:
    """Return ``floor((a x + b) / width)`` of each row, shape (n_samples, n_hashes).

    ``a`` is normal and ``b`` uniform in [0, width), the same in all silos. ``x`` has numeric
    features scaled to [0, 1] and a 0 or 1 for each category; a missing value adds nothing.
    """
    rng = generator(seed, 0, 0, Purpose.HASHING)
    sizes = [max(1, n) for n in dataset.schema.n_categories]
    a = rng.normal(size=(sum(sizes), n_hashes))
    projected = np.tile(rng.uniform(0, width, n_hashes), (dataset.n_samples, 1))
    at = 0
    for j, (feature, size) in enumerate(zip(dataset.schema.features, sizes, strict=True)):
        values = dataset.X[:, j].astype(np.float64)
        known = ~np.isnan(values)
        if feature.is_categorical:
            projected[known] += a[at + values[known].astype(np.intp)]
        elif ranges.high[j] > ranges.low[j]:
            low, high = float(ranges.low[j]), float(ranges.high[j])
            scaled = (np.clip(values[known], low, high) - low) / (high - low)
            projected[known] += scaled[:, None] * a[at]
        at += size
    return np.floor(projected / width).astype(np.int64)


def most_similar(
    own: Hashes, other: Hashes, rng: np.random.Generator, check: Callable[[], None]
) -> Rows:
    """Return for each of the own rows the other silo's row with the most equal hashes.

    Ties are drawn. Rows with equal hashes are compared once: time grows with the numbers of
    distinct rows, multiplied.

    Parameters
    ----------
    check : callable
        Called now and then; raises to stop.
    """
    if not len(own) or not len(other):
        return np.zeros(0, np.int32)
    asked, of_row = np.unique(own, axis=0, return_inverse=True)
    known, of_other = np.unique(other, axis=0, return_inverse=True)
    of_row, of_other = of_row.reshape(-1), of_other.reshape(-1)
    members, sizes = np.argsort(of_other, kind="stable"), np.bincount(of_other)
    first = np.cumsum(sizes) - sizes
    drawn = rng.random(len(own))
    rows, n_rows = np.argsort(of_row, kind="stable"), np.bincount(of_row)
    codes = [np.unique(column, return_inverse=True)[1] for column in np.vstack([asked, known]).T]
    kind = np.min_scalar_type(max(int(column.max()) for column in codes))
    table = np.array(codes, kind)
    asked_codes, known_codes = table[:, : len(asked)].T.copy(), table[:, len(asked) :].copy()
    found, at = np.empty(len(own), np.int32), 0
    for number, query in enumerate(asked_codes):
        if number % 256 == 0:
            check()
        equal = (known_codes == query[:, None]).view(np.uint8).sum(axis=0, dtype=np.uint8)
        ties = np.flatnonzero(equal == equal.max())
        ends = np.cumsum(sizes[ties])
        mine = rows[at : at + n_rows[number]]
        at += n_rows[number]
        pick = (drawn[mine] * ends[-1]).astype(np.int64)
        group = np.searchsorted(ends, pick, side="right")
        chosen = ties[group]
        found[mine] = members[first[chosen] + pick - (ends[group] - sizes[chosen])]
    return found


def encode_maps(maps: Mapping[Silo, Similar], n_samples: int) -> bytes:
    """Return the similar rows of other silos as bytes, for this silo's own record."""
    pieces = [f"{n_samples}\n".encode()]
    for silo in sorted(maps):
        found = maps[silo]
        pieces += [f"{found.n_rows} {silo}\n".encode(), found.rows.astype("<i4").tobytes()]
    return b"".join(pieces)


def decode_maps(data: bytes, n_samples: int) -> dict[Silo, Similar]:
    """Return the maps of :func:`encode_maps`.

    Raises
    ------
    DataError
        They are of a table with another number of rows, or damaged.
    """
    head, _, data = data.partition(b"\n")
    if head != str(n_samples).encode():
        raise DataError(f"similar rows are kept for another table: {n_samples} rows are here")
    maps, width = {}, 4 * n_samples
    while data:
        line, _, data = data.partition(b"\n")
        n_rows, _, silo = line.decode().partition(" ")
        if len(data) < width:
            raise DataError("the record of similar rows ends too early")
        rows = np.frombuffer(data[:width], "<i4").astype(np.int32)
        maps[Silo(silo)] = Similar(rows, int(n_rows))
        data = data[width:]
    return maps


def check_hashes(values: Hashes, n_rows: int | None, n_hashes: int, sender: str) -> Hashes:
    """Return a peer's hashes; raises OfferRejected for another shape."""
    if values.shape[1] != n_hashes or n_rows not in (None, len(values)):
        awaited = "any" if n_rows is None else n_rows
        raise OfferRejected(
            f"{sender}: expected hashes of shape {awaited}×{n_hashes}, received "
            f"{len(values)}×{values.shape[1]}"
        )
    return values
