"""Payloads and steps of the secure sums, and what silos sign.

The protocol is in :mod:`hedgerow.boosting.sums`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from hedgerow.boosting.exchange import Call, Discloses, ExchangeKey, Silo, Step
from hedgerow.crypto.masking.key_agreement import KEM_KEY_BYTES, KEY_BYTES, encode_fields
from hedgerow.crypto.masking.masks import Residues
from hedgerow.crypto.vault.interface import LEAST_SILOS, DealtBox

Reply = TypeVar("Reply")

_PASSES = 256  # repeats of an agreement within one sum; more cannot happen below 256 silos


@dataclass(frozen=True, slots=True)
class SumParameters:
    """How silos make sums."""

    secure: bool = True
    """``False`` sends plain vectors."""
    dropout_recovery: bool = True
    """``False`` saves an exchange a sum and ends the job when a silo is lost."""
    blind_coordinator: bool = False
    """Hide totals from the coordinator."""
    threshold: int | None = None
    """Silos that must agree to an unmasking, more than half; ``floor(2n/3) + 1`` when ``None``."""
    batch: int = 32
    """Sums whose self masks are shared in one exchange."""
    least_silos: int = LEAST_SILOS
    """Fewest silos that a sum may be over; never below 3 with secure sums."""
    checks_totals: bool = False
    """Whether silos share a key by which they check totals that the coordinator sends back."""

    def threshold_of(self, n_silos: int) -> int:
        """Return the threshold of a group of ``n_silos``."""
        return 2 * n_silos // 3 + 1 if self.threshold is None else self.threshold

    def least_of(self, n_silos: int) -> int:
        """Return the fewest silos that a sum of a group of ``n_silos`` may be over."""
        if not self.secure:
            return self.least_silos
        least = max(self.least_silos, LEAST_SILOS)
        return max(least, self.threshold_of(n_silos)) if self.dropout_recovery else least

    def shares_due(self, number: int) -> int | None:
        """Return for how many sums self masks are shared before sum ``number``.

        ``None`` where nothing is exchanged; 0 where only the group key is.
        """
        if self.dropout_recovery:
            return self.batch if number % self.batch == 0 else None
        return 0 if self.shares_key and number == 0 else None

    @property
    def shares_key(self) -> bool:
        """Whether the silos share a key that the coordinator has not."""
        return self.blind_coordinator or self.checks_totals

    @property
    def hybrid(self) -> bool:
        """Whether roots may have an ML-KEM part: its ciphertexts travel with the first shares."""
        return self.shares_due(0) is not None

    @property
    def self_masks(self) -> bool:
        """Whether vectors carry a self mask; silos exchange its shares beforehand."""
        return self.secure and self.dropout_recovery


MOST_JOBS = 128
"""Last jobs of a table that a new one is compared with."""


@dataclass(frozen=True, slots=True)
class KeyOffer:
    """A silo's X25519 public key of one setup (32 bytes), certificate chain (PEM), signature.

    ``kem_key`` is its ML-KEM-768 key and ``kem_signature`` covers both keys; empty from a silo of
    an older release, which reads the other three, or where the group's silos exchange no shares.
    ``companions``, which the signatures cover, are the silos without which no sum over this one
    opens; empty before its table's first sum. Covered as well, and said of its rows in this job:
    that there are none (``empty``), or so ``few`` that they hide no other silo's; and the earlier
    jobs since which those in sums have ``changed``, or come to be ``differing`` in number.
    """

    public_key: bytes
    certificate: bytes
    signature: bytes = b""
    kem_key: bytes = b""
    kem_signature: bytes = b""
    companions: tuple[Silo, ...] = ()
    empty: bool = False
    few: bool = False
    changed: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.public_key) != KEY_BYTES:
            raise ValueError(
                f"expected a key of {KEY_BYTES} bytes, received {len(self.public_key)}"
            )
        if (n_jobs := len(self.changed) + len(self.differing)) > MOST_JOBS:
            raise ValueError(f"expected at most {MOST_JOBS} earlier jobs, received {n_jobs}")
        if len(self.kem_key) not in (0, KEM_KEY_BYTES) or (not self.kem_key) != (
            not self.kem_signature
        ):
            raise ValueError(
                f"expected an ML-KEM key of {KEM_KEY_BYTES} bytes and its signature, or neither, "
                f"received {len(self.kem_key)} and {len(self.kem_signature)}"
            )

    @property
    def without_kem(self) -> KeyOffer:
        """What a coordinator of an older release passes on."""
        return replace(self, kem_key=b"", kem_signature=b"")


@dataclass(frozen=True, slots=True)
class KeyRoster:
    """The key offers of all silos that take part, for each to verify."""

    offers: Mapping[Silo, KeyOffer]


@dataclass(frozen=True, slots=True)
class SealedShares:
    """Self-mask shares: by receiver in an offer, the sender included, by sender in a reply."""

    boxes: Mapping[Silo, DealtBox]


@dataclass(frozen=True, slots=True)
class PlainVector:
    """Residues in the clear, ndarray of shape (n,), uint64 (uint32 for a 32-bit ring)."""

    values: Residues
    ring_bits: int


@dataclass(frozen=True, slots=True)
class MaskedVector:
    """Masked residues, the self mask's commitment, and the signature over the full set.

    ``commitment`` is empty without a self mask, ``signature`` where the silo does not agree to
    unmask over the full set. ``bound`` is the set that the silo let this sum be unmasked over in an
    earlier attempt, and so the only one that it agrees to; empty if there was none. ``tag`` says
    what the vector was computed from: the view, for a blind coordinator its keyed hash.
    """

    values: Residues
    ring_bits: int
    commitment: bytes
    signature: bytes
    bound: tuple[Silo, ...] = ()
    tag: bytes = b""


@dataclass(frozen=True, slots=True)
class PresentSet:
    """The set that a sum is to be over, sorted; its signatures once it is agreed."""

    present: tuple[Silo, ...]
    signatures: Mapping[Silo, bytes]

    def __post_init__(self) -> None:
        if list(self.present) != sorted(set(self.present)):
            raise ValueError("expected a sorted set of silos")


@dataclass(frozen=True, slots=True)
class SetSignature:
    """A silo's signature over the set that it received."""

    signature: bytes


