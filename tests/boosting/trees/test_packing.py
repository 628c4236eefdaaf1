from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.golomb import (
    ColumnReader,
    ColumnWriter,
    from_ordinal,
    ordinal,
    unzigzag,
    zigzag,
)
from hedgerow.boosting.trees.limits import TreeLimits, validate_upload
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.packing import Shrinkage, pack, unpack
from tests.boosting.trees.ensembles import KINDS, Kind, dataset, train
from tests.boosting.trees.test_ensemble import random_trees, stump

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
COLUMNS = (
    "left", "right", "feature", "threshold", "default_left", "gain", "cover", "weight"
)  # fmt: skip


def assert_same(ours: list[Tree], theirs: list[Tree]) -> None:
    """Equal to the bit: values, types, categories, groups."""
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        for column in COLUMNS:
            x, y = getattr(a, column), getattr(b, column)
            assert x.dtype == y.dtype, column
            assert x.tobytes() == y.tobytes(), column
        assert a.group == b.group
        assert [(n, c.tolist()) for n, c in a.categories] == [
            (n, c.tolist()) for n, c in b.categories
        ]
        assert all(c.dtype == np.int32 for _, c in a.categories)


def shrinkage(kind: Kind) -> Shrinkage:
    parallel = kind.extra.get("num_parallel_tree", 1)
    return Shrinkage(0.3 / parallel, 1.0, kind.extra.get("alpha", 0.0))


@every_kind
@pytest.mark.parametrize("scrub", [False, True])
def test_packed_trees_come_back_to_the_bit(kind: Kind, scrub: bool) -> None:
    trees = trees_of(train(kind, dataset(kind, 400, 1), 3))
    if scrub:
        trees = [tree.scrubbed() for tree in trees]
    assert_same(unpack(pack(trees, shrinkage(kind))), trees)
    assert_same(unpack(pack(trees)), trees)


@every_kind
def test_without_statistics_the_rest_is_the_same(kind: Kind) -> None:
    trees = trees_of(train(kind, dataset(kind, 300, 2), 2))
    assert_same(unpack(pack(trees), stats=False), [tree.scrubbed() for tree in trees])


@pytest.mark.parametrize("name", ["binary", "regression", "classes", "lossguide", "one-hot"])
def test_statistics_cost_far_less_than_their_floats(name: str) -> None:
    """A leaf's cover is real information; all that follows from it is nearly free."""
    kind = next(kind for kind in KINDS if kind.name == name)
    trees = trees_of(train(kind, dataset(kind, 3000, 3), 3))
    nodes = sum(tree.n_nodes for tree in trees)
    packed = len(pack(trees, shrinkage(kind)))
    scrubbed = len(pack([tree.scrubbed() for tree in trees]))
    assert packed - scrubbed < 2.5 * nodes + 30 < 12 * nodes


def test_packs_are_a_fraction_of_json_and_of_a_compressed_model() -> None:
    import zstandard

    kind = KINDS[0]
    booster = train(kind, dataset(kind, 3000, 4), 5)
    size = len(pack(trees_of(booster), shrinkage(kind)))
    model = bytes(booster.save_raw("ubj"))
    assert size * 2 < len(zstandard.compress(model, 19)) < len(model)


def test_single_leaf_trees_and_no_trees_are_packed() -> None:
    leaf = Tree(
        *(np.array([-1], np.int32), np.array([-1], np.int32), np.array([0], np.int32)),
        np.array([0.25], np.float32),
        np.array([False]),
        *(np.array([x], np.float32) for x in (0, 3, 0.25)),
    )
    assert_same(unpack(pack([leaf])), [leaf])
    assert_same(
        unpack(pack([leaf, stump(gain=stump_gain()), leaf])), [leaf, stump(gain=stump_gain()), leaf]
    )
    assert unpack(pack([])) == []


def stump_gain() -> np.ndarray:
    return np.array([1, 2, 0, 0, 0], np.float32)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    trees=st.lists(random_trees(), min_size=1, max_size=4),
    eta=st.floats(-1, 1, width=32),
    alpha=st.floats(0, 1, width=32),
)
def test_any_tree_and_any_guess_come_back_to_the_bit(
    trees: list[Tree], eta: float, alpha: float
) -> None:
    assert_same(unpack(pack(trees, Shrinkage(eta, 0.0, alpha))), trees)


