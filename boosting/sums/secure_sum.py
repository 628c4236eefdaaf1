"""Secure sums: the coordinator learns the sum of the silos' vectors and nothing else of them.

A sub-protocol for strategies, both halves in one module. The silo half calls :meth:`SiloSums.sum`,
the coordinator half :meth:`CoordinatorSums.sum` and then :meth:`CoordinatorSums.answer` with
whatever the strategy replies; both name the same :class:`SumSteps`, place, ring and ``whole``.
Without secure sums (``secure = false``) the same calls carry plain vectors.

| exchange | when | silo offers | silo gets |
|---|---|---|---|
| ``sum-keys`` | at each setup | :class:`KeyOffer`: X25519 key, signed | :class:`KeyRoster` |
| ``NAME-shares`` | every ``batch`` sums | :class:`SealedShares` for its peers | those for it |
| ``NAME-masked`` | each sum | :class:`MaskedVector`, full set signed | :class:`PresentSet` |
| ``NAME-agree`` | a silo was lost | :class:`SetSignature` on the rest | :class:`PresentSet` |
| ``NAME-seeds`` | a silo was lost | :class:`PairSeeds` with the lost | :class:`PresentSet` |
| ``NAME-unmask`` | each sum | :class:`Unmasking`: shares of self masks | the strategy's reply |

With ``dropout_recovery = false`` a sum is the one exchange ``NAME-single``, without self masks, and
``NAME-plain`` is the one exchange without secure sums; both are answered by the strategy's reply.

Rules that strategies keep:

* :meth:`~SiloSums.setup` comes first and fixes who takes part; silos that were lost stay out until
  the next setup, at which silos that came back join;
* places of one :class:`SumSteps` only grow within an attempt;
* ``whole=True`` sums only over the set of the sum before it: a silo lost inside a tree leaves that
  sum closed (``total is None``), and every silo still gets the strategy's reply;
* what was unmasked is never summed again over another set. Silos refuse (:class:`SumRefused`),
  across restarts too, and tell a restarted coordinator which set a sum is bound to. It keeps what
  it decided from a total before it answers.

Reveals: to the coordinator the totals, who took part and when, and nothing more of a silo's vector
unless it colludes with so many silos that the threshold no longer holds, or with all but one. It
chooses who is in a group, so ``least_silos`` bounds how few a vector hides among. With
``blind_coordinator`` totals stay masked to it, and the silos learn them. With ``dropout_recovery =
false`` nothing is shared and all of the group must be there: a lost silo ends the job. Silos learn
who takes part. The argument is in docs/threat-model.md.

References
----------
Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017. It
is varied in that no long-term key is shared: survivors reveal one sum's pair seeds with the lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hedgerow.boosting.errors import (
    FederationError,
    InvalidJob,
    PlacePassed,
    QuorumLost,
    SignatureInvalid,
)
from hedgerow.boosting.exchange import Hub, Link, Place, Silo
from hedgerow.boosting.ports import Identity
from hedgerow.boosting.sums.records import SiloRecord, SumOutcome, UnmaskingAt
from hedgerow.boosting.sums.steps import (
    KEYS,
    SUM,
    KeyOffer,
    KeyRoster,
    MaskedVector,
    PairSeeds,
    PlainVector,
    PresentSet,
    SealedShares,
    SetSignature,
    SumParameters,
    SumSteps,
    Total,
    Unmasking,
    key_digest,
    key_statement,
    layout,
    repeat,
    session_name,
)
from hedgerow.crypto import masking, shamir
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.fixed_point import residue_dtype
from hedgerow.crypto.masking import Residues
from hedgerow.crypto.vault import LEAST_SILOS, MaskGroup, SumTicket, Vault

Reply = TypeVar("Reply")


class SumRefused(FederationError):
    """A silo does not let a sum be unmasked: its data would be told apart from the others'."""


