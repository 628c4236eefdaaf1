"""Structures, their scores and the votes about them, as named arrays.

A gene travels in as many bits as the largest one needs: feature index plus one, 0 for a leaf.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.api.federation.v1 import tensor_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.fedga.steps import (
    Comparison,
    DepthVote,
    Phase,
    Proposal,
    Scores,
    SearchTask,
)
from hedgerow.boosting.trees.genetics import Genes
from hedgerow.services.wire import Codec
from hedgerow.services.wire.arrays import decode_arrays, encode_arrays, require

Blocks = Iterator[tensor_pb2.TensorBlock]
Arrays = Mapping[str, NDArray[Any]]


def _pack_genes(genes: Genes) -> dict[str, NDArray[Any]]:
    """Return bits, lowest first, gene after gene; and shape and number of bits of a gene."""
    shifted = genes.astype(np.int32) + 1
    n_bits = max(1, int(shifted.max(initial=0)).bit_length())
    bits = (shifted.reshape(-1, 1) >> np.arange(n_bits)) & 1
    packed = np.packbits(bits.astype(np.uint8), bitorder="little")
    return {"genes": packed, "form": np.array([n_bits, *genes.shape], dtype=np.int32)}


def _unpack_genes(arrays: Arrays, ndim: int) -> Genes:
    packed = require(arrays, "genes", "|u1", 1)
    form = require(arrays, "form", "<i4", 1)
    n_bits, *shape = form.tolist() or [0]
    count = math.prod(shape)
    if len(shape) != ndim or not 1 <= n_bits <= 15 or min(shape) < 0:
        raise OfferRejected(f"expected {ndim}-dimensional genes of 1 to 15 bits")
    if packed.shape[0] != -(-count * n_bits // 8):
        raise OfferRejected(f"expected {count} genes of {n_bits} bits, {len(packed)} bytes came")
    bits = np.unpackbits(packed, count=count * n_bits, bitorder="little").reshape(-1, n_bits)
    shifted = bits.astype(np.int32) @ (1 << np.arange(n_bits, dtype=np.int32))
    return (shifted - 1).astype(np.int16).reshape(shape)


def _integers(arrays: Arrays, name: str, count: int) -> list[int]:
    values = require(arrays, name, "<i8", 1)
    if values.shape[0] != count:
        raise OfferRejected(f"array {name!r}: expected {count} numbers, {values.shape[0]} came")
    numbers: list[int] = values.tolist()
    return numbers


def _numbers(*values: int) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)


def _encode_standing(payload: SearchTask) -> Blocks:
    state = (payload.phase, payload.round, payload.depth, payload.active, payload.full)
    return encode_arrays({"state": _numbers(*map(int, state)), **_pack_genes(payload.structures)})


def _decode_standing(blocks: Iterable[tensor_pb2.TensorBlock]) -> SearchTask:
    arrays = decode_arrays(blocks)
    phase, of_round, depth, active, full = _integers(arrays, "state", 5)
    if phase not in list(Phase) or of_round < 0 or depth < 0:
        raise OfferRejected("standing: phase, round or depth out of range")
    structures = _unpack_genes(arrays, 2)
    return SearchTask(Phase(phase), of_round, depth, bool(active), bool(full), structures)


def _encode_vote(payload: DepthVote) -> Blocks:
    return encode_arrays({"vote": _numbers(payload.depth, payload.rows)})


def _decode_vote(blocks: Iterable[tensor_pb2.TensorBlock]) -> DepthVote:
    depth, rows = _integers(decode_arrays(blocks), "vote", 2)
    return DepthVote(depth, rows)


def _encode_proposal(payload: Proposal) -> Blocks:
    return encode_arrays(
        {
            **_pack_genes(payload.structure),
            "votes": _numbers(int(payload.full), int(payload.elite)),
        }
    )


def _decode_proposal(blocks: Iterable[tensor_pb2.TensorBlock]) -> Proposal:
    arrays = decode_arrays(blocks)
    full, elite = _integers(arrays, "votes", 2)
    return Proposal(_unpack_genes(arrays, 1), bool(full), bool(elite))


def _encode_scores(payload: Scores) -> Blocks:
    arrays: dict[str, NDArray[Any]] = {"thousandths": payload.thousandths}
    if payload.rows:
        arrays |= {"rows": _numbers(payload.rows), **_pack_genes(payload.structure)}
    return encode_arrays(arrays)


def _decode_scores(blocks: Iterable[tensor_pb2.TensorBlock]) -> Scores:
    arrays = decode_arrays(blocks)
    thousandths = require(arrays, "thousandths", "<u2", 1)
    if "rows" not in arrays:
        return Scores(thousandths, 0, np.empty(0, dtype=np.int16))
    (rows,) = _integers(arrays, "rows", 1)
    return Scores(thousandths, rows, _unpack_genes(arrays, 1))


def _encode_comparison(payload: Comparison) -> Blocks:
    return encode_arrays({"federated": payload.federated, "own": payload.own})


def _decode_comparison(blocks: Iterable[tensor_pb2.TensorBlock]) -> Comparison:
    arrays = decode_arrays(blocks)
    federated, own = (require(arrays, name, "<f8", 1) for name in ("federated", "own"))
    if federated.shape != own.shape:
        raise OfferRejected("comparison: two sets of scores of unequal length")
    return Comparison(federated, own)


CODECS: tuple[Codec[Any], ...] = (
    Codec(SearchTask, "tensor", _encode_standing, _decode_standing),
    Codec(DepthVote, "tensor", _encode_vote, _decode_vote),
    Codec(Proposal, "tensor", _encode_proposal, _decode_proposal),
    Codec(Scores, "tensor", _encode_scores, _decode_scores),
    Codec(Comparison, "tensor", _encode_comparison, _decode_comparison),
)
