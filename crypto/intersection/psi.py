"""Private set intersection by Diffie-Hellman over Curve25519, for two and more parties.

Every party raises hashes of its ids to a secret of its own; sets travel until every party has
done so, and equal ids have become equal tags that nobody can compute alone. The protocol holds
no transport: a :class:`PsiParty` takes messages and gives messages, which somebody relays.

================  =========================================================================
step              message
================  =========================================================================
start             every party: its set under its own key, in a secret random order -> next hop
each hop          multiply by the own key, pass on; the leader's set is also shuffled when
                  there are more than two parties
last hop          a set of another party ends at the leader, who applies the last key; the
                  leader's own set comes back as tags of 40 + log2(pairs compared) bits
matches           leader -> owner: one bit for each element in the order in which it was sent
way back          (three and more parties) the leader's own bits go back along the ring, where
                  each party undoes its shuffle
================  =========================================================================

Primitives: ids are hashed by RFC 9380 ``curve25519_XMD:SHA-512_ELL2_NU_`` of (tag | session | id),
multiplied x-only (RFC 7748) by clamped 255-bit secrets that are made for one run and overwritten
afterwards. Assumption: decisional Diffie-Hellman on Curve25519 with the hash as a random oracle,
about 128 bits; two different ids get one tag with probability at most 2^-40 a run.

Reveals
-------
Semi-honest parties learn which of their own ids all parties hold, and every party's number of
distinct ids. With more than two parties the leader also sees *how many* ids each subset of the
parties shares, never which: its own tags are shuffled by every other party. A leader that colludes
with *all* parties that shuffle learns pairwise intersections with its own set. A party that cheats
can insert guessed ids and see whether they are common: :class:`PsiPolicy` caps sizes, relative to
the own set, before a set is multiplied, and stops a run in which a much longer list has most of the
own ids. A leader who cheats knows the matches by then, and may hide them from their owner. Who
relays must not be able to read messages between other parties (three parties' sets become
comparable before the last key is applied): seal payloads end to end. Message lengths then tell the
relay the set sizes, and nothing about the intersection.

References
----------
Meadows 1986; Huberman, Franklin, Hogg 1999 (Diffie-Hellman PSI); RFC 9380; RFC 7748.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from hedgerow.crypto.errors import InvalidPoint, PsiRefused
from hedgerow.crypto.intersection.identifiers import RawId, distinct_ids
from hedgerow.crypto.vault.blinding import POINT_BYTES, Blinder, LocalBlinder
from hedgerow.crypto.vault.interface import CipherVault


class VaultBlinder:
    """A secret in the silo's vault.

    Parameters
    ----------
    session : str
        Names the run, and nothing else of the vault's: it is forgotten at the end. The party's
        ``session`` is the same in UTF-8.
    """

    def __init__(self, vault: CipherVault, session: str) -> None:
        self._vault, self._session = vault, session

    def blind_identifiers(self, ids: Sequence[bytes]) -> bytes:
        """Ask the vault for blinded ids."""
        return self._vault.blind_identifiers(self._session, ids)

    def blind_points(self, points: bytes) -> bytes:
        """Ask the vault for blinded points."""
        return self._vault.blind_points(self._session, points)

    def close(self) -> None:
        """Have the vault forget the session."""
        self._vault.forget_session(self._session)


class PsiKind(IntEnum):
    """What a message's payload is."""

    POINTS = 1
    """u-coordinates, 32 bytes an element."""
    TAGS = 2
    """The leader's set under all keys, truncated, :func:`tag_bytes` an element."""
    MATCHES = 3
    """One bit an element of the owner's set, little-endian bit order, padded to whole bytes."""


@dataclass(frozen=True, slots=True)
class PsiMessage:
    """One message from a party to another; the payload has to travel sealed."""

    kind: PsiKind
    sender: str
    recipient: str
    owner: str
    """Whose set the elements are."""
    payload: bytes


MUCH_LONGER = 4
"""How many times as many ids make a list one that may be guessed."""


