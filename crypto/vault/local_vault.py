"""The vault within a process, with the rules of what may be revealed of its secrets.

Rules of the secure sums, kept here because the secrets are here:

* one vector a sum: a sum's masks are given out once;
* endorsed sets only shrink, hold this silo and at least ``max(threshold, 3)`` silos;
* for one sum never both a pair seed with a silo and a share of that silo's self mask;
* shares are revealed for one set, the last endorsed, and nothing is endorsed or revealed for that
  sum afterwards;
* a finished sum's secrets are erased when the next one is masked;
* the masks of the sums inside a tree come from roots that only the tree's first sum gives, for the
  one set that it was unmasked over. No share or seed of a recovery removes them.

The silo's half adds the masks itself, from seeds of this one sum: they are one-way, cover its
own vector only, and spare that two ways between processes. Who takes that half over can
do what a silo that colludes can, for the sums it is asked for.

That the signatures over the set are there is checked by the silo's half, which holds the
certificates, before it asks for a reveal; so is the durable record across restarts, since a vault
that restarts has forgotten every secret that it could misuse.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hedgerow.crypto.arithmetic.engine import Engine
from hedgerow.crypto.ciphers.key_files import KeyFolder
from hedgerow.crypto.errors import BoxInvalid, KeyRejected, VaultRefused
from hedgerow.crypto.masking import key_agreement, shamir
from hedgerow.crypto.masking import masks as masking
from hedgerow.crypto.masking.key_agreement import Entropy, encode_fields
from hedgerow.crypto.masking.totals import totals_key
from hedgerow.crypto.vault.interface import (
    LEAST_SILOS,
    DealtBox,
    MaskGroup,
    Reveal,
    SumMasks,
    SumTicket,
    TreeRoots,
)
from hedgerow.crypto.vault.local_ciphers import LocalCipherVault, within
from hedgerow.crypto.vault.noise_keys import NoiseKey, NoiseSeed


@dataclass(slots=True)
class _Sum:
    """The sum at hand: what was endorsed and revealed of it."""

    ticket: SumTicket
    context: bytes
    endorsed: tuple[str, ...] = ()
    seeds_revealed: set[str] = field(default_factory=set)
    ended: bool = False


@dataclass(frozen=True, slots=True)
class _Half:
    """What this silo has of a hybrid root until the peer's ciphertext is there.

    Each encapsulates to the other, so that its first box can be sealed with what it sends along.
    """

    diffie_hellman: bytes
    secret: bytes
    ciphertext: bytes


@dataclass(slots=True)
class _Session:
    private_key: X25519PrivateKey
    kem_key: MLKEM768PrivateKey | None = None
    group: MaskGroup | None = None
    roots: dict[str, bytes] = field(default_factory=dict)
    halves: dict[str, _Half] = field(default_factory=dict)
    secrets: dict[int, bytes] = field(default_factory=dict)
    shares: dict[int, dict[str, bytes]] = field(default_factory=dict)
    dealt: int = 0  # numbers below have had their shares sealed
    offered_key: bytes | None = None
    group_key: bytes | None = None
    current: _Sum | None = None


class LocalVault(LocalCipherVault):
    """A vault within the process.

    Parameters
    ----------
    entropy : callable
        Source of the secure sums' keys and masks.
    engine, key_folder, insecure_test_keys
        As :class:`~hedgerow.crypto.vault.local_ciphers.LocalCipherVault`.
    noise_folder
        Keeps the secret of noise where ``key_folder`` does not.
    """

    def __init__(
        self,
        entropy: Entropy = os.urandom,
        *,
        engine: Engine | None = None,
        key_folder: KeyFolder | None = None,
        insecure_test_keys: bool = False,
        noise_folder: KeyFolder | None = None,
    ) -> None:
        super().__init__(engine, key_folder, insecure_test_keys)
        self._entropy = entropy
        self._noise = NoiseKey(key_folder or noise_folder, entropy)
        self._sessions: dict[str, _Session] = {}

    def create_mask_key(self, session: str, hybrid: bool = False) -> bytes:
        private_key = key_agreement.new_private_key(self._entropy)
        kem_key = key_agreement.new_kem_key(self._entropy) if hybrid else None
        self._sessions[session] = _Session(private_key, kem_key)
        public = key_agreement.public_bytes(private_key)
        return public if kem_key is None else public + kem_key.public_key().public_bytes_raw()

    def join_group(self, group: MaskGroup) -> None:
        kept = self._session(group.session)
        members = group.members
        if kept.group is not None:
            raise VaultRefused("this session has its group already")
        if list(members) != sorted(set(members)) or len(members) != len(group.public_keys):
            raise VaultRefused("expected sorted distinct members with one public key each")
        if len(members) < LEAST_SILOS:
            raise VaultRefused(f"a group has at least {LEAST_SILOS} silos, not {len(members)}")
        if not len(members) // 2 < group.threshold <= len(members):
            raise VaultRefused(
                f"threshold {group.threshold} of {len(members)}: expected more than half"
            )
        keys = dict(zip(members, group.public_keys, strict=True))
        if keys.get(group.silo) != key_agreement.public_bytes(kept.private_key):
            raise VaultRefused(f"the group does not hold this session's key of {group.silo}")
        secrets = {
            peer: key_agreement.shared_secret(kept.private_key, key)
            for peer, key in keys.items()
            if peer != group.silo
        }
        if group.kem_keys:
            kept.halves = self._encapsulated(kept, group, secrets)
        else:
            kept.roots = {p: key_agreement.extract(group.digest, s) for p, s in secrets.items()}
        kept.group = group

    @staticmethod
    def _encapsulated(
        kept: _Session, group: MaskGroup, secrets: Mapping[str, bytes]
    ) -> dict[str, _Half]:
        if len(group.kem_keys) != len(group.members):
            raise VaultRefused("expected an ML-KEM key of each member, or of none")
        keys = dict(zip(group.members, group.kem_keys, strict=True))
        own = kept.kem_key
        if own is None or keys[group.silo] != own.public_key().public_bytes_raw():
            raise VaultRefused(f"the group does not hold this session's ML-KEM key of {group.silo}")
        return {
            peer: _Half(secret, *key_agreement.encapsulate(keys[peer]))
            for peer, secret in secrets.items()
        }

    def seal_shares(
        self,
        session: str,
        first: int,
        count: int,
        participants: tuple[str, ...],
        group_key: bool = False,
    ) -> dict[str, DealtBox]:
        kept, group = self._joined(session)
        self._check_participants(group, participants)
        if first < kept.dealt or count < 0:
            raise VaultRefused(f"shares up to sum {kept.dealt} have been dealt already")
        secrets = [shamir.random_element(self._entropy) for _ in range(count)]
        dealt = (
            shamir.split(secrets, group.threshold, len(group.members), self._entropy)
            if count
            else [[] for _ in group.members]
        )
        kept.dealt = first + count
        for number, secret in enumerate(secrets, first):
            kept.secrets[number] = secret
        extra = b""
        if group_key:
            kept.offered_key = extra = kept.offered_key or self._entropy(32)
        boxes = {}
        for position, peer in enumerate(group.members):
            if peer not in participants:
                continue
            fixed = masking.share_commitments(session, first, group.silo, peer, dealt[position])
            sealed = ciphertext = b""
            if peer == group.silo:
                self._keep_shares(kept, first, group.silo, dealt[position])
            else:
                half = kept.halves.get(peer)
                ciphertext = b"" if half is None else half.ciphertext
                sealed = key_agreement.seal(
                    _box_key(self._sending_root(kept, group, peer), group.silo, peer),
                    b"".join(dealt[position]) + extra,
                    _box_context(session, first, count, group.silo, peer),
                    self._entropy,
                )
            boxes[peer] = DealtBox(sealed, fixed, ciphertext)
        return boxes

    def open_shares(
        self, session: str, first: int, count: int, boxes: Mapping[str, DealtBox]
    ) -> None:
        kept, group = self._joined(session)
        offered = {} if kept.offered_key is None else {group.silo: kept.offered_key}
        for sender, dealt in boxes.items():
            if sender not in kept.roots and sender not in kept.halves:
                raise VaultRefused(f"{sender} is not a peer in this group")
            try:
                root, pair = self._receiving_roots(kept, group, sender, dealt.ciphertext)
                opened = key_agreement.open_box(
                    _box_key(root, sender, group.silo),
                    dealt.box,
                    _box_context(session, first, count, sender, group.silo),
                )
            except (BoxInvalid, KeyRejected) as error:
                raise BoxInvalid(f"shares from {sender}: {error}") from error
            if pair is not None:
                kept.roots[sender] = pair
                kept.halves.pop(sender)
            shares_bytes = count * shamir.SHARE_BYTES
            if len(opened) not in (shares_bytes, shares_bytes + 32):
                raise BoxInvalid(f"shares from {sender}: expected {count} shares")
            shares = [
                opened[at : at + shamir.SHARE_BYTES]
                for at in range(0, shares_bytes, shamir.SHARE_BYTES)
            ]
            committed = masking.share_commitments(session, first, sender, group.silo, shares)
            if dealt.commitments != committed:
                raise BoxInvalid(f"shares from {sender}: not those that it has committed to")
            if len(opened) > shares_bytes:
                offered[sender] = opened[shares_bytes:]
            self._keep_shares(kept, first, sender, shares)
        if kept.group_key is None and offered:
            kept.group_key = offered[min(offered)]

    @staticmethod
    def _sending_root(kept: _Session, group: MaskGroup, peer: str) -> bytes:
        """Return the root of a box's key: the pair's, once the peer's ciphertext is there.

        Before that one of X25519 and of this silo's own encapsulation.
        """
        half = kept.halves.get(peer)
        if half is None:
            return kept.roots[peer]
        return key_agreement.hybrid_box_root(
            group.digest, half.diffie_hellman, group.silo, peer, half.secret, half.ciphertext
        )

    @staticmethod
    def _receiving_roots(
        kept: _Session, group: MaskGroup, sender: str, ciphertext: bytes
    ) -> tuple[bytes, bytes | None]:
        """Return the root of a box's key, and with the peer's ciphertext that of the pair."""
        half = kept.halves.get(sender)
        if half is None:
            if ciphertext:
                raise KeyRejected("a second ML-KEM ciphertext, or one that was not agreed on")
            return kept.roots[sender], None
        assert kept.kem_key is not None, "a group with ML-KEM keys has this silo's"
        secret = key_agreement.decapsulate(kept.kem_key, ciphertext)
        shared = half.diffie_hellman
        root = key_agreement.hybrid_box_root(
            group.digest, shared, sender, group.silo, secret, ciphertext
        )
        both = {sender: (secret, ciphertext), group.silo: (half.secret, half.ciphertext)}
        pair = key_agreement.hybrid_pair_root(group.digest, shared, both)
        return root, pair

    def derive_masks(self, ticket: SumTicket, endorse: bool = False) -> SumMasks:
        kept, group = self._joined(ticket.session)
        self._check_participants(group, ticket.participants)
        before = kept.current
        if before is not None:
            if ticket.number <= before.ticket.number:
                raise VaultRefused(f"sum {ticket.number} of this session was masked already")
            if not set(ticket.participants) <= set(before.ticket.participants):
                raise VaultRefused("participants of a session's sums can only become fewer")
        me = ticket.participants.index(group.silo)
        tag = ticket.view
        if ticket.group_mask:  # the coordinator may compare views, and not guess at them
            tag = masking.view_tag(self._group_key(kept), ticket.view)
        context = masking.sum_context(ticket.session, ticket.number, tag)
        open_pairs = sorted(set(ticket.participants) & kept.halves.keys())
        if open_pairs:
            raise VaultRefused(f"no ML-KEM ciphertext came from {', '.join(open_pairs)}")
        seeds = [
            masking.pair_seed(kept.roots[peer], context) if peer != group.silo else b""
            for peer in ticket.participants
        ]
        add, subtract, proof = seeds[me + 1 :], seeds[:me], b""
        if ticket.self_mask:
            secret = kept.secrets.get(ticket.number)
            if secret is None:
                raise VaultRefused(f"no shares were dealt for sum {ticket.number}")
            add.append(masking.self_seed(secret, context))
            proof = masking.commitment(secret, context)
        if ticket.group_mask:
            add.append(masking.group_seed(self._group_key(kept), group.silo, context))
        kept.current = _Sum(ticket, context)
        for number in [n for n in kept.secrets if n <= ticket.number]:
            del kept.secrets[number]
        for number in [n for n in kept.shares if n < ticket.number]:
            del kept.shares[number]
        statement = b""
        if endorse:
            statement = self.endorse(ticket.session, ticket.number, ticket.participants)
        return SumMasks(tuple(add), tuple(subtract), proof, tag, statement)

    def endorse(self, session: str, number: int, present: tuple[str, ...]) -> bytes:
        _, group = self._joined(session)
        current = self._current(session, number)
        if current.ended:
            raise VaultRefused(f"sum {number} has been unmasked; no other set is endorsed")
        allowed = set(current.endorsed or current.ticket.participants)
        least = max(group.threshold, LEAST_SILOS)
        if list(present) != sorted(set(present)) or not set(present) <= allowed:
            raise VaultRefused(f"sum {number}: an endorsed set can only shrink")
        if group.silo not in present:
            raise VaultRefused(f"sum {number}: the set leaves this silo out")
        if len(present) < least:
            raise VaultRefused(f"sum {number}: {len(present)} silos are below the least, {least}")
        current.endorsed = present
        participants = current.ticket.participants
        return masking.set_statement(group.digest, current.context, participants, present)

    def reveal_pair_seeds(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> dict[str, bytes]:
        kept, _ = self._joined(session)
        current = self._current(session, number)
        if current.endorsed != present or current.ended or not current.ticket.self_mask:
            raise VaultRefused(f"sum {number}: no pair seed is revealed for this set now")
        lost = set(current.ticket.participants) - set(current.endorsed)
        current.seeds_revealed |= lost
        return {peer: masking.pair_seed(kept.roots[peer], current.context) for peer in sorted(lost)}

    def reveal_shares(
        self, session: str, number: int, present: tuple[str, ...], opens_tree: bool = False
    ) -> Reveal:
        kept, group = self._joined(session)
        current = self._current(session, number)
        if current.endorsed != present or not present or not current.ticket.self_mask:
            raise VaultRefused(f"sum {number}: this is not the set endorsed last")
        if current.seeds_revealed & set(current.endorsed):
            raise VaultRefused(f"sum {number}: a pair seed with a silo of the set was revealed")
        held = kept.shares.get(number, {})
        if not set(current.endorsed) <= held.keys():
            raise VaultRefused(f"sum {number}: shares of some silos never arrived")
        current.ended = True
        shares = {owner: held[owner] for owner in current.endorsed}
        return Reveal(shares, self._tree_roots(kept, group, current) if opens_tree else None)

    def _tree_roots(self, kept: _Session, group: MaskGroup, first: _Sum) -> TreeRoots:
        context = masking.tree_context(first.context, first.endorsed)
        pairs = {
            peer: masking.tree_root(kept.roots[peer], "pair", context)
            for peer in first.endorsed
            if peer != group.silo
        }
        if not first.ticket.group_mask:
            return TreeRoots(pairs, {})
        key = self._group_key(kept)
        masks = {silo: masking.tree_root(key, f"group {silo}", context) for silo in first.endorsed}
        return TreeRoots(pairs, masks, masking.tree_root(key, "tag", context))

    def derive_group_masks(
        self, session: str, number: int, present: tuple[str, ...]
    ) -> tuple[bytes, ...]:
        kept, _ = self._joined(session)
        current = self._current(session, number)
        ticket, key = current.ticket, self._group_key(kept)
        if not ticket.group_mask or not set(present) <= set(ticket.participants):
            raise VaultRefused(f"sum {number}: not all of the set took part under group masks")
        return tuple(masking.group_seed(key, silo, current.context) for silo in present)

    def derive_totals_key(self, session: str) -> bytes:
        kept, _ = self._joined(session)
        return totals_key(self._group_key(kept), session)

    def derive_noise(self, context: bytes) -> NoiseSeed:
        return self._noise.derive(context)

    def forget_session(self, session: str) -> None:
        super().forget_session(session)
        for name in within(session, self._sessions):
            del self._sessions[name]

    def _session(self, session: str) -> _Session:
        kept = self._sessions.get(session)
        if kept is None:
            raise VaultRefused("no key was made for this session, or it was erased")
        return kept

    def _joined(self, session: str) -> tuple[_Session, MaskGroup]:
        kept = self._session(session)
        if kept.group is None:
            raise VaultRefused("this session has joined no group yet")
        return kept, kept.group

    def _current(self, session: str, number: int) -> _Sum:
        current = self._session(session).current
        if current is None or current.ticket.number != number:
            raise VaultRefused(f"sum {number} is not the one at hand")
        return current

    @staticmethod
    def _check_participants(group: MaskGroup, participants: tuple[str, ...]) -> None:
        least = max(group.threshold, LEAST_SILOS)
        if list(participants) != sorted(set(participants) & set(group.members)):
            raise VaultRefused("expected sorted participants out of the group")
        if group.silo not in participants or len(participants) < least:
            raise VaultRefused(f"expected this silo among at least {least} participants")

    @staticmethod
    def _keep_shares(kept: _Session, first: int, owner: str, shares: list[bytes]) -> None:
        for number, share in enumerate(shares, first):
            kept.shares.setdefault(number, {})[owner] = share

    @staticmethod
    def _group_key(kept: _Session) -> bytes:
        if kept.group_key is None:
            raise VaultRefused("the key that the silos share never arrived")
        return kept.group_key


def _box_key(root: bytes, sender: str, receiver: str) -> bytes:
    return key_agreement.expand(root, encode_fields("box", sender, receiver))


def _box_context(session: str, first: int, count: int, sender: str, receiver: str) -> bytes:
    return encode_fields("hedgerow shares v1", session, first, count, sender, receiver)
