"""Small packs are read number by number, and equal what the general reader reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.trees import packing, small_packs
from hedgerow.boosting.trees.ensemble import Tree
from hedgerow.boosting.trees.packing import Shrinkage, pack, unpack
from tests.boosting.trees.test_ensemble import random_trees
from tests.boosting.trees.test_packing import COLUMNS, assert_same


def both(data: bytes, *, stats: bool) -> list[list[Tree] | str]:
    """Return what either reader makes of a pack: trees, or the text of the refusal."""
    found: list[list[Tree] | str] = []
    for small_bytes in (packing.SMALL_BYTES, 0):
        with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(packing, "SMALL_BYTES", small_bytes)
            packing._unpack_small.cache_clear()
            try:
                found.append(unpack(data, stats=stats))
            except OfferRejected as error:
                found.append(str(error))
    return found


def assert_equal(data: bytes) -> None:
    for stats in (True, False):
        fast, general = both(data, stats=stats)
        if isinstance(fast, str) or isinstance(general, str):
            assert fast == general
        else:
            assert_same(fast, general)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    tree=random_trees(),
    eta=st.floats(2**-10, 1, width=32),
    alpha=st.sampled_from([0.0, 0.5]),
    scrub=st.booleans(),
)
def test_any_tree_is_read_alike(tree: Tree, eta: float, alpha: float, scrub: bool) -> None:
    given = tree.scrubbed() if scrub else tree
    with np.errstate(all="ignore"):
        data = pack([given], Shrinkage(eta, 1.0, alpha))
    assert_equal(data)


def grown(seed: int) -> bytes:
    """Return a pack of a tree of seven nodes, such as training makes."""
    rng = np.random.default_rng(seed)
    cover = rng.integers(1, 40, 7).astype(np.float32)
    cover[1], cover[2] = cover[3] + cover[4], cover[5] + cover[6]
    cover[0] = cover[1] + cover[2]
    leaf = np.arange(7) > 2
    value = rng.normal(size=7).astype(np.float32)
    tree = Tree(
        np.array([1, 3, 5, -1, -1, -1, -1], np.int32),
        np.array([2, 4, 6, -1, -1, -1, -1], np.int32),
        np.where(leaf, 0, rng.integers(0, 99, 7)).astype(np.int32),
        value,
        ~leaf & (rng.random(7) < 0.5),
        np.where(leaf, 0, rng.random(7)).astype(np.float32),
        cover,
        value,
    )
    return pack([tree], Shrinkage(0.3, 1.0))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 9), bit=st.integers(0, 8 * 200), cut=st.integers(0, 3))
def test_damaged_bytes_are_read_or_refused_alike(seed: int, bit: int, cut: int) -> None:
    data = bytearray(grown(seed))
    data[bit // 8 % len(data)] ^= 1 << bit % 8
    assert_equal(bytes(data[: len(data) - cut]))


def outcome(data: bytes) -> list[bytes] | str:
    """Return the columns of a pack's only tree, or the text of the refusal."""
    try:
        return [getattr(tree, column).tobytes() for tree in unpack(data) for column in COLUMNS]
    except OfferRejected as error:
        return str(error)


@pytest.mark.slow
@pytest.mark.parametrize(("scrub", "head"), [(True, range(13)), (False, range(20, 32))])
def test_any_value_of_a_byte_of_a_stumps_header_is_read_or_refused_alike(
    scrub: bool, head: range
) -> None:
    children = np.array([[1, -1, -1], [2, -1, -1], [3, 0, 0]], np.int32)
    real = np.array([[0.5, 0.25, 0.25], [2, 0, 0], [10, 4, 6], [0.1, 0.25, 0.25]], np.float32)
    tree = Tree(*children, real[0], np.array([True, False, False]), *real[1:])
    data = pack([tree.scrubbed() if scrub else tree], Shrinkage(0.3, 1.0))
    changed = [data[:at] + bytes([value]) + data[at + 1 :] for at in head for value in range(256)]
    found = []
    for small_bytes in (packing.SMALL_BYTES, 0):
        with pytest.MonkeyPatch.context() as patch, np.errstate(all="ignore"):
            patch.setattr(packing, "SMALL_BYTES", small_bytes)
            packing._unpack_small.cache_clear()
            found.append([outcome(each) for each in changed])
    for each, fast, general in zip(changed, *found, strict=True):
        assert fast == general, each.hex()


def test_a_stump_or_a_small_tree_is_not_left_to_the_general_reader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read: list[int] = []
    original = small_packs.read

    def counted(data: bytes, *args: Any, **kwargs: Any) -> Tree:
        read.append(len(data))
        return original(data, *args, **kwargs)

    monkeypatch.setattr(small_packs, "read", counted)
    packing._unpack_small.cache_clear()
    for seed in range(5):
        assert unpack(grown(seed))[0].n_nodes == 7
    assert len(read) == 5
