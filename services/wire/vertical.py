"""Passes between the parties of a vertical job, and the contents of their sealed boxes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from hedgerow.api.federation.v1 import vertical_pb2 as pb
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.strategies.secureboost import steps
from hedgerow.services.wire import Codec
from hedgerow.services.wire.records import Boxes, field_of

MAX_PARTS = 4096
"""Most ciphertexts a row."""
MAX_PARTIES = 64
MAX_SCORES = 256
MAX_REFUSAL = 500
"""Characters of a refusal that are kept."""
MAX_KEYS_BYTES = 1 << 16
"""Most bytes of a party's keys; a certificate chain is the largest part."""

_PART = pb.VerticalPart.DESCRIPTOR
_PIECES = dict(
    field_of(kind, _PART) for kind in (steps.SealedPiece, steps.CiphertextPiece, steps.PartyKeys)
)
_NOTE = field_of(steps.PassNote, _PART)[1]


def encode(payload: steps.RelayPass) -> Iterator[pb.VerticalPart]:
    """Yield one frame a piece, then the note."""
    for piece in (*payload.pieces, payload.note):
        part = pb.VerticalPart()
        field, record = field_of(type(piece), _PART)
        getattr(part, field).SetInParent()
        record.write(getattr(part, field), piece)
        yield part


def decode(messages: Iterable[pb.VerticalPart]) -> steps.RelayPass:
    """Return one pass.

    Raises
    ------
    OfferRejected
        No note, something after it, a piece too large, too many of them, or an infinite score.
    """
    pieces: list[steps.RelayPiece] = []
    note: steps.PassNote | None = None
    for message in messages:
        kind = message.WhichOneof("part")
        if note is not None or kind is None:
            raise OfferRejected("expected pieces and then one note")
        if kind == "note":
            note = _NOTE.read(message.note)
            continue
        if len(pieces) >= steps.PASS_PIECES * MAX_PARTIES:
            raise OfferRejected(f"expected at most {steps.PASS_PIECES * MAX_PARTIES} pieces")
        if message.ByteSize() > (MAX_KEYS_BYTES if kind == "keys" else steps.PIECE_BYTES + 1024):
            raise OfferRejected(f"{kind}: {message.ByteSize()} bytes are too many for a piece")
        piece: steps.RelayPiece = _PIECES[kind].read(getattr(message, kind))
        if not isinstance(piece, steps.PartyKeys) and len(piece.data) > steps.PIECE_BYTES:
            raise OfferRejected(
                f"{kind}: expected at most {steps.PIECE_BYTES} bytes, received {len(piece.data)}"
            )
        if isinstance(piece, steps.CiphertextPiece) and piece.part >= MAX_PARTS:
            raise OfferRejected(f"expected fewer than {MAX_PARTS} ciphertexts a row")
        pieces.append(piece)
    if note is None:
        raise OfferRejected("expected a note after the pieces, received none")
    if len(note.scores) > MAX_SCORES or any(math.isinf(score.value) for score in note.scores):
        raise OfferRejected(f"expected at most {MAX_SCORES} finite scores")
    return steps.RelayPass(tuple(pieces), replace(note, refusal=note.refusal[:MAX_REFUSAL]))


CODECS = (Codec(steps.RelayPass, "vertical", encode, decode),)
BOXES = Boxes(pb.VerticalBox)
