"""Sessions between two parties over the relay: signed keys, then numbered sealed boxes.

The asking party signs fresh keys of X25519 and ML-KEM-768 and both names; the answering party signs
its own fresh key beside the other's, and what it encapsulates. With a party of 0.3 there is no
ML-KEM. The root of a session depends on all keys, so that nobody can replay a session, and a box is
bound to its direction and its question's number, so that nobody can replay, swap or reorder boxes
within it. Sizes are rounded up to a size class.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

import structlog
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hedgerow.api.serving.v1.relay_service_pb2 import Parcel, SessionKey
from hedgerow.boosting.errors import FederationError, OfferRejected, Unreachable
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.secureboost.courier import padded, unpadded
from hedgerow.crypto.errors import BoxInvalid, KeyRejected
from hedgerow.crypto.masking.key_agreement import (
    decapsulate,
    encapsulate,
    encode_fields,
    expand,
    extract,
    hybrid_root,
    new_kem_key,
    new_private_key,
    open_box,
    public_bytes,
    seal,
    shared_secret,
)
from hedgerow.services.identity.peers import FileIdentity
from hedgerow.services.rpc.metering import MeteredChannel
from hedgerow.services.rpc.relay import RelayEnd
from hedgerow.services.wire.answers import Answer, Question

log = structlog.get_logger()

MOST_SESSIONS = 64
"""Sessions that an answering party keeps; the oldest goes first."""
KEEP_SECONDS = 0.25
"""Time between two looks for parties without a session."""
OPENING_SECONDS = 2.0
"""How long a party may take to answer an opening before another one is sent."""
MOST_SILENT = 3
"""Consecutive questions without an answer after which a party counts as away."""


@dataclass(frozen=True, slots=True)
class Session:
    """The keys of a session, at either party."""

    peer: str
    """The other party."""
    sends: bytes
    receives: bytes
    """``sends`` and ``receives``: keys of the two directions, 32 bytes."""

    def seal(self, number: int, content: bytes) -> bytes:
        """Return the box of a question or an answer."""
        return seal(self.sends, padded(content), encode_fields(number))

    def open(self, number: int, box: bytes) -> bytes:
        """Return what is in a box.

        Raises
        ------
        OfferRejected
            It is not the other party's box of that number.
        """
        try:
            return unpadded(open_box(self.receives, box, encode_fields(number)), self.peer)
        except BoxInvalid as error:
            raise OfferRejected(f"from {self.peer}: {error}") from error


@dataclass(frozen=True, slots=True)
class HalfOpenSession:
    """An asking party's half-open session."""

    asker: str
    peer: str
    private_key: X25519PrivateKey
    kem_key: MLKEM768PrivateKey | None
    key: SessionKey

    @classmethod
    def of(cls, identity: FileIdentity, peer: str) -> HalfOpenSession:
        """Return a fresh one."""
        private_key, kem_key = new_private_key(), new_kem_key()
        asker, own = identity.subject.name, public_bytes(private_key)
        public = kem_key.public_key().public_bytes_raw() if kem_key else b""
        key = _signed(identity, _statement(asker, peer, own), own, kem_key=public)
        return cls(asker, peer, private_key, kem_key, key)

    def finish(self, identity: FileIdentity, reply: SessionKey) -> Session:
        """Return the session, once the other party has answered.

        Raises
        ------
        SignatureInvalid, OfferRejected
        """
        _verify(
            identity,
            self.peer,
            _statement(self.asker, self.peer, reply.box_key, self.key.box_key),
            reply,
        )
        names = self.asker, self.peer
        secret = b""
        if reply.ciphertext:
            try:
                if self.kem_key is None:
                    raise KeyRejected("a ciphertext of ML-KEM without a key")
                secret = decapsulate(self.kem_key, reply.ciphertext)
            except KeyRejected as error:
                raise OfferRejected(f"from {self.peer}: {error}") from error
        ask, answer = _keys(self.private_key, names, self.key, reply, secret, own=self.key)
        return Session(self.peer, ask, answer)


def answer_opening(
    identity: FileIdentity, asker: str, key: SessionKey
) -> tuple[SessionKey, Session]:
    """Return the answering party's key, and the session.

    Raises
    ------
    SignatureInvalid, OfferRejected
    """
    own_name = identity.subject.name
    _verify(identity, asker, _statement(asker, own_name, key.box_key), key)
    private_key = new_private_key()
    own = public_bytes(private_key)
    secret = ciphertext = b""
    if key.kem_key:
        try:
            secret, ciphertext = encapsulate(key.kem_key)
        except KeyRejected as error:
            raise OfferRejected(f"from {asker}: {error}") from error
    said = _statement(asker, own_name, own, key.box_key)
    reply = _signed(identity, said, own, ciphertext=ciphertext)
    ask, answer = _keys(private_key, (asker, own_name), key, reply, secret, own=reply)
    return reply, Session(asker, answer, ask)


