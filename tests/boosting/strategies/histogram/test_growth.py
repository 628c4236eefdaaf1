"""What silos are told of a level: written and read without loss, refused where it does not fit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.histogram.growth import Mirror, read_splits, write_splits
from hedgerow.boosting.tensors import Tensors

N_CODES = 300


@st.composite
def levels(draw: st.DrawFn) -> list[Splits]:
    trees = []
    for _ in range(draw(st.integers(1, 3))):
        n = draw(st.integers(0, 4))
        categorical = sorted(draw(st.sets(st.integers(0, n - 1)))) if n else []
        codes = st.sets(st.integers(0, N_CODES - 1), max_size=N_CODES)
        whole = st.lists(st.integers(0, 9), min_size=n, max_size=n)
        columns = [np.array(draw(whole), np.int32) for _ in range(4)]
        trees.append(
            Splits(
                *columns,
                np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_),
                tuple((p, np.array(sorted(draw(codes)), np.int32)) for p in categorical),
            )
        )
    return trees


@settings(max_examples=60, deadline=None)
@given(levels())
def test_splits_come_back_as_they_were_written(trees: list[Splits]) -> None:
    requests = [tuple(range(len(s.node))) for s in trees]
    found, wanted = read_splits(Tensors(write_splits(trees, requests)), len(trees))
    assert wanted == requests
    for a, b in zip(found, trees, strict=True):
        for name in ("node", "left", "feature", "bin", "default_left"):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
        assert [p for p, _ in a.categories] == [p for p, _ in b.categories]
        for (_, x), (_, y) in zip(a.categories, b.categories, strict=True):
            np.testing.assert_array_equal(x, y)


def split(**changes: object) -> Splits:
    fields = {"node": [0], "left": [1], "feature": [0], "bin": [1]}
    fields.update(changes)  # type: ignore[arg-type]
    columns = [np.array(fields[n], np.int32) for n in ("node", "left", "feature", "bin")]
    categories = changes.get("categories", ())
    return Splits(*columns, np.zeros(1, np.bool_), categories)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "told",
    [
        {"splits": np.array([[2, 0, 1, 0, 1, 0]], np.int32)},
        {"categories": np.array([[3, 0]], np.int32)},
        {"categories": np.array([[0, 4]], np.int32)},
        {"categories": np.array([[0, -1]], np.int32)},
        {"request": np.array([[-1, 0]], np.int32)},
    ],
)
def test_levels_that_contradict_themselves_are_refused(told: dict[str, np.ndarray]) -> None:
    arrays = {**write_splits([split()], [(1,)]), **told}
    with pytest.raises(OfferRejected):
        read_splits(Tensors(arrays), 1)


@pytest.mark.parametrize(
    "bad",
    [
        split(node=[1]),
        split(left=[2]),
        split(feature=[2]),
        split(categories=((0, np.array([9], np.int32)),)),
    ],
)
def test_splits_that_do_not_fit_the_tree_are_refused(bad: Splits) -> None:
    with pytest.raises(OfferRejected):
        Mirror(np.array([4, 4])).apply(bad)
