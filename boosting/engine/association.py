"""How far a label's classes differ over groups of rows: weight of evidence, information value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
_DIGITS = 6


def against_label(
    table: Counts, names: Sequence[str], classes: Sequence[str], *, ordered: bool
) -> dict[str, Any]:
    """Return how a column goes with the label: by group, and in all.

    Parameters
    ----------
    table : ndarray of shape (n_groups, n_classes), int64
        Rows of each group; every number is above 0.
    ordered : bool
        Whether the groups are in the order of a column's numbers. One named "missing" is apart.
    """
    groups = [
        {
            "name": name,
            "rows": int(cells.sum()),
            "by_class": dict(zip(classes, cells.tolist(), strict=True)),
        }
        for name, cells in zip(names, table, strict=True)
    ]
    n = table.sum()
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / n
    chi = float(((table - expected) ** 2 / expected).sum())
    found: dict[str, Any] = {
        "groups": groups,
        "chi_square": rounded(chi),
        "degrees_of_freedom": (len(table) - 1) * (table.shape[1] - 1),
        "iv": rounded(_information_value(table)),
    }
    if table.shape[1] == 2:
        for group, weight in zip(groups, _evidence(table), strict=True):
            group["weight_of_evidence"] = rounded(float(weight))
        found["gain"] = rounded(_gain(table))
        if ordered:
            found["monotone"] = _monotone(table, groups)
    return found


def _evidence(table: Counts) -> NDArray[np.float64]:
    """Return by group log(share of the last class / share of the first one)."""
    shares = table / table.sum(axis=0)
    found: NDArray[np.float64] = np.log(shares[:, 1] / shares[:, 0])
    return found


def _information_value(table: Counts) -> float:
    """Return the information value; of several classes the mean of each against the others."""
    if table.shape[1] > 2:
        n = table.sum()
        one = [np.column_stack([table.sum(axis=1) - own, own]) for own in table.T]
        return sum(float(own[:, 1].sum() / n) * _information_value(own) for own in one)
    shares = table / table.sum(axis=0)
    return float(((shares[:, 1] - shares[:, 0]) * _evidence(table)).sum())


def _gain(table: Counts) -> float:
    """Return the largest gain of one split between groups, in their order, of a first tree.

    ``G_l**2 / H_l + G_r**2 / H_r - G**2 / H`` of the logistic loss at the mean label; groups of
    categories are in the order of their labels' means.
    """
    n, ones = table.sum(axis=1), table[:, 1]
    p = float(ones.sum() / n.sum())
    order = np.argsort(ones / n, kind="stable")
    best = 0.0
    for at in (np.arange(len(n)), order):
        g, h = np.cumsum((p * n - ones)[at])[:-1], np.cumsum((p * (1 - p) * n)[at])[:-1]
        whole = p * (1 - p) * float(n.sum())
        best = max(best, float((g * g / h + g * g / (whole - h)).max(initial=0.0)))
    return best


def _monotone(table: Counts, groups: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the groups joined until the label's mean only rises, or only falls, with the value."""
    best: tuple[float, list[list[int]]] = (-1.0, [])
    numbers = [k for k, one in enumerate(groups) if one["name"] != "missing"]
    counts = table.tolist()
    for sign in (1, -1):
        blocks: list[list[int]] = []
        sums: list[tuple[int, int]] = []
        for k in numbers:
            blocks.append([k])
            sums.append((sum(counts[k]), counts[k][1]))
            # By products: rates of whole numbers, compared exactly.
            while len(blocks) > 1 and sign * (sums[-2][1] * sums[-1][0]) >= sign * (
                sums[-1][1] * sums[-2][0]
            ):
                last, (n, ones) = blocks.pop(), sums.pop()
                blocks[-1] += last
                sums[-1] = sums[-1][0] + n, sums[-1][1] + ones
        joined = np.array([table[own].sum(axis=0) for own in blocks])
        if len(blocks) > 1 and (value := _information_value(joined)) > best[0]:
            best = (value, blocks)
    value, blocks = best
    return {
        "iv": rounded(max(value, 0.0)),
        "groups": ["; ".join(groups[k]["name"] for k in own) for own in blocks],
    }


def rounded(value: float) -> float:
    """Return a number to the digits that are told."""
    return float(f"{value:.{_DIGITS}g}")