def _signed(
    identity: FileIdentity, said: bytes, own: bytes, kem_key: bytes = b"", ciphertext: bytes = b""
) -> SessionKey:
    key = SessionKey(
        box_key=own, certificate=identity.certificate, signature=identity.sign(said),
        kem_key=kem_key, ciphertext=ciphertext,
    )  # fmt: skip
    if kem_key or ciphertext:
        key.kem_signature = identity.sign(_hybrid_statement(said, key))
    return key


def _verify(identity: FileIdentity, silo: str, said: bytes, key: SessionKey) -> None:
    signature = key.signature
    if key.kem_key or key.ciphertext:  # the other signature is over all of it
        said, signature = _hybrid_statement(said, key), key.kem_signature
    identity.verify(Silo(silo), key.certificate, said, signature)


def _hybrid_statement(said: bytes, key: SessionKey) -> bytes:
    """Return what a party that has ML-KEM signs beside."""
    return encode_fields("hedgerow serving hybrid v1", said, key.kem_key, key.ciphertext)


def _statement(asker: str, answerer: str, own: bytes, other: bytes = b"") -> bytes:
    """Return what a party signs."""
    return encode_fields("hedgerow serving v1", asker, answerer, own, other)


def _keys(
    private_key: X25519PrivateKey,
    names: tuple[str, str],
    asking: SessionKey,
    answering: SessionKey,
    secret: bytes,
    own: SessionKey,
) -> tuple[bytes, bytes]:
    """Return the keys of questions and of answers; ``secret`` is ML-KEM's, empty without."""
    peer = answering if own is asking else asking
    context = hashlib.sha256(
        encode_fields("hedgerow serving v1", *names, asking.box_key, answering.box_key)
    ).digest()
    try:
        shared = shared_secret(private_key, peer.box_key)
    except KeyRejected as error:
        raise OfferRejected(f"between {names[0]} and {names[1]}: {error}") from error
    root = extract(context, shared)
    if secret:
        sent = asking.kem_key, answering.ciphertext
        root = hybrid_root(context, (secret, shared), "serving", *names, *sent)
    return expand(root, encode_fields("question")), expand(root, encode_fields("answer"))


@dataclass(slots=True)
class _Opened:
    """A session at the answering party, and the number of the last question."""

    session: Session
    last: int = 0


class ScoringResponder:
    """A party that answers: takes sessions of parties that may ask, and each question once.

    Parameters
    ----------
    may_ask : callable
        Whether a party, by name, may open a session.
    answer : callable
        (party, question) to the answer.
    """

    def __init__(
        self,
        channel: Callable[[], MeteredChannel],
        address: str,
        identity: Callable[[], FileIdentity],
        may_ask: Callable[[str], bool],
        answer: Callable[[str, Question], Answer],
    ) -> None:
        self._identity, self._may_ask, self._answer = identity, may_ask, answer
        self._sessions: OrderedDict[tuple[str, int], _Opened] = OrderedDict()
        self._end = RelayEnd(channel, address, True, self._receive, self._sessions.clear)

    def start(self) -> ScoringResponder:
        """Open the stream on which questions arrive."""
        self._end.start()
        return self

    def stop(self) -> None:
        """Close the stream."""
        self._end.stop()

    def _receive(self, parcel: Parcel) -> None:
        place, kind = (parcel.party, parcel.session), parcel.WhichOneof("content")
        if kind == "away":
            self._sessions.pop(place, None)
            return
        if not self._may_ask(parcel.party):
            log.warning("question refused", asker=parcel.party, why="not among the askers")
            return
        try:
            if kind == "key":
                key, session = answer_opening(self._identity(), parcel.party, parcel.key)
                self._sessions[place] = _Opened(session)
                while len(self._sessions) > MOST_SESSIONS:
                    self._sessions.popitem(last=False)
                self._end.send(Parcel(party=place[0], session=place[1], key=key))
                return
            opened = self._sessions.get(place)
            if opened is None or parcel.number <= opened.last:
                raise OfferRejected(f"{parcel.party}: no session, or a question that is repeated")
            data = opened.session.open(parcel.number, parcel.box)
            opened.last = parcel.number
            answer = self._answer(parcel.party, Question.decode(data, parcel.party))
        except FederationError as error:
            log.warning("question refused", asker=parcel.party, why=str(error))
            return
        box = opened.session.seal(parcel.number, answer.encode())
        self._end.send(Parcel(party=place[0], session=place[1], number=parcel.number, box=box))


@dataclass(slots=True)
class _Party:
    """A party that is asked: its session, what was asked, and since when it is away."""

    away_since: float
    session: Session | None = None
    opening: HalfOpenSession | None = None
    opened_at: float = 0.0
    number: int = 0
    silent: int = 0
    waiting: dict[int, tuple[int, Future[Answer]]] = field(default_factory=dict)


