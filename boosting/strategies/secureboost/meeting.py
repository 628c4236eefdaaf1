"""How parties meet at the start of a job: signed keys, and the roots of their sealed boxes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import SiloStart
from hedgerow.boosting.strategies.secureboost.courier import SealedChannel
from hedgerow.boosting.strategies.secureboost.steps import EVERYONE, KEYS, PartyKeys, StepName
from hedgerow.crypto.errors import KeyRejected
from hedgerow.crypto.masking.key_agreement import (
    HybridBoxes,
    encode_fields,
    extract,
    new_kem_key,
    new_private_key,
    public_bytes,
    shared_secret,
)

LEAVES = "trees of the mode mix kept by their leaves"
EDITION = 1
"""1, from 0.4 on: trees that the active party keeps by their leaves, EINI for vector leaves."""


@dataclass(frozen=True, slots=True)
class PartyHandshake:
    """What a party knows of the others once they have met."""

    public_key: bytes
    """The active party's, for gradients; empty where nothing is encrypted."""
    with_test: bool
    """Whether all parties have evaluation rows."""
    older: str
    """A party of an earlier edition; empty for none."""

    def need(self, what: str) -> None:
        """Raise :class:`DataError` that names a party of an earlier edition, if there is any."""
        if self.older:
            raise DataError(f"{self.older} runs Hedgerow 0.3 or older, which does not know {what}")


def meet(
    courier: SealedChannel,
    start: SiloStart,
    active: str,
    public_key: bytes = b"",
    then: StepName | None = None,
    model: bytes = b"",
) -> PartyHandshake:
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
    private_key, kem_key = new_private_key(), new_kem_key()
    context = encode_fields(
        "hedgerow vertical v1", start.job_id, start.job_digest, start.attempt, *start.silos
    )
    own = PartyKeys(
        EVERYONE, public_bytes(private_key), public_key, start.test is not None, model, b"", b"",
        edition=EDITION, kem_key=kem_key.public_key().public_bytes_raw() if kem_key else b"",
    )  # fmt: skip
    identity = start.identity
    if identity is not None:
        said = _statement(context, start.silo, own)
        both = identity.sign(_hybrid_statement(said, own)) if own.kem_key else b""
        own = replace(
            own,
            certificate=identity.certificate,
            signature=identity.sign(said),
            kem_signature=both,
        )
    received = courier.send(KEYS, keys=own, then=then).keys
    met = {start.silo: own}
    for silo in start.silos:
        if silo == start.silo:
            continue
        if silo not in received:
            raise OfferRejected(f"{silo} sent no key")
        keys = received[silo]
        if identity is not None:
            said, signature = _statement(context, silo, keys), keys.signature
            if keys.kem_key:  # its signature is over all of it
                said, signature = _hybrid_statement(said, keys), keys.kem_signature
            identity.verify(silo, keys.certificate, said, signature)
        if start.require_hybrid and not (own.kem_key and keys.kem_key):
            raise OfferRejected(f"policy rule require_hybrid: no ML-KEM key came from {silo}")
        if keys.model != model:
            raise OfferRejected(
                f"the model part of {silo} does not belong to that of {start.silo}: they were not "
                "made together, or not in the same round"
            )
        met[silo] = keys
    without = sorted(silo for silo, keys in met.items() if not keys.has_test)
    if without and len(without) < len(met):
        raise OfferRejected(f"{without[0]} has no evaluation rows, other parties have some")
    courier.keys, courier.hybrid = _roots(private_key, kem_key, met, start.silo, context)
    older = sorted(str(silo) for silo, keys in met.items() if keys.edition < EDITION)
    return PartyHandshake(met[Silo(active)].cipher_key, own.has_test, older[0] if older else "")


def _statement(context: bytes, silo: Silo, keys: PartyKeys) -> bytes:
    """Return what a party signs."""
    return context + encode_fields(
        silo, keys.box_key, keys.cipher_key, int(keys.has_test), keys.model
    )


def _hybrid_statement(statement: bytes, keys: PartyKeys) -> bytes:
    """Return what a party that has an ML-KEM key signs beside."""
    return encode_fields("hedgerow vertical hybrid keys v1", statement, keys.kem_key)


def _roots(
    private_key: X25519PrivateKey,
    kem_key: MLKEM768PrivateKey | None,
    met: Mapping[Silo, PartyKeys],
    own: Silo,
    context: bytes,
) -> tuple[dict[str, bytes], dict[str, HybridBoxes]]:
    """Return the roots by X25519, and those in their place where both have an ML-KEM key."""
    all_keys = b"".join(met[silo].box_key for silo in sorted(met))
    digest = hashlib.sha256(context + all_keys).digest()
    roots, hybrid = {}, {}
    for silo, keys in met.items():
        if silo == own:
            continue
        try:
            shared = shared_secret(private_key, keys.box_key)
            roots[str(silo)] = extract(digest, shared)
            if kem_key is not None and keys.kem_key:
                hybrid[str(silo)] = HybridBoxes(
                    kem_key, keys.kem_key, digest, shared, str(own), str(silo)
                )
        except KeyRejected as error:
            raise OfferRejected(f"{silo}: {error}") from error
    return roots, hybrid