@settings(max_examples=40, deadline=None)
@given(patterns=st.lists(st.integers(0, 2**32 - 1), min_size=5, max_size=5))
def test_every_bit_pattern_of_a_float_comes_back(patterns: list[int]) -> None:
    odd = np.array(patterns, np.uint32).view(np.float32)
    gain = odd.copy()
    gain[2:] = 0
    tree = stump(threshold=odd, cover=odd[::-1].copy(), weight=odd, gain=gain)
    assert_same(unpack(pack([tree])), [tree])


def test_trees_out_of_form_are_not_packed() -> None:
    tree = stump(gain=stump_gain())
    for broken in (
        replace(tree, gain=np.ones(5, np.float32)),
        replace(tree, default_left=np.array([False, False, True, False, False])),
        replace(tree, feature=np.array([0, 3, 1, 0, 0], np.int32)),
        replace(tree, categories=((1, np.array([4, 1], np.int32)),)),
    ):
        with pytest.raises(ValueError):  # noqa: PT011 - any message
            pack([broken])


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_packs_are_refused_or_make_trees_that_can_be_checked(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS[:6]))
    packed = bytearray(PACKS[kind.name])
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del packed[data.draw(st.integers(0, len(packed))) :]
    check(bytes(packed))


@settings(max_examples=150, deadline=None)
@given(garbage=st.binary(max_size=200), flags=st.integers(0, 15))
def test_garbage_is_refused_or_makes_trees_that_can_be_checked(garbage: bytes, flags: int) -> None:
    check(garbage)
    check(bytes([1, flags]) + garbage)


def check(packed: bytes) -> None:
    for stats in (True, False):
        try:
            trees = unpack(packed, stats=stats)
            validate_upload(trees, TreeLimits((0,) * len(trees), (0, 0, 0, 9)))
        except OfferRejected:
            continue
        assert sum(tree.n_nodes for tree in trees) <= 8 * len(packed)


PACKS = {kind.name: pack(trees_of(train(kind, dataset(kind, 60, 5), 1))) for kind in KINDS}


def test_a_pack_cannot_announce_more_nodes_than_it_has_bits_for() -> None:
    many = bytes([1, 0, 1, 0, 0, 0, *(0xFF, 0xFF, 0xFF, 0x07), 0]) + bytes(64)
    with pytest.raises(OfferRejected, match="impossible number of nodes"):
        unpack(many)
    with pytest.raises(OfferRejected, match="at most"):
        unpack(bytes([1, 0, 0xFF, 0xFF, 0xFF, 0x07, 0, 0, 0]) + bytes(64))


def test_a_node_limit_is_kept() -> None:
    packed = PACKS["binary"]
    n = unpack(packed)[0].n_nodes
    assert len(unpack(packed, max_nodes=n)) == 1
    with pytest.raises(OfferRejected):
        unpack(packed, max_nodes=n - 1)


@settings(max_examples=60, deadline=None)
@given(
    columns=st.lists(
        st.lists(st.one_of(st.integers(0, 9), st.integers(0, 2**34)), max_size=20), max_size=4
    ),
    numbers=st.lists(st.floats(width=32), max_size=20),
    first=st.lists(st.booleans(), max_size=9),
)
def test_columns_come_back(
    columns: list[list[int]], numbers: list[float], first: list[bool]
) -> None:
    writer = ColumnWriter(bytearray(b"head"), np.array(first, np.bool_))
    for column in columns:
        writer.golomb(np.array(column, np.int64))
    writer.plain(np.arange(8), 3)
    floats = np.array(numbers, np.float32)
    writer.floats(floats)
    counts = [*((len(column), False) for column in columns), (len(numbers), True)]
    reader = ColumnReader(writer.done(), 4, counts, len(first))
    assert reader.first.tolist() == first
    assert [reader.golomb().tolist() for _ in columns] == columns
    assert reader.plain(8, 3).tolist() == list(range(8))
    assert reader.floats().tobytes() == floats.tobytes()


@settings(max_examples=50, deadline=None)
@given(bits=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=9), v=st.integers(-99, 99))
def test_positions_of_floats_are_one_to_one_and_in_order(bits: list[int], v: int) -> None:
    values = np.array(bits, np.uint32).view(np.float32)
    assert from_ordinal(ordinal(values)).tobytes() == values.tobytes()
    finite = np.sort(values[np.isfinite(values)])
    assert (np.diff(ordinal(finite)) >= 0).all()
    assert unzigzag(zigzag(np.array([v])))[0] == v