@dataclass(frozen=True, slots=True)
class PairSeeds:
    """One sum's 32-byte pair seeds with the lost silos."""

    seeds: Mapping[Silo, bytes]


@dataclass(frozen=True, slots=True)
class Unmasking:
    """Shares of the self masks of the silos present, by owner."""

    shares: Mapping[Silo, bytes]


@dataclass(frozen=True, slots=True)
class SumTotal:
    """A sum's residues for the silos, shape (n,), and whose they are."""

    values: Residues
    ring_bits: int
    present: tuple[Silo, ...]


def check_exponent(*exponents: int) -> None:
    """Raise ValueError unless all are exponents of a float64."""
    for exponent in exponents:
        if not -1074 <= exponent <= 1023:
            raise ValueError(f"exponent: expected -1074 to 1023, received {exponent}")


SUMS_VERSION = 2
"""Of the secure sums: 2 has groups. Silos of a job all take part in the same version."""

KEYS = Step(
    "sum-keys", Call.KEYS, KeyOffer, KeyRoster,
    "a fresh public key, who takes part, and with whom its table was first summed", Discloses.KEYS,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SumSteps(Generic[Reply]):
    """The exchanges of one kind of sum, named after it; make them with :func:`sum_steps`."""

    name: str
    shares: Step[SealedShares, SealedShares]
    plain: Step[PlainVector, Reply]
    single: Step[MaskedVector, Reply]
    masked: Step[MaskedVector, PresentSet]
    agree: Step[SetSignature, PresentSet]
    seeds: Step[PairSeeds, PresentSet]
    unmask: Step[Unmasking, Reply]


def sum_steps(
    name: str, upload: Call, closing: Call, reply: type[Reply], what: str, plain: Discloses
) -> SumSteps[Reply]:
    """Return the exchanges of a kind of sum.

    Parameters
    ----------
    name : str
        Unique within the strategy.
    upload, closing : Call
        The RPCs of the vectors and of the unmasking. Both must carry ``reply``: without dropout
        recovery, and without secure sums, it answers the upload.
    reply : type
        The strategy's answer to a sum; :class:`SumTotal` where the silos receive the total.
    what : str
        What the sum is of, for the silo's ledger.
    plain : Discloses
        What a silo's vector discloses without secure sums.
    """
    hidden = f"only the sum over all silos: {what}"
    return SumSteps(
        name,
        Step(
            f"{name}-shares", Call.SHARES, SealedShares, SealedShares, "nothing: sealed boxes",
            Discloses.KEYS,
        ),
        Step(f"{name}-plain", upload, PlainVector, reply, f"to the coordinator: {what}", plain),
        Step(f"{name}-single", upload, MaskedVector, reply, hidden, Discloses.MASKED),
        Step(f"{name}-masked", upload, MaskedVector, PresentSet, hidden, Discloses.MASKED),
        Step(
            f"{name}-agree", Call.SIGNATURES, SetSignature, PresentSet,
            "the set of silos that it agrees to", Discloses.KEYS,
        ),
        Step(
            f"{name}-seeds", Call.SIGNATURES, PairSeeds, PresentSet,
            "masks shared with lost silos, of one sum", Discloses.KEYS,
        ),
        Step(
            f"{name}-unmask", closing, Unmasking, reply, f"the sum over the agreed set: {what}",
            Discloses.MASKED,
        ),
    )  # fmt: skip


SUM = sum_steps(
    "sum", Call.SUMS, Call.SUMS, SumTotal, "row counts, label sums and largest gradients",
    Discloses.SCORES,
)  # fmt: skip
"""Sums whose totals every silo receives, for means of labels and the like."""


def session_name(job_id: str, attempt: int, at: ExchangeKey) -> str:
    """Return the name of the group that a setup at ``at`` makes."""
    return f"{job_id}/{attempt}/{at.round}.{at.level}.{at.passing}"


def key_statement(
    session: str,
    roster: tuple[Silo, ...],
    groups: Sequence[tuple[Silo, ...]],
    parameters: SumParameters,
    silo: Silo,
    offer: KeyOffer,
) -> bytes:
    """Return what a silo's identity signs at setup: job, roster, groups, parameters and its key.

    And its companions, where it has any, and what it says of its rows.
    """
    statement = encode_fields(
        "hedgerow secure sum keys v2",
        session,
        encode_fields(*roster),
        encode_fields(*(encode_fields(*group) for group in groups)),
        parameters.threshold or 0,
        parameters.batch,
        parameters.least_silos,
        int(parameters.dropout_recovery),
        int(parameters.blind_coordinator),
        silo,
        offer.public_key,
    )
    if offer.companions:
        statement = encode_fields("hedgerow secure sum companions v1", statement, *offer.companions)
    for what in ("empty", "few"):
        if getattr(offer, what):
            statement = encode_fields(f"hedgerow secure sum {what} rows v1", statement)
    for what, jobs in (("changed", offer.changed), ("differing", offer.differing)):
        if jobs:
            statement = encode_fields(f"hedgerow secure sum {what} rows v1", statement, *jobs)
    return statement


def told_rows(offers: Mapping[Silo, KeyOffer]) -> dict[str, Any]:
    """Return what silos say of their rows, as sets of silos take it."""
    return {
        "empty": [silo for silo, offer in offers.items() if offer.empty],
        "few": [silo for silo, offer in offers.items() if offer.few],
        "changed": {silo: offer.changed for silo, offer in offers.items()},
        "differing": {silo: offer.differing for silo, offer in offers.items()},
    }


def kem_statement(statement: bytes, kem_key: bytes) -> bytes:
    """Return what a silo signs beside :func:`key_statement`, over that and its ML-KEM key."""
    return encode_fields("hedgerow secure sum hybrid keys v1", statement, kem_key)


def all_hybrid(offers: Mapping[Silo, KeyOffer]) -> bool:
    """Whether all silos of a group offer an ML-KEM key: only then is it used."""
    return all(offer.kem_key for offer in offers.values())


def key_digest(session: str, offers: Mapping[Silo, KeyOffer]) -> bytes:
    """Return the digest of a group's signed keys, which salts every root of the group."""
    fields: list[bytes | str] = [session]
    hybrid = all_hybrid(offers)
    for silo in sorted(offers):
        offer = offers[silo]
        fields += [silo, offer.public_key, offer.signature]
        if hybrid:
            fields += [offer.kem_key, offer.kem_signature]
    return hashlib.sha256(encode_fields(*fields)).digest()


def repeat(at: ExchangeKey, passing: int) -> ExchangeKey:
    """Return the place of an agreement's repeat within the sum at a place."""
    return ExchangeKey(at.round, at.level, at.passing * _PASSES + passing)
