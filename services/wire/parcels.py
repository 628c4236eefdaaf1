"""What parties of a vertical job give each other, as frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from hedgerow.api.federation.v1 import relay_pb2
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import (
    PASS_PIECES,
    PIECE_BYTES,
    SEALED,
    Parcels,
    Piece,
)
from hedgerow.services.wire import Codec

MAX_PARTS = 4096
"""Most ciphertexts a row."""
MAX_PARTIES = 64


def encode(payload: Parcels) -> Iterator[relay_pb2.ParcelPart]:
    """Yield one frame a piece, then the note."""
    for piece in payload.pieces:
        if piece.part == SEALED:
            sealed = relay_pb2.SealedPiece(party=piece.party, data=piece.data)
            yield relay_pb2.ParcelPart(sealed=sealed)
        else:
            block = relay_pb2.CiphertextBlock(party=piece.party, part=piece.part, data=piece.data)
            yield relay_pb2.ParcelPart(ciphertexts=block)
    note = relay_pb2.RelayNote(
        more=payload.more, then=payload.then, refusal=payload.refusal, numbers=payload.numbers
    )
    yield relay_pb2.ParcelPart(note=note)


def decode(messages: Iterable[relay_pb2.ParcelPart]) -> Parcels:
    """Return one pass.

    Raises
    ------
    OfferRejected
        No note, something after it, a piece too large, or too many of them.
    """
    pieces: list[Piece] = []
    note: relay_pb2.RelayNote | None = None
    for message in messages:
        kind = message.WhichOneof("part")
        if note is not None or kind is None:
            raise OfferRejected("expected pieces and then one note")
        if kind == "note":
            note = message.note
            continue
        if kind == "sealed":
            piece = Piece(message.sealed.party, SEALED, message.sealed.data)
        else:
            block = message.ciphertexts
            if block.part >= MAX_PARTS:
                raise OfferRejected(f"expected fewer than {MAX_PARTS} ciphertexts a row")
            piece = Piece(block.party, block.part, block.data)
        if len(piece.data) > PIECE_BYTES or len(pieces) >= PASS_PIECES * MAX_PARTIES:
            raise OfferRejected("a pass has too many pieces, or one over 1 MiB")
        pieces.append(piece)
    if note is None:
        raise OfferRejected("expected a note after the pieces, none came")
    if len(note.numbers) > 256 or any(math.isinf(v) for v in note.numbers.values()):
        raise OfferRejected("expected at most 256 finite numbers")
    return Parcels(tuple(pieces), note.more, note.then, note.refusal[:500], dict(note.numbers))


CODECS = (Codec(Parcels, "parcels", encode, decode),)
