"""A party's end of the exchanges: seals and opens boxes, cuts and joins what is large."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import FederationError, OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, SiloChannel
from hedgerow.boosting.payloads import PayloadCodec
from hedgerow.boosting.strategies.secureboost.steps import (
    EVERYONE,
    IN_CLEAR,
    LARGE_PASSES,
    PASS_PIECES,
    PIECE_BYTES,
    TOLD_SCORES,
    CiphertextPiece,
    PartyKeys,
    PassNote,
    RelayPass,
    RelayPiece,
    RelayStep,
    SealedPiece,
    StepName,
    TableScore,
    size_class,
)
from hedgerow.crypto.allocator import release_freed_memory
from hedgerow.crypto.errors import BoxInvalid
from hedgerow.crypto.masking.key_agreement import (
    Entropy,
    HybridBoxes,
    encode_fields,
    expand,
    open_box,
    seal,
)

Content = TypeVar("Content")


def padded(data: bytes) -> bytes:
    """Return bytes with their length in front and zeros behind, of a size class' length."""
    framed = len(data).to_bytes(8, "little") + data
    return framed.ljust(size_class(len(framed)), b"\0")


def unpadded(data: bytes, sender: str) -> bytes:
    """Return what :func:`padded` was given.

    Raises
    ------
    OfferRejected
        The length in front is above what follows; names the sender.
    """
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise OfferRejected(f"{sender} sent a box that is cut off")
    return data[8 : 8 + length]


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a party received in an exchange, whole."""

    boxes: Mapping[str, bytes]
    """Opened, by sender."""
    ciphertexts: Mapping[str, tuple[bytes, ...]]
    """Parts by sender."""
    keys: Mapping[str, PartyKeys]
    """By sender."""
    then: StepName
    """The next step."""
    codec: PayloadCodec

    def read(self, sender: str, kind: type[Content]) -> Content:
        """Return the content of a sender's box.

        Raises
        ------
        OfferRejected
            There is no box, or another content in it; names the sender.
        """
        if sender not in self.boxes:
            raise OfferRejected(f"{sender} sent no {kind.__name__}")
        try:
            return self.codec.load(kind, self.boxes[sender])
        except OfferRejected as error:
            raise OfferRejected(f"{sender} sent no {kind.__name__}: {error}") from error


class SealedChannel:
    """Seals, cuts, counts places, opens.

    A box opens in its own place only: job, attempt, step, place, sender and receiver are its
    associated data, and so are the ciphertexts that its sender gives its receiver in the same
    exchange, and the next step that the active party names. So the coordinator can neither alter,
    exchange nor repeat any of it. Ciphertexts without a box of their own come with an empty one.

    Parameters
    ----------
    context : bytes
        Names job and attempt in every box.
    codec : PayloadCodec
        Of the boxes' contents.
    in_clear : bool
        Whether the job does not encrypt gradients.

    Attributes
    ----------
    keys : Mapping[str, bytes]
        The 32-byte root shared with each other party; set once public keys are exchanged.
    hybrid : Mapping[str, HybridBoxes]
        The roots in its place, of parties that have an ML-KEM key.
    next : StepName
        The step that the active party named last.
    active : str
        The active party, which names the next step.
    """

    def __init__(
        self,
        link: SiloChannel,
        party: str,
        context: bytes,
        codec: PayloadCodec,
        entropy: Entropy,
        first_round: int = 0,
        *,
        in_clear: bool = False,
    ) -> None:
        self.link = link
        self.party = party
        self.keys: Mapping[str, bytes] = {}
        self.hybrid: Mapping[str, HybridBoxes] = {}
        self.next = StepName.KEYS
        self.active = ""
        self._context = context
        self._codec = codec
        self._entropy = entropy
        self._at = ExchangeKey(first_round)
        self._in_clear = in_clear

    def begin_round(self, round: int) -> None:
        """Start counting the exchanges of a round."""
        self._at = ExchangeKey(round)

    def send(
        self,
        step: RelayStep,
        *,
        boxes: Mapping[str, object] | None = None,
        ciphertexts: Mapping[str, tuple[NDArray[np.uint8], ...]] | None = None,
        keys: PartyKeys | None = None,
        then: StepName | None = None,
        scores: tuple[TableScore, ...] = (),
        best_round: int | None = None,
    ) -> Delivery:
        """Exchange with the other parties, in as many passes as it takes.

        Parameters
        ----------
        boxes
            Contents by receiver, to be sealed.
        ciphertexts
            Parts by receiver, or for all; each of shape (n, ciphertext_bytes).
        keys
            In the step of that name.
        then, scores, best_round
            For the coordinator, from the active party; see :class:`PassNote`.
        """
        if self._in_clear:
            step = IN_CLEAR.get(step.name, step)
        if scores:
            step = TOLD_SCORES
        pieces = self._pieces(step, boxes or {}, ciphertexts or {}, keys, then)
        at = self._at
        received: list[RelayPiece] = []
        passing = 0
        note = PassNote(then=then, scores=scores, best_round=best_round)
        ahead = tuple(islice(pieces, PASS_PIECES))
        while True:
            now, ahead = ahead, tuple(islice(pieces, PASS_PIECES))
            place = ExchangeKey(at.round, at.level, passing)
            reply = self.link.exchange(step, place, RelayPass(now, replace(note, more=bool(ahead))))
            note = PassNote(then=then)
            received += reply.pieces
            passing += 1
            if not reply.note.more:
                break
        # Counted before anything is opened, so that a refusal meets the relay at the next place.
        self._at = ExchangeKey(at.round, at.level + 1)
        if reply.note.then is None:
            raise OfferRejected(f"{step.name}: the coordinator names no next step")
        self.next = reply.note.then
        blocks = _blocks(received)
        opened = self._opened(step, at, received, blocks)
        met = {piece.party: piece for piece in received if isinstance(piece, PartyKeys)}
        if passing >= LARGE_PASSES:
            received.clear()
            release_freed_memory()
        return Delivery(opened, blocks, met, reply.note.then, self._codec)

    def refuse(self, step: RelayStep, reason: str) -> None:
        """End the job for all parties; ``reason`` is shown to operators."""
        with suppress(FederationError):
            self.link.exchange(step, self._at, RelayPass(note=PassNote(refusal=reason)))

    def _pieces(
        self,
        step: RelayStep,
        boxes: Mapping[str, object],
        ciphertexts: Mapping[str, tuple[NDArray[np.uint8], ...]],
        keys: PartyKeys | None,
        then: StepName | None,
    ) -> Iterator[RelayPiece]:
        if keys is not None:
            yield keys
        flat = {
            receiver: [np.ascontiguousarray(block).reshape(-1) for block in parts]
            for receiver, parts in ciphertexts.items()
        }
        digests = {receiver: _digest(block.data for block in flat[receiver]) for receiver in flat}
        everyone = digests.pop(EVERYONE, b"")
        sealed_for = {*boxes, *(self.keys if everyone else (r for r in digests if digests[r]))}
        for receiver in sorted(sealed_for):
            content = self._codec.dump(boxes[receiver]) if receiver in boxes else b""
            pair = self.hybrid.get(receiver)
            root = self.keys[receiver] if pair is None else pair.sends
            key = expand(root, encode_fields("box", self.party, receiver))
            digest = digests.get(receiver, everyone)
            where = self._where(step, self._at, self.party, receiver, then, digest)
            box = seal(key, padded(content), where, self._entropy)
            if pair is not None:
                box = pair.sent(box)
            for start in range(0, len(box), PIECE_BYTES):
                yield SealedPiece(receiver, box[start : start + PIECE_BYTES])
        for receiver, blocks in flat.items():
            for part, block in enumerate(blocks):
                for start in range(0, block.shape[0], PIECE_BYTES):
                    data = block[start : start + PIECE_BYTES].tobytes()
                    yield CiphertextPiece(receiver, part, data)

    def _opened(
        self,
        step: RelayStep,
        at: ExchangeKey,
        received: list[RelayPiece],
        blocks: Mapping[str, tuple[bytes, ...]],
    ) -> dict[str, bytes]:
        """Return the contents of boxes by sender, of those that have any.

        Raises
        ------
        OfferRejected
            A box does not open, or there is none beside ciphertexts; names the sender.
        """
        sealed: dict[str, list[bytes]] = {}
        for piece in received:
            if isinstance(piece, SealedPiece):
                sealed.setdefault(piece.party, []).append(piece.data)
        opened = {}
        for sender in {**sealed, **blocks}:
            if sender not in sealed:
                raise OfferRejected(f"{sender} sent ciphertexts without a seal")
            if sender not in self.keys:
                raise OfferRejected(f"{sender} sent a sealed box before its key")
            pair = self.hybrid.get(sender)
            digest = _digest(blocks.get(sender, ()))
            where = self._where(step, at, sender, self.party, self.next, digest)
            root, box = self.keys[sender], b"".join(sealed[sender])
            try:
                if pair is not None:
                    root, box = pair.received(box)
                key = expand(root, encode_fields("box", sender, self.party))
                data = open_box(key, box, where)
            except BoxInvalid as error:
                raise OfferRejected(f"from {sender}: {error}") from error
            content = unpadded(data, sender)
            if content:
                opened[sender] = content
        return opened

    def _where(
        self,
        step: RelayStep,
        at: ExchangeKey,
        sender: str,
        receiver: str,
        then: StepName | None,
        digest: bytes,
    ) -> bytes:
        """Return what a box is bound to; the next step only where the active party sends it."""
        named = then.value if sender == self.active and then is not None else ""
        place = encode_fields(self._context, step.name, at.round, at.level, sender, receiver)
        return place + encode_fields(named, digest)


def _digest(blocks: Iterable[bytes | memoryview]) -> bytes:
    """Return the SHA-256 of blocks with their lengths; nothing where all are empty."""
    found, some = hashlib.sha256(), False
    for block in blocks:
        if len(block):
            some = True
            found.update(len(block).to_bytes(8, "little"))
            found.update(block)
    return found.digest() if some else b""


def _blocks(received: list[RelayPiece]) -> dict[str, tuple[bytes, ...]]:
    """Return the parts of each sender's ciphertexts, joined."""
    pieces: dict[tuple[str, int], list[bytes]] = {}
    for piece in received:
        if isinstance(piece, CiphertextPiece):
            pieces.setdefault((piece.party, piece.part), []).append(piece.data)
    found: dict[str, tuple[bytes, ...]] = {}
    for sender, part in sorted(pieces):
        if part != len(found.get(sender, ())):
            raise OfferRejected(f"{sender} left out a part of its ciphertexts")
        found[sender] = (*found.get(sender, ()), b"".join(pieces[sender, part]))
    return found