class SumCorrupt(FederationError):
    """The shares that silos revealed do not fit the self mask that was used."""


@contextmanager
def _vault_rules() -> Iterator[None]:
    """Say that a sum is refused where the vault refuses."""
    try:
        yield
    except Refusal as error:
        raise SumRefused(str(error)) from error


class SiloSums:
    """The silo half.

    Parameters
    ----------
    link : Link
    vault : Vault or None
        Keeps the masks' keys; not needed without secure sums.
    identity : Identity or None
        Signs; not needed without secure sums.
    silo : Silo
    roster : tuple[Silo, ...]
        The job's roster, sorted: nobody else is accepted.
    job_id : str
    attempt : int
    parameters : SumParameters
        The same in all silos; bound into the signatures.
    """

    def __init__(
        self,
        link: Link,
        vault: Vault | None,
        identity: Identity | None,
        *,
        silo: Silo,
        roster: tuple[Silo, ...],
        job_id: str,
        attempt: int,
        parameters: SumParameters,
    ) -> None:
        if parameters.secure and (vault is None or identity is None):
            raise ValueError("secure sums need a vault and an identity")
        self._link = link
        self._maybe_vault = vault
        self._maybe_identity = identity
        self._silo = silo
        self._roster = roster
        self._job_id = job_id
        self._attempt = attempt
        self._parameters = parameters
        self._session = ""
        self._group: MaskGroup | None = None
        self._certificates: dict[Silo, bytes] = {}
        self._participants: tuple[Silo, ...] = ()
        self._number = 0
        self._key = f"secure-sums/{job_id}"
        self._record = SiloRecord.parse(link.recall(self._key))

    @property
    def participants(self) -> tuple[Silo, ...]:
        """Silos whose masks enter the next sum: those in the last one, from the setup on."""
        return self._participants

    def setup(self, at: Place) -> tuple[Silo, ...]:
        """Agree on fresh keys with the silos that are there; return them, sorted.

        Raises
        ------
        SignatureInvalid
            A key is not signed by its silo, over this job, roster and these parameters.
        SumRefused
            The group is too small, lacks this silo or has one that is not on the roster.
        """
        if not self._parameters.secure:
            return ()
        vault, identity = self._vault, self._identity
        if self._session:
            vault.forget_session(self._session)
        self._session = session_name(self._job_id, self._attempt, at)
        key = vault.create_mask_key(self._session)
        signature = identity.sign(self._key_statement(self._silo, key))
        offer = KeyOffer(key, identity.certificate, signature)
        offers = self._link.exchange(KEYS, at, offer).offers
        members = tuple(sorted(offers))
        if offers.get(self._silo) != offer or not set(members) <= set(self._roster):
            raise SumRefused("the group has other silos, or another key of this silo, than it must")
        least = self._parameters.least_of(len(members))
        if len(members) < least:
            raise SumRefused(f"{len(members)} silos are fewer than the {least} that a sum needs")
        for silo in members:
            theirs = offers[silo]
            identity.verify(
                silo,
                theirs.certificate,
                self._key_statement(silo, theirs.public_key),
                theirs.signature,
            )
        self._certificates = {silo: offers[silo].certificate for silo in members}
        self._group = MaskGroup(
            self._session,
            self._silo,
            members,
            tuple(offers[silo].public_key for silo in members),
            key_digest(self._session, offers),
            self._parameters.threshold_of(len(members)),
        )
        with _vault_rules():
            vault.join_group(self._group)
        self._participants = members
        self._number = 0
        return members

    def sum(
        self,
        steps: SumSteps[Reply],
        at: Place,
        residues: Residues,
        *,
        ring_bits: int = 64,
        whole: bool = False,
    ) -> Reply:
        """Add a vector to a sum; return what the strategy's other half answers.

        Parameters
        ----------
        residues : ndarray of shape (n,)
            Of the ring, uint64 (uint32 for 32 bits); ``n`` is the same in all silos.
        whole : bool
            The sum must be over the set of the sum before it, or is not unmasked.

        Raises
        ------
        SumRefused
            The coordinator asks for a set that would tell this silo's data apart.
        SignatureInvalid
            Too few silos signed the set.
        PlacePassed
            The sum goes on without this silo; synchronise, and join at the next setup.
        """
        values = np.ascontiguousarray(residues, dtype=residue_dtype(ring_bits))
        if values.ndim != 1:
            raise ValueError(f"expected a vector, got {values.ndim} dimensions")
        if not self._parameters.secure:
            return self._link.exchange(steps.plain, at, PlainVector(values, ring_bits))
        if self._group is None:
            raise SumRefused("no keys were agreed on: setup comes before sums")
        with _vault_rules():
            return self._secure_sum(steps, at, values, ring_bits, whole)

    def _secure_sum(
        self, steps: SumSteps[Reply], at: Place, values: Residues, ring_bits: int, whole: bool
    ) -> Reply:
        self._deal(steps, at)
        ticket = SumTicket(
            self._session,
            self._number,
            layout(steps.name, at, len(values), ring_bits),
            self._participants,
            len(values),
            self._parameters.self_masks,
            self._parameters.blind_coordinator,
        )
        self._number += 1
        vector = None
        if not steps.repeatable and values.any():
            vector = masking.fingerprint(values)
        place = UnmaskingAt(f"{steps.name}/{at.level}/{at.passing}", at, vector, whole)
        recoverable = self._parameters.dropout_recovery
        willing = recoverable and place.forbidden(self._record, self._participants) is None
        masks = self._vault.derive_masks(ticket, willing)
        masked = masking.masked(values, ring_bits, masks.add, masks.subtract)
        if not recoverable:
            self._permit(place, self._participants)
            self._remember(place, self._participants)
            return self._link.exchange(steps.single, at, MaskedVector(masked, ring_bits, b"", b""))
        upload = MaskedVector(masked, ring_bits, masks.commitment, b"")
        return self._recoverable(steps, ticket, place, upload, masks.statement)

    def total(self, at: Place, residues: Residues, *, ring_bits: int = 64) -> Total:
        """Add a vector to a sum that every silo is told, by :data:`SUM`."""
        return self.opened(self.sum(SUM, at, residues, ring_bits=ring_bits))

    def opened(self, total: Total) -> Total:
        """Return the last sum's total as it is, with the group masks off (blind coordinator)."""
        if not self._parameters.secure or not self._parameters.blind_coordinator:
            return total
        seeds = self._vault.derive_group_masks(self._session, self._number - 1, total.present)
        values = masking.masked(total.values, total.ring_bits, (), seeds)
        return Total(values, total.ring_bits, total.present)

    def _deal(self, steps: SumSteps[Reply], at: Place) -> None:
        """Exchange shares of the self masks of the next sums, and the group key with the first."""
        parameters = self._parameters
        count = parameters.batch if parameters.dropout_recovery else 0
        due = self._number % parameters.batch == 0 if count else self._number == 0
        if not due or not (count or parameters.blind_coordinator):
            return
        sealed = self._vault.seal_shares(
            self._session,
            self._number,
            count,
            self._participants,
            parameters.blind_coordinator,
        )
        offer = SealedShares({Silo(peer): box for peer, box in sealed.items()})
        boxes = self._link.exchange(steps.shares, at, offer).boxes
        present = tuple(sorted({self._silo, *boxes}))
        if not set(present) <= set(self._participants):
            raise SumRefused("shares came from silos that do not take part")
        if not count and present != self._participants:
            raise SumRefused("without dropout recovery all of the group take part")
        self._check_size(present)
        self._vault.open_shares(
            self._session, self._number, count, {str(s): box for s, box in boxes.items()}
        )
        self._participants = present

    def _recoverable(
        self,
        steps: SumSteps[Reply],
        ticket: SumTicket,
        place: UnmaskingAt,
        upload: MaskedVector,
        statement: bytes,
    ) -> Reply:
        """Upload, agree on who is there, reveal what takes the masks off.

        ``statement`` is on the full set; empty where this silo may not agree to that.
        """
        session, number = ticket.session, ticket.number
        full = self._participants
        endorsed = full if statement else ()
        signature = self._identity.sign(statement) if statement else b""
        bound = self._record.bound(place.key, place.at)
        offer = replace(upload, signature=signature, bound=bound)
        reply = self._link.exchange(steps.masked, place.at, offer)
        agreed: tuple[Silo, ...] | None = None
        passing = 0
        while reply.present != agreed:
            if reply.abandoned:
                return self._link.exchange(steps.unmask, place.at, Unmasking({}))
            if self._silo not in reply.present:
                raise PlacePassed(f"the sum of round {place.at.round} goes on without {self._silo}")
            self._permit(place, reply.present)
            if reply.present != endorsed:
                statement = self._vault.endorse(session, number, reply.present)
                endorsed = reply.present
            if not reply.signatures:
                asked = reply.present
                again = repeat(place.at, passing)
                passing += 1
                signature = self._identity.sign(statement)
                reply = self._link.exchange(steps.agree, again, SetSignature(signature))
                if reply.present != asked:
                    continue
            self._verify(statement, reply)
            agreed = reply.present
            if agreed != full:
                # Not recorded yet: without shares of self masks these seeds open no vector.
                seeds = self._vault.reveal_pair_seeds(session, number, agreed)
                known = PairSeeds({Silo(peer): seed for peer, seed in seeds.items()})
                reply = self._link.exchange(steps.seeds, repeat(place.at, passing), known)
        assert agreed is not None
        self._remember(place, agreed)
        shares = self._vault.reveal_shares(session, number, agreed)
        self._participants = agreed
        return self._link.exchange(
            steps.unmask,
            place.at,
            Unmasking({Silo(owner): share for owner, share in shares.items()}),
        )

    def _permit(self, place: UnmaskingAt, present: tuple[Silo, ...]) -> None:
        self._check_size(present)
        reason = place.forbidden(self._record, present)
        if reason is not None:
            raise SumRefused(
                f"sum {place.key} of round {place.at.round} is not unmasked "
                f"over {', '.join(present)}: {reason}"
            )

    def _check_size(self, present: tuple[Silo, ...]) -> None:
        assert self._group is not None
        least = self._parameters.least_of(len(self._group.members))
        if len(present) < least:
            raise SumRefused(f"{len(present)} silos are fewer than the {least} that a sum needs")

    def _remember(self, place: UnmaskingAt, present: tuple[Silo, ...]) -> None:
        self._record.note(place.key, place.at, place.vector, present)
        self._link.remember(self._key, self._record.encode())

    def _verify(self, statement: bytes, agreed: PresentSet) -> None:
        assert self._group is not None
        needed = max(self._group.threshold, LEAST_SILOS)
        valid = 0
        for silo in agreed.present:
            signature = agreed.signatures.get(silo)
            if signature is None:
                continue
            try:
                self._identity.verify(silo, self._certificates[silo], statement, signature)
            except SignatureInvalid:
                continue
            valid += 1
            if valid >= needed:
                return
        raise SignatureInvalid(
            f"{valid} silos signed the set to unmask, {needed} are needed: the coordinator may "
            "have shown different sets"
        )

    def _key_statement(self, silo: Silo, key: bytes) -> bytes:
        return key_statement(self._session, self._roster, self._parameters, silo, key)

    @property
    def _vault(self) -> Vault:
        assert self._maybe_vault is not None
        return self._maybe_vault

    @property
    def _identity(self) -> Identity:
        assert self._maybe_identity is not None
        return self._maybe_identity


