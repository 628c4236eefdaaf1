from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import score_pb2, tree_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.rounds.steps import (
    TreeCatchUp,
    TreeOffer,
    TreeRound,
    TreeStanding,
    extend_digest,
)
from hedgerow.boosting.strategies.bagging.steps import ScoreSums, ScoreVerdict
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.scores import pack_sums, unpack_sums
from hedgerow.services.wire.trees import PIECE_BYTES
from tests.federation.memory import again

whole = st.integers(0, 2**32 - 1)
number = st.floats(allow_nan=False)
data = st.binary(max_size=40)
packs = st.lists(
    st.tuples(st.text(min_size=1, max_size=9).map(Silo), number, data),
    max_size=4,
    unique_by=lambda pack: pack[0],
)
rounds = st.builds(TreeRound.of, whole, packs)
PAYLOADS = st.one_of(
    st.builds(TreeCatchUp, whole, st.integers(-1, 2**31 - 1), st.integers(0, 2**64 - 1)),
    st.builds(TreeOffer, whole, whole, number, data),
    st.builds(
        TreeStanding,
        whole,
        number,
        st.none() | number,
        whole,
        st.binary(min_size=32, max_size=32),
        st.booleans(),
        st.booleans(),
        st.lists(rounds, max_size=4).map(tuple),
    ),
    st.builds(ScoreVerdict, st.booleans()),
)


def through(payload: Any) -> Any:
    codec = codec_of(type(payload))
    parts = list(codec.encode(payload))
    assert all(part.ByteSize() <= PIECE_BYTES + 200 for part in parts)
    return codec.decode(map(again, parts))


@settings(max_examples=100, deadline=None)
@given(PAYLOADS)
def test_payloads_about_trees_come_back(payload: Any) -> None:
    assert through(payload) == payload


def test_large_packs_travel_in_pieces_and_come_back() -> None:
    large = bytes(range(256)) * (10 * PIECE_BYTES // 1024)
    assert through(TreeOffer(1, 2, 3.0, large)).data == large
    one = TreeRound.of(1, [(Silo("a"), 1.0, large), (Silo("b"), 0.5, b"x")])
    two = (one, one.without(Silo("a")))
    assert through(TreeStanding(1, 0.1, 0.5, 1, bytes(32), rounds=two)).rounds == two


def test_silos_share_the_parts_of_a_round_which_go_with_it() -> None:
    added = TreeRound.of(1, [(Silo("a"), 1.0, bytes(2 * PIECE_BYTES))])
    standings = [TreeStanding(k, 0.1, 0.5, 1, bytes(32), rounds=(added,)) for k in range(2)]
    first, second = (list(codec_of(TreeStanding).encode(one))[1:] for one in standings)
    assert len(first) == 2
    assert all(one is other for one, other in zip(first, second, strict=True))
    held = sys.getrefcount(first[0])
    del added, standings
    left = sys.getrefcount(first[0])
    assert left == held - 1, "nothing but these lists holds them"


@pytest.mark.parametrize(
    "columns",
    [
        {"silos": ["a"]},
        {"sizes": [3]},
        {"silos": ["a", "a"], "sizes": [1, 1]},
        {"silos": ["a"], "sizes": [1], "factors": [1.0, 2.0]},
    ],
)
def test_rounds_of_unequal_columns_are_refused(columns: dict[str, Any]) -> None:
    parts = [
        tree_pb2.TreePart(standing=tree_pb2.TreeStanding()),
        tree_pb2.TreePart(round=tree_pb2.TreeRound(**columns)),
    ]
    with pytest.raises(OfferRejected, match="a size of each"):
        codec_of(TreeStanding).decode(iter(parts))


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [tree_pb2.TreePart()],
        [tree_pb2.TreePart(more=b"x")],
        [tree_pb2.TreePart(catch_up=tree_pb2.TreeCatchUp())] * 2,
        [tree_pb2.TreePart(offer=tree_pb2.TreeOffer())] * 2,
        [
            tree_pb2.TreePart(standing=tree_pb2.TreeStanding()),
            tree_pb2.TreePart(more=b"trees without a round"),
        ],
    ],
)
@pytest.mark.parametrize("payload", [TreeCatchUp, TreeOffer, TreeStanding])
def test_parts_out_of_order_are_refused(payload: type[Any], parts: list[Any]) -> None:
    codec = codec_of(payload)
    with pytest.raises(OfferRejected):
        codec.decode(iter(parts))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.one_of(st.floats(), st.integers(0, 2**41).map(float), st.just(0.0)), max_size=50)
)
def test_sums_come_back_to_the_bit(values: list[float]) -> None:
    vector = np.array(values, np.float64)
    assert unpack_sums(pack_sums(vector)).tobytes() == vector.tobytes()
    sums = through(ScoreSums(vector, np.zeros(0)))
    assert sums.train.tobytes() == vector.tobytes()
    assert sums.valid.shape == (0,)


def test_a_histogram_of_counts_costs_a_fraction_of_its_floats() -> None:
    rng = np.random.default_rng(0)
    counts = np.bincount(rng.normal(512, 60, 6500).astype(int).clip(0, 1023), minlength=1024)
    assert len(pack_sums(counts.astype(np.float64))) < 8 * 1024 / 15


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=60), st.integers(0, 60))
def test_damaged_sums_are_refused_or_read(noise: bytes, n: int) -> None:
    head = n.to_bytes(4, "little") + (0).to_bytes(4, "little")
    for raw in (noise, head + noise):
        try:
            assert len(unpack_sums(raw)) <= max(n, 1 << 20)
        except OfferRejected:
            continue


def test_sums_that_announce_too_much_are_refused() -> None:
    for raw in (b"\x01", b"\xff" * 8, b"\xff\xff\x0f\x00" + b"\xff\xff\x0f\x00" + bytes(99)):
        with pytest.raises(OfferRejected):
            unpack_sums(raw)


def test_scores_out_of_order_are_refused() -> None:
    sums, verdict = score_pb2.ScorePart(), score_pb2.ScorePart()
    sums.sums.SetInParent()
    verdict.verdict.SetInParent()
    for payload, parts in ((ScoreSums, [verdict]), (ScoreVerdict, [sums]), (ScoreVerdict, [])):
        with pytest.raises(OfferRejected):
            codec_of(payload).decode(iter(parts))  # type: ignore[type-var]


@pytest.mark.parametrize("factor", [0.0, -0.0])
def test_a_factor_of_the_other_zero_leaves_digest_and_bytes_alone(factor: float) -> None:
    def found(zero: float) -> tuple[bytes, bytes]:
        added = TreeRound.of(1, [(Silo("a"), zero, b"x")])
        standing = TreeStanding(1, 0.1, None, 1, b"", rounds=(added,))
        parts = codec_of(TreeStanding).encode(standing)
        return extend_digest(b"", added), b"".join(p.SerializeToString() for p in parts)

    assert found(factor)[0] != found(-factor)[0]
    assert found(factor)[1] != found(-factor)[1]
