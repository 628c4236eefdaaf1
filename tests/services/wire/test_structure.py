"""Structures, scores and growing trees through their frames, and frames that a peer made up."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hedgerow.api.federation.v1 import budget_pb2, structure_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.dp_tree.bins import EdgeSearch
from hedgerow.boosting.strategies.dp_tree.noisy_tree import OPEN, BinnedTree
from hedgerow.boosting.strategies.dp_tree.steps import GrowthState
from hedgerow.boosting.strategies.fedga.packed import MAX_GENES, PackedStructures
from hedgerow.boosting.strategies.fedga.steps import (
    DepthVote,
    Introduction,
    Proposal,
    SearchPhase,
    SearchTask,
    StructureScores,
    TreeComparison,
    opened,
)
from hedgerow.services.wire import codec_of
from tests.federation.memory import through_wire


@settings(max_examples=40)
@given(
    st.sampled_from(list(SearchPhase)),
    st.integers(0, 1000),
    st.integers(1, 4),
    st.integers(0, 5),
    st.sampled_from([3, 254, 255, 256, 30_000]),
    st.randoms(use_true_random=False),
)
def test_instruction_survives_the_wire(
    phase: SearchPhase, of_round: int, depth: int, count: int, n_features: int, random: Any
) -> None:
    genes = [[random.randrange(-1, n_features) for _ in range(2**depth - 1)] for _ in range(count)]
    structures = np.array(genes, dtype=np.int16).reshape(count, 2**depth - 1)
    active, full = random.random() < 0.5, random.random() < 0.5
    packed = PackedStructures.of(structures)
    received = through_wire(SearchTask(phase, of_round, depth, active, full, packed))
    assert (received.phase, received.round, received.depth) == (phase, of_round, depth)
    assert (received.active, received.full) == (active, full)
    if not count:
        assert received.structures is None
        return
    again = opened(received.structures, depth, n_features, "test")
    assert again.dtype == np.int16
    assert np.array_equal(again, structures)


@pytest.mark.parametrize(("largest", "n_bits"), [(0, 1), (6, 3), (7, 4), (20, 5), (254, 8)])
def test_a_gene_takes_as_many_bits_as_the_table_has_features(largest: int, n_bits: int) -> None:
    structures = PackedStructures.of(np.full((60, 31), largest, dtype=np.int16))
    due = SearchTask(SearchPhase.SCORE, 3, 5, True, True, structures)
    (frame,) = codec_of(SearchTask).encode(due)
    assert frame.ByteSize() < 60 * 31 * n_bits / 8 + 40


def test_genes_are_packed_as_the_proto_says() -> None:
    packed = PackedStructures.of(np.array([[2, -1, 4]], dtype=np.int16))
    assert packed is not None
    assert (packed.gene_bits, packed.n_structures, packed.n_genes) == (3, 1, 3)
    # Genes 3, 0 and 5 in three bits each, the lowest first: 110 000 10|1.
    assert packed.bits.tolist() == [0b01000011, 0b1]


def test_offers_of_the_search_survive_the_wire() -> None:
    assert through_wire(DepthVote(5, 417)) == DepthVote(5, 417)
    own = PackedStructures.of(np.array([[2, -1, 4]], dtype=np.int16))
    assert own is not None
    proposal = through_wire(Proposal(own, True, False))
    assert np.array_equal(proposal.structure.unpack(), own.unpack())
    assert (proposal.full, proposal.elite) == (True, False)
    assert through_wire(Proposal(None, False, False)).structure is None
    values = np.array([0, 713, 65535], dtype=np.uint16)
    scores = through_wire(StructureScores(values, None))
    assert np.array_equal(scores.thousandths, values)
    assert scores.introduction is None
    introduction = through_wire(StructureScores(values, Introduction(99, own))).introduction
    assert introduction.rows == 99
    assert np.array_equal(introduction.structure.unpack(), own.unpack())
    comparison = through_wire(TreeComparison(np.array([0.5, np.nan]), np.array([0.25, 1.0])))
    assert np.array_equal(comparison.federated, [0.5, np.nan], equal_nan=True)
    assert np.array_equal(comparison.own, [0.25, 1.0])


def tree() -> BinnedTree:
    return BinnedTree(
        1,
        (np.array([0.5, 1.5], np.float32), np.empty(0, np.float32)),
        np.array([0, OPEN, -1], np.int32),
        np.array([1, -1, -1], np.int32),
        np.array([2, -1, -1], np.int32),
        np.array([[True, False, False, True], [False] * 4, [False] * 4]),
    )


def search(stage: int, *intervals: list[int]) -> EdgeSearch:
    return EdgeSearch(stage, tuple(np.array(own, dtype=np.uint32) for own in intervals))


def test_growing_tree_survives_the_wire() -> None:
    sent = tree()
    for received in (through_wire(sent), through_wire(GrowthState.of(sent)).query):
        assert received.digest == sent.digest
        assert [own.tolist() for own in received.edges] == [[0.5, 1.5], []]
        assert np.array_equal(received.goes_left, sent.goes_left)
    edges = search(2, [], [4, 9])
    received = through_wire(GrowthState.of(edges)).query
    assert (received.stage, [own.tolist() for own in received.intervals]) == (2, [[], [4, 9]])
    assert received.digest == edges.digest


def test_digest_names_all_that_a_query_depends_on() -> None:
    edges = [search(1, [4, 9], []), search(2, [4, 9], []), search(1, [], [4, 9])]
    edges += [search(1, [4], [9]), search(1, [4, 8], [])]
    assert len({one.digest for one in (tree(), *edges)}) == 6


def spoiled(payload: object, spoil: Callable[[Any], None]) -> Any:
    codec = codec_of(type(payload))
    (part,) = codec.encode(payload)
    assert isinstance(part, structure_pb2.StructurePart | budget_pb2.BudgetPart)
    again = type(part).FromString(part.SerializeToString())
    spoil(getattr(again, str(again.WhichOneof("part"))))
    return codec.decode([again])


FOUR = SearchTask(
    SearchPhase.SCORE, 3, 2, True, True,
    PackedStructures.of(np.array([[0, 1, 2]] * 4, dtype=np.int16)),
)  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "spoil", "why"),
    [
        (FOUR, lambda m: m.ClearField("phase"), "phase: value 0"),
        (FOUR, lambda m: setattr(m, "phase", 9), "phase: value 9"),
        (FOUR, lambda m: setattr(m.structures, "gene_bits", 0), "1 to 15 bits a gene"),
        (FOUR, lambda m: setattr(m.structures, "gene_bits", 16), "1 to 15 bits a gene"),
        (FOUR, lambda m: setattr(m.structures, "n_genes", 4), "full binary tree"),
        (FOUR, lambda m: setattr(m.structures, "n_genes", 0), "full binary tree"),
        (FOUR, lambda m: setattr(m.structures, "n_genes", 2047), "full binary tree"),
        (FOUR, lambda m: setattr(m.structures, "n_structures", 0), "structures of 3 genes"),
        (FOUR, lambda m: setattr(m.structures, "n_structures", MAX_GENES), "structures of 3 genes"),
        (FOUR, lambda m: setattr(m.structures, "n_structures", 9), "bytes of genes"),
        (FOUR, lambda m: m.structures.ClearField("bits"), "bits: expected"),
        (
            StructureScores(np.zeros(3, np.uint16), None),
            lambda m: m.introduction.SetInParent(),
            "structure: expected",
        ),
        (
            TreeComparison(np.zeros(2), np.zeros(2)),
            lambda m: m.own.CopyFrom(through(TreeComparison(np.zeros(3), np.zeros(3))).own),
            "of one length",
        ),
        (GrowthState.of(tree()), lambda m: m.ClearField("tree"), "bin edges or a tree"),
        (tree(), lambda m: m.ClearField("left"), "left: expected"),
        (tree(), lambda m: m.left.CopyFrom(m.edges[1]), "left: expected 1-dimensional <i4"),
        (tree(), lambda m: m.goes_left.shape.__setitem__(0, 2), "goes_left: expected 8 bytes"),
        (
            tree(),
            lambda m: (
                m.feature.shape.__setitem__(0, 2),
                setattr(m.feature, "data", m.feature.data[:8]),
            ),
            "of the same nodes",
        ),
    ],
)
def test_malformed_payload_is_refused(
    payload: object, spoil: Callable[[Any], None], why: str
) -> None:
    with pytest.raises(OfferRejected, match=why):
        spoiled(payload, spoil)


def through(payload: object) -> Any:
    (part,) = codec_of(type(payload)).encode(payload)
    assert isinstance(part, structure_pb2.StructurePart)
    return getattr(part, str(part.WhichOneof("part")))


def test_structures_of_another_depth_or_of_other_features_are_refused() -> None:
    packed = PackedStructures.of(np.array([[0, 1, 2]], dtype=np.int16))
    assert packed is not None
    assert opened(packed, 2, 3, "test").tolist() == [[0, 1, 2]]
    with pytest.raises(OfferRejected, match="expected structures of 7 genes, received 3"):
        opened(packed, 3, 3, "test")
    with pytest.raises(OfferRejected, match="feature 2 of 2"):
        opened(packed, 2, 2, "test")
