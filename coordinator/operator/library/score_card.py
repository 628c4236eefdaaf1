"""Score cards: an additive model of two classes as points by column and bin."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import InvalidJob
from hedgerow.boosting.tables import spreadsheet
from hedgerow.coordinator.operator.library.frames import Frame, Tabular
from hedgerow.coordinator.operator.report.effects import effects

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset
    from hedgerow.boosting.trees.ensemble import Ensemble
    from hedgerow.coordinator.operator.report.trees import NodeNames

Floats = NDArray[np.float64]
_LOG_ODDS = ("binary:logistic", "binary:logitraw")
_BASE = "every row"


class ScoreCard(Frame):
    """Points by column and bin; those of a row's bins, and the base points, sum to its score.

    The score is ``base + points_to_double / log(2) * (margin - log(odds))``, where the margin is
    the log odds of the positive class.

    Parameters
    ----------
    ensemble : Ensemble
        Its trees ask of one column each (:func:`why_not`).
    names : NodeNames
    rows : callable
        Reads a table as the model does.
    points_to_double : float
        Points that double the odds of the positive class; below 0 points fall with them.
    base : float
        Score of a row with ``odds``.
    odds : float
        Odds of the positive class at ``base``.

    Raises
    ------
    InvalidJob
        A number that no card can have.
    """

    def __init__(
        self,
        ensemble: Ensemble,
        names: NodeNames,
        rows: Callable[[Any], Dataset],
        points_to_double: float = 20.0,
        base: float = 600.0,
        odds: float = 1.0,
    ) -> None:
        for name, given, fits in (
            ("points_to_double", points_to_double, points_to_double != 0),
            ("base", base, True),
            ("odds", odds, odds > 0),
        ):
            if not math.isfinite(given) or not fits:
                least = {"odds": "a number above 0", "points_to_double": "a number other than 0"}
                expected = least.get(name, "a number")
                raise InvalidJob(f"score card: {name}: expected {expected}, received {given}")
        self._names, self._rows = names, rows
        self._parts = effects(ensemble.trees, names) or []
        self.factor = points_to_double / math.log(2.0)
        """Points of one unit of the margin."""
        alone = (float(t.threshold[0]) for t in ensemble.trees if t.n_nodes == 1)
        self.margin = float(ensemble.base_margins(1)[0]) + sum(alone)
        """Of every row, before its columns add to it."""
        self.base_points = base + self.factor * (self.margin - math.log(odds))
        lines: list[tuple[object, ...]] = [("", _BASE, None, None, self.base_points, self.margin)]
        for one in self._parts:
            points = self.factor * one.value
            lines.append((one.feature, one.at, one.least, one.below, points, one.value))
        headings = ("column", "bin", "from", "below", "points", "margin")
        columns = {name: [line[k] for line in lines] for k, name in enumerate(headings)}
        super().__init__(columns, f"{points_to_double:g} points double the odds")

    def points(self, table: Tabular | Mapping[str, Tabular]) -> Floats:
        """Return each row's score, read off the card; shape (n_samples,).

        A value's bin is found as the model does: numbers are rounded to float32 first, and a
        category that the model does not know is missing.
        """
        rows = self._rows(table)
        found = np.full(rows.n_samples, self.base_points)
        for k, name in enumerate(self._names.features):
            own = [one for one in self._parts if one.feature == name]
            if not own:
                continue
            points = np.array([self.factor * one.value for one in own])
            values, categories = rows.X[:, k], self._names.categories[k]
            gone = np.isnan(values)
            if categories:
                at = np.where(gone, len(categories), np.nan_to_num(values)).astype(np.intp)
            else:
                ends = np.array([one.below for one in own[:-2]], np.float32)
                at = np.where(gone, len(own) - 1, np.searchsorted(ends, values, side="right"))
            found += points[at]
        return found

    def csv(self) -> bytes:
        """Return the card as CSV, a line for each bin; a margin's points are exact.

        Texts that a spreadsheet would take for a formula are marked: silos choose categories.
        """
        return spreadsheet.write_table(self.to_arrow())


def why_not(ensemble: Ensemble, names: NodeNames) -> str:
    """Return why no card can say what trees say; empty where one can."""
    objective = ensemble.about.objective
    if objective not in _LOG_ODDS:
        return (
            "expected a model of two classes whose margin is the log of their odds "
            f"({' or '.join(_LOG_ODDS)}), received {objective}"
        )
    for number, tree in enumerate(ensemble.trees):
        used = sorted(set(tree.feature[~tree.is_leaf].tolist()))
        if len(used) > 1:
            return (
                f"expected one column a tree; tree {number} asks of "
                f"{' and '.join(names.features[k] for k in used[:2])}: train with max_depth = 1, "
                'or private_boost with structure = "cyclic"'
            )
    return ""
