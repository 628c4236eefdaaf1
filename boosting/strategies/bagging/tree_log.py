"""The coordinator's log of all blocks, and the checkpoint that stores it."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from hedgerow.boosting.checkpoints import readable, whole
from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.strategies.bagging.steps import GENESIS, TreeBlock, extend_digest
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.limits import read_upload
from hedgerow.boosting.trees.loading import stock_limits


@dataclass(frozen=True, slots=True)
class History:
    """What a checkpoint keeps beside the blocks.

    Parameters
    ----------
    base_score : float
        On the label's scale.
    best_round : int
        Round with the best validation score, -1 without one.
    best_score : float
        NaN without one.
    leaf_sums : bytes
        Gradients by leaf over all silos, then hessians, little-endian float32; empty without.
    """

    base_score: float
    best_round: int = -1
    best_score: float = math.nan
    leaf_sums: bytes = b""


class TreeLog:
    """All blocks in the order of their rounds; grows at the end only.

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
            The log has fewer rounds.
        """
        if not 0 <= version <= self.version:
            raise OfferRejected(f"expected a version of at most {self.version}, received {version}")
        return tuple(
            replace(block, data=b"") if block.silo == holder else block
            for block in self._blocks[self._starts[version] :]
        )

    def ensemble(self, start: Ensemble, n_rounds: int | None = None) -> Ensemble:
        """Return ``start`` with the trees of the first ``n_rounds`` rounds (default: all)."""
        last = self.version if n_rounds is None else n_rounds
        for round in range(last):
            blocks = self._blocks[self._starts[round] : self._starts[round + 1]]
            trees = [tree for block in blocks for tree in _trees(block, start)]
            start = start.extend(trees, n_steps=sum(block.steps for block in blocks))
        return start

    def encode(self, history: History) -> bytes:
        """Return a checkpoint; :meth:`decode` reads it."""
        heads = [[b.silo, b.round, b.steps, b.factor, len(b.data)] for b in self._blocks]
        about = asdict(history) | {"leaf_sums": base64.b64encode(history.leaf_sums).decode()}
        head = json.dumps({"about": about, "version": self.version, "blocks": heads})
        return b"".join([head.encode(), b"\n", *(block.data for block in self._blocks)])

    @classmethod
    def decode(cls, checkpoint: bytes) -> tuple[TreeLog, History]:
        """Return the log and history of :meth:`encode`; raises DataError for anything else."""
        with readable("a checkpoint of bagging"):
            head, _, data = checkpoint.partition(b"\n")
            kept = json.loads(head)
            version = whole(kept["version"])
            blocks, at = [], 0
            for silo, round, steps, factor, size in kept["blocks"]:
                end = at + whole(size, len(data))
                rounds = whole(round, version - 1), whole(steps)
                blocks.append(TreeBlock(Silo(silo), *rounds, float(factor), data[at:end]))
                at = end
            about = kept["about"]
            history = History(
                float(about["base_score"]),
                int(about["best_round"]),
                float(about["best_score"]),
                base64.b64decode(about.get("leaf_sums", ""), validate=True),
            )
            if at != len(data) or [b.round for b in blocks] != sorted(b.round for b in blocks):
                raise DataError("expected the blocks of rising rounds, received others")
            return cls(blocks, version), history

    def _add(self, block: TreeBlock) -> None:
        assert block.round == self.version, "blocks are added in the order of their rounds"
        self._blocks.append(block)
        self.digest = extend_digest(self.digest, block)


def _trees(block: TreeBlock, start: Ensemble) -> list[Tree]:
    limits = stock_limits(start.header, block.steps)
    sender = f"the log's trees of {block.silo}"
    return read_upload(block.data, limits, factor=block.factor, sender=sender)