@dataclass(frozen=True, slots=True)
class PsiPolicy:
    """What a party puts up with."""

    max_elements: int = 20_000_000
    min_elements: int = 1
    """``max_elements`` and ``min_elements``: distinct ids of any party. The most bounds work and
    memory; the least keeps a peer from asking about a handful of people."""
    max_ratio: float = math.inf
    """Most distinct ids of another party, in multiples of the own ones: who has many more may have
    guessed them."""
    max_common: float = 1.0
    """Largest share of the own distinct ids that may be common where another party has more than
    :data:`MUCH_LONGER` times as many: a long enough list of guesses has nearly all."""

    def check(self, owner: str, size: int) -> None:
        """Raise :class:`PsiRefused` where `n` ids of ``owner`` are too few or too many."""
        if not self.min_elements <= size <= self.max_elements:
            raise PsiRefused(
                f"{owner} has too {'few' if size < self.min_elements else 'many'} distinct ids; "
                f"the policy allows {self.min_elements} to {self.max_elements}"
            )

    def check_other(self, owner: str, size: int, own: int) -> None:
        """Raise :class:`PsiRefused` where another party has too many for ``own`` ids here."""
        self.check(owner, size)
        if size > self.max_ratio * own:
            raise PsiRefused(
                f"{owner} has more than {self.max_ratio:g} times as many distinct ids as this "
                "party, which it may have guessed; where its list is known to be that long, set "
                "the policy's max_ids_ratio"
            )

    def check_common(self, n_common: int, sizes: Mapping[str, int], name: str) -> None:
        """Raise :class:`PsiRefused` where a much longer list has too many of the own ids."""
        own = sizes[name]
        longest = max((other for other in sizes if other != name), key=sizes.__getitem__)
        if sizes[longest] > MUCH_LONGER * own and n_common > self.max_common * own:
            raise PsiRefused(
                f"more than {self.max_common:.0%} of this party's ids are common, and {longest} "
                f"has more than {MUCH_LONGER} times as many, as a list of guesses would; where it "
                "is known to be a register of nearly everybody, set the policy's max_common"
            )


@dataclass(frozen=True, slots=True)
class PsiResult:
    """What a party has at the end."""

    rows: NDArray[np.int64]
    """Of shape (n_common,), int64. The party's own rows of the common ids. The order is that of the
    normalised ids, so row k is the same person for every party, in every run."""
    n_missing: int
    n_duplicates: int
    """``n_missing`` and ``n_duplicates``: own rows that were left out."""


def tag_bits(leader_size: int, other_sizes: Iterable[int]) -> int:
    """Bits of a tag: 40 plus the logarithm of the number of pairs compared, rounded up."""
    pairs = max(1, leader_size * sum(other_sizes))
    return 40 + (pairs - 1).bit_length()


def n_exchanges(n_parties: int) -> int:
    """Count the barriers of a run in which every barrier relays all messages given so far."""
    return n_parties + 1 if n_parties == 2 else 2 * n_parties


def _random_permutation(n: int) -> NDArray[np.int64]:
    """Give a uniform permutation from the operating system's randomness (128-bit sort keys)."""
    keys = np.frombuffer(os.urandom(16 * n), np.uint64).reshape(n, 2)
    return np.lexsort((keys[:, 0], keys[:, 1])).astype(np.int64)


