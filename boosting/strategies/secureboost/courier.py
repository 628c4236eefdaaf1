"""What parties of a vertical job give each other, with the coordinator as a relay.

The coordinator sees who sends how many bytes to whom, ciphertexts, and what a note says; the rest
is sealed between two parties. Offers and replies are cut into passes of a few MiB, so that the
relay holds little, however many rows there are. Boxes are padded to a size class, so that their
lengths tell the coordinator only roughly how many rows they are about.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import DataError, FederationError, OfferRejected
from hedgerow.boosting.exchange import Hub, Link, Place, Silo, Step
from hedgerow.crypto.errors import BoxInvalid
from hedgerow.crypto.key_agreement import Entropy, encode_fields, expand, open_box, seal

EVERYONE = "*"
"""Receiver of ciphertexts that all other parties get."""
PIECE_BYTES = 1 << 20
"""Largest piece: a frame."""
PASS_PIECES = 2
"""Pieces of a party in one pass."""
MOST_BYTES = 1 << 38
"""Most that a party may send in one exchange; 20 million rows under 4096-bit keys take 2^35."""
SEALED = -1
"""Part number of a sealed piece; ciphertexts have parts from zero."""
LEAST_CLASS = 256
"""Smallest size class."""


def size_class(n: int) -> int:
    """Return ``n`` rounded up to one of eight sizes an octave; by at most an eighth of it."""
    step = 1 << max(max(n, LEAST_CLASS).bit_length() - 4, 0)
    return -(-max(n, LEAST_CLASS) // step) * step


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
class Piece:
    """Some bytes of a box or of a vector of ciphertexts.

    Parameters
    ----------
    party : str
        In an offer the receiver, in a reply the sender.
    part : int
        :data:`SEALED`, or which part of the ciphertexts.
    data : bytes
        At most :data:`PIECE_BYTES`.
    """

    party: str
    part: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Parcels:
    """One pass of an exchange between parties.

    Parameters
    ----------
    pieces : tuple of Piece
    more : bool
        Whether another pass follows.
    then : str
        The active party says which step comes next.
    refusal : str
        Why a party ends the job.
    numbers : Mapping[str, float]
        For the coordinator: scores as ``test.auc``.
    """

    pieces: tuple[Piece, ...] = ()
    more: bool = False
    then: str = ""
    refusal: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Received:
    """What came of an exchange, whole.

    Parameters
    ----------
    boxes : Mapping[str, Mapping[str, ndarray]]
        Opened contents by sender.
    ciphertexts : Mapping[str, tuple of bytes]
        Parts by sender.
    then : str
        The next step.
    """

    boxes: Mapping[str, Mapping[str, NDArray[Any]]]
    ciphertexts: Mapping[str, tuple[bytes, ...]]
    then: str


def pack(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return named arrays as bytes: numpy's own form of each, in a row."""
    out = io.BytesIO()
    for name, array in arrays.items():
        np.lib.format.write_array(out, np.array([name]), allow_pickle=False)
        np.lib.format.write_array(out, np.ascontiguousarray(array), allow_pickle=False)
    return out.getvalue()


def unpack(data: bytes, sender: str) -> dict[str, NDArray[Any]]:
    """Return the arrays of :func:`pack`.

    Raises
    ------
    OfferRejected
        The bytes are no such arrays; names the sender.
    """
    stream, arrays = io.BytesIO(data), {}
    try:
        while stream.tell() < len(data):
            name = np.lib.format.read_array(stream, allow_pickle=False)
            array = np.lib.format.read_array(stream, allow_pickle=False)
            arrays[str(name[0])] = array
    except (ValueError, IndexError, EOFError, MemoryError) as error:
        raise OfferRejected(f"{sender} sent a box without readable arrays") from error
    return arrays


ParcelStep = Step[Parcels, Parcels]


