"""The coordinator half of the secure sums; :mod:`hedgerow.boosting.sums` has the protocol."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hedgerow.boosting.errors import InvalidJob, OfferRejected, QuorumLost, SumCorrupt
from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, Silo, Step
from hedgerow.boosting.ports import CoordinatorStart
from hedgerow.boosting.sums.groups import (
    OpenedSets,
    encode_sets,
    groups_of_job,
    parse_sets,
    told_apart,
    waited_for,
)
from hedgerow.boosting.sums.requests import SumOutcome, SumRequest, begun_set
from hedgerow.boosting.sums.steps import (
    KEYS,
    SUM,
    KeyRoster,
    MaskedVector,
    PairSeeds,
    PresentSet,
    SealedShares,
    SumParameters,
    SumSteps,
    SumTotal,
    Unmasking,
    repeat,
    session_name,
    told_rows,
)
from hedgerow.crypto.masking import masks, shamir
from hedgerow.crypto.masking.masks import Residues, Ring
from hedgerow.crypto.masking.totals import Check
from hedgerow.crypto.vault.interface import LEAST_SILOS, DealtBox

Offer = TypeVar("Offer")
Reply = TypeVar("Reply")
_OPENED = "sums/opened"


class CoordinatorSums:
    """The coordinator half of one attempt's sums.

    Parameters
    ----------
    opened : OpenedSets
        Over which sets sums may be opened: unions of the job's groups.
    least_silos : int
        The largest number of silos that the policy of one of them asks for in a sum.
    """

    def __init__(
        self,
        hub: CoordinatorEndpoint,
        *,
        job_id: str,
        attempt: int,
        parameters: SumParameters,
        opened: OpenedSets,
        least_silos: int = 0,
    ) -> None:
        self._hub = hub
        self._job_id = job_id
        self._attempt = attempt
        self._parameters = parameters
        self._opened = opened if parameters.secure else OpenedSets(())
        self._own_least = least_silos
        self._session = ""
        self._members: tuple[Silo, ...] = ()
        self._participants: tuple[Silo, ...] = ()
        self._left: Counter[Silo] = Counter()
        self._last: tuple[Silo, ...] = ()
        self._number = 0
        self._dealt = 0
        self._shares: dict[Silo, Mapping[Silo, DealtBox]] = {}

    @classmethod
    def of(
        cls, hub: CoordinatorEndpoint, start: CoordinatorStart, parameters: SumParameters
    ) -> CoordinatorSums:
        """Return the coordinator half of a job's sums."""
        groups = start.groups or groups_of_job(start.job, start.silos)
        opened = OpenedSets(groups, start.job.most_close_sums)
        journal = start.journal
        if journal is not None:
            for one in parse_sets(journal.recall(_OPENED)):
                opened.note(one)
            opened.keep = lambda: journal.remember(_OPENED, encode_sets(opened.sets))
        return cls(
            hub,
            job_id=start.job_id,
            attempt=start.attempt,
            parameters=parameters,
            opened=opened,
            least_silos=start.least_silos,
        )

    @property
    def participants(self) -> tuple[Silo, ...]:
        """Silos that the next sum waits for."""
        return self._participants

    @property
    def left(self) -> Counter[Silo]:
        """How often each silo had left the present set at the last setup."""
        return self._left

    @property
    def joining(self) -> tuple[Silo, ...]:
        """Silos that take no part until the next setup, and can take part in it."""
        return tuple(s for s in self.usable(self._hub.silos) if s not in self._participants)

    def usable(self, silos: Collection[Silo]) -> tuple[Silo, ...]:
        """Return those of some silos that a sum may be over: those of whole groups."""
        return self._opened.usable(silos)

    @property
    def checks_totals(self) -> bool:
        """Whether silos share a key by which they check totals."""
        return self._parameters.checks_totals

    def beside(self, parameters: SumParameters) -> CoordinatorSums:
        """Return sums of another group, at the same time."""
        other = copy(self)
        other._parameters = parameters
        return other

    async def setup(
        self, at: ExchangeKey, silos: tuple[Silo, ...] | None = None
    ) -> tuple[Silo, ...]:
        """Relay the keys of all silos present; they are the participants from now on.

        Parameters
        ----------
        silos : tuple of Silo or None
            The only silos that are awaited; None for all that are present.

        Raises
        ------
        QuorumLost
            Fewer silos than a sum needs, or than make up whole groups.
        InvalidJob
            The threshold is half of the silos, or fewer.
        """
        self._session = session_name(self._job_id, self._attempt, at)
        self._number, self._left = 0, self._hub.left
        if not self._parameters.secure:
            self._members = self._participants = self._hub.silos if silos is None else silos
            return self._participants
        least = max(self._parameters.least_silos, LEAST_SILOS, self._own_least)
        offers = await self._hub.collect(KEYS, at, silos=silos, since=self._left, quorum=least)
        said = {silo: offer.companions for silo, offer in offers.items()}
        self._opened.agree(said, None, **told_rows(offers))
        came, offers = tuple(offers), self._with_whole_groups(KEYS, offers)
        if len(offers) < least:
            raise QuorumLost(f"a sum needs {least} silos, {self._who_waits(offers, came)}")
        threshold = self._parameters.threshold_of(len(offers))
        if threshold > len(offers):
            raise QuorumLost(
                f"threshold {threshold}: at least that many silos must agree to an unmasking, "
                f"{len(offers)} are present: {', '.join(offers)}"
            )
        if threshold <= len(offers) // 2:
            raise InvalidJob(
                f"threshold {threshold}: of {len(offers)} silos more than half must agree to an "
                f"unmasking; expected {len(offers) // 2 + 1} to {len(offers)}"
            )
        self._hub.answer(KEYS, at, dict.fromkeys(offers, KeyRoster(offers)))
        self._members = self._participants = tuple(offers)
        return self._participants

    def _with_whole_groups(
        self, step: Step[Offer, Any], offers: dict[Silo, Offer]
    ) -> dict[Silo, Offer]:
        """Return the offers of whole groups; let the other silos go, which wait for one of them."""
        usable = set(self.usable(offers))
        waits = waited_for(self._opened.tied, offers)
        for silo in offers:
            if silo not in usable:
                away = [str(one) for one, own in waits.items() if silo in own]
                self._hub.drop(silo, f"its group waits for {', '.join(away) or 'the next setup'}")
                self._hub.dismiss(step, silo)
        return {silo: offer for silo, offer in offers.items() if silo in usable}

    def _who_waits(self, there: Collection[Silo], came: Collection[Silo]) -> str:
        """Return how many silos there are, for whom others wait, and what would let them go on."""
        waits = waited_for(self._opened.tied, came)
        text = f"{len(there)} are there in whole groups"
        for silo, own in sorted(waits.items()):
            text += f"; {', '.join(own)} wait for {silo} of their group"
        if waits:
            text += "; the job and all policies may allow sums without it by max_close_sums"
        return text

    async def sum(
        self,
        steps: SumSteps[Reply],
        at: ExchangeKey,
        n_values: int,
        *,
        ring: Ring = 64,
        whole: bool = False,
        complete: bool = False,
        forgone: bool = False,
    ) -> SumOutcome:
        """Return the sum of the participants' vectors; :meth:`answer` it afterwards.

        Parameters
        ----------
        n_values : int
            Residues, or words of packed fields.
        ring : Ring
            The same as in the silos.
        complete : bool
            Whether it has to be over the set of the sum before it, or is not opened at all.
        forgone : bool
            Whether a sum inside a tree may have no total however few silos are left.

        Raises
        ------
        QuorumLost
            Too many silos were lost for an unmasking; names them.
        SumCorrupt
            A silo revealed wrong shares.
        """
        ask = SumRequest(steps, at, n_values, ring, whole, complete, forgone)
        if not self._parameters.secure:
            return await self._open_sum(ask)
        if not self._parameters.dropout_recovery:
            await self._deal(steps, at)
            self._number += 1
            return await self._open_sum(ask)
        if whole:
            return await self._in_tree(ask)
        await self._deal(steps, at)
        self._number += 1
        return await self._recoverable(ask)

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
        elif self._parameters.dropout_recovery and not outcome.in_tree:
            self._hub.answer(steps.unmask, outcome.at, replies)
        else:
            self._hub.answer(steps.single, outcome.at, replies)

    async def total(
        self,
        at: ExchangeKey,
        n_values: int,
        *,
        ring_bits: int = 64,
        steps: SumSteps[SumTotal] = SUM,
        check: type[Check] | None = None,
    ) -> SumOutcome:
        """Sum, and send every silo the total; return it without the word that silos check it by."""
        n_words = 0 if check is None else check.N_WORDS
        outcome = await self.sum(steps, at, n_words + n_values, ring=ring_bits)
        assert outcome.total is not None, "only sums over a fixed set are abandoned"
        self.answer(steps, outcome, SumTotal(outcome.total, ring_bits, outcome.present))
        return replace(outcome, total=outcome.total[n_words:])

    async def _open_sum(self, ask: SumRequest[Reply]) -> SumOutcome:
        """Sum in one exchange: plain, or masked without recovery, which needs every silo."""
        steps, expected = ask.steps, self._participants
        if self._parameters.secure:
            uploads = await self._hub.collect(
                steps.single, ask.at, read=ask.masked, silos=expected, since=self._left
            )
            vectors = {s: own.values for s, own in self._alike(steps.single, ask, uploads).items()}
            if len(vectors) < len(expected):
                raise ask.lost(expected, tuple(vectors), len(expected))
            await asyncio.to_thread(self._opened.note, expected)
        else:
            least = 1 if ask.forgone else self._parameters.least_silos
            vectors = await self._hub.collect(
                steps.plain, ask.at, read=ask.values, silos=expected, since=self._left, quorum=least
            )
        present = tuple(vectors)
        if ask.whole and self._last and present != self._last:
            return SumOutcome(ask.at, None, ask.ring_bits, present, present)
        self._check_complete(ask, present)
        total = await asyncio.to_thread(masks.summed, vectors.values(), ask.n_values, ask.ring)
        self._participants = self._last = present
        return SumOutcome(ask.at, total, ask.ring_bits, present, present)

    async def _in_tree(self, ask: SumRequest[Reply]) -> SumOutcome:
        """Sum in one exchange over the set of the tree's first sum; without all of it, nothing."""
        steps, expected = ask.steps, self._last
        uploads = await self._hub.collect(
            steps.single,
            ask.at,
            read=ask.masked,
            silos=expected,
            since=self._left,
            quorum=1 if ask.forgone else self._least,
        )
        uploads = self._alike(steps.single, ask, uploads)
        present = tuple(uploads)
        total = None
        if present == expected:
            vectors = [upload.values for upload in uploads.values()]
            total = await asyncio.to_thread(masks.summed, vectors, ask.n_values, ask.ring)
        return SumOutcome(ask.at, total, ask.ring_bits, present, present, in_tree=True)

    def _alike(
        self,
        step: Step[MaskedVector, Any],
        ask: SumRequest[Reply],
        uploads: dict[Silo, MaskedVector],
    ) -> dict[Silo, MaskedVector]:
        """Return the uploads whose views are those of most silos; refuse the others by name.

        Masks of silos with different views do not cancel.
        """
        tags = Counter(upload.tag for upload in uploads.values())
        if len(tags) <= 1:
            return uploads
        (most, n_silos), *_ = tags.most_common(1)
        others = [silo for silo, upload in uploads.items() if upload.tag != most]
        what = f"sum {ask.steps.name!r} of round {ask.at.round}, level {ask.at.level}"
        if 2 * n_silos <= len(uploads):
            raise SumCorrupt(
                f"{what}: expected vectors computed from one view, received {len(tags)} views; "
                f"{', '.join(others)} differ"
            )
        for silo in others:
            self._hub.reject(
                step,
                ask.at,
                silo,
                f"{what}: computed from another view than those of {n_silos} other silos: "
                "another job, schema, model or tree",
            )
        return {silo: upload for silo, upload in uploads.items() if upload.tag == most}

    async def _deal(self, steps: SumSteps[Reply], at: ExchangeKey) -> None:
        """Relay the shares of the next sums' self masks; a silo that sends none is out."""
        count = self._parameters.shares_due(self._number)
        if count is None:
            return
        n_bytes = count * masks.SHARE_COMMITMENT_BYTES

        def read(silo: Silo, offer: SealedShares) -> SealedShares:
            if any(len(dealt.commitments) != n_bytes for dealt in offer.boxes.values()):
                raise OfferRejected(f"expected commitments to {count} shares for each silo")
            return offer

        offers = await self._hub.collect(
            steps.shares,
            at,
            read=read,
            silos=self._participants,
            since=self._left,
            quorum=self._least,
        )
        came, offers = tuple(offers), self._with_whole_groups(steps.shares, offers)
        if len(offers) < self._least:
            raise QuorumLost(
                f"the sum {steps.name!r} of round {at.round} needs {self._least} silos, "
                f"{self._who_waits(offers, came)}"
            )
        self._shares = {silo: offer.boxes for silo, offer in offers.items()}
        self._dealt = self._number
        replies = {
            silo: SealedShares(
                {
                    sender: offer.boxes[silo]
                    for sender, offer in offers.items()
                    if sender != silo and silo in offer.boxes
                }
            )
            for silo in offers
        }
        self._hub.answer(steps.shares, at, replies)
        self._participants = tuple(offers)

    async def _recoverable(self, ask: SumRequest[Reply]) -> SumOutcome:
        """Collect vectors, agree on the set, remove the masks; see the package's table."""
        steps, at, number = ask.steps, ask.at, self._number - 1
        expected, least = self._participants, self._least
        uploads = await self._hub.collect(
            steps.masked, at, read=ask.upload, silos=expected, since=self._left, quorum=least
        )
        uploads = self._alike(steps.masked, ask, uploads)
        there = self.usable(uploads)
        begun = begun_set(uploads, least)
        if begun and not set(begun) <= uploads.keys():
            if told_apart([begun], there) is not None:
                raise ask.lost(begun, tuple(uploads), len(begun))
            begun = ()
        present = begun or there
        if len(present) < least:
            raise ask.lost(expected, present, least)
        self._check_complete(ask, present)
        signatures = {silo: uploads[silo].signature for silo in present}
        if present != expected or not all(signatures.values()):
            signatures = {}
        self._hub.answer(steps.masked, at, dict.fromkeys(uploads, PresentSet(present, signatures)))
        seeds: dict[Silo, PairSeeds] = {}
        if not signatures:
            present, seeds = await self._agree(ask, present, fixed=bool(begun) or ask.complete)
        unmaskings = await self._hub.collect(
            steps.unmask,
            at,
            read=partial(self._sound_shares, number, present),
            silos=present,
            since=self._left,
            quorum=self._threshold,
        )
        tag = uploads[present[0]].tag
        context = masks.sum_context(self._session, number, tag)

        def open_total() -> Residues:
            self_seeds = self._self_seeds(context, uploads, present, unmaskings)
            left_over = [
                (self._members.index(survivor), self._members.index(lost), seed)
                for survivor, revealed in seeds.items()
                for lost, seed in revealed.seeds.items()
            ]
            vectors = (uploads[silo].values for silo in present)
            total = masks.summed(vectors, ask.n_values, ask.ring)
            return masks.unmasked(total, ask.ring, self_seeds, left_over)

        await asyncio.to_thread(self._opened.note, present)
        total = await asyncio.to_thread(open_total)
        self._participants = self._last = present
        return SumOutcome(at, total, ask.ring_bits, present, tuple(unmaskings))

    def _check_complete(self, ask: SumRequest[Reply], present: tuple[Silo, ...]) -> None:
        if ask.complete and self._last and set(present) != set(self._last):
            raise ask.lost(self._last, present, len(self._last))

    async def _agree(
        self, ask: SumRequest[Reply], present: tuple[Silo, ...], *, fixed: bool
    ) -> tuple[tuple[Silo, ...], dict[Silo, PairSeeds]]:
        """Have a set signed and the pair seeds with the lost revealed; again when more are lost.

        Returns
        -------
        tuple
            The set, and the pair seeds by survivor (empty when nobody is lost).

        Raises
        ------
        QuorumLost
            A silo was lost and the set is ``fixed``.
        """
        steps, expected, least = ask.steps, self._participants, self._least
        lost: set[Silo] = set()

        def read(silo: Silo, offer: PairSeeds) -> PairSeeds:
            if set(offer.seeds) != lost or any(
                len(seed) != masks.SEED_BYTES for seed in offer.seeds.values()
            ):
                raise OfferRejected("expected a seed for each lost silo")
            return offer

        def go_on(there: tuple[Silo, ...]) -> bool:
            """Say whether all are still there; raise where they must be."""
            if there != present and fixed:
                missing = ", ".join(sorted(set(present) - set(there)))
                raise QuorumLost(
                    f"the sum {steps.name!r} of round {ask.at.round} was begun over "
                    f"{', '.join(present)} and cannot be over another set; missing {missing}"
                )
            return there == present

        def usable(offers: Collection[Silo]) -> tuple[Silo, ...]:
            """Return those of whole groups; the others are told that it goes on without them."""
            found = self.usable(offers)
            if len(found) < least:
                raise ask.lost(present, found, least)
            return found

        passing = 0
        while True:
            again = repeat(ask.at, passing)
            passing += 1
            signed = await self._hub.collect(
                steps.agree, again, silos=present, since=self._left, quorum=least
            )
            there = usable(signed)
            complete = go_on(there)
            signatures = {silo: signed[silo].signature for silo in there} if complete else {}
            answer = PresentSet(there, signatures)
            self._hub.answer(steps.agree, again, dict.fromkeys(signed, answer))
            present = there
            if not complete:
                continue
            if present == expected:
                return present, {}
            again = repeat(ask.at, passing)
            lost = set(expected) - set(present)
            revealed = await self._hub.collect(
                steps.seeds, again, read=read, silos=present, since=self._left, quorum=least
            )
            there = usable(revealed)
            complete = go_on(there)
            self._hub.answer(steps.seeds, again, dict.fromkeys(revealed, PresentSet(there, {})))
            if complete:
                return present, revealed
            present = there

    def _sound_shares(
        self, number: int, present: tuple[Silo, ...], silo: Silo, offer: Unmasking
    ) -> Unmasking:
        """Return the shares that a silo reveals, if they are those that were dealt to it."""
        if set(offer.shares) != set(present):
            raise OfferRejected(f"expected shares of the masks of {', '.join(present)}")
        start = (number - self._dealt) * masks.SHARE_COMMITMENT_BYTES
        for owner, share in offer.shares.items():
            dealt = self._shares[owner].get(silo)
            fixed = b"" if dealt is None else dealt.commitments
            found = masks.share_commitments(self._session, number, owner, silo, [share])
            if fixed[start : start + len(found)] != found:
                raise OfferRejected(f"not the share of the mask of {owner} that was dealt to it")
        return offer

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
                raise SumCorrupt(f"{owner} dealt malformed shares of its mask") from error
            if masks.commitment(secret, context) != uploads[owner].commitment:
                raise SumCorrupt(f"{owner} dealt shares that do not fit its own commitment")
            seeds.append(masks.self_seed(secret, context))
        return seeds

    @property
    def _threshold(self) -> int:
        return self._parameters.threshold_of(len(self._members))

    @property
    def _least(self) -> int:
        return max(self._parameters.least_of(len(self._members)), self._own_least)
