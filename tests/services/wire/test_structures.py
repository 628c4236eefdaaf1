"""Structures, scores and growing trees through their frames, and frames that a peer made up."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.dp_tree.noisy_tree import OPEN, Sprout
from hedgerow.boosting.strategies.dp_tree.parameters import GrowthState
from hedgerow.boosting.strategies.fedga.steps import (
    Comparison,
    DepthVote,
    Phase,
    Proposal,
    Scores,
    SearchTask,
)
from hedgerow.services.wire import codec_of
from hedgerow.services.wire.arrays import encode_arrays
from tests.federation.memory import through_wire

NO_GENES = np.empty(0, dtype=np.int16)


@settings(max_examples=40)
@given(
    st.sampled_from(list(Phase)),
    st.integers(0, 1000),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from([3, 254, 255, 256, 30_000]),
    st.randoms(use_true_random=False),
)
def test_standing_survives_the_wire(
    phase: Phase, of_round: int, depth: int, count: int, n_features: int, random: Any
) -> None:
    genes = [[random.randrange(-1, n_features) for _ in range(2**depth - 1)] for _ in range(count)]
    structures = np.array(genes, dtype=np.int16).reshape(count, 2**depth - 1)
    sent = SearchTask(
        phase, of_round, depth, random.random() < 0.5, random.random() < 0.5, structures
    )
    came: SearchTask = through_wire(sent)
    assert (came.phase, came.round, came.depth) == (phase, of_round, depth)
    assert (came.active, came.full) == (sent.active, sent.full)
    assert came.structures.dtype == np.int16
    assert np.array_equal(came.structures, structures)


@pytest.mark.parametrize(("largest", "n_bits"), [(0, 1), (6, 3), (7, 4), (20, 5), (254, 8)])
def test_a_gene_takes_as_many_bits_as_the_table_has_features(largest: int, n_bits: int) -> None:
    structures = np.full((60, 31), largest, dtype=np.int16)
    standing = SearchTask(Phase.SCORE, 3, 5, True, True, structures)
    frames = list(codec_of(SearchTask).encode(standing))
    assert sum(frame.ByteSize() for frame in frames) < 60 * 31 * n_bits / 8 + 150


def test_offers_of_the_search_survive_the_wire() -> None:
    assert through_wire(DepthVote(5, 417)) == DepthVote(5, 417)
    genes = np.array([2, -1, 4], dtype=np.int16)
    proposal: Proposal = through_wire(Proposal(genes, True, False))
    assert np.array_equal(proposal.structure, genes)
    assert (proposal.full, proposal.elite) == (True, False)
    values = np.array([0, 713, 65535], dtype=np.uint16)
    for sent in (Scores(values, 0, NO_GENES), Scores(values, 99, genes)):
        came: Scores = through_wire(sent)
        assert np.array_equal(came.thousandths, values)
        assert came.rows == sent.rows
        assert np.array_equal(came.structure, sent.structure)
    comparison: Comparison = through_wire(
        Comparison(np.array([0.5, np.nan]), np.array([0.25, 1.0]))
    )
    assert np.array_equal(comparison.federated, [0.5, np.nan], equal_nan=True)
    assert np.array_equal(comparison.own, [0.25, 1.0])


def growth() -> GrowthState:
    tree = Sprout(
        (np.array([0.5, 1.5], np.float32), np.empty(0, np.float32)),
        np.array([0, OPEN, -1], np.int32),
        np.array([1, -1, -1], np.int32),
        np.array([2, -1, -1], np.int32),
        np.array([[True, False, False, True], [False] * 4, [False] * 4]),
    )
    return GrowthState(3, 1, ((), (4, 9)), tree)


def test_growing_tree_survives_the_wire() -> None:
    sent = growth()
    came: GrowthState = through_wire(sent)
    assert came.digest == sent.digest
    assert came.intervals == sent.intervals
    assert [own.tolist() for own in came.tree.edges] == [[0.5, 1.5], []]
    assert np.array_equal(came.tree.goes_left, sent.tree.goes_left)


def test_digest_names_all_that_a_query_depends_on() -> None:
    first = growth()
    others = [
        GrowthState(2, 1, first.intervals, first.tree),
        GrowthState(3, 2, first.intervals, first.tree),
        GrowthState(3, 1, ((4,), (9,)), first.tree),
    ]
    assert len({one.digest for one in (first, *others)}) == 4


def decode(payload: type[Any], arrays: dict[str, Any]) -> Any:
    frames: Iterable[Any] = encode_arrays(arrays)
    return codec_of(payload).decode(frames)


def integers(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


GENES = {"genes": np.zeros(1, np.uint8), "form": np.array([2, 1, 4], np.int32)}
"""One structure of four genes of two bits."""


@pytest.mark.parametrize(
    ("payload", "arrays"),
    [
        (SearchTask, GENES),
        (SearchTask, {"state": integers(2, 0, 1, 0, 0)}),
        (SearchTask, {"state": integers(9, 0, 1, 0, 0), **GENES}),
        (SearchTask, {"state": integers(2, -1, 1, 0, 0), **GENES}),
        (SearchTask, {"state": integers(2, 0, 1, 0), **GENES}),
        *(
            (SearchTask, {"state": integers(2, 0, 1, 0, 0), "genes": GENES["genes"], "form": form})
            for form in (
                np.array([2, 3], np.int32),
                np.array([], np.int32),
                np.array([2, 1, 4], np.int64),
                np.array([2, 1, 5], np.int32),
                np.array([2, -1, -4], np.int32),
                np.array([0, 1, 4], np.int32),
                np.array([31, 1, 4], np.int32),
            )
        ),
        (Proposal, {**GENES, "votes": integers(1, 0)}),
        (Proposal, {"genes": np.zeros(1, np.int32), "form": GENES["form"]}),
        (DepthVote, {"vote": integers(1)}),
        (Scores, {"thousandths": np.zeros(3, np.float32)}),
        (Scores, {"thousandths": np.zeros(3, np.uint16), "rows": integers(5)}),
        (Comparison, {"federated": np.zeros(2), "own": np.zeros(3)}),
    ],
)
def test_malformed_search_payload_is_refused(payload: type[Any], arrays: dict[str, Any]) -> None:
    with pytest.raises(OfferRejected):
        decode(payload, arrays)


@pytest.mark.parametrize(
    "change",
    [
        {"state": integers(3)},
        {"state": integers(-1, 0)},
        {"edge_counts": np.array([1, 0], np.int32)},
        {"interval_counts": np.array([-1, 3], np.int32)},
        {"interval_counts": np.empty(0, np.int32), "intervals": integers()},
        {"left": np.zeros(2, np.int32)},
        {"goes_left": np.zeros((3, 4), np.uint8)},
    ],
)
def test_malformed_growing_tree_is_refused(change: dict[str, Any]) -> None:
    from hedgerow.boosting.strategies.dp_tree.parameters import pack_growth

    with pytest.raises(OfferRejected):
        decode(GrowthState, pack_growth(growth()) | change)