class Courier:
    """A party's end: seals, cuts, counts places, opens.

    Parameters
    ----------
    keys : Mapping[str, bytes]
        The 32-byte root shared with each other party; set after the keys were exchanged.
    next : str
        The step that the active party has named last.
    context : bytes
        Names job and attempt in every box.
    """

    def __init__(
        self,
        link: Link,
        party: str,
        context: bytes,
        entropy: Entropy,
        first_round: int = 0,
    ) -> None:
        self.link = link
        self.party = party
        self.keys: Mapping[str, bytes] = {}
        self.next = ""
        self._context = context
        self._entropy = entropy
        self._at = Place(first_round)

    def begin_round(self, round: int) -> None:
        """Start counting the exchanges of a round."""
        self._at = Place(round)

    def send(
        self,
        step: ParcelStep,
        *,
        boxes: Mapping[str, Mapping[str, NDArray[Any]]] | None = None,
        ciphertexts: Mapping[str, tuple[NDArray[np.uint8], ...]] | None = None,
        clear: Mapping[str, bytes] | None = None,
        then: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> Received:
        """Exchange with the other parties, in as many passes as it takes.

        Parameters
        ----------
        boxes
            Arrays by receiver, to be sealed.
        ciphertexts
            Parts by receiver, or for :data:`EVERYONE`; each of shape (n, ciphertext_bytes).
        clear
            Public bytes by receiver, before there are keys; come as part 0 of ciphertexts.
        """
        pieces = self._pieces(step, boxes or {}, ciphertexts or {}, clear or {})
        at = self._at
        received: dict[tuple[str, int], list[bytes]] = {}
        passing, started = 0, False
        ahead = list(islice(pieces, PASS_PIECES))
        while True:
            now, ahead = ahead, list(islice(pieces, PASS_PIECES))
            reply = self.link.exchange(
                step,
                Place(at.round, at.level, passing),
                Parcels(tuple(now), bool(ahead), then, "", {} if started else numbers or {}),
            )
            started = True
            for piece in reply.pieces:
                received.setdefault((piece.party, piece.part), []).append(piece.data)
            passing += 1
            if not reply.more:
                break
        # Counted before anything is opened, so that a refusal meets the relay at the next place.
        self._at = Place(at.round, at.level + 1)
        self.next = reply.then
        opened = {
            sender: self._open(step, at, sender, b"".join(parts))
            for (sender, part), parts in received.items()
            if part == SEALED
        }
        return Received(opened, _parts(received), reply.then)

    def refuse(self, step: ParcelStep, reason: str) -> None:
        """End the job for all parties; ``reason`` is shown to operators."""
        with suppress(FederationError):
            self.link.exchange(step, self._at, Parcels(refusal=reason))

    def _pieces(
        self,
        step: ParcelStep,
        boxes: Mapping[str, Mapping[str, NDArray[Any]]],
        ciphertexts: Mapping[str, tuple[NDArray[np.uint8], ...]],
        clear: Mapping[str, bytes],
    ) -> Iterator[Piece]:
        for receiver, content in clear.items():
            yield Piece(receiver, 0, content)
        for receiver, arrays in boxes.items():
            key = expand(self.keys[receiver], encode_fields("box", self.party, receiver))
            where = self._where(step, self._at, self.party, receiver)
            box = seal(key, padded(pack(arrays)), where, self._entropy)
            yield from (Piece(receiver, SEALED, data) for data in _cut(box))
        for receiver, parts in ciphertexts.items():
            for part, block in enumerate(parts):
                flat = np.ascontiguousarray(block).reshape(-1)
                for start in range(0, flat.shape[0], PIECE_BYTES):
                    yield Piece(receiver, part, flat[start : start + PIECE_BYTES].tobytes())

    def _open(
        self, step: ParcelStep, at: Place, sender: str, box: bytes
    ) -> dict[str, NDArray[Any]]:
        if sender not in self.keys:
            raise OfferRejected(f"a sealed box of {sender} came before its key")
        key = expand(self.keys[sender], encode_fields("box", sender, self.party))
        try:
            data = open_box(key, box, self._where(step, at, sender, self.party))
        except BoxInvalid as error:
            raise OfferRejected(f"from {sender}: {error}") from error
        return unpack(unpadded(data, sender), sender)

    def _where(self, step: ParcelStep, at: Place, sender: str, receiver: str) -> bytes:
        return encode_fields(self._context, step.name, at.round, at.level, sender, receiver)


def _cut(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _parts(received: Mapping[tuple[str, int], list[bytes]]) -> dict[str, tuple[bytes, ...]]:
    found: dict[str, tuple[bytes, ...]] = {}
    for sender, part in sorted(key for key in received if key[1] != SEALED):
        if part != len(found.get(sender, ())):
            raise OfferRejected(f"{sender} left out a part of its ciphertexts")
        found[sender] = (*found.get(sender, ()), b"".join(received[sender, part]))
    return found


@dataclass(frozen=True, slots=True)
class Passed:
    """What the coordinator may read of an exchange that it has relayed."""

    then: str
    numbers: Mapping[str, float]


class Relay:
    """The coordinator's end: passes pieces on, and reads notes.

    Parameters
    ----------
    parties : tuple of Silo
        All of them have to be there all the time.
    active : Silo
        Whose ``then`` and ``numbers`` count.
    """

    def __init__(self, hub: Hub, parties: tuple[Silo, ...], active: Silo, round: int = 0) -> None:
        self._hub = hub
        self._parties = parties
        self._active = active
        self._at = Place(round)

    def begin_round(self, round: int) -> None:
        """Start counting the exchanges of a round."""
        self._at = Place(round)

    async def pass_on(self, step: ParcelStep) -> Passed:
        """Relay one exchange, pass by pass.

        Raises
        ------
        QuorumLost
            A party is lost; names it.
        DataError
            A party ends the job, with its reason.
        OfferRejected
            A party sends without end; names it.
        """
        passing, numbers = 0, dict[str, float]()
        flows = {silo: _Flow(silo, self._parties) for silo in self._parties}
        while True:
            at = Place(self._at.round, self._at.level, passing)
            offers = await self._hub.collect(step, at, silos=self._parties)
            for silo, offer in offers.items():
                if offer.refusal:
                    raise DataError(f"{silo}: {offer.refusal}")
                flows[silo].take(offer)
            numbers.update(offers[self._active].numbers)
            then = offers[self._active].then
            more = any(offer.more for offer in offers.values())
            self._hub.answer(step, at, _replies(offers, more, then))
            if not more:
                break
            passing += 1
        self._at = Place(self._at.round, self._at.level + 1)
        return Passed(then, numbers)


class _Flow:
    """What one party sends in one exchange, which has to come to an end.

    Everything is cut into full pieces but for the last one, so a sender that holds an exchange open
    has to send full pieces, of which there are only so many.
    """

    def __init__(self, silo: Silo, parties: tuple[Silo, ...]) -> None:
        self._silo = silo
        self._receivers = {EVERYONE, *parties}
        self._ended: set[tuple[str, int]] = set()
        self._left = MOST_BYTES

    def take(self, offer: Parcels) -> None:
        """Raise :class:`OfferRejected` where a pass does not bring the exchange to its end."""
        if offer.more and not offer.pieces:
            raise OfferRejected(f"{self._silo} sent nothing and says that more follows")
        for piece in offer.pieces:
            to = (piece.party, piece.part)
            if piece.party not in self._receivers:
                raise OfferRejected(f"{self._silo} sent something to no party of this job")
            if to in self._ended:
                raise OfferRejected(f"{self._silo} went on after the last piece of what it sent")
            if len(piece.data) < PIECE_BYTES:
                self._ended.add(to)
            self._left -= len(piece.data)
        if self._left < 0:
            raise OfferRejected(f"{self._silo} sent more than {MOST_BYTES} bytes in one exchange")


def _replies(offers: Mapping[Silo, Parcels], more: bool, then: str) -> dict[Silo, Parcels]:
    """Return each party's pieces; parties that get the same share one reply, encoded once."""
    same: dict[tuple[Piece, ...], Parcels] = {}
    replies = {}
    for silo in offers:
        pieces = tuple(_for(silo, offers))
        replies[silo] = same.setdefault(pieces, Parcels(pieces, more, then))
    return replies


def _for(silo: Silo, offers: Mapping[Silo, Parcels]) -> Iterable[Piece]:
    for sender, offer in offers.items():
        if sender == silo:
            continue
        for piece in offer.pieces:
            if piece.party == silo or (piece.party == EVERYONE and piece.part != SEALED):
                yield Piece(sender, piece.part, piece.data)
