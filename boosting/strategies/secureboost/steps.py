"""The exchanges of a vertical job, and how parties meet at its start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Silo, Step
from hedgerow.boosting.strategies.secureboost.courier import (
    EVERYONE,
    Courier,
    Parcels,
    ParcelStep,
    pack,
    unpack,
)
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.key_agreement import encode_fields, new_private_key, pair_root, public_bytes

if TYPE_CHECKING:
    from hedgerow.boosting.ports import SiloStart

KEYS: ParcelStep = Step(
    "keys", Call.KEYS, Parcels, Parcels,
    "public keys of this job, signed by this silo; whether it has evaluation rows",
)  # fmt: skip
IDENTIFIERS: ParcelStep = Step(
    "identifiers", Call.IDENTIFIERS, Parcels, Parcels,
    "to other parties, sealed: blinded ids, from which they learn the number of this party's ids "
    "and which of their own are common to all; or a keyed digest of all ids",
)  # fmt: skip
GRADIENTS: ParcelStep = Step(
    "gradients", Call.GRADIENTS, Parcels, Parcels,
    "active party: encrypted gradients; sealed, which rows they belong to",
)  # fmt: skip
HISTOGRAMS: ParcelStep = Step(
    "histograms", Call.HISTOGRAMS, Parcels, Parcels,
    "passive party: encrypted sums of gradients for every way in which it could divide a node, "
    "in secret order; which of them it rules out",
)  # fmt: skip
SPLITS: ParcelStep = Step(
    "splits", Call.SPLITS, Parcels, Parcels,
    "active party, sealed: which nodes are divided by whom, and the rows that its own divisions "
    "send left",
)  # fmt: skip
BITMAPS: ParcelStep = Step(
    "bitmaps", Call.SPLITS, Parcels, Parcels,
    "passive party, sealed: the rows that its chosen divisions send left",
)  # fmt: skip
SCORES: ParcelStep = Step(
    "scores", Call.SCORES, Parcels, Parcels,
    "active party: scores of the round as numbers; sealed, the digest of the trees",
)  # fmt: skip
MARGINS: ParcelStep = Step(
    "margins", Call.SCORES, Parcels, Parcels,
    "to other parties, sealed: which rows have come to which node that is theirs",
)  # fmt: skip
LEAVES: ParcelStep = Step(
    "leaves", Call.GRADIENTS, Parcels, Parcels,
    "active party: encrypted leaf values of every row; passive party: encrypted sums of those "
    "that its own features allow",
)  # fmt: skip
END = "end"
STEPS = {
    step.name: step
    for step in (
        KEYS,
        IDENTIFIERS,
        GRADIENTS,
        HISTOGRAMS,
        SPLITS,
        BITMAPS,
        SCORES,
        MARGINS,
        LEAVES,
    )
}


@dataclass(frozen=True, slots=True)
class Turn:
    """Who takes part in a tree.

    Parameters
    ----------
    passive : tuple of str
        Parties whose features may divide.
    own : bool
        Whether the active party's may, on the levels of passive parties.
    passive_depth : int
        Levels that passive parties take part in; 0 for all.
    """

    passive: tuple[str, ...]
    own: bool = True
    passive_depth: int = 0


@dataclass(frozen=True, slots=True)
class Met:
    """What a party knows of the others once they have met.

    Parameters
    ----------
    public_key : bytes
        The active party's, for gradients; empty where nothing is encrypted.
    with_test : bool
        Whether all parties have evaluation rows.
    """

    public_key: bytes
    with_test: bool


def meet(
    courier: Courier,
    start: SiloStart,
    active: str,
    public_key: bytes,
    then: str,
    model: bytes = b"",
) -> Met:
    """Exchange signed keys with all parties and derive the roots of sealed boxes.

    Parameters
    ----------
    model : bytes
        SHA-256 of the structures of the model that the job starts from; empty for none.

    Raises
    ------
    SignatureInvalid
        A party's key is not signed by its certificate.
    OfferRejected
        A party is missing, its key is malformed, its part belongs to another model, or only some
        parties have evaluation rows.
    """
    private_key = new_private_key()
    own = public_bytes(private_key)
    has_test = start.test is not None
    context = encode_fields("hedgerow vertical v1", start.job_id, start.attempt, *start.silos)

    def statement(silo: str, key: bytes, public: bytes, test: bool, model: bytes) -> bytes:
        return context + encode_fields(silo, key, public, int(test), model)

    identity = start.identity
    offer = {
        "key": _bytes(own),
        "public": _bytes(public_key),
        "test": np.array([has_test]),
        "model": _bytes(model),
        "certificate": _bytes(identity.certificate if identity else b""),
        "signature": _bytes(
            identity.sign(statement(start.silo, own, public_key, has_test, model))
            if identity
            else b""
        ),
    }
    received = courier.send(KEYS, clear={EVERYONE: pack(offer)}, then=then)
    keys = {str(start.silo): own}
    publics = {str(start.silo): public_key}
    tests = {str(start.silo): has_test}
    for silo in start.silos:
        if silo == start.silo:
            continue
        if silo not in received.ciphertexts:
            raise OfferRejected(f"{silo} sent no key")
        hello = unpack(received.ciphertexts[silo][0], silo)
        try:
            key, public = hello["key"].tobytes(), hello["public"].tobytes()
            test, theirs = bool(hello["test"][0]), hello["model"].tobytes()
            certificate, signature = hello["certificate"].tobytes(), hello["signature"].tobytes()
        except (KeyError, IndexError) as error:
            raise OfferRejected(f"{silo} sent a greeting without {error}") from error
        if identity is not None:
            said = statement(silo, key, public, test, theirs)
            identity.verify(silo, certificate, said, signature)
        if theirs != model:
            raise OfferRejected(
                f"the model part of {silo} does not belong to that of {start.silo}: they were not "
                "made together, or not in the same round"
            )
        keys[str(silo)], publics[str(silo)], tests[str(silo)] = key, public, test
    without = sorted(silo for silo, test in tests.items() if not test)
    if any(tests.values()) and without:
        raise OfferRejected(f"{without[0]} has no evaluation rows, other parties have some")
    courier.keys = _roots(private_key, keys, start.silo, context)
    return Met(publics[active], has_test)


def _roots(
    private_key: object, keys: Mapping[str, bytes], own: Silo, context: bytes
) -> dict[str, bytes]:
    digest = hashlib.sha256(context + b"".join(keys[silo] for silo in sorted(keys))).digest()
    roots = {}
    for silo, key in keys.items():
        if silo == own:
            continue
        try:
            roots[silo] = pair_root(private_key, key, digest)  # type: ignore[arg-type]
        except KeyRejected as error:
            raise OfferRejected(f"{silo}: {error}") from error
    return roots


def _bytes(data: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(data, np.uint8)
