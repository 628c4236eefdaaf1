"""The table that may be told: what every silo derives from the totals, and sends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.checkpoints import Stored, readable
from hedgerow.boosting.dataset import Feature, Schema, Task
from hedgerow.boosting.engine.bisection import MOST_PASSES as SEARCH_PASSES
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.payloads import Float64s, Int64s

MOST_PASSES = SEARCH_PASSES + 8
"""Sums of a job at most."""
MOST_VALUES = 1 << 24
"""Numbers of a sum at most."""
N_MOMENTS = 3
Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Release(Stored):
    """Counts, moments and correlations over all silos; NaN is what few rows would decide."""

    what: ClassVar[str] = "the statistics of an explore job"

    rows: Int64s
    """One number."""
    class_of: Int64s
    """By class of the label, the group that it is told in; -1 where there is only one."""
    class_rows: Int64s
    """Rows by group of classes."""
    n_cuts: Int64s
    """Cut points of each numeric column."""
    cuts: Float64s
    """Of all numeric columns, one behind the other."""
    groups: Int64s
    """By column and cell (missing, then bins or categories): its group, -1 for none missing."""
    group_rows: Int64s
    """Rows by column and group."""
    coarse: Int64s
    """By column and group: the group in which rows are told by class; -1 where they are not."""
    class_cells: Int64s
    """Rows by column, that group and group of classes."""
    moments: Float64s
    """By numeric column: mean, deviation, skewness."""
    pearson: Float64s
    """Of each pair of numeric columns, (0, 1), (0, 2) and so on."""
    spearman: Float64s
    """The same of the ranks of bins."""
    cramer: Float64s
    """Cramér's V of each pair of categorical columns."""

    def pack(self) -> Words:
        """Return the table as words, of which there is one form only."""
        parts = []
        for field in fields(self):
            own = np.ascontiguousarray(getattr(self, field.name))
            parts += [np.array([len(own)], np.uint64), own.view(np.uint64)]
        return np.concatenate(parts)

    @classmethod
    def parse(cls, words: Words, schema: Schema) -> Release:
        """Return the table of :meth:`pack`.

        Raises
        ------
        DataError
            It is no table of that schema.
        """
        found: dict[str, Any] = {}
        at = 0
        with readable(cls.what):
            for field in fields(cls):
                n = int(words[at])
                kind = np.float64 if field.type == "Float64s" else np.int64
                own = words[at + 1 : at + 1 + n]
                if len(own) != n:
                    raise ValueError(field.name)
                found[field.name] = own.view(kind)
                at += 1 + n
            release = cls(**found)
            if at != len(words) or len(release.rows) != 1 or len(list(release.columns(schema))) < 1:
                raise ValueError("length")
        return release

    def columns(self, schema: Schema) -> Iterator[ColumnCounts]:
        """Return each column's counts; raises DataError where the arrays do not fit."""
        k = len(self.class_rows)
        cells = groups = coarse = cuts = numeric = 0
        for feature in columns_of(schema):
            if feature.is_categorical:
                own_cuts = np.empty(0)
                n_cells = 1 + len(feature.categories or ())
            else:
                n = int(self.n_cuts[numeric])
                own_cuts, n_cells = self.cuts[cuts : cuts + n], 2 + n
                cuts, numeric = cuts + n, numeric + 1
            own = self.groups[cells : cells + n_cells]
            n_groups = int(own.max(initial=-1)) + 1
            inside = self.coarse[groups : groups + n_groups]
            n_inside = int(inside.max(initial=-1)) + 1
            by_class = self.class_cells[coarse : coarse + n_inside * k].reshape(n_inside, k)
            rows = self.group_rows[groups : groups + n_groups]
            if len(own) != n_cells or len(rows) != n_groups or len(inside) != n_groups:
                raise DataError(f"{self.what}: column '{feature.name}' lacks counts")
            yield ColumnCounts(feature, own_cuts, own, rows, inside, by_class)
            cells, groups = cells + n_cells, groups + n_groups
            coarse += n_inside * k


@dataclass(frozen=True, slots=True, eq=False)
class ColumnCounts:
    """What is told of one column's counts; the fields are those of :class:`Release`."""

    feature: Feature
    cuts: Float64s
    groups: Int64s
    rows: Int64s
    coarse: Int64s
    by_class: NDArray[np.int64]


def columns_of(schema: Schema) -> tuple[Feature, ...]:
    """Return the columns that are explored: features, and a label that is a number."""
    label = (Feature(schema.label),) if schema.task is Task.REGRESSION else ()
    return (*schema.features, *label)
