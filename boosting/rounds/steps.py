"""Models that grow by rounds of packed trees: what silos and coordinator exchange of them.

A silo that has the first ``version`` rounds of the ensemble receives the rounds after them, its own
last trees left out where that saves more than a hundredth. A running SHA-256 over the rounds shows
whether two parties have the same ensemble.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

import numpy as np

from hedgerow.boosting.engine.start import Score
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Call, Discloses, Silo, Step

GENESIS = hashlib.sha256(b"hedgerow trees v1").digest()
"""Running digest of no rounds."""
_ALIKE = 100
"""A silo whose own trees are less than this part of a round receives them too."""


@dataclass(frozen=True, slots=True, weakref_slot=True)
class TreeRound:
    """The trees that silos added in a round, in the order in which they enter the model."""

    steps: int
    """Boosting steps of each silo."""
    silos: tuple[Silo, ...] = ()
    factors: tuple[float, ...] = ()
    """A silo's leaf values are multiplied by its factor; 1.0 unless the round's learning rates were
    settled after training."""
    sizes: tuple[int, ...] = ()
    """Bytes of each silo's packed trees (:mod:`hedgerow.boosting.trees.packing`)."""
    data: bytes = b""
    """All packed trees, one after the other; those of the receiver itself may be left out."""

    @classmethod
    def of(cls, steps: int, packs: Sequence[tuple[Silo, float, bytes]]) -> TreeRound:
        """Return the round of silos' factors and packed trees."""
        silos, factors, data = zip(*packs, strict=True) if packs else ((), (), ())
        return cls(steps, silos, factors, tuple(map(len, data)), b"".join(data))

    def without(self, silo: Silo) -> TreeRound:
        """Return the round as ``silo`` receives it, which has its own trees.

        Among a hundred silos and more it is the whole round: a message for each, most of it alike,
        would cost a coordinator more than the hundredth that it saves.
        """
        start, end = self._span(silo)
        if _ALIKE * (end - start) <= len(self.data):
            return self
        return replace(self, data=self.data[:start] + self.data[end:])

    def whole(self, silo: Silo, own: bytes) -> TreeRound:
        """Return the round with the trees ``own`` where those of ``silo`` are left out.

        Raises
        ------
        OfferRejected
            Other trees than these are left out.
        """
        missing = sum(self.sizes) - len(self.data)
        if missing == 0:
            return self
        start, end = self._span(silo)
        found = len(own) if end > start else 0
        if not missing == found == end - start:
            raise OfferRejected(
                f"expected {sum(self.sizes)} bytes of packed trees, received {len(self.data)} "
                f"beside {found} of {silo}"
            )
        return replace(self, data=self.data[:start] + own + self.data[start:])

    def packs(self) -> Iterator[tuple[Silo, float, bytes]]:
        """Yield each silo, its factor, and its packed trees, of a round that is whole."""
        start = 0
        for silo, factor, size in zip(self.silos, self.factors, self.sizes, strict=True):
            yield silo, factor, self.data[start : start + size]
            start += size

    def _span(self, silo: Silo) -> tuple[int, int]:
        """Return where a silo's trees begin and end; the same twice where it has none."""
        return _spans(self.silos, self.sizes).get(silo, (0, 0))


@lru_cache(maxsize=4)
def _spans(silos: tuple[Silo, ...], sizes: tuple[int, ...]) -> dict[Silo, tuple[int, int]]:
    """Return where each silo's trees begin and end; a thousand silos ask of the same round."""
    ends = tuple(accumulate(sizes))
    return {silo: (end - size, end) for silo, size, end in zip(silos, sizes, ends, strict=True)}


@lru_cache(maxsize=4)
def _columns(silos: tuple[Silo, ...], factors: bytes, sizes: tuple[int, ...]) -> bytes:
    """Return what a digest has of a round's silos, which silos of one process share.

    Factors are packed: as numbers 0.0 and -0.0 would be one key of two digests.
    """
    names = "".join(silos).encode()
    ascii_only = len(names) == sum(map(len, silos))
    encoded = silos if ascii_only else [silo.encode() for silo in silos]
    lengths = np.fromiter(map(len, encoded), "<u4").tobytes()
    return b"".join((lengths, names, factors, np.array(sizes, "<u4").tobytes()))


@dataclass(frozen=True, slots=True)
class TreeStanding:
    """The federation's state: what a silo needs to take the next step."""

    round: int
    """Round of the next offer."""
    eta: float
    """Learning rate for that round; 0 for a silo that adds no trees in it."""
    base_score: Score | None
    """On the label's scale; None until the silos have agreed on it."""
    version: int
    """Rounds in the ensemble."""
    digest: bytes
    """Running SHA-256 over all its rounds."""
    score_train: bool = False
    score_valid: bool = False
    """``score_train`` and ``score_valid``: whether the silo is first to offer the scores, after
    ``version`` rounds, of the rows that it trains on and of those that it holds back."""
    rounds: tuple[TreeRound, ...] = ()
    """The rounds that the silo does not have yet."""


@dataclass(frozen=True, slots=True)
class TreeCatchUp:
    """A silo's request to be brought up to date."""

    version: int
    """Rounds that it holds."""
    first_round: int
    """Earliest round that it can still offer in; -1 at its start."""
    n_samples: int
    """Its rows."""


@dataclass(frozen=True, slots=True)
class TreeOffer:
    """A silo's new trees; no steps from a silo that adds none in this round."""

    version: int
    """Rounds that it holds."""
    steps: int
    """Boosting steps in ``data``."""
    gain: float
    """Total split gain of the trees."""
    data: bytes
    """Packed trees."""


SYNC = Step(
    "sync", Call.TREES, TreeCatchUp, TreeStanding,
    "how many rounds of the model it holds; its row count", Discloses.SCHEMA,
)  # fmt: skip
TREES = Step(
    "trees",
    Call.TREES,
    TreeOffer,
    TreeStanding,
    "to all silos: new trees, whose thresholds are values of its rows and whose leaves are "
    "statistics of small groups of them",
    Discloses.TREES,
)


def extend_digest(digest: bytes, added: TreeRound) -> bytes:
    """Return the running digest with one more round, which is whole."""
    head = struct.pack("<II", added.steps, len(added.silos))
    columns = _columns(added.silos, np.array(added.factors, "<f8").tobytes(), added.sizes)
    return hashlib.sha256(b"".join((digest, head, columns, added.data))).digest()
