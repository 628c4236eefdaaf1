"""A level's splits: a mirror follows the tree they describe, and refuses what does not fit it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.engine.partition import Splits
from hedgerow.boosting.engine.splitting import Scale, TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.job import Booster
from hedgerow.boosting.strategies.histogram.mirror import TreeReplica
from hedgerow.boosting.strategies.histogram.round_trees import write_splits
from hedgerow.boosting.strategies.histogram.steps import (
    CategorySets,
    ClosedTrees,
    LevelDecision,
    TreeSplits,
)
from tests.federation.memory import through_wire

N_BINS = 300


@st.composite
def splits_of_leaves(draw: st.DrawFn) -> Splits:
    """Splits of some leaves of the tree of 15 nodes."""
    nodes = draw(st.lists(st.integers(7, 14), unique=True, max_size=8))
    n = len(nodes)
    categorical = sorted(draw(st.sets(st.integers(0, n - 1)))) if n else []
    codes = st.sets(st.integers(0, N_BINS - 1), max_size=N_BINS)
    columns = [draw(st.lists(st.integers(-k, 2), min_size=n, max_size=n)) for k in (0, 1)]
    missing = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    return Splits(
        np.array(nodes, np.int32),
        15 + 2 * np.arange(n, dtype=np.int32),
        *(np.array(column, np.int32) for column in columns),
        np.array(missing, np.bool_),
        tuple((p, np.array(sorted(draw(codes)), np.int32)) for p in categorical),
    )


def grown_mirror() -> TreeReplica:
    mirror = TreeReplica(np.full(3, N_BINS))
    for level in range(3):
        nodes = np.arange(2**level - 1, 2 ** (level + 1) - 1, dtype=np.int32)
        first = 2 ** (level + 1) - 1
        mirror.apply(level_of(node=nodes, request=np.arange(first, 2 * first + 1, 2)))
    return mirror


def level_of(**changes: object) -> TreeSplits:
    node = np.asarray(changes.get("node", [0]), np.int32)
    blank = np.zeros(node.shape[0], np.int32)
    level = TreeSplits(node, blank, blank, blank != 0, None, np.empty(0, np.int32))
    arrays = {
        name: np.asarray(value, np.int32) if name != "categories" else value
        for name, value in changes.items()
    }
    return replace(level, **arrays)  # type: ignore[arg-type]


@settings(max_examples=60, deadline=None)
@given(splits_of_leaves())
def test_a_mirror_reads_the_splits_that_were_written(splits: Splits) -> None:
    request = tuple(int(left) for left in splits.left)
    values = np.arange(3, dtype=np.float32)
    sent = LevelDecision((write_splits(splits, request),), ClosedTrees(values))
    received = through_wire(sent)
    assert np.array_equal(received.closed.values, values)
    mirror = grown_mirror()
    found = mirror.apply(received.trees[0])
    assert mirror.request == request
    for name in ("node", "left", "feature", "bin", "default_left"):
        np.testing.assert_array_equal(getattr(found, name), getattr(splits, name))
    assert [p for p, _ in found.categories] == [p for p, _ in splits.categories]
    for (_, x), (_, y) in zip(found.categories, splits.categories, strict=True):
        np.testing.assert_array_equal(x, y)


def sets(split: list[int], size: list[int], n_bytes: int) -> CategorySets:
    full = np.full(n_bytes, 255, np.uint8)
    return CategorySets(np.array(split, np.int32), np.array(size, np.int32), full)


@pytest.mark.parametrize(
    "bad",
    [
        level_of(node=[1]),
        level_of(node=[0, 0]),
        level_of(node=[0, 1]),
        level_of(node=[-1]),
        level_of(feature=[2]),
        level_of(feature=[-1]),
        level_of(bin=[4]),
        level_of(bin=[-2]),
        level_of(bin=[0, 0]),
        level_of(request=[0]),
        level_of(request=[3]),
        level_of(request=[-1]),
        level_of(categories=sets([0], [1], 1)),
        level_of(categories=sets([1], [0], 0)),
        level_of(categories=sets([-1], [0], 0)),
        level_of(categories=sets([0], [-1], 0)),
        level_of(categories=sets([0], [4], 3)),
        level_of(categories=sets([0, 0], [0, 0], 0)),
        level_of(categories=sets([0], [0, 0], 0)),
    ],
)
def test_splits_that_do_not_fit_the_tree_are_refused(bad: TreeSplits) -> None:
    with pytest.raises(OfferRejected):
        TreeReplica(np.array([4, 4])).apply(bad)


def test_a_level_asked_in_parts_gives_each_pair_once_and_no_more_nodes_than_agreed() -> None:
    def mirror() -> TreeReplica:
        found = TreeReplica(np.full(3, N_BINS), most_nodes=1)
        found.apply(level_of(request=[1]))
        found.apply(level_of(node=[1, 2], request=[3]))
        return found

    nothing = level_of(node=[])
    part = mirror()
    part.apply(replace(nothing, request=np.array([6], np.int32)))
    for parted, request in ((mirror(), [4]), (mirror(), [2]), (part, [5]), (part, [9])):
        with pytest.raises(OfferRejected, match="one of a pair"):
            parted.apply(replace(nothing, request=np.array(request, np.int32)))
    wide = TreeReplica(np.full(3, N_BINS), most_nodes=1)
    wide.apply(level_of(request=[1]))
    with pytest.raises(OfferRejected, match="at most 1 nodes"):
        wide.apply(level_of(node=[1, 2], request=[3, 5]))
    whole = TreeReplica(np.full(3, N_BINS))
    whole.apply(level_of(request=[1]))
    whole.apply(level_of(node=[1, 2], request=[3]))
    with pytest.raises(OfferRejected, match="one of a pair"):
        whole.apply(replace(nothing, request=np.array([6], np.int32)))


@pytest.mark.parametrize(
    ("features", "fits"),
    [
        ((0, [1, 0]), True),
        ((0, [1, 2]), False),
        ((2, [2, 2]), True),
        ((2, [0, 2]), False),
        ((1, [0, 1]), True),
    ],
)
def test_divisions_against_interaction_constraints_are_refused(
    features: tuple[int, list[int]], fits: bool
) -> None:
    booster = Booster(interaction_constraints=((0, 1),))
    mirror = TreeReplica(np.full(3, 4))
    mirror.apply(level_of(feature=[features[0]], request=[1]))
    mirror.apply(level_of(node=[1, 2], feature=features[1], request=[3, 5]))
    mirror.sums = {node: np.array([0, 8 >> mirror.depth[node]]) for node in range(7)}
    free, bound = (TreeParameters.of(one, 3) for one in (Booster(), booster))
    mirror.derived(free, Scale(1.0, 1.0))
    if fits:
        mirror.derived(bound, Scale(1.0, 1.0))
        return
    with pytest.raises(OfferRejected, match="against the interaction constraints of the job"):
        mirror.derived(bound, Scale(1.0, 1.0))
