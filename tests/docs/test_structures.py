"""The distance between trees' structures that the tables of FedGA show."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks._structures import edit_distance, n_decisions

pytest.importorskip("apted", reason="the benchmarks' edit distance needs apted")

LEAF: dict[str, Any] = {"content": [1.0]}


def nodes(tree: Any) -> list[dict[str, Any]]:
    """Return (feature, left, right) or None for a leaf as the nodes of a ``tree.json``."""
    if tree is None:
        return [LEAF]
    feature, left, right = tree
    found: list[dict[str, Any]] = [{"feature": feature}]
    for side, below in (("left", left), ("right", right)):
        found[0][side] = len(found)
        found += [
            node | {way: node[way] + len(found) for way in ("left", "right") if way in node}
            for node in nodes(below)
        ]
    return found


CHAIN = (0, (1, (2, None, None), None), None)


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (None, None, 0.0),
        (None, CHAIN, 1.0),
        (CHAIN, CHAIN, 0.0),
        (CHAIN, (0, (1, None, None), None), 1 / 3),  # a node less
        (CHAIN, (0, (2, None, None), None), 1 / 3),  # one from the middle
        (CHAIN, (5, (1, (2, None, None), None), None), 1 / 3),  # another feature
        ((3, None, None), (4, None, None), 1.0),
        ((0, (1, None, None), (2, None, None)), (0, (2, None, None), (1, None, None)), 2 / 3),
    ],
)
def test_distances_count_edits_of_decisions(one: Any, other: Any, expected: float) -> None:
    for a, b in ((one, other), (other, one)):
        assert edit_distance(nodes(a), nodes(b)) == pytest.approx(expected)


def test_thresholds_and_leaves_do_not_count() -> None:
    other = [node | {"threshold": 3.0, "rows": 7} for node in nodes(CHAIN)]
    assert n_decisions(other) == 3
    assert edit_distance(nodes(CHAIN), other) == 0.0
