"""Durable records of the secure sums: what a silo let be unmasked.

They are why no sum is unmasked twice over different sets, whoever restarts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hedgerow.boosting.exchange import Place, Silo
from hedgerow.crypto.masking import Residues

_REMEMBERED_DIGESTS = 256


@dataclass(slots=True)
class SiloRecord:
    """What a silo let be unmasked, to be kept durable: the newest round's sums, recent vectors."""

    round: int = -1
    sets: dict[str, tuple[Silo, ...]] = field(default_factory=dict)
    last: tuple[Silo, ...] = ()
    vectors: dict[str, tuple[Silo, ...]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes | None) -> SiloRecord:
        """Return the record that :meth:`encode` wrote; an empty one for ``None``."""
        if raw is None:
            return cls()
        kept = json.loads(raw)
        known = [tuple(Silo(name) for name in names) for names in kept["known"]]
        return cls(
            kept["round"],
            {key: known[at] for key, at in kept["sets"].items()},
            known[kept["last"]],
            {key: known[at] for key, at in kept["vectors"].items()},
        )

    def encode(self) -> bytes:
        """Return the record as JSON, each set of names once."""
        known = list(dict.fromkeys([self.last, *self.sets.values(), *self.vectors.values()]))
        index = {names: at for at, names in enumerate(known)}
        kept = {
            "round": self.round,
            "known": known,
            "last": index[self.last],
            "sets": {key: index[names] for key, names in self.sets.items()},
            "vectors": {key: index[names] for key, names in self.vectors.items()},
        }
        return json.dumps(kept, separators=(",", ":")).encode()

    def forbids(
        self, key: str, at: Place, vector: str | None, present: tuple[Silo, ...], whole: bool
    ) -> str | None:
        """Return why a sum may not be unmasked over ``present``, or ``None`` if it may."""
        if at.round < self.round:
            return f"round {at.round} is over, round {self.round} has been unmasked"
        if at.round == self.round and self.sets.get(key, present) != present:
            return "it was unmasked over another set already"
        if whole and self.last and self.last != present:
            return "its set differs from the one that the sums before it were over"
        if vector is not None and self.vectors.get(vector, present) != present:
            return "the same values were unmasked over another set already"
        return None

    def bound(self, key: str, at: Place) -> tuple[Silo, ...]:
        """Return the only set that a sum may still be unmasked over; empty if it is open."""
        return self.sets.get(key, ()) if at.round == self.round else ()

    def note(self, key: str, at: Place, vector: str | None, present: tuple[Silo, ...]) -> None:
        """Record that a sum is about to be unmasked; what was before the round is forgotten."""
        if at.round > self.round:
            self.round, self.sets = at.round, {}
        self.sets[key] = self.last = present
        if vector is not None:
            self.vectors.pop(vector, None)
            self.vectors[vector] = present
            while len(self.vectors) > _REMEMBERED_DIGESTS:
                del self.vectors[next(iter(self.vectors))]


@dataclass(frozen=True, slots=True)
class UnmaskingAt:
    """The sum at hand, as a silo's record knows it.

    ``vector`` is a digest of its values, or ``None`` where they may come again.
    """

    key: str
    at: Place
    vector: str | None
    whole: bool

    def forbidden(self, record: SiloRecord, present: tuple[Silo, ...]) -> str | None:
        """Return why the record forbids to unmask this sum over ``present``, or ``None``."""
        return record.forbids(self.key, self.at, self.vector, present, self.whole)


@dataclass(frozen=True, slots=True)
class SumOutcome:
    """A sum as the coordinator half gets it.

    Parameters
    ----------
    total : ndarray of shape (n,) or None
        Residues; still under the group masks with a blind coordinator; ``None`` when the sum was
        abandoned because ``whole`` was asked and somebody was lost.
    present : tuple[Silo, ...]
        Whose vectors are in the total (of an abandoned sum: who was there).
    answering : tuple[Silo, ...]
        Who waits for the reply.
    """

    at: Place
    total: Residues | None
    ring_bits: int
    present: tuple[Silo, ...]
    answering: tuple[Silo, ...] = ()
