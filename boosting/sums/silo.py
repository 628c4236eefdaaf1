"""The silo half of the secure sums; :mod:`hedgerow.boosting.sums` has the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import OfferRejected, PlacePassed, SignatureInvalid, SumRefused
from hedgerow.boosting.exchange import Discloses, ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.ports import Identity, SiloStart, SumSets
from hedgerow.boosting.sums.groups import LEAST_ROWS, OpenedSets, groups_of_job
from hedgerow.boosting.sums.records import UnmaskingAt, UnmaskingRecord
from hedgerow.boosting.sums.steps import (
    KEYS,
    SUM,
    KeyOffer,
    MaskedVector,
    PairSeeds,
    PlainVector,
    PresentSet,
    SealedShares,
    SetSignature,
    SumParameters,
    SumSteps,
    SumTotal,
    Unmasking,
    all_hybrid,
    kem_statement,
    key_digest,
    key_statement,
    repeat,
    session_name,
    told_rows,
)
from hedgerow.boosting.sums.tree_masks import OpenTree
from hedgerow.boosting.sums.view import sum_view
from hedgerow.crypto.errors import Refusal
from hedgerow.crypto.masking import masks as masking
from hedgerow.crypto.masking.fixed_point import residue_dtype
from hedgerow.crypto.masking.key_agreement import KEY_BYTES
from hedgerow.crypto.masking.masks import Residues, Ring, word_bits
from hedgerow.crypto.masking.totals import Check, TotalsCheck
from hedgerow.crypto.vault.interface import LEAST_SILOS, MaskGroup, SumTicket, Vault

Reply = TypeVar("Reply")
Checked = tuple[type[Check], NDArray[np.int64]] | None
_START = 1024


@contextmanager
def _vault_rules() -> Iterator[None]:
    """Raise :class:`SumRefused` where the vault refuses."""
    try:
        yield
    except Refusal as error:
        raise SumRefused(str(error)) from error


def _place(
    steps: SumSteps[Reply],
    at: ExchangeKey,
    values: NDArray[Any],
    view: bytes,
    *,
    whole: bool,
    of_rows: bool,
) -> UnmaskingAt:
    # The start of nearly every vector shows that it is not zero.
    some = values[:_START].any() or values.any()
    vector = masking.fingerprint(values) if some else None
    key = f"{steps.name}/{at.level}/{at.passing}"
    noised = steps.plain.discloses is Discloses.NOISED
    return UnmaskingAt(key, at, vector, whole, view.hex(), of_rows, noised)


def _rows_of(data: Dataset) -> tuple[int, int]:
    """Return a silo's rows in a job's sums, and those left out: without a label, or any weight.

    A weight below a hundredth of the largest is as good as none.
    """
    n = data.n_samples
    if n and data.weight is not None:
        n = int(np.count_nonzero(data.weight > 0.01 * data.weight.max()))
    return n, data.n_samples - n + data.unlabelled


class SiloSums:
    """The silo half of one attempt's sums.

    Parameters
    ----------
    vault : Vault or None
        Keeps the masks' keys; not needed without secure sums.
    identity : Identity or None
        Signs; not needed without secure sums.
    roster : tuple[Silo, ...]
        The job's roster, sorted: nobody else is accepted.
    job_digest : bytes
        Of what the operator signed; in every view.
    parameters : SumParameters
        The same in all silos; the signatures cover them.
    require_hybrid : bool
        Refuse groups without ML-KEM, as this silo's policy says.
    opened : SumSets
        Over which sets sums may be opened: unions of the job's groups.
    least_silos : int
        Fewest silos that this silo's policy lets a sum be over, also where the job says less.
    rows : tuple of int and int, or None
        Its rows in sums of this job, and those of its table that are left out; None where noise
        hides them.
    empty : bool
        Whether there are none.
    few : bool
        Whether these are so few that they hide no other silo's.
    """

    def __init__(
        self,
        link: SiloChannel,
        vault: Vault | None,
        identity: Identity | None,
        *,
        silo: Silo,
        roster: tuple[Silo, ...],
        job_id: str,
        job_digest: bytes,
        attempt: int,
        parameters: SumParameters,
        require_hybrid: bool = False,
        opened: SumSets,
        least_silos: int = 0,
        rows: tuple[int, int] | None = None,
        empty: bool = False,
        few: bool = False,
    ) -> None:
        if parameters.secure and (vault is None or identity is None):
            raise ValueError("secure sums need a vault and an identity")
        self._link = link
        self._maybe_vault = vault
        self._maybe_identity = identity
        self._silo = silo
        self._roster = roster
        self._job_id = job_id
        self._job_digest = job_digest
        self._attempt = attempt
        self._parameters = parameters
        self._require_hybrid = require_hybrid
        self._opened = opened
        self._own_least = least_silos
        self._rows, self._empty, self._few = rows, empty, few
        self._session = ""
        self._allowed = roster
        self._n_members = 0
        self._group: MaskGroup | None = None
        self._certificates: dict[Silo, bytes] = {}
        self._participants: tuple[Silo, ...] = ()
        self._number = 0
        self._asked = (0, 0)
        self._tree: OpenTree | None = None
        self._totals_key = b""
        self._check: Check | None = None
        self._key = f"secure-sums/{job_id}"
        self._record = UnmaskingRecord.parse(link.recall(self._key))

    @classmethod
    def of(
        cls, link: SiloChannel, vault: Vault | None, start: SiloStart, parameters: SumParameters
    ) -> SiloSums:
        """Return the silo half of a job's sums."""
        groups = start.groups or groups_of_job(start.job, start.silos)
        noised = start.job.parameters.safeguards(start.job).hides_rows
        rows = _rows_of(start.dataset)
        return cls(
            link,
            vault,
            start.identity,
            silo=start.silo,
            roster=start.silos,
            job_id=start.job_id,
            job_digest=start.job_digest,
            attempt=start.attempt,
            parameters=parameters,
            require_hybrid=start.require_hybrid,
            opened=start.opened or OpenedSets(groups, start.job.most_close_sums),
            least_silos=start.least_silos,
            rows=None if noised else rows,
            empty=not start.dataset.n_samples,
            few=rows[0] < (1 if noised else LEAST_ROWS),
        )

    @property
    def participants(self) -> tuple[Silo, ...]:
        """Silos that the next sum is over unless more are lost; empty without secure sums."""
        return self._participants

    @property
    def checks_totals(self) -> bool:
        """Whether silos share a key by which they check totals."""
        return self._parameters.checks_totals

    def beside(self, parameters: SumParameters) -> SiloSums:
        """Return sums of another group, at the same time; one record is kept of both."""
        other = copy(self)
        other._parameters, other._session, other._group = parameters, "", None
        other._totals_key = b""
        return other

    def setup(self, at: ExchangeKey, cohort: tuple[Silo, ...] = ()) -> tuple[Silo, ...]:
        """Agree on fresh keys with the silos that are present; return them, sorted.

        Parameters
        ----------
        cohort : tuple of Silo
            The only silos that may be in the group, as this silo has drawn them; by default all of
            the roster.

        Raises
        ------
        SignatureInvalid
            A key is not signed by its silo, over this job, roster and these parameters.
        SumRefused
            The group is too small, lacks this silo or has a silo that is not on the roster.
        """
        if not self._parameters.secure:
            return ()
        vault, identity = self._vault, self._identity
        self._allowed = cohort or self._roster
        if self._session:
            vault.forget_session(self._session)
        self._session = session_name(self._job_id, self._attempt, at)
        offer = self._key_offer(vault, identity)
        offers = self._link.exchange(KEYS, at, offer).offers
        members = tuple(sorted(offers))
        hybrid = self._agreed_hybrid(offer, offers)
        strangers = sorted(set(members) - set(self._allowed))
        if strangers:
            whose = f"the cohort of round {at.round}" if cohort else "the job's roster"
            raise SumRefused(f"the group has silos off {whose}: {', '.join(strangers)}")
        self._n_members = len(members)
        for silo in members:
            self._verify_keys(identity, silo, offers[silo])
        came = {silo: offers[silo] for silo in members}
        said = {silo: offer.companions for silo, offer in came.items()}
        self._opened.agree(said, self._silo, **told_rows(came))
        self._check_set(members)
        self._certificates = {silo: offers[silo].certificate for silo in members}
        self._group = MaskGroup(
            self._session,
            self._silo,
            members,
            tuple(offers[silo].public_key for silo in members),
            key_digest(self._session, offers),
            self._parameters.threshold_of(self._n_members),
            tuple(offers[silo].kem_key for silo in members) if hybrid else (),
        )
        with _vault_rules():
            vault.join_group(self._group)
        self._participants = members
        self._number = 0
        self._tree = None
        self._totals_key = b""
        return members

    def sum(
        self,
        steps: SumSteps[Reply],
        at: ExchangeKey,
        residues: Residues,
        *,
        state: bytes,
        ring: Ring = 64,
        content: NDArray[np.int64] | None = None,
        opens_tree: bool = False,
        whole: bool = False,
        totals: NDArray[np.int64] | None = None,
        check: type[Check] = TotalsCheck,
        of_rows: bool = True,
    ) -> Reply:
        """Add a vector to a sum; return the reply of the strategy's coordinator half.

        Parameters
        ----------
        residues : ndarray of shape (n,)
            Of the ring, uint64 (uint32 for 32 bits), or the words of packed fields; ``n`` is the
            same in all silos.
        state : bytes
            :func:`~.view.state_digest` of all that the vector is computed from beside the silo's
            own rows: schema, model so far, open tree, what was agreed on.
        ring : Ring
            Bits of the ring, 64, 48 or 32, or the packed fields. The view has it.
        content : ndarray or None
            The silo's data where the vector is not the same whenever they are: other widths, or
            random flags. Data are never summed again over another set.
        opens_tree : bool
            The sums that follow with ``whole`` are inside the tree that this sum opens.
        whole : bool
            The sum must be over the set of the sum that opened the tree, or is not unmasked.
        totals : ndarray of shape (n,) or None
            This silo's parts of totals that :meth:`check_totals` checks in the reply. The word that
            it is checked by takes the first elements of the vector, which are 0 until then.
        check : type
            Of the totals.
        of_rows : bool
            Whether the vector depends on this silo's rows. One that does not may be summed over any
            allowed set, again and again, and says nothing of which rounds were unmasked.

        Raises
        ------
        SumRefused
            The coordinator asks for a set that would isolate this silo's data.
        SignatureInvalid
            Too few silos signed the set.
        PlacePassed
            The sum goes on without this silo; synchronise, and join at the next setup.
        """
        values = np.ascontiguousarray(residues, dtype=residue_dtype(word_bits(ring)))
        if values.ndim != 1:
            raise ValueError(f"expected a vector, received {values.ndim} dimensions")
        self._asked = (len(values), word_bits(ring))
        if not self._parameters.secure:
            return self._link.exchange(steps.plain, at, PlainVector(values, word_bits(ring)))
        if self._group is None:
            raise SumRefused("the silos have no keys yet: a setup must precede the sums")
        view = sum_view(self._job_digest, steps.name, at, len(values), ring, state)
        in_tree = whole and self._parameters.dropout_recovery
        data = values if content is None else content
        place = _place(steps, at, data, view, whole=whole, of_rows=of_rows)
        checked = None if totals is None else (check, totals)
        if of_rows:
            self._opened.bind(self._rows)
        with _vault_rules():
            if in_tree:
                return self._sum_in_tree(steps, place, values, ring, view, checked)
            return self._secure_sum(steps, place, values, ring, view, opens_tree, checked)

    def total(
        self,
        at: ExchangeKey,
        residues: Residues,
        *,
        state: bytes,
        ring_bits: int = 64,
        content: NDArray[np.int64] | None = None,
        steps: SumSteps[SumTotal] = SUM,
        check: type[Check] | None = None,
        of_rows: bool = True,
    ) -> SumTotal:
        """Add a vector to a sum whose total every silo receives.

        Parameters
        ----------
        check : type or None
            How silos check that the total is that of their vectors, with a key that they share.
        state, content, of_rows
            As in :meth:`sum`.

        Raises
        ------
        OfferRejected
            The coordinator has sent another total.
        """
        if check is None:
            plain = self.sum(
                steps, at, residues, state=state, ring=ring_bits, content=content, of_rows=of_rows
            )
            return self.opened(plain)
        if ring_bits != 64:
            raise ValueError(f"only sums of 64 bits are checked, received {ring_bits}")
        n_words = check.N_WORDS
        sent = np.concatenate([np.zeros(n_words, np.uint64), residues])
        total = self.opened(
            self.sum(
                steps,
                at,
                sent,
                state=state,
                content=sent.view(np.int64).copy() if content is None else content,
                totals=residues.view(np.int64),
                check=check,
                of_rows=of_rows,
            )
        )
        values = total.values.view(np.int64)
        self.check_totals(at, values[n_words:], values[:n_words])
        return replace(total, values=total.values[n_words:])

    def opened(self, total: SumTotal) -> SumTotal:
        """Return the last sum's total without its group masks (blind coordinator).

        Raises
        ------
        OfferRejected
            The total that was relayed has another length or ring than the sum.
        SumRefused
            It is over another set.
        """
        if (total.values.shape[0], total.ring_bits) != self._asked:
            raise OfferRejected(
                f"total: expected {self._asked[0]} residues of {self._asked[1]} bits, received "
                f"{total.values.shape[0]} of {total.ring_bits}"
            )
        if not self._parameters.secure or not self._parameters.blind_coordinator:
            return total
        if self._tree is not None and self._tree.view:
            seeds = self._tree.group_seeds(total.present)
        else:
            with _vault_rules():
                seeds = self._vault.derive_group_masks(
                    self._session, self._number - 1, total.present
                )
        values = masking.masked(total.values, total.ring_bits, (), seeds)
        return SumTotal(values, total.ring_bits, total.present)

    def check_totals(
        self, at: ExchangeKey, totals: NDArray[np.int64], word: NDArray[np.int64]
    ) -> None:
        """Check totals that the coordinator says the last sum has.

        Parameters
        ----------
        totals : ndarray of shape (n,)
        word : ndarray of shape (n_words,)
            The first elements of the sum.

        Raises
        ------
        OfferRejected
            They are not the sums of what the silos have added; names the coordinator.
        """
        present = self._participants if self._tree is None else self._tree.present
        where = f"round {at.round}, level {at.level}: "
        check = self._check
        assert check is not None
        if (totals.shape, word.shape) != ((check.n_totals,), (check.N_WORDS,)):
            raise OfferRejected(
                f"{where}expected {check.n_totals} totals and a word of {check.N_WORDS} numbers "
                f"from the coordinator, received {len(totals)} and {len(word)}"
            )
        if not check.holds(totals, word, present):
            raise OfferRejected(
                f"{where}the coordinator has sent {len(totals)} totals that do not fit the silos' "
                "word; expected the sums of what the silos have added. Either it has changed them, "
                "or a silo has added a word of other numbers"
            )

    def _add_word(
        self,
        values: Residues,
        view: bytes,
        silos: tuple[Silo, ...],
        checked: Checked,
    ) -> None:
        self._check = None
        if checked is not None:
            kind, totals = checked
            if not self._totals_key:
                self._totals_key = self._vault.derive_totals_key(self._session)
            self._check = kind(self._totals_key, view, silos, len(totals))
            values[: kind.N_WORDS] = self._check.word(self._silo, totals)

    def _secure_sum(
        self,
        steps: SumSteps[Reply],
        place: UnmaskingAt,
        values: Residues,
        ring: Ring,
        view: bytes,
        opens_tree: bool,
        checked: Checked,
    ) -> Reply:
        self._tree = None
        self._deal(steps, place.at)
        self._add_word(values, view, self._participants, checked)
        ticket = SumTicket(
            self._session,
            self._number,
            view,
            self._participants,
            len(values),
            self._parameters.self_masks,
            self._parameters.blind_coordinator,
        )
        self._number += 1
        recoverable = self._parameters.dropout_recovery
        willing = recoverable and self._record.forbids(place, self._participants) is None
        masks = self._vault.derive_masks(ticket, willing)
        masked = masking.masked(values, ring, masks.add, masks.subtract)
        upload = MaskedVector(masked, word_bits(ring), masks.commitment, b"", tag=masks.tag)
        if recoverable:
            agreed = self._recoverable(steps, ticket, place, upload, masks.statement)
            return self._unmask(steps, ticket, place, agreed, opens_tree)
        self._permit(place, self._participants)
        self._remember(place, self._participants)
        return self._link.exchange(steps.single, place.at, upload)

    def _sum_in_tree(
        self,
        steps: SumSteps[Reply],
        place: UnmaskingAt,
        values: Residues,
        ring: Ring,
        view: bytes,
        checked: Checked,
    ) -> Reply:
        """Add to a sum over the tree's fixed set: one exchange, no self mask.

        Nothing removes these masks but the vectors of all of the set, so the upload counts as an
        unmasking and is recorded before it leaves.
        """
        tree = self._tree
        if tree is None:
            raise SumRefused(f"sum {steps.name!r} is inside a tree, and none is open")
        tree.enter(view)
        self._add_word(values, view, tree.present, checked)
        self._permit(place, tree.present)
        self._remember(place, tree.present)
        add, subtract = tree.seeds()
        masked = masking.masked(values, ring, add, subtract)
        return self._link.exchange(
            steps.single, place.at, MaskedVector(masked, word_bits(ring), b"", b"", tag=tree.tag)
        )

    def _deal(self, steps: SumSteps[Reply], at: ExchangeKey) -> None:
        """Exchange shares of the self masks of the next sums, and the group key with the first."""
        count = self._parameters.shares_due(self._number)
        if count is None:
            return
        dealt = self._vault.seal_shares(
            self._session,
            self._number,
            count,
            self._participants,
            self._parameters.shares_key,
        )
        offer = SealedShares({Silo(peer): box for peer, box in dealt.items()})
        boxes = self._link.exchange(steps.shares, at, offer).boxes
        present = tuple(sorted({self._silo, *boxes}))
        if not set(present) <= set(self._participants):
            raise SumRefused("received shares of silos that do not take part")
        if not count and present != self._participants:
            raise SumRefused("without dropout recovery all of the group must take part")
        self._check_set(present)
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
    ) -> tuple[Silo, ...]:
        """Upload and agree on the set; return it.

        ``statement`` is about the full set; empty where this silo may not agree to that.
        """
        session, number = ticket.session, ticket.number
        full = self._participants
        endorsed = full if statement else ()
        signature = self._identity.sign(statement) if statement else b""
        offer = replace(upload, signature=signature, bound=self._record.bound(place))
        reply = self._link.exchange(steps.masked, place.at, offer)
        agreed: tuple[Silo, ...] | None = None
        passing = 0
        while reply.present != agreed:
            if self._silo not in reply.present:
                raise PlacePassed(f"the sum of round {place.at.round} goes on without {self._silo}")
            self._check_set(reply.present)
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
        return agreed

    def _unmask(
        self,
        steps: SumSteps[Reply],
        ticket: SumTicket,
        place: UnmaskingAt,
        agreed: tuple[Silo, ...],
        opens_tree: bool,
    ) -> Reply:
        """Reveal what removes the masks of the agreed set."""
        self._remember(place, agreed)
        reveal = self._vault.reveal_shares(ticket.session, ticket.number, agreed, opens_tree)
        self._participants = agreed
        if reveal.tree is not None:
            self._tree = OpenTree(self._silo, agreed, reveal.tree)
        unmasking = Unmasking({Silo(owner): share for owner, share in reveal.shares.items()})
        return self._link.exchange(steps.unmask, place.at, unmasking)

    def _permit(self, place: UnmaskingAt, present: tuple[Silo, ...]) -> None:
        reason = self._record.forbids(place, present)
        if reason is not None:
            raise SumRefused(
                f"sum {place.key} of round {place.at.round} must not be unmasked "
                f"over {', '.join(present)}: {reason}"
            )

    def _check_set(self, present: tuple[Silo, ...]) -> None:
        least = max(self._parameters.least_of(self._n_members), self._own_least)
        if len(present) < least:
            raise SumRefused(f"expected a sum over at least {least} silos, received {len(present)}")
        reason = self._opened.forbids(present)
        if reason:
            raise SumRefused(f"no sum may be over {', '.join(present)}: {reason}")

    def _remember(self, place: UnmaskingAt, present: tuple[Silo, ...]) -> None:
        self._opened.note(present)
        self._record.note(place, present)
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
            f"expected {needed} signatures over the set to unmask, received {valid} valid ones: "
            "the coordinator may have shown different sets to different silos"
        )

    def _key_offer(self, vault: Vault, identity: Identity) -> KeyOffer:
        made = vault.create_mask_key(self._session, self._parameters.hybrid)
        key, kem_key = made[:KEY_BYTES], made[KEY_BYTES:]
        changed, differing = self._opened.say_rows(*self._rows) if self._rows else ((), ())
        offer = KeyOffer(
            key,
            identity.certificate,
            companions=self._opened.companions,
            empty=self._empty,
            few=self._few,
            changed=changed,
            differing=differing,
        )
        statement = self._key_statement(self._silo, offer)
        kem_signature = identity.sign(kem_statement(statement, kem_key)) if kem_key else b""
        return replace(
            offer,
            signature=identity.sign(statement),
            kem_key=kem_key,
            kem_signature=kem_signature,
        )

    def _agreed_hybrid(self, own: KeyOffer, offers: Mapping[Silo, KeyOffer]) -> bool:
        """Whether the group's roots have an ML-KEM part: if all silos have offered a key of it.

        A coordinator of an older release takes all those keys off. One that takes off some is
        noticed: by their owner here, or by others, whose digest of the keys is then another.
        """
        found = offers.get(self._silo)
        others = any(offer.kem_key for offer in offers.values())
        if found != own and (found != own.without_kem or others):
            raise SumRefused("the group lacks this silo, or has another key for it")
        hybrid = all_hybrid(offers)
        if self._require_hybrid and not hybrid:
            without = sorted(silo for silo, offer in offers.items() if not offer.kem_key)
            raise SumRefused(
                f"policy rule require_hybrid: no ML-KEM key came from {', '.join(without)}"
            )
        return hybrid

    def _verify_keys(self, identity: Identity, silo: Silo, offer: KeyOffer) -> None:
        companions, signature = offer.companions, offer.signature
        if companions and silo not in companions:
            raise SumRefused(
                f"companions of {silo}: expected {silo} among them, received {len(companions)} "
                f"silos: {', '.join(companions[:8])}"
            )
        statement = self._key_statement(silo, offer)
        if offer.kem_key:  # that signature is over both keys
            statement, signature = kem_statement(statement, offer.kem_key), offer.kem_signature
        identity.verify(silo, offer.certificate, statement, signature)

    def _key_statement(self, silo: Silo, offer: KeyOffer) -> bytes:
        allowed, groups = self._allowed, self._opened.groups
        return key_statement(self._session, allowed, groups, self._parameters, silo, offer)

    @property
    def _vault(self) -> Vault:
        assert self._maybe_vault is not None
        return self._maybe_vault

    @property
    def _identity(self) -> Identity:
        assert self._maybe_identity is not None
        return self._maybe_identity