def _truncate(points: bytes, bits: int) -> NDArray[np.uint8]:
    """Cut points, 32 bytes each, to their lowest bits: (n, ceil(bits / 8)) uint8."""
    n_bytes = -(-bits // 8)
    tags = np.frombuffer(points, np.uint8).reshape(-1, POINT_BYTES)[:, :n_bytes].copy()
    tags[:, -1] &= 0xFF >> (8 * n_bytes - bits)
    return tags


def _as_keys(tags: NDArray[np.uint8]) -> list[bytes]:
    raw, width = tags.tobytes(), tags.shape[1]
    return [raw[i : i + width] for i in range(0, len(raw), width)]


class PsiParty:
    """One party's part in a run: messages in, messages out; no input and no output of its own.

    Give what :meth:`start` and :meth:`receive` return to the parties that the messages name, until
    all are :attr:`finished`. Messages may come in any order that keeps cause before effect.

    Parameters
    ----------
    session : bytes
        Names the run (job and attempt); all parties use the same, no two runs do.
    roster : sequence of str
        All parties, in the same order everywhere; the first is the leader.
    ids : iterable
        The id column, see :func:`normalise_id`.
    policy : PsiPolicy
        Limits on everybody's number of distinct ids.
    blinder : Blinder, optional
        Holds this party's secret: :class:`VaultBlinder` keeps it in the silo's vault; by default
        a :class:`LocalBlinder` of this session.
    charge : callable, optional
        Called with the number of another party's ids, and of the own ones, before those ids are
        answered; raises :class:`PsiRefused`.

    Raises
    ------
    PsiRefused
        If this party's own set breaks the policy.
    """

    def __init__(
        self,
        *,
        session: bytes,
        name: str,
        roster: Sequence[str],
        ids: Iterable[RawId],
        policy: PsiPolicy | None = None,
        blinder: Blinder | None = None,
        charge: Callable[[int, int], None] = lambda asked, own: None,
    ) -> None:
        if len(set(roster)) != len(roster) or len(roster) < 2 or name not in roster:
            raise ValueError("a roster of two or more different parties with this one expected")
        self._name, self._roster, self._leader = name, tuple(roster), roster[0]
        self._policy = policy if policy is not None else PsiPolicy()
        self._blinder = blinder if blinder is not None else LocalBlinder(session)
        self._own = distinct_ids(ids)
        self._policy.check(name, len(self._own.ids))
        self._sizes = {name: len(self._own.ids)}
        self._charge = charge
        self._sent_order = _random_permutation(len(self._own.ids))
        self._shuffle: NDArray[np.int64] | None = None
        self._full_points: dict[str, bytes] = {}
        self._held_points: bytes | None = None
        self._held_tags: bytes | None = None
        self._returned_matches = len(roster) == 2 or name == roster[0]
        self._seen: set[tuple[PsiKind, str]] = set()
        self._started = False
        self._result: PsiResult | None = None

    @property
    def result(self) -> PsiResult | None:
        """The result, or None while the messages that decide it are still to come."""
        return self._result

    @property
    def finished(self) -> bool:
        """Whether the result is there and no other party waits for this one."""
        return self._result is not None and self._returned_matches

    def start(self) -> list[PsiMessage]:
        """Give this party's set, masked, for its first hop."""
        if self._started:
            raise PsiRefused("this run has been started already: a run's set is sent once")
        self._started = True
        ids = self._own.ids
        points = self._blinder.blind_identifiers([ids[i] for i in self._sent_order])
        return [self._send(PsiKind.POINTS, self._name, self._route(self._name)[1], points)]

    def receive(self, message: PsiMessage) -> list[PsiMessage]:
        """Take a message and give those that follow from it.

        Raises
        ------
        PsiRefused
            If it does not belong here, comes twice, is malformed or breaks the policy.
        """
        if not self._started:
            raise PsiRefused("received a message before this party has started")
        if message.recipient != self._name or message.owner not in self._roster:
            raise PsiRefused(f"a message from {message.sender} is not for this party")
        if (message.kind, message.owner) in self._seen:
            raise PsiRefused(f"{message.sender} sent {message.kind.name} twice")
        if message.sender != self._expected_sender(message):
            raise PsiRefused(f"received {message.kind.name} from {message.sender} out of turn")
        if message.kind is PsiKind.POINTS:
            out = self._take_points(message)
        elif message.kind is PsiKind.TAGS:
            out = self._take_tags(message)
        else:
            out = self._take_matches(message)
        self._seen.add((message.kind, message.owner))
        return out

    def close(self) -> None:
        """Erase the key and forget the sets; happens by itself at the end."""
        self._blinder.close()
        self._full_points.clear()
        self._held_points = self._held_tags = None

    # --- routes ---

    def _route(self, owner: str) -> tuple[str, ...]:
        """Parties in the order in which they apply their keys to an owner's set."""
        start = self._roster.index(owner)
        ring = self._roster[start:] + self._roster[:start]
        if owner == self._leader:
            return ring
        return (*(party for party in ring if party != self._leader), self._leader)

    def _expected_sender(self, message: PsiMessage) -> str | None:
        route = self._route(message.owner)
        place = route.index(self._name)
        if message.kind is PsiKind.POINTS:
            return route[place - 1] if place else None
        if message.kind is PsiKind.TAGS:
            return route[-1] if message.owner == self._name == self._leader else None
        if message.owner != self._leader:
            return self._leader if message.owner == self._name else None
        if len(self._roster) == 2:
            return None
        return route[(place + 1) % len(route)]

    # --- steps ---

    def _take_points(self, message: PsiMessage) -> list[PsiMessage]:
        size, rest = divmod(len(message.payload), POINT_BYTES)
        if rest:
            raise PsiRefused(f"{message.sender}: {POINT_BYTES} bytes a point expected")
        own = self._sizes[self._name]
        self._policy.check_other(message.owner, size, own)
        self._charge(size, own)
        self._sizes[message.owner] = size
        points = message.payload
        route = self._route(message.owner)
        if message.owner == self._leader and len(self._roster) > 2:
            self._shuffle = _random_permutation(size)
            points = (
                np.frombuffer(points, np.uint8).reshape(size, POINT_BYTES)[self._shuffle].tobytes()
            )
        try:
            points = self._blinder.blind_points(points)
        except InvalidPoint as error:
            raise PsiRefused(f"{message.sender}: {error}") from error
        if self._name == self._leader:
            self._full_points[message.owner] = points
            return self._match()
        out = []
        if self._name == route[-1]:
            self._held_points = points
        else:
            following = route[route.index(self._name) + 1]
            out.append(self._send(PsiKind.POINTS, message.owner, following, points))
        if self._held_points is not None and len(self._sizes) == len(self._roster):
            tags = _truncate(self._held_points, self._tag_bits()).tobytes()
            self._held_points = None
            out.append(self._send(PsiKind.TAGS, self._leader, self._leader, tags))
        return out

    def _take_tags(self, message: PsiMessage) -> list[PsiMessage]:
        self._held_tags = message.payload
        return self._match()

    def _match(self) -> list[PsiMessage]:
        """Compare all sets once they are here, and tell every owner its matches."""
        others = self._roster[1:]
        if self._held_tags is None or any(owner not in self._full_points for owner in others):
            return []
        bits = self._tag_bits()
        width = -(-bits // 8)
        expected = self._sizes[self._name] * width
        if len(self._held_tags) != expected:
            raise PsiRefused(
                f"{self._roster[-1]}: expected {expected} bytes of tags, "
                f"received {len(self._held_tags)}"
            )
        tags = {owner: _truncate(self._full_points[owner], bits) for owner in others}
        tags[self._name] = np.frombuffer(self._held_tags, np.uint8).reshape(-1, width)
        keys = {owner: _as_keys(own) for owner, own in tags.items()}
        common = set(keys[self._name])
        for owner in others:
            common.intersection_update(keys[owner])
        matches = {
            owner: np.fromiter((key in common for key in own), np.bool_, len(own))
            for owner, own in keys.items()
        }
        self._policy.check_common(int(matches[self._name].sum()), self._sizes, self._name)
        out = [
            self._send(PsiKind.MATCHES, owner, owner, _pack_bits(matches[owner]))
            for owner in others
        ]
        if len(self._roster) == 2:
            self._finish(matches[self._name])
        else:
            payload = _pack_bits(matches[self._name])
            out.append(self._send(PsiKind.MATCHES, self._name, self._roster[-1], payload))
        return out

    def _take_matches(self, message: PsiMessage) -> list[PsiMessage]:
        size = self._sizes.get(message.owner)
        if size is None or len(message.payload) != -(-size // 8):
            raise PsiRefused(f"{message.sender}: one bit for each of {size} elements expected")
        matches = np.unpackbits(
            np.frombuffer(message.payload, np.uint8), count=size, bitorder="little"
        ).astype(np.bool_)
        if message.owner == self._name:
            if len(self._sizes) == 1:
                raise PsiRefused(f"{message.sender} sent MATCHES before any other party's set")
            self._policy.check_common(int(matches.sum()), self._sizes, self._name)
            self._finish(matches)
            return []
        if self._shuffle is None:
            raise PsiRefused(f"{message.sender} sent MATCHES before the set")
        unshuffled = np.empty_like(matches)
        unshuffled[self._shuffle] = matches
        self._returned_matches = True
        route = self._route(message.owner)
        previous = route[route.index(self._name) - 1]
        return [self._send(PsiKind.MATCHES, message.owner, previous, _pack_bits(unshuffled))]

    def _finish(self, matches: NDArray[np.bool_]) -> None:
        common = sorted(self._sent_order[matches].tolist(), key=self._own.ids.__getitem__)
        self._result = PsiResult(
            rows=self._own.rows[common],
            n_missing=self._own.n_missing,
            n_duplicates=self._own.n_duplicates,
        )
        self.close()

    # --- small parts ---

    def _tag_bits(self) -> int:
        return tag_bits(self._sizes[self._leader], (self._sizes[o] for o in self._roster[1:]))

    def _send(self, kind: PsiKind, owner: str, recipient: str, payload: bytes) -> PsiMessage:
        return PsiMessage(kind, self._name, recipient, owner, payload)


def _pack_bits(matches: NDArray[np.bool_]) -> bytes:
    return np.packbits(matches, bitorder="little").tobytes()
