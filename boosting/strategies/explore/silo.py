"""The silo half: its parts of the sums, and from the totals the table that may be told."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Task
from hedgerow.boosting.engine.binning import bin_column, each_column
from hedgerow.boosting.engine.bisection import Bisector, count_below
from hedgerow.boosting.engine.cells import class_groups, merged, row_groups
from hedgerow.boosting.engine.cuts import FENCE, Cuts
from hedgerow.boosting.engine.sorting import SortedColumn
from hedgerow.boosting.errors import ModelRejected, SumCorrupt
from hedgerow.boosting.exchange import ExchangeKey, SiloChannel
from hedgerow.boosting.ports import ModelCheck, SiloStart
from hedgerow.boosting.selection import FILE
from hedgerow.boosting.strategies.explore.parameters import Explore
from hedgerow.boosting.strategies.explore.release import Release, columns_of
from hedgerow.boosting.strategies.explore.statistics import statistics_file
from hedgerow.boosting.strategies.explore.steps import LENGTH, RELEASE
from hedgerow.boosting.sums.maximum import maxima, maximum_parts
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import PlainVector
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.masking.totals import ResiduesCheck, TotalsCheck

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hedgerow.crypto.vault.interface import Vault

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]
_BLOCK = 1 << 12
_BELOW_FENCE = np.nextafter(FENCE, np.float32(0))
_SHARE = 0.05  # of the rows, that a category has at least for Cramér's V
_LARGEST_STEP = 0.25  # a correlation that is rounded more coarsely says nothing
_FINEST = 2.0**-20
_SKEW_BITS = 10
_TOLD = "explore:told"


def participate(
    parameters: Explore, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck | None:
    """Run the silo half; returns how this silo knows the table: it has derived it."""
    if start.first_round:  # the table was stored before the coordinator was restarted
        _, _, known = (link.recall(_TOLD) or b"").decode().partition("\n")
        return _check_of(known) if known else None
    totals = Totals(parameters, link, vault, start)
    release = explored(parameters, start, totals)
    totals.end()
    told = release.pack()
    own = sha256(statistics_file(parameters, start.job, start.schema, release)).hexdigest()
    _once(link, start, told, own)
    start.telling()
    link.exchange(RELEASE, ExchangeKey(0), PlainVector(told, 64))
    return _check_of(own)


def _check_of(known: str) -> ModelCheck:
    """Return the check of a result by the SHA-256 of the file that this silo has derived."""

    def check(files: Mapping[str, bytes]) -> None:
        if sha256(files.get(FILE, b"")).hexdigest() != known:
            raise ModelRejected(f"{FILE}: expected the statistics that this silo has derived")

    return check


def _once(link: SiloChannel, start: SiloStart, told: NDArray[np.uint64], own: str) -> None:
    """Refuse a second table of a job: what two tables differ by is of the rows of few silos."""
    names = ", ".join(start.silos)
    said, earlier = f"{state_digest(start.schema, told).hex()} {names}", link.recall(_TOLD)
    if earlier is None:
        link.remember(_TOLD, f"{said}\n{own}".encode())
    elif (before := earlier.decode().partition("\n")[0]) != said:
        before = before.partition(" ")[2]
        raise SumCorrupt(
            "statistics: a silo tells one table in all attempts at a job: expected that over "
            f"{before} again, received another one over {names}"
        )


class Totals:
    """Sums over all silos, which each silo opens for itself and checks."""

    def __init__(
        self, parameters: Explore, link: SiloChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self._link = link
        self._sums = SiloSums.of(link, vault, start, parameters.sum_parameters(start.job))
        self._sums.setup(ExchangeKey(0))
        self._passing = 0
        self._known = state_digest(start.schema)

    def integers(self, own: Integers) -> Integers:
        """Return the total of a vector."""
        at = self._next(len(own))
        values = np.ascontiguousarray(own, np.int64)
        total = self._sums.total(at, values.view(np.uint64), state=self._known, check=TotalsCheck)
        return self._note(total.values.view(np.int64))

    def largest(self, exponents: Sequence[int]) -> Integers:
        """Return the largest of each number over the silos."""
        at, content = self._next(-len(exponents)), np.array(exponents, np.int64)
        own = maximum_parts(*exponents)
        total = self._sums.total(at, own, state=self._known, content=content, check=ResiduesCheck)
        return self._note(np.array(maxima(total.values), np.int64))

    def end(self) -> None:
        """Say that there is no further sum."""
        self._next(0)

    def _next(self, length: int) -> ExchangeKey:
        at = ExchangeKey(0, 0, self._passing)
        self._passing += 1
        own = np.array([length], np.int64).view(np.uint64)
        self._link.exchange(LENGTH, at, PlainVector(own, 64))
        return at

    def _note(self, total: Integers) -> Integers:
        """Make a total part of what the next vectors are computed from."""
        self._known = state_digest(self._known, total)
        return total


def explored(parameters: Explore, start: SiloStart, totals: Totals) -> Release:
    """Return the table that may be told of all silos' rows."""
    data, schema, least = start.dataset, start.schema, parameters.min_cell
    columns, readers = columns_of(schema), list(data.columns.readers)
    numeric = [j for j, one in enumerate(columns) if not one.is_categorical]
    by_name = [j for j, one in enumerate(columns) if one.is_categorical]
    table = data.by_column([j for j in numeric if j < len(readers)])  # read once, for six passes
    if schema.task is Task.REGRESSION:
        table.append(data.labels.astype(np.float32))
    reals = [partial(table.__getitem__, k) for k in range(len(table))]

    (n_rows,) = totals.integers(np.array([data.n_samples]))
    n_bits = int(n_rows).bit_length()
    if not max(least, 2) <= n_rows < 1 << 32:
        raise SumCorrupt(f"rows of all silos: expected {least} (min_cell) to 2**32")
    search = Bisector(len(numeric), parameters.bins, min_cell=least)
    ordered = each_column(reals, lambda x, _: SortedColumn.of(x), start.n_threads)
    while not search.done and numeric:
        below = totals.integers(count_below(ordered, search.column, search.key))
        if (below > n_rows).any():
            raise SumCorrupt(f"counts: expected at most {n_rows} rows")
        search.take(below)
    del ordered
    cuts = [np.asarray(own, np.float32)[own < FENCE] for own in search.thresholds]
    centres = [float(own[len(own) // 2]) if len(own) else 0.0 for own in cuts]

    def exponent(x: NDArray[np.float32], k: int) -> int:
        ends = [float(end.reduce(x, initial=centres[k])) for end in (np.fmin, np.fmax)]
        return math.frexp(max(abs(end - centres[k]) for end in ends))[1]

    far = [max(e, -99) for e in each_column(reals, exponent, start.n_threads)]
    scale = totals.largest(far) if numeric else np.empty(0, np.int64)

    # --- counts by cell and class, and sums ---

    n_cells = [
        1 + len(one.categories or ()) if one.is_categorical else 2 + len(cuts[numeric.index(j)])
        for j, one in enumerate(columns)
    ]
    place = {j: k for k, j in enumerate(numeric)}

    def code(x: NDArray[np.float32], j: int) -> NDArray[np.uint16]:
        n_bins, found = n_cells[j] - 1, np.empty(x.shape[0], np.uint16)
        own = np.arange(n_bins) if j not in place else np.append(cuts[place[j]], FENCE)
        one = Cuts(
            own.astype(np.float32), np.array([0, n_bins]), np.array([j not in place]),
            np.array([-FENCE]),
        )  # fmt: skip
        bin_column(x if j not in place else np.minimum(x, _BELOW_FENCE), one, 0, found)
        found += np.uint16(1)
        found[found > n_bins] = 0
        return found

    readers = [reals[place[j]] if j in place else readers[j] for j in range(len(columns))]
    codes = each_column(readers, code, start.n_threads)
    if schema.task is Task.REGRESSION:
        # By the cells of the label itself: another comparison would tell how many rows equal a cut.
        label, n_classes = (codes[-1] > 1 + len(cuts[-1]) // 2).astype(np.intp), 2
    else:
        label, n_classes = data.labels.astype(np.intp), schema.n_classes
    counts = [
        np.bincount(np.multiply(own, n_classes, dtype=np.intp) + label, minlength=n * n_classes)
        for own, n in zip(codes, n_cells, strict=True)
    ]
    shifts = 62 - n_bits - scale

    def summed(x: NDArray[np.float32], k: int) -> int:
        return sum(int(own.sum()) for own in _integers(x, centres[k], int(shifts[k])))

    sums = each_column(reals, summed, start.n_threads)
    total = totals.integers(np.concatenate([*counts, np.array(sums, np.int64)]).astype(np.int64))
    ends = np.cumsum([n * n_classes for n in n_cells])
    cells = [own.reshape(-1, n_classes) for own in np.split(total[: ends[-1]], ends[:-1])]
    present = np.array([int(cells[j][1:].sum()) for j in numeric], np.int64)
    offsets = np.array(
        [
            float(s) / max(int(n), 1) * 2.0 ** -int(shift)
            for s, n, shift in zip(total[ends[-1] :].tolist(), present, shifts, strict=True)
        ]
    )

    # --- squares around the means ---

    means = np.array(centres) + offsets

    def squared(x: NDArray[np.float32], k: int) -> Integers:
        found = np.zeros(2, np.int64)
        for own in _integers(x, means[k], 29 - int(scale[k])):
            own *= own
            found += (own >> 30).sum(), (own & ((1 << 30) - 1)).sum()
        return found

    if numeric:
        squares = totals.integers(np.concatenate(each_column(reals, squared, start.n_threads)))
        squares = squares.reshape(-1, 2)
    else:
        squares = np.empty((0, 2), np.int64)
    variances = np.array(
        [
            float((int(high) << 30) + int(low)) / max(int(n), 1) * 2.0 ** (2 * (int(e) - 29))
            for (high, low), n, e in zip(squares.tolist(), present, scale, strict=True)
        ]
    )
    deviations = np.sqrt(variances)

    # --- third powers, products of values and of ranks, joint counts of categories ---

    bits = (52 - n_bits) // 2
    unit = 2.0**bits
    ranks = [_rank_scores(cells[j].sum(axis=1)) for j in numeric]
    levels, n_levels = _levels([cells[j].sum(axis=1) for j in by_name])
    gaps = [k for k, j in enumerate(numeric) if cells[j][0].sum()]
    p = len(numeric)
    cubes = np.zeros(p, np.int64)
    q = p + len(gaps)
    # Of scores and of where values are, beside each other: one symmetric product has all.
    both = np.zeros((2, q, q))
    squares_in = np.zeros((2, p, len(gaps)))
    joint = np.zeros((n_levels, n_levels), np.int64)
    scored = [np.rint(own * unit) for own in ranks]
    scores, hot = np.empty((2, q, _BLOCK)), np.empty((n_levels, _BLOCK))
    for first in range(0, data.n_samples, _BLOCK):
        rows = slice(first, first + _BLOCK)
        size = min(_BLOCK, data.n_samples - first)
        for k, x in enumerate(table):
            z, away = scores[0, k, :size], x[rows] - means[k]
            if deviations[k] > 0:
                np.rint(np.multiply(away, unit / deviations[k], out=away), out=z)
                if k in gaps:
                    z[np.isnan(z)] = 0.0
                if np.abs(z).max() > unit * (1.01 * math.sqrt(n_rows) + 1):
                    raise SumCorrupt("sums of squares: expected those of all rows, received less")
                cubes[k] += int(np.rint(z * z * z * 2.0 ** (_SKEW_BITS - 3 * bits)).sum())
            else:
                z[:] = 0.0
            own = codes[numeric[k]][rows]
            np.take(scored[k], own, out=scores[1, k, :size], mode="clip")
        for m, k in enumerate(gaps, p):
            np.logical_not(np.isnan(table[k][rows]), out=scores[0, m, :size], casting="unsafe")
        scores[1, p:, :size] = scores[0, p:, :size]
        for cross, squared_in, own in zip(both, squares_in, scores[:, :, :size], strict=True):
            cross += own @ own.T
            if gaps:
                np.multiply(own[:p], own[:p], out=own[:p])
                squared_in += own[:p] @ own[p:].T
        if n_levels:
            hot[:] = 0.0
            for own_levels, j in zip(levels, by_name, strict=True):
                hot[own_levels[codes[j][rows]], np.arange(size)] = 1.0
            joint += (hot[:, :size] @ hot[:, :size].T).astype(np.int64)
    upper, upper_joint = np.triu_indices(p), np.triu_indices(n_levels)
    upper_gaps = np.triu_indices(len(gaps))
    own_parts = [cubes, both[0, p:, p:][upper_gaps], joint[upper_joint]]
    for cross, squared_in in zip(both, squares_in, strict=True):
        sums_in = np.hstack([cross[:p, p:], squared_in])
        own_parts += [cross[:p, :p][upper], sums_in.reshape(-1)]
    # Exact: all are integers below 2**53.
    vector = np.concatenate([own.astype(np.int64) for own in own_parts])
    read = _Reader(totals.integers(vector) if len(vector) else vector)
    cubes = read.take(p)
    gap_rows = _symmetric(read.take(len(upper_gaps[0])), len(gaps))
    joint = _symmetric(read.take(len(upper_joint[0])), n_levels)
    products = [
        np.hstack(
            [
                _symmetric(read.take(len(upper[0])), p),
                read.take(2 * p * len(gaps)).reshape(p, 2 * len(gaps)),
            ]
        )
        for _ in range(2)
    ]

    # --- what may be told ---

    by_class = cells[0].sum(axis=0)
    class_of = _classes(by_class, least)
    told_classes = merged(by_class, class_of)
    groups, told_rows, coarse, class_cells = [], [], [], []
    for one, counted in zip(columns, cells, strict=True):
        group = row_groups(counted.sum(axis=1), least, ordered=not one.is_categorical)
        inner = merged(counted, group)
        inner = merged(inner.T, class_of).T if len(told_classes) else inner[:, :0]
        wide = class_groups(inner, least, ordered=not one.is_categorical)
        groups.append(group)
        told_rows.append(merged(counted.sum(axis=1), group))
        coarse.append(wide)
        class_cells.append(merged(inner, wide).reshape(-1))
    few = present < least
    widest = np.ldexp(1.0, scale) + np.abs(offsets)
    usable = ~few & (deviations > 0)
    safe = np.where(usable, deviations, 1.0)
    count = np.maximum(present, 1)
    # What is rounded to nothing is not told as 0; by what is told, since one row could decide it.
    variance = _rounded(variances, least * widest**2 / count)
    deviation = np.where(few | (variance == 0), np.nan, np.sqrt(variance))
    between = np.array([float(own[-1] - own[0]) if len(own) else 0.0 for own in cuts])
    coarse_mean = _power(least * widest / count) > np.fmax(deviation, between)
    mean = np.where(few | coarse_mean, np.nan, _rounded(means, least * widest / count))
    skew = cubes / 2.0**_SKEW_BITS / count
    skew = _told(skew, least * (widest / safe) ** 3 / count, 0.5)
    skewness = np.where(usable, skew, np.nan)
    reach = [widest / safe, np.array([np.abs(own).max(initial=0.0) for own in ranks])]
    pairs = []
    for found, far_out in zip(products, reach, strict=True):
        r, n_both = _correlations(found, gap_rows, gaps, int(n_rows))
        step = least * np.outer(far_out, far_out) / np.maximum(n_both, 1)
        r = np.where(np.outer(usable, usable), _told(r, step, _LARGEST_STEP), np.nan)
        pairs.append(np.clip(r, -1.0, 1.0)[np.triu_indices(p, 1)])
    return Release(
        np.array([n_rows]),
        class_of,
        _in_steps(told_classes, least),
        np.array([len(own) for own in cuts], np.int64),
        np.concatenate([np.empty(0), *cuts]).astype(np.float64),
        np.concatenate(groups),
        _in_steps(np.concatenate(told_rows), least),
        np.concatenate(coarse),
        _in_steps(np.concatenate(class_cells), least),
        np.column_stack([mean, deviation, skewness]).reshape(-1) + 0.0,
        pairs[0] + 0.0,
        pairs[1] + 0.0,
        _cramer(joint, levels, int(n_rows), least),
    )


def _integers(x: NDArray[np.float32], centre: float, exponent: int) -> Iterator[Integers]:
    """Yield ``(x - centre) * 2**exponent`` to the nearest integer, by block; 0 where missing."""
    for first in range(0, len(x), 4 * _BLOCK):
        away = np.subtract(x[first : first + 4 * _BLOCK], centre, dtype=np.float64)
        away *= 2.0**exponent
        np.rint(away, out=away)
        away[np.isnan(away)] = 0.0
        yield away.astype(np.int64)


class _Reader:
    """Takes numbers off a vector, one part after another."""

    def __init__(self, values: Integers) -> None:
        self._values, self._at = values, 0

    def take(self, n: int) -> Integers:
        """Return the next ``n`` numbers."""
        self._at += n
        return self._values[self._at - n : self._at]


def _symmetric(upper: Integers, n: int) -> Integers:
    out = np.zeros((n, n), np.int64)
    out[np.triu_indices(n)] = upper
    return out + np.triu(out, 1).T


def _classes(by_class: Integers, least: int) -> Integers:
    """Return the group of each class of the label; all -1 where there would be one."""
    found = row_groups(np.append(0, by_class), least, ordered=False)[1:]
    return found if found.max(initial=0) else np.full(len(by_class), -1)


def _rank_scores(counts: Integers) -> Floats:
    """Return the standard score of the rank of each cell's rows; 0 for missing ones."""
    rows = counts[1:].astype(np.float64)
    n = max(rows.sum(), 1.0)
    middle = np.cumsum(rows) - rows / 2
    away = middle - (rows * middle).sum() / n
    deviation = math.sqrt((rows * away * away).sum() / n)
    return np.append(0.0, away / deviation if deviation else np.zeros(len(rows)))


def _levels(counts: Sequence[Integers]) -> tuple[list[Integers], int]:
    """Return by categorical column the level of each cell, and how many levels all have.

    Categories with a small share of the rows, and missing values, are one level.
    """
    found, n = [], 0
    for own in counts:
        group = row_groups(np.append(0, own), max(1, math.ceil(_SHARE * own.sum())), ordered=False)
        found.append(n + group[1:])
        n += int(group.max()) + 1
    return found, n


def _correlations(
    products: Integers, gap_rows: Integers, gaps: Sequence[int], n_rows: int
) -> tuple[Floats, Integers]:
    """Return the correlations of columns over rows that have both, and how many have."""
    p = len(products)
    cross = products[:, :p].astype(np.float64)
    n_both = np.full((p, p), n_rows)
    sums, squares = np.zeros((p, p)), np.zeros((p, p))
    squares[:] = np.diag(cross)[:, None]
    q = len(gaps)
    sums_in = products[:, p : p + q].astype(np.float64)
    squares_in = products[:, p + q :].astype(np.float64)
    for m, k in enumerate(gaps):
        n_both[k, :] = n_both[:, k] = gap_rows[m, m]
    for m, k in enumerate(gaps):
        n_both[k, gaps] = gap_rows[m]
        sums[:, k], squares[:, k] = sums_in[:, m], squares_in[:, m]
    # Row i, column j: of column i over rows that column j has; all of its rows where j has all.
    n = np.maximum(n_both, 1).astype(np.float64)
    covariance = cross / n - (sums / n) * (sums.T / n)
    variance = squares / n - (sums / n) ** 2
    scale = np.sqrt(np.maximum(variance * variance.T, 0.0))
    return np.where(scale > 0, covariance / np.where(scale > 0, scale, 1.0), np.nan), n_both


def _cramer(joint: Integers, levels: Sequence[Integers], n_rows: int, least: int) -> Floats:
    """Return Cramér's V of each pair of categorical columns."""
    found = []
    own = [np.unique(level) for level in levels]
    for i, rows in enumerate(own):
        for columns in own[i + 1 :]:
            cells = joint[np.ix_(rows, columns)].astype(np.float64)
            by_row, by_column = cells.sum(axis=1), cells.sum(axis=0)
            k = min(len(rows), len(columns)) - 1
            expected = np.outer(by_row, by_column)
            if k < 1 or not (expected > 0).all():
                found.append(np.nan)
                continue
            square = max((cells**2 / expected).sum() - 1.0, 0.0) / k
            step = 4 * least / max(by_row.min(), by_column.min()) / k
            found.append(float(np.sqrt(_told(np.array([square]), np.array([step]), 0.25))[0]))
    return np.array(found, np.float64)


def _in_steps(counts: Integers, least: int) -> Integers:
    """Return counts to the nearest multiple of ``least``; so are all their differences."""
    return (counts + least // 2) // least * least


def _power(step: Floats) -> Floats:
    """Return the power of two that is not below a step."""
    found: Floats = np.ldexp(1.0, np.ceil(np.log2(np.maximum(step, 1e-300))).astype(np.int64))
    return found


def _rounded(values: Floats, step: Floats) -> Floats:
    """Return values to the nearest multiple of that power of two."""
    return np.rint(values / _power(step)) * _power(step)


def _told(values: Floats, step: Floats, largest: float) -> Floats:
    """Return rounded values, and NaN for those whose step is too coarse to say anything."""
    return np.where(step > largest, np.nan, _rounded(values, np.maximum(step, _FINEST)))
