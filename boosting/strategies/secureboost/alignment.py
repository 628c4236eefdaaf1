"""Common rows of all parties: by private set intersection, or checked to be aligned already."""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.refusals import public_text
from hedgerow.boosting.strategies.secureboost.steps import (
    IDENTIFIERS,
    BlindedSet,
    BlindedSets,
    DigestKey,
    RowDigest,
    StepName,
)
from hedgerow.crypto.errors import PsiRefused
from hedgerow.crypto.intersection.identifiers import alignment_digest, distinct_ids
from hedgerow.crypto.intersection.psi import (
    PsiMessage,
    PsiParty,
    PsiPolicy,
    VaultBlinder,
    n_exchanges,
)
from hedgerow.crypto.vault.interface import CipherVault


@dataclass(frozen=True, slots=True)
class Alignment:
    """The rows of this party that all parties have, in the order of all."""

    dataset: Dataset
    rows: NDArray[np.int64]
    """Of shape (n_common,), int64. Where they are in the party's table."""
    then: StepName
    """The step that follows."""
    report: Mapping[str, int]
    """Own rows without an id, with a repeated id, and common rows."""


def align(
    courier: SealedChannel,
    parties: tuple[str, ...],
    dataset: Dataset,
    session: str,
    method: str,
    then: StepName | None,
    vault: CipherVault | None = None,
    policy: PsiPolicy | None = None,
    charge: Callable[[int, int], None] = lambda asked, own: None,
) -> Alignment:
    """Bring this party's rows into the order of all parties.

    Parameters
    ----------
    parties : tuple of str
        The active party first; it compares digests and leads an intersection.
    session : str
        Names this run; never used twice.
    method : str
        ``psi`` or ``digest``.
    then : StepName or None
        The step after this, from the active party.
    vault : CipherVault, optional
        Keeps the secret under which ids are blinded; this process does where it is left out.
    policy : PsiPolicy, optional
        How many ids any party may have.
    charge : callable, optional
        Counts ids of another party before they are answered, see
        :class:`~hedgerow.crypto.intersection.psi.PsiParty`.

    Raises
    ------
    DataError
        No common id, unequal digests (names the party), ids that cannot be used, or a number of
        them that the policy does not allow.
    """
    assert dataset.ids is not None, "a vertical party has row ids"
    if method == "digest":
        return _check_digest(courier, parties, dataset, then, policy or PsiPolicy())
    return _intersect(courier, parties, dataset, session, then, vault, policy, charge)


def _check_digest(
    courier: SealedChannel,
    parties: tuple[str, ...],
    dataset: Dataset,
    then: StepName | None,
    policy: PsiPolicy,
) -> Alignment:
    """Compare keyed digests of the id columns at the active party.

    Reveals to the active party whether the columns are equal; the key keeps outsiders from
    testing guesses. Columns that are equal have as many ids, so each party need hold its policy
    against its own only, before it shows a digest.
    """
    assert dataset.ids is not None
    active, others = parties[0], parties[1:]
    leads = courier.party == active
    ids = distinct_ids(dataset.ids)
    usable = not (ids.n_missing or ids.n_duplicates)
    try:
        policy.check(courier.party, len(ids.ids))
    except PsiRefused as error:
        raise DataError(f"row digest: {error}") from error
    again = StepName.IDENTIFIERS if leads else None
    drawn = DigestKey(os.urandom(32))
    received = courier.send(
        IDENTIFIERS, boxes=dict.fromkeys(others, drawn) if leads else {}, then=again
    )
    key = (drawn if leads else received.read(active, DigestKey)).key
    own = alignment_digest(key, ids) if usable else b""
    if leads:
        answers = courier.send(IDENTIFIERS, then=again)
        unequal = [
            party
            for party in others
            if not hmac.compare_digest(answers.read(party, RowDigest).digest, own)
        ]
        if not usable:
            raise DataError("rows without an id, or two with the same, cannot be aligned already")
        if unequal:
            raise DataError(
                f"the row digest of {unequal[0]} differs from that of {active}: its rows are "
                "others, or in another order; use alignment = psi"
            )
        received = courier.send(IDENTIFIERS, then=then)
    else:
        courier.send(IDENTIFIERS, boxes={active: RowDigest(own)})
        received = courier.send(IDENTIFIERS)
    report = {
        "rows": dataset.n_samples,
        "without_id": ids.n_missing,
        "repeated": ids.n_duplicates,
    }
    rows = np.arange(dataset.n_samples, dtype=np.int64)
    return Alignment(dataset, rows, received.then, report)


def _intersect(
    courier: SealedChannel,
    parties: tuple[str, ...],
    dataset: Dataset,
    session: str,
    then: StepName | None,
    vault: CipherVault | None,
    policy: PsiPolicy | None,
    charge: Callable[[int, int], None],
) -> Alignment:
    assert dataset.ids is not None
    try:
        party = PsiParty(
            session=session.encode(),
            name=courier.party,
            roster=parties,
            ids=dataset.ids,
            policy=policy,
            blinder=None if vault is None else VaultBlinder(vault, session),
            charge=charge,
        )
        outbox = party.start()
        n = n_exchanges(len(parties))
        for k in range(n):
            sets: dict[str, list[BlindedSet]] = {}
            for message in outbox:
                own = BlindedSet(message.kind, message.owner, message.payload)
                sets.setdefault(message.recipient, []).append(own)
            received = courier.send(
                IDENTIFIERS,
                boxes={receiver: BlindedSets(tuple(own)) for receiver, own in sets.items()},
                then=then if k == n - 1 or then is None else StepName.IDENTIFIERS,
            )
            outbox = []
            for sender in received.boxes:
                for own in received.read(sender, BlindedSets).sets:
                    message = PsiMessage(own.kind, sender, courier.party, own.owner, own.payload)
                    outbox += party.receive(message)
    except PsiRefused as error:
        raise DataError(f"private set intersection: {error}") from error
    except ValueError as error:
        raise DataError(f"row ids: {public_text(error)}") from error
    result = party.result
    if result is None:
        raise OfferRejected("private set intersection ended without a result")
    if len(result.rows) == 0:
        raise DataError("no row id is common to all parties")
    report = {
        "rows": len(result.rows),
        "without_id": result.n_missing,
        "repeated": result.n_duplicates,
    }
    return Alignment(dataset.take(result.rows), result.rows, received.then, report)
