"""What the coordinator half asks a sum for, and what comes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from hedgerow.boosting.errors import OfferRejected, QuorumLost
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums.steps import MaskedVector, PlainVector, SumSteps
from hedgerow.crypto.masking import masks
from hedgerow.crypto.masking.fixed_point import residue_dtype
from hedgerow.crypto.masking.masks import Residues, Ring, word_bits

Reply = TypeVar("Reply")


@dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum as the coordinator half receives it."""

    at: ExchangeKey
    total: Residues | None
    """Of shape (n,) or None. Residues, or words of fields; still under the group masks with a blind
    coordinator. ``None`` when the sum was abandoned, because it had to be ``whole`` and a silo was
    lost."""
    ring_bits: int
    present: tuple[Silo, ...]
    """Silos whose vectors are in the total (of an abandoned sum: those that were present)."""
    answering: tuple[Silo, ...] = ()
    """Silos that wait for the reply."""
    in_tree: bool = False
    """Whether the sum was inside a tree, in one exchange."""


@dataclass(frozen=True, slots=True)
class SumRequest(Generic[Reply]):
    """A sum that is asked for: its exchanges and place, what fits it, and over which set it is."""

    steps: SumSteps[Reply]
    at: ExchangeKey
    n_values: int
    ring: Ring
    whole: bool
    complete: bool = False
    forgone: bool = False

    @property
    def ring_bits(self) -> int:
        """Bits of the vector's elements."""
        return word_bits(self.ring)

    def values(self, silo: Silo, offer: PlainVector | MaskedVector) -> Residues:
        """Return the vector of an offer; raises OfferRejected unless it fits."""
        kind = residue_dtype(self.ring_bits)
        if (offer.values.shape, offer.values.dtype, offer.ring_bits) != (
            (self.n_values,),
            kind,
            self.ring_bits,
        ):
            raise OfferRejected(
                f"expected {self.n_values} residues of a {self.ring_bits}-bit ring, received "
                f"{len(offer.values)} of a {offer.ring_bits}-bit ring"
            )
        return offer.values

    def masked(self, silo: Silo, offer: MaskedVector) -> MaskedVector:
        """Return an offer whose vector and tag fit."""
        self.values(silo, offer)
        if len(offer.tag) != masks.SEED_BYTES:
            raise OfferRejected(
                f"expected a view of {masks.SEED_BYTES} bytes, received {len(offer.tag)}"
            )
        return offer

    def upload(self, silo: Silo, offer: MaskedVector) -> MaskedVector:
        """Return an offer whose vector, tag and commitment fit."""
        self.masked(silo, offer)
        if len(offer.commitment) != masks.COMMITMENT_BYTES:
            raise OfferRejected(
                f"expected a commitment of {masks.COMMITMENT_BYTES} bytes, received "
                f"{len(offer.commitment)}"
            )
        return offer

    def lost(self, expected: tuple[Silo, ...], present: tuple[Silo, ...], needed: int) -> Exception:
        """Return the error of a sum with too few silos."""
        missing = ", ".join(sorted(set(expected) - set(present)))
        return QuorumLost(
            f"the sum {self.steps.name!r} of round {self.at.round} needs {needed} silos, "
            f"{len(present)} are present" + (f"; missing {missing}" if missing else "")
        )


def begun_set(uploads: Mapping[Silo, MaskedVector], least: int) -> tuple[Silo, ...]:
    """Return the set that an earlier attempt began to unmask a sum over, if any.

    One silo is believed where the sum can go on over the set that it names: of silos that are
    present, and large enough. Otherwise most silos must name the set, so that one silo cannot
    end the sum for all. Sets of one sum are nested and the smallest was the last: it decides
    where as many silos name either.
    """
    named: Counter[tuple[Silo, ...]] = Counter()
    for silo, upload in uploads.items():
        bound = upload.bound
        if silo in bound and list(bound) == sorted(set(bound)):
            named[bound] += 1
    credible = [
        bound
        for bound, n_silos in named.items()
        if 2 * n_silos > len(uploads) or (len(bound) >= least and set(bound) <= uploads.keys())
    ]
    return min(credible, key=lambda bound: (-named[bound], len(bound), bound), default=())