class ScoringClient:
    """A party that asks: keeps a session with every party that is there.

    Parameters
    ----------
    channel, address, identity
        As of :class:`ScoringResponder`.
    parties : collection of str
        Who is asked.
    """

    def __init__(
        self,
        channel: Callable[[], MeteredChannel],
        address: str,
        identity: Callable[[], FileIdentity],
        parties: Collection[str],
    ) -> None:
        self._identity = identity
        self._lock = threading.Lock()
        self._parties = {party: _Party(time.monotonic()) for party in parties}
        self._look, self._stopped = threading.Event(), False
        self._end = RelayEnd(channel, address, False, self._receive, self._lost)
        self._keeper = threading.Thread(target=self._keep, name="sessions", daemon=True)

    def start(self) -> ScoringClient:
        """Open the stream, and start the thread that keeps sessions."""
        self._end.start()
        self._keeper.start()
        return self

    def stop(self) -> None:
        """End; what is asked fails."""
        self._stopped = True
        self._look.set()
        self._end.stop()
        self._keeper.join(10.0)

    def follow(self, parties: Collection[str]) -> None:
        """Ask other parties from now on."""
        with self._lock:
            for party in set(parties) - self._parties.keys():
                self._parties[party] = _Party(time.monotonic())
        self._look.set()

    def away(self, party: str) -> float | None:
        """Return for how many seconds a party is away; None where it is there."""
        known = self._parties[party]
        return None if known.session is not None else time.monotonic() - known.away_since

    def ask(self, party: str, question: Question) -> Future[Answer]:
        """Send a question; the future fails with Unreachable when the party goes away.

        Raises
        ------
        Unreachable
            The party is away.
        """
        future: Future[Answer] = Future()
        with self._lock:
            known = self._parties[party]
            if known.session is None:
                raise Unreachable(f"party {party} is away")
            known.number += 1
            number, session = known.number, known.session
            known.waiting[number] = len(question.ids), future
        box = session.seal(number, question.encode())
        self._end.send(Parcel(party=party, number=number, box=box))
        return future

    def silent(self, party: str, future: Future[Answer]) -> None:
        """Note that nobody waits for an answer any more: too many in a row, and it is away."""
        with self._lock:
            known = self._parties[party]
            for number, (_, own) in list(known.waiting.items()):
                if own is future:
                    del known.waiting[number]
                    known.silent += 1
            lost = self._drop(known) if known.silent >= MOST_SILENT else ()
        _fail(lost, party)

    def _keep(self) -> None:
        while not self._stopped:
            for party, known in list(self._parties.items()):
                now = time.monotonic()
                if known.session is None and now - known.opened_at >= OPENING_SECONDS:
                    try:
                        opening = HalfOpenSession.of(self._identity(), party)
                    except FederationError as error:
                        log.warning("no session", party=party, why=str(error))
                        continue
                    known.opening, known.opened_at = opening, now
                    self._end.send(Parcel(party=party, key=opening.key))
            self._look.wait(KEEP_SECONDS)
            self._look.clear()

    def _receive(self, parcel: Parcel) -> None:
        party, kind = parcel.party, parcel.WhichOneof("content")
        known = self._parties.get(party)
        if known is None:
            return
        if kind == "away":
            self._gone(party, known)
        elif kind == "key" and known.opening is not None:
            try:
                session = known.opening.finish(self._identity(), parcel.key)
            except FederationError as error:
                log.warning("no session", party=party, why=str(error))
                return
            with self._lock:
                known.session, known.opening = session, None
                known.number = known.silent = 0
            log.info("party is there", party=party)
        elif kind == "box":
            self._answered(party, known, parcel)

    def _answered(self, party: str, known: _Party, parcel: Parcel) -> None:
        with self._lock:
            session = known.session
            n_rows, future = known.waiting.get(parcel.number, (0, None))
        if session is None or future is None:
            return  # nobody waits for it any more
        try:
            answer = Answer.decode(session.open(parcel.number, parcel.box), party, n_rows)
        except OfferRejected as error:
            log.warning("answer refused", party=party, why=str(error))
            return
        with self._lock:
            known.waiting.pop(parcel.number, None)
            known.silent = 0
        if future.set_running_or_notify_cancel():
            future.set_result(answer)

    def _lost(self) -> None:
        for party, known in list(self._parties.items()):
            self._gone(party, known, soon=True)

    def _gone(self, party: str, known: _Party, *, soon: bool = False) -> None:
        with self._lock:
            lost = self._drop(known)
            # Nobody answered an opening: not at once again.
            known.opened_at = 0.0 if soon or lost else time.monotonic() - OPENING_SECONDS + 0.2
        _fail(lost, party)

    def _drop(self, known: _Party) -> tuple[Future[Answer], ...]:
        """End a session; return what waited in it."""
        if known.session is not None:
            known.session, known.away_since, known.opened_at = None, time.monotonic(), 0.0
        known.opening, known.silent = None, 0
        lost = tuple(future for _, future in known.waiting.values())
        known.waiting.clear()
        return lost


def _fail(lost: Collection[Future[Answer]], party: str) -> None:
    for future in lost:
        if future.set_running_or_notify_cancel():
            future.set_exception(Unreachable(f"party {party} is away"))
