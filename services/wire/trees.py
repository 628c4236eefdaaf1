"""Trees that are added round by round: catching up, offers, and the federation's state.

Trees stay packed here; the strategy's halves unpack and check them. Offers and rounds are written
by hand, because packed trees over 1 MiB continue in further frames.
"""

from __future__ import annotations

import weakref
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from hedgerow.api.federation.v1 import tree_pb2
from hedgerow.boosting.engine.start import score_of
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.rounds.steps import TreeOffer, TreeRound, TreeStanding
from hedgerow.services.wire import Codec, bulk

PIECE_BYTES = 1 << 20
"""Most packed bytes of one frame."""

MAX_PACK_BYTES = 1 << 28
"""Most packed bytes of one silo's round that a peer may send."""

_ROUND = tree_pb2.TreePart.DESCRIPTOR.fields_by_name["round"].number
_DATA = tree_pb2.TreeRound.DESCRIPTOR.fields_by_name["data"].number

Parts = Iterator[bulk.Part]


def _pieces(data: bytes) -> Iterator[bytes]:
    for start in range(PIECE_BYTES, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _encode_offer(payload: TreeOffer) -> Parts:
    head = tree_pb2.TreeOffer(version=payload.version, steps=payload.steps, gain=payload.gain)
    head.data = payload.data[:PIECE_BYTES]
    yield tree_pb2.TreePart(offer=head)
    for piece in _pieces(payload.data):
        yield tree_pb2.TreePart(more=piece)


def _decode_offer(messages: Iterable[tree_pb2.TreePart]) -> TreeOffer:
    first, *rest = _parts(messages, "offer", "more")
    head = first.offer
    data = b"".join([head.data, *(part.more for part in rest)])
    return TreeOffer(head.version, head.steps, head.gain, data)


def _encode_standing(payload: TreeStanding) -> Parts:
    scores = [] if payload.base_score is None else np.atleast_1d(payload.base_score).tolist()
    head = tree_pb2.TreeStanding(
        round=payload.round,
        eta=payload.eta,
        version=payload.version,
        base_score=scores[0] if scores else None,
        more_scores=scores[1:],
        digest=payload.digest,
        score_train=payload.score_train,
        score_valid=payload.score_valid,
    )
    yield tree_pb2.TreePart(standing=head)
    for added in payload.rounds:
        yield from _round_parts(added)


_ROUNDS: dict[int, tuple[weakref.ref[TreeRound], list[bulk.Part]]] = {}


def _round_parts(added: TreeRound) -> list[bulk.Part]:
    """Return the parts of a round, the same objects for all silos that receive it whole.

    Those of the two last rounds are kept, while somebody has the rounds.
    """
    key, data = id(added), added.data
    if (found := _ROUNDS.get(key)) is not None:
        return found[1]
    factors, first = array("d", added.factors).tobytes(), data[:PIECE_BYTES]
    columns = _columns(added.steps, added.silos, factors, added.sizes)
    before = bulk.head(_DATA, len(first)) if first else b""
    n_bytes = len(columns) + len(before) + len(first)
    whole = b"".join((bulk.head(_ROUND, n_bytes), columns, before, first))
    more = (tree_pb2.TreePart(more=piece) for piece in _pieces(data))
    parts: list[bulk.Part] = [bulk.Serialised(tree_pb2.TreePart, whole), *more]
    _ROUNDS[key] = weakref.ref(added, lambda _: _ROUNDS.pop(key, None)), parts
    for old in list(_ROUNDS)[:-2]:
        _ROUNDS.pop(old, None)
    return parts


@lru_cache(maxsize=4)
def _columns(steps: int, silos: tuple[Silo, ...], packed: bytes, sizes: tuple[int, ...]) -> bytes:
    """Return a round but for its trees as protobuf writes it: a thousand silos receive the same."""
    factors = array("d", packed)
    plain = factors.count(1.0) == len(factors)
    message = tree_pb2.TreeRound(
        steps=steps, silos=silos, factors=() if plain else factors, sizes=sizes
    )
    return message.SerializeToString()


def _decode_standing(messages: Iterable[tree_pb2.TreePart]) -> TreeStanding:
    first, *rest = _parts(messages, "standing", "round", "more")
    head = first.standing
    heads: list[tree_pb2.TreeRound] = []
    data: list[list[bytes]] = []
    for part in rest:
        if part.HasField("round"):
            heads.append(part.round)
            data.append([part.round.data])
        elif not data:
            raise OfferRejected("expected a round before its packed trees, received none")
        else:
            data[-1].append(part.more)
    return TreeStanding(
        round=head.round,
        eta=head.eta,
        base_score=score_of((head.base_score, *head.more_scores))
        if head.HasField("base_score")
        else None,
        version=head.version,
        digest=head.digest,
        score_train=head.score_train,
        score_valid=head.score_valid,
        rounds=tuple(map(_round, heads, data)),
    )


def _round(message: tree_pb2.TreeRound, pieces: list[bytes]) -> TreeRound:
    n_silos = len(message.silos)
    factors = tuple(message.factors) or (1.0,) * n_silos
    if not n_silos == len(factors) == len(message.sizes) == len(set(message.silos)):
        raise OfferRejected(
            f"expected a factor and a size of each of {n_silos} silos, received {len(factors)} and "
            f"{len(message.sizes)}, or a silo twice"
        )
    silos = tuple(map(Silo, message.silos))
    return TreeRound(message.steps, silos, factors, tuple(message.sizes), b"".join(pieces))


def _parts(
    messages: Iterable[tree_pb2.TreePart], first: str, *others: str
) -> list[tree_pb2.TreePart]:
    """Return the parts of a payload after checking their kinds and total size."""
    parts: list[tree_pb2.TreePart] = []
    size = 0
    for message in messages:
        kind = message.WhichOneof("part")
        if kind != first if not parts else kind not in others:
            awaited = first if not parts else " or ".join(others) or "nothing"
            raise OfferRejected(f"expected {awaited}, received {kind}")
        size += len(message.more)
        if size > MAX_PACK_BYTES:
            raise OfferRejected(f"more than {MAX_PACK_BYTES} bytes of packed trees")
        parts.append(message)
    if not parts:
        raise OfferRejected(f"expected {first}, received nothing")
    return parts


CODECS: tuple[Codec[Any], ...] = (
    Codec(TreeOffer, "trees", _encode_offer, _decode_offer),
    Codec(TreeStanding, "trees", _encode_standing, _decode_standing),
)
