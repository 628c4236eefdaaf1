"""What silos and coordinator tell each other about trees, and the log that keeps it in order.

An ensemble grows by *blocks*: the trees that one silo added in one round, packed. Whoever has the
first ``version`` rounds is sent the blocks of the rounds after them, and never its own. A running
SHA-256 over the blocks tells whether two sides hold the same ensemble.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.trees.ensemble import Ensemble
from hedgerow.boosting.trees.packing import unpack

GENESIS = hashlib.sha256(b"hedgerow trees v1").digest()
"""Running digest of no blocks at all."""


@dataclass(frozen=True, slots=True)
class TreeBlock:
    """The trees that a silo added in a round.

    Parameters
    ----------
    silo : Silo
    round : int
    steps : int
        Boosting steps in ``data``.
    factor : float
        Leaf values are multiplied by it; 1.0 unless the round's learning rates were settled
        after training.
    data : bytes
        Packed trees (:mod:`hedgerow.boosting.trees.packing`); empty where the receiver has them.
    """

    silo: Silo
    round: int
    steps: int
    factor: float
    data: bytes


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the federation is: what a silo needs to take the next step.

    Parameters
    ----------
    round : int
        Round of the next offer.
    eta : float
        Learning rate for that round; 0 for a silo that only looks on.
    base_score : float
        On the label's scale; NaN while the silos have not agreed on it.
    version : int
        Rounds in the ensemble.
    digest : bytes
        Running SHA-256 over all its blocks.
    blocks : tuple[TreeBlock, ...]
        What the silo did not have yet.
    scored : tuple[str, ...]
        Rows whose scores after ``version`` rounds the silo is to offer first: ``"train"``,
        ``"valid"``.
    """

    round: int
    eta: float
    base_score: float
    version: int
    digest: bytes
    blocks: tuple[TreeBlock, ...] = ()
    scored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A silo's request to be brought up to date.

    Parameters
    ----------
    version : int
        Rounds that it holds.
    first_round : int
        Earliest round that it can still offer in; -1 before anything.
    n_samples : int
        Its rows.
    """

    version: int
    first_round: int
    n_samples: int


@dataclass(frozen=True, slots=True)
class TreeOffer:
    """A silo's new trees; no steps from a silo that only looks on.

    Parameters
    ----------
    version : int
        Rounds that it holds.
    steps : int
    gain : float
        Total split gain of the trees.
    data : bytes
        Packed trees.
    """

    version: int
    steps: int
    gain: float
    data: bytes


@dataclass(frozen=True, slots=True)
class ScoreSums:
    """Metrics of a silo's own rows in their additive form.

    Parameters
    ----------
    train, valid : ndarray of shape (n,), float64
        :func:`boosting.metrics.sums` over the rows trained on, and over those held back; empty
        where none are.
    """

    train: NDArray[np.float64]
    valid: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether training ends with the round that was scored."""

    stop: bool


def extend_digest(digest: bytes, block: TreeBlock) -> bytes:
    """Return the running digest with one more block, ``data`` included."""
    name = block.silo.encode()
    head = struct.pack("<IIId", len(name), block.round, block.steps, block.factor)
    return hashlib.sha256(digest + head + name + block.data).digest()


class TreeLog:
    """All blocks in order, by round; grows at the end only.

    Parameters
    ----------
    blocks : iterable of TreeBlock
        With their data, rounds rising.
    version : int
        Rounds that are over, those without a block included.
    """

    def __init__(self, blocks: Iterable[TreeBlock] = (), version: int = 0) -> None:
        self._blocks: list[TreeBlock] = []
        self._starts = [0]
        self.digest = GENESIS
        for block in blocks:
            while self.version < block.round:
                self.end_round(())
            self._add(block)
        while self.version < version:
            self.end_round(())

    @property
    def version(self) -> int:
        """Number of rounds that are over."""
        return len(self._starts) - 1

    @property
    def blocks(self) -> Sequence[TreeBlock]:
        """All blocks."""
        return self._blocks

    def end_round(self, blocks: Iterable[TreeBlock]) -> None:
        """Append the blocks of a round and close it."""
        for block in blocks:
            self._add(block)
        self._starts.append(len(self._blocks))

    def since(self, version: int, holder: Silo | None = None) -> tuple[TreeBlock, ...]:
        """Return the blocks after ``version`` rounds; those of ``holder`` without their data.

        Raises
        ------
        OfferRejected
            The version lies in the future.
        """
        if not 0 <= version <= self.version:
            raise OfferRejected(f"expected at most {self.version} rounds, {version} are claimed")
        return tuple(
            replace(block, data=b"") if block.silo == holder else block
            for block in self._blocks[self._starts[version] :]
        )

    def ensemble(self, start: Ensemble, n_rounds: int | None = None) -> Ensemble:
        """Return ``start`` with the trees of the first ``n_rounds`` rounds (default: all)."""
        last = self.version if n_rounds is None else n_rounds
        for round in range(last):
            blocks = self._blocks[self._starts[round] : self._starts[round + 1]]
            trees = [t.scaled(block.factor) for block in blocks for t in unpack(block.data)]
            start = start.extend(trees, n_steps=sum(block.steps for block in blocks))
        return start

    def encode(self, about: dict[str, object]) -> bytes:
        """Return the log and some facts beside it as bytes; :meth:`decode` reads them."""
        heads = [[b.silo, b.round, b.steps, b.factor, len(b.data)] for b in self._blocks]
        head = json.dumps({"about": about, "version": self.version, "blocks": heads})
        return b"".join([head.encode(), b"\n", *(block.data for block in self._blocks)])

    @classmethod
    def decode(cls, raw: bytes) -> tuple[TreeLog, dict[str, object]]:
        """Return the log of :meth:`encode` and the facts."""
        head, _, data = raw.partition(b"\n")
        kept = json.loads(head)
        blocks, at = [], 0
        for silo, round, steps, factor, size in kept["blocks"]:
            blocks.append(TreeBlock(Silo(silo), round, steps, factor, data[at : at + size]))
            at += size
        return cls(blocks, kept["version"]), kept["about"]

    def _add(self, block: TreeBlock) -> None:
        assert block.round == self.version, "blocks come in the order of their rounds"
        self._blocks.append(block)
        self.digest = extend_digest(self.digest, block)
