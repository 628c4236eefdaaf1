"""Durable records of a silo's secure sums: what it let be unmasked.

With them no sum is unmasked over two different sets, whichever party restarts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from hedgerow.boosting.checkpoints import readable
from hedgerow.boosting.checks import read_as
from hedgerow.boosting.exchange import ExchangeKey, Silo
from hedgerow.boosting.sums.groups import told_apart

_REMEMBERED_DIGESTS = 256
_MOST_VIEWS = 3
"""Views of one sum over all attempts: a restarted attempt may find other silos' bounds."""


@dataclass(frozen=True, slots=True)
class UnmaskingAt:
    """A sum as a silo's record knows it."""

    key: str
    """Steps, level and passing of the sum."""
    at: ExchangeKey
    vector: str | None
    """Fingerprint of the silo's values; ``None`` where all are zero."""
    whole: bool
    """The sum must be over the set of the sum before it."""
    view: str = ""
    """Fingerprint of the sum's view."""
    of_rows: bool = True
    """Whether the silo's vector depends on its rows; nothing is recorded of others."""
    noised: bool = False
    """Whether it has noise, which no difference of two sums may take away."""


@dataclass(slots=True)
class UnmaskingRecord:
    """What a silo let be unmasked: the newest round's sums, and recent vectors."""

    round: int = -1
    """The newest round with an unmasking; -1 before the first."""
    sets: dict[str, tuple[Silo, ...]] = field(default_factory=dict)
    """The sets of that round's sums, by key."""
    last: tuple[Silo, ...] = ()
    """The set of the last sum."""
    vectors: dict[str, tuple[Silo, ...]] = field(default_factory=dict)
    """The sets of recent vectors, by fingerprint; the oldest comes first."""
    views: dict[str, list[str]] = field(default_factory=dict)
    """Views of that round's sums, by key."""

    @classmethod
    def parse(cls, raw: bytes | None) -> UnmaskingRecord:
        """Return the record that :meth:`encode` wrote; an empty one for ``None``.

        Raises
        ------
        DataError
            Other bytes.
        """
        if raw is None:
            return cls()
        with readable("a record of what was unmasked"):
            kept = json.loads(raw)
            known = [tuple(Silo(name) for name in names) for names in kept["known"]]
            views = read_as(dict[str, list[str]], kept["views"], "views")
            return cls(
                read_as(int, kept["round"], "round"),
                {key: known[at] for key, at in kept["sets"].items()},
                known[kept["last"]],
                {key: known[at] for key, at in kept["vectors"].items()},
                views,
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
            "views": self.views,
        }
        return json.dumps(kept, separators=(",", ":")).encode()

    def forbids(self, sum_: UnmaskingAt, present: tuple[Silo, ...]) -> str | None:
        """Return why a sum must not be unmasked over ``present``, or ``None`` if it may."""
        if not sum_.of_rows:
            return None
        if sum_.at.round < self.round:
            over = f"round {sum_.at.round} is over, round {self.round} was unmasked"
            return f"{over}; submit the job again"
        if _told_apart(self.bound(sum_), present):
            return "it was unmasked over another set already"
        if sum_.whole and self.last not in ((), present):
            return "its set differs from the set of the sums before it"
        before = self.vectors.get(sum_.vector, ()) if sum_.vector is not None else ()
        if before not in ((), present) if sum_.noised else _told_apart(before, present):
            return "the same values were unmasked over another set already"
        views = self.views.get(sum_.key, []) if sum_.at.round == self.round else []
        if sum_.view not in views and len(views) >= _MOST_VIEWS:
            return f"it was asked for with {len(views)} other views already"
        return None

    def bound(self, sum_: UnmaskingAt) -> tuple[Silo, ...]:
        """Return the set that a sum was unmasked over; empty if it was not."""
        known = sum_.of_rows and sum_.at.round == self.round
        return self.sets.get(sum_.key, ()) if known else ()

    def note(self, sum_: UnmaskingAt, present: tuple[Silo, ...]) -> None:
        """Record that a sum is about to be unmasked; forget the sums of earlier rounds."""
        if not sum_.of_rows:
            return
        if sum_.at.round > self.round:
            self.round, self.sets, self.views = sum_.at.round, {}, {}
        self.sets[sum_.key] = self.last = present
        views = self.views.setdefault(sum_.key, [])
        if sum_.view not in views:
            views.append(sum_.view)
        if sum_.vector is not None:
            self.vectors.pop(sum_.vector, None)
            self.vectors[sum_.vector] = present
            while len(self.vectors) > _REMEMBERED_DIGESTS:
                del self.vectors[next(iter(self.vectors))]


def _told_apart(before: tuple[Silo, ...], present: tuple[Silo, ...]) -> bool:
    """Whether the difference of a sum over two sets would be one of fewer than three silos."""
    return bool(before) and told_apart([before], present) is not None
