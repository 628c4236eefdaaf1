"""What parties that score together ask and answer, as bytes of a sealed box."""

from __future__ import annotations

from dataclasses import dataclass, replace

from google.protobuf.message import DecodeError

from hedgerow.api.serving.v1.answer_pb2 import Answer as AnswerMessage
from hedgerow.api.serving.v1.answer_pb2 import Question as QuestionMessage
from hedgerow.boosting.errors import OfferRejected
from hedgerow.services.wire.records import message_of

MOST_IDS = 65_536
"""Most rows of a question."""
MOST_ID = 256
"""Longest identifier of a row, characters."""
MODEL_BYTES = 32
MOST_REFUSAL = 500


@dataclass(frozen=True, slots=True)
class Question:
    """Directions that are asked for: a model's digest (32 bytes), and identifiers of rows."""

    model: bytes
    ids: tuple[str, ...]

    def encode(self) -> bytes:
        """Return the bytes."""
        return message_of(self, QuestionMessage()).SerializeToString()

    @classmethod
    def decode(cls, data: bytes, sender: str) -> Question:
        """Return the question of bytes.

        Raises
        ------
        OfferRejected
            They are none, or too many or too long ids; names the sender.
        """
        try:
            message = QuestionMessage.FromString(data)
        except DecodeError as error:
            raise OfferRejected(f"{sender} sent no question") from error
        if len(message.model) != MODEL_BYTES:
            raise OfferRejected(
                f"{sender}: a model's digest has {MODEL_BYTES} bytes, received {len(message.model)}"
            )
        if len(message.ids) > MOST_IDS:
            raise OfferRejected(f"{sender}: {len(message.ids)} rows, at most {MOST_IDS}")
        ids = tuple(message.ids)
        if any(len(i) > MOST_ID for i in ids):
            raise OfferRejected(f"{sender}: an identifier of over {MOST_ID} characters")
        return cls(message.model, ids)


@dataclass(frozen=True, slots=True)
class Answer:
    """Directions of rows, or why there are none."""

    directions: bytes = b""
    """As :func:`~hedgerow.boosting.strategies.secureboost.directions.packed` returns them."""
    n_divisions: int = 0
    unknown: tuple[int, ...] = ()
    """Positions of identifiers that the party has no row for."""
    refusal: str = ""
    """Why the party does not answer."""
    later: bool = False
    """Whether it may answer later: a limit was reached."""

    def encode(self) -> bytes:
        """Return the bytes."""
        kept = replace(self, refusal=self.refusal[:MOST_REFUSAL])
        return message_of(kept, AnswerMessage()).SerializeToString()

    @classmethod
    def decode(cls, data: bytes, sender: str, n_rows: int) -> Answer:
        """Return the answer of bytes.

        Raises
        ------
        OfferRejected
            There are none, or their number of rows is another one; names the sender.
        """
        try:
            message = AnswerMessage.FromString(data)
        except DecodeError as error:
            raise OfferRejected(f"{sender} sent no answer") from error
        unknown = tuple(message.unknown)
        row_bytes = -(-message.n_divisions // 8)
        if message.refusal:
            return cls(refusal=message.refusal[:MOST_REFUSAL], later=message.later)
        if len(message.directions) != n_rows * row_bytes or any(k >= n_rows for k in unknown):
            raise OfferRejected(
                f"{sender}: expected {message.n_divisions} directions of {n_rows} rows, received "
                f"{len(message.directions)} bytes"
            )
        return cls(message.directions, message.n_divisions, unknown)
