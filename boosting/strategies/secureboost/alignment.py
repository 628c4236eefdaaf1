"""Common rows of all parties: by private set intersection, or checked to be there already."""

from __future__ import annotations

import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.strategies.secureboost.courier import Courier, Received
from hedgerow.boosting.strategies.secureboost.plain_vault import said
from hedgerow.boosting.strategies.secureboost.steps import IDENTIFIERS
from hedgerow.crypto.errors import PsiRefused
from hedgerow.crypto.identifiers import alignment_digest, distinct_ids
from hedgerow.crypto.psi import PsiKind, PsiMessage, PsiParty, PsiPolicy, VaultBlinder, n_exchanges
from hedgerow.crypto.vault import CipherVault


class Unaligned(DataError):
    """Parties whose rows cannot be brought together; the job ends."""


@dataclass(frozen=True, slots=True)
class Alignment:
    """The rows of this party that all parties have, in the order of all.

    Parameters
    ----------
    dataset : Dataset
    rows : ndarray of shape (n_common,), int64
        Where they are in the party's table.
    then : str
        The step that follows.
    report : Mapping[str, int]
        Own rows without an id and with an id that came before, and common rows.
    """

    dataset: Dataset
    rows: NDArray[np.int64]
    then: str
    report: Mapping[str, int]


def align(
    courier: Courier,
    parties: tuple[str, ...],
    dataset: Dataset,
    session: str,
    method: str,
    then: str,
    vault: CipherVault | None = None,
    policy: PsiPolicy | None = None,
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
    then : str
        The step after this.
    vault : CipherVault, optional
        Keeps the secret under which ids are blinded; this process does where it is left out.
    policy : PsiPolicy, optional
        How many ids any party may have.

    Raises
    ------
    Unaligned
        No common id, unequal digests (names the party), ids that cannot be used, or a number of
        them that the policy does not allow.
    """
    assert dataset.ids is not None, "a vertical party has row ids"
    if method == "digest":
        return _check_digest(courier, parties, dataset, then, policy or PsiPolicy())
    return _intersect(courier, parties, dataset, session, then, vault, policy)


def _check_digest(
    courier: Courier, parties: tuple[str, ...], dataset: Dataset, then: str, policy: PsiPolicy
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
        raise Unaligned(f"row digest: {error}") from error
    key = np.frombuffer(os.urandom(32), np.uint8)
    boxes = {party: {"key": key} for party in others} if leads else {}
    received = courier.send(IDENTIFIERS, boxes=boxes, then=IDENTIFIERS.name)
    if not leads:
        key = _array(received, active, "key", np.uint8)
    own = alignment_digest(key.tobytes(), dataset.ids) if usable else b""
    if leads:
        answers = courier.send(IDENTIFIERS, then=IDENTIFIERS.name)
        unequal = [
            party
            for party in others
            if not hmac.compare_digest(_array(answers, party, "digest", np.uint8).tobytes(), own)
        ]
        if not usable:
            raise Unaligned("rows without an id, or two with the same, cannot be aligned already")
        if unequal:
            raise Unaligned(
                f"the row digest of {unequal[0]} differs from that of {active}: its rows are "
                "others, or in another order; use alignment = psi"
            )
        received = courier.send(IDENTIFIERS, then=then)
    else:
        digest = {active: {"digest": np.frombuffer(own, np.uint8)}}
        courier.send(IDENTIFIERS, boxes=digest)
        received = courier.send(IDENTIFIERS)
    report = {
        "rows": dataset.n_samples,
        "without_id": ids.n_missing,
        "repeated": ids.n_duplicates,
    }
    rows = np.arange(dataset.n_samples, dtype=np.int64)
    return Alignment(dataset, rows, received.then, report)


def _intersect(
    courier: Courier,
    parties: tuple[str, ...],
    dataset: Dataset,
    session: str,
    then: str,
    vault: CipherVault | None,
    policy: PsiPolicy | None,
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
        )
        outbox = party.start()
        n = n_exchanges(len(parties))
        for k in range(n):
            boxes: dict[str, dict[str, NDArray[Any]]] = {}
            for message in outbox:
                box = boxes.setdefault(message.recipient, {})
                at = len(box) // 3
                box[f"{at}.kind"] = np.array([int(message.kind)], np.int32)
                box[f"{at}.owner"] = np.array([parties.index(message.owner)], np.int32)
                box[f"{at}.payload"] = np.frombuffer(message.payload, np.uint8)
            received = courier.send(
                IDENTIFIERS, boxes=boxes, then=IDENTIFIERS.name if k < n - 1 else then
            )
            outbox = []
            for message in _messages(received, parties, courier.party):
                outbox += party.receive(message)
    except PsiRefused as error:
        raise Unaligned(f"private set intersection: {error}") from error
    except ValueError as error:
        raise Unaligned(f"row ids: {said(error)}") from error
    result = party.result
    if result is None:
        raise OfferRejected("private set intersection ended without a result")
    if len(result.rows) == 0:
        raise Unaligned("no row id is common to all parties")
    report = {
        "rows": len(result.rows),
        "without_id": result.n_missing,
        "repeated": result.n_duplicates,
    }
    return Alignment(dataset.take(result.rows), result.rows, received.then, report)


def _messages(received: Received, parties: tuple[str, ...], recipient: str) -> list[PsiMessage]:
    found = []
    for sender, box in received.boxes.items():
        for at in range(len(box) // 3):
            try:
                kind = PsiKind(int(box[f"{at}.kind"][0]))
                owner = parties[int(box[f"{at}.owner"][0])]
                payload = box[f"{at}.payload"].tobytes()
            except (KeyError, ValueError, IndexError) as error:
                raise OfferRejected(f"{sender} sent a malformed message of ids") from error
            found.append(PsiMessage(kind, sender, recipient, owner, payload))
    return found


def _array(received: Received, sender: str, name: str, dtype: type) -> NDArray[Any]:
    array = received.boxes.get(sender, {}).get(name)
    if array is None or array.dtype != dtype:
        raise OfferRejected(f"{sender} sent no {name}")
    return array