class CoordinatorSums:
    """The coordinator half.

    Parameters
    ----------
    hub : Hub
    job_id : str
    attempt : int
    parameters : SumParameters
    """

    def __init__(
        self,
        hub: Hub,
        *,
        job_id: str,
        attempt: int,
        parameters: SumParameters,
    ) -> None:
        self._hub = hub
        self._job_id = job_id
        self._attempt = attempt
        self._parameters = parameters
        self._session = ""
        self._members: tuple[Silo, ...] = ()
        self._participants: tuple[Silo, ...] = ()
        self._last: tuple[Silo, ...] = ()
        self._number = 0

    @property
    def participants(self) -> tuple[Silo, ...]:
        """Silos that the next sum is awaited from."""
        return self._participants

    @property
    def joining(self) -> tuple[Silo, ...]:
        """Present silos that take no part until the next setup."""
        return tuple(s for s in self._hub.silos if s not in self._participants)

    async def setup(self, at: Place) -> tuple[Silo, ...]:
        """Relay the keys of all silos present; they are the participants from now on.

        Raises
        ------
        QuorumLost
            Fewer silos than a sum needs.
        InvalidJob
            The threshold is half of the silos, or fewer.
        """
        self._session = session_name(self._job_id, self._attempt, at)
        self._number = 0
        if not self._parameters.secure:
            self._members = self._participants = self._hub.silos
            return self._participants
        least = max(self._parameters.least_silos, LEAST_SILOS)
        offers = await self._hub.collect(KEYS, at, quorum=least)
        threshold = self._parameters.threshold_of(len(offers))
        if threshold > len(offers):
            raise QuorumLost(
                f"threshold {threshold}: so many silos have to agree to an unmasking, "
                f"{len(offers)} are there: {', '.join(sorted(offers))}"
            )
        if threshold <= len(offers) // 2:
            raise InvalidJob(
                f"threshold {threshold}: of {len(offers)} silos more than half have to agree to an "
                f"unmasking; expected {len(offers) // 2 + 1} to {len(offers)}"
            )
        roster = KeyRoster(offers)
        self._hub.answer(KEYS, at, dict.fromkeys(offers, roster))
        self._members = self._participants = tuple(sorted(offers))
        return self._participants

    async def sum(
        self,
        steps: SumSteps[Reply],
        at: Place,
        n_values: int,
        *,
        ring_bits: int = 64,
        whole: bool = False,
    ) -> SumOutcome:
        """Return the sum of the participants' vectors; :meth:`answer` it afterwards.

        Raises
        ------
        QuorumLost
            So many silos were lost that nothing may be unmasked; names them.
        SumCorrupt
            A silo revealed wrong shares.
        """
        if not self._parameters.secure:
            return await self._open_sum(steps, at, n_values, ring_bits, whole)
        await self._deal(steps, at)
        number = self._number
        self._number += 1
        if not self._parameters.dropout_recovery:
            return await self._open_sum(steps, at, n_values, ring_bits, whole)
        return await self._recoverable(steps, at, n_values, ring_bits, number, whole)

    def answer(
        self, steps: SumSteps[Reply], outcome: SumOutcome, reply: Reply | Mapping[Silo, Reply]
    ) -> None:
        """Release the silos of a sum, with one reply for all or one for each."""
        if not outcome.answering:
            return
        replies = (
            {silo: reply[silo] for silo in outcome.answering}
            if isinstance(reply, Mapping)
            else dict.fromkeys(outcome.answering, reply)
        )
        if not self._parameters.secure:
            self._hub.answer(steps.plain, outcome.at, replies)
        elif self._parameters.dropout_recovery:
            self._hub.answer(steps.unmask, outcome.at, replies)
        else:
            self._hub.answer(steps.single, outcome.at, replies)

    async def total(self, at: Place, n_values: int, *, ring_bits: int = 64) -> SumOutcome:
        """Sum and tell every silo the total, by :data:`SUM`."""
        outcome = await self.sum(SUM, at, n_values, ring_bits=ring_bits)
        assert outcome.total is not None
        self.answer(SUM, outcome, Total(outcome.total, ring_bits, outcome.present))
        return outcome

    async def _open_sum(
        self,
        steps: SumSteps[Reply],
        at: Place,
        n_values: int,
        ring_bits: int,
        whole: bool,
    ) -> SumOutcome:
        """Sum in one exchange: plain, or masked without recovery, where nobody may be missing."""
        secure = self._parameters.secure
        expected = self._participants
        vectors: dict[Silo, Residues] = {}
        if secure:
            offers = await self._hub.collect(steps.single, at, silos=expected)
            vectors = {silo: offers[silo].values for silo in expected}
        else:
            least = self._parameters.least_silos
            plain = await self._hub.collect(steps.plain, at, silos=expected, quorum=least)
            vectors = {silo: plain[silo].values for silo in expected if silo in plain}
        for silo, values in list(vectors.items()):
            if not _fits(values, n_values, ring_bits):
                reason = _misfit(n_values, ring_bits)
                if secure:
                    self._hub.reject(steps.single, at, silo, reason)
                else:
                    self._hub.reject(steps.plain, at, silo, reason)
                del vectors[silo]
        present = tuple(vectors)
        if secure and present != expected:
            raise QuorumLost(_missing(steps.name, at, expected, present, len(expected)))
        if not secure and len(present) < self._parameters.least_silos:
            least = self._parameters.least_silos
            raise QuorumLost(_missing(steps.name, at, expected, present, least))
        if whole and self._last and present != self._last:
            return SumOutcome(at, None, ring_bits, present, present)
        total = await asyncio.to_thread(masking.summed, vectors.values(), n_values, ring_bits)
        self._participants = self._last = present
        return SumOutcome(at, total, ring_bits, present, present)

    async def _deal(self, steps: SumSteps[Reply], at: Place) -> None:
        """Relay the shares of the next sums' self masks; who sends none is out."""
        parameters = self._parameters
        count = parameters.batch if parameters.dropout_recovery else 0
        due = self._number % parameters.batch == 0 if count else self._number == 0
        if not due or not (count or parameters.blind_coordinator):
            return
        least = parameters.least_of(len(self._members))
        offers = await self._hub.collect(steps.shares, at, silos=self._participants, quorum=least)
        present = tuple(silo for silo in self._participants if silo in offers)
        if len(present) < least:
            raise QuorumLost(_missing(steps.name, at, self._participants, present, least))
        replies = {
            silo: SealedShares(
                {
                    sender: offers[sender].boxes[silo]
                    for sender in present
                    if sender != silo and silo in offers[sender].boxes
                }
            )
            for silo in present
        }
        self._hub.answer(steps.shares, at, replies)
        self._participants = present

    async def _recoverable(
        self,
        steps: SumSteps[Reply],
        at: Place,
        n_values: int,
        ring_bits: int,
        number: int,
        whole: bool,
    ) -> SumOutcome:
        """Collect vectors, agree on who is there, take the masks off; see the module's table."""
        expected = self._participants
        least = self._parameters.least_of(len(self._members))
        uploads = await self._hub.collect(steps.masked, at, silos=expected, quorum=least)
        uploads = {silo: uploads[silo] for silo in expected if silo in uploads}
        waiting = set(uploads)
        for silo, upload in list(uploads.items()):
            fitting = upload.ring_bits == ring_bits and len(upload.commitment) == 32
            if not fitting or not _fits(upload.values, n_values, ring_bits):
                self._hub.reject(steps.masked, at, silo, _misfit(n_values, ring_bits))
                del uploads[silo]
                waiting.discard(silo)
        begun = self._begun(uploads, least, self._last if whole else ())
        present = tuple(uploads)
        wanted = begun or (self._last if whole and self._last else present)
        fixed = whole or bool(begun)
        if not set(wanted) <= set(present):
            if not whole:
                raise QuorumLost(_missing(steps.name, at, wanted, present, len(wanted)))
            self._hub.answer(steps.masked, at, dict.fromkeys(present, _ABANDONED))
            return await self._abandoned(steps, at, ring_bits, present)
        if len(wanted) < least:
            raise QuorumLost(_missing(steps.name, at, expected, wanted, least))
        present = wanted
        signatures = {silo: uploads[silo].signature for silo in present}
        if present != expected or not all(signatures.values()):
            signatures = {}
        self._hub.answer(steps.masked, at, dict.fromkeys(waiting, PresentSet(present, signatures)))
        seeds: dict[Silo, PairSeeds] = {}
        if not signatures:
            agreement = await self._agree(steps, at, present, expected, least, fixed)
            if agreement is None:
                if not whole:
                    raise QuorumLost(
                        f"the sum {steps.name!r} of round {at.round} was begun over "
                        f"{', '.join(present)} and can be over no other set"
                    )
                return await self._abandoned(steps, at, ring_bits, present)
            present, seeds = agreement
        unmaskings = await self._hub.collect(
            steps.unmask, at, silos=present, quorum=self._threshold
        )
        unmaskings = {silo: unmaskings[silo] for silo in present if silo in unmaskings}
        context = masking.sum_context(
            self._session, number, layout(steps.name, at, n_values, ring_bits)
        )

        def open_total() -> Residues:
            self_seeds = self._self_seeds(context, uploads, present, unmaskings)
            left_over = [
                (self._members.index(survivor), self._members.index(lost), seed)
                for survivor, revealed in seeds.items()
                for lost, seed in revealed.seeds.items()
            ]
            vectors = (uploads[silo].values for silo in present)
            total = masking.summed(vectors, n_values, ring_bits)
            return masking.unmasked(total, ring_bits, self_seeds, left_over)

        total = await asyncio.to_thread(open_total)
        self._participants = self._last = present
        return SumOutcome(at, total, ring_bits, present, tuple(unmaskings))

    async def _abandoned(
        self, steps: SumSteps[Reply], at: Place, ring_bits: int, present: tuple[Silo, ...]
    ) -> SumOutcome:
        closing = await self._hub.collect(steps.unmask, at, silos=present, quorum=0)
        answering = tuple(silo for silo in present if silo in closing)
        return SumOutcome(at, None, ring_bits, answering, answering)

    async def _agree(
        self,
        steps: SumSteps[Reply],
        at: Place,
        present: tuple[Silo, ...],
        expected: tuple[Silo, ...],
        least: int,
        fixed: bool,
    ) -> tuple[tuple[Silo, ...], dict[Silo, PairSeeds]] | None:
        """Have a set signed and the pair seeds with the lost revealed; again when more are lost.

        Returns
        -------
        tuple or None
            The set, and the pair seeds by survivor (empty when nobody is lost); ``None`` when the
            set was ``fixed`` and somebody was lost: the silos have been told that it is abandoned.
        """
        passing = 0
        while True:
            again = repeat(at, passing)
            passing += 1
            signed = await self._hub.collect(steps.agree, again, silos=present, quorum=least)
            there = tuple(silo for silo in present if silo in signed)
            self._check_least(steps, at, present, there, least)
            complete = there == present
            signatures = {silo: signed[silo].signature for silo in there} if complete else {}
            reply = PresentSet(there, signatures) if complete or not fixed else _ABANDONED
            self._hub.answer(steps.agree, again, dict.fromkeys(there, reply))
            if reply.abandoned:
                return None
            present = there
            if not complete:
                continue
            if present == expected:
                return present, {}
            again = repeat(at, passing)
            revealed = await self._hub.collect(steps.seeds, again, silos=present, quorum=least)
            lost = set(expected) - set(present)
            for silo in [s for s in revealed if s in present]:
                seeds = revealed[silo].seeds
                if set(seeds) != lost or any(len(seed) != 32 for seed in seeds.values()):
                    self._hub.reject(steps.seeds, again, silo, "expected a seed for each lost silo")
                    del revealed[silo]
            there = tuple(silo for silo in present if silo in revealed)
            self._check_least(steps, at, present, there, least)
            complete = there == present
            reply = PresentSet(there, {}) if complete or not fixed else _ABANDONED
            self._hub.answer(steps.seeds, again, dict.fromkeys(there, reply))
            if reply.abandoned:
                return None
            if complete:
                return present, {silo: revealed[silo] for silo in present}
            present = there

    @staticmethod
    def _check_least(
        steps: SumSteps[Reply],
        at: Place,
        present: tuple[Silo, ...],
        there: tuple[Silo, ...],
        least: int,
    ) -> None:
        if len(there) < least:
            raise QuorumLost(_missing(steps.name, at, present, there, least))

    def _self_seeds(
        self,
        context: bytes,
        uploads: Mapping[Silo, MaskedVector],
        present: tuple[Silo, ...],
        unmaskings: Mapping[Silo, Unmasking],
    ) -> list[bytes]:
        """Restore the self-mask secrets of the silos present and derive their seeds."""
        number = {silo: self._members.index(silo) for silo in unmaskings}
        seeds = []
        for owner in present:
            shares = {
                number[silo]: revealed.shares[owner]
                for silo, revealed in unmaskings.items()
                if owner in revealed.shares
            }
            try:
                secret = shamir.restore(shares, self._threshold)
            except ValueError as error:
                raise SumCorrupt(f"shares of {owner}'s mask are missing or malformed") from error
            if masking.commitment(secret, context) != uploads[owner].commitment:
                raise SumCorrupt(f"shares of {owner}'s mask do not fit its commitment")
            seeds.append(masking.self_seed(secret, context))
        return seeds

    @property
    def _threshold(self) -> int:
        return self._parameters.threshold_of(len(self._members))

    def _begun(
        self, uploads: Mapping[Silo, MaskedVector], least: int, last: tuple[Silo, ...]
    ) -> tuple[Silo, ...]:
        """Return the set that an earlier attempt began to unmask a sum over, if any.

        One silo is believed where the sum can go on over the set that it names: of silos that are
        there, large enough, and ``last`` if the sum has to be over that. Otherwise most silos have
        to name it, lest one ends the sum for all. Sets of one sum are nested, the smallest was the
        last: it decides where as many silos name either.
        """
        named: Counter[tuple[Silo, ...]] = Counter()
        for silo, upload in uploads.items():
            bound = upload.bound
            if silo in bound and list(bound) == sorted(set(bound)):
                named[bound] += 1
        credible = [
            bound
            for bound, n_silos in named.items()
            if 2 * n_silos > len(uploads)
            or (len(bound) >= least and set(bound) <= uploads.keys() and last in ((), bound))
        ]
        return min(credible, key=lambda bound: (-named[bound], len(bound), bound), default=())


_ABANDONED = PresentSet((), {}, abandoned=True)


def _fits(values: Residues, n_values: int, ring_bits: int) -> bool:
    return values.shape == (n_values,) and values.dtype == residue_dtype(ring_bits)


def _misfit(n_values: int, ring_bits: int) -> str:
    return f"expected {n_values} residues of a {ring_bits}-bit ring, and a 32-byte commitment"


def _missing(
    name: str, at: Place, expected: tuple[Silo, ...], present: tuple[Silo, ...], needed: int
) -> str:
    missing = ", ".join(sorted(set(expected) - set(present))) or "none"
    return (
        f"the sum {name!r} of round {at.round} needs {needed} silos, {len(present)} are there; "
        f"missing {missing}"
    )
