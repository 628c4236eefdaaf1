"""The log of all trees, and the checkpoint that stores it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np

from hedgerow.boosting.checkpoints import readable, whole
from hedgerow.boosting.engine.start import Score, score_of
from hedgerow.boosting.errors import DataError, OfferRejected
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.rounds.best import BestRound
from hedgerow.boosting.rounds.steps import GENESIS, TreeRound, extend_digest
from hedgerow.boosting.trees.ensemble import Ensemble, Tree
from hedgerow.boosting.trees.limits import TreeLimits, read_upload
from hedgerow.boosting.trees.loading import stock_limits

SENDER = "the log's trees of {}"


@dataclass(slots=True)
class History(BestRound):
    """What a checkpoint keeps beside the trees."""

    base_score: Score
    """On the label's scale."""
    leaf_sums: bytes = b""
    """Gradients by leaf over all silos, then hessians, little-endian float32; empty without."""


class TreeLog:
    """All trees by round; grows at the end only.

    Parameters
    ----------
    rounds : iterable of TreeRound
        Whole.
    """

    def __init__(self, rounds: Iterable[TreeRound] = ()) -> None:
        self.rounds: list[TreeRound] = []
        self.digest = GENESIS
        for added in rounds:
            self.add(added)

    @property
    def version(self) -> int:
        """Number of rounds."""
        return len(self.rounds)

    def add(self, added: TreeRound) -> None:
        """Append a round."""
        self.rounds.append(added)
        self.digest = extend_digest(self.digest, added)

    def since(self, version: int, holder: Silo | None = None) -> tuple[TreeRound, ...]:
        """Return the rounds after the first ``version``, without the trees of ``holder``.

        Raises
        ------
        OfferRejected
            The log has fewer rounds.
        """
        if not 0 <= version <= self.version:
            raise OfferRejected(f"expected a version of at most {self.version}, received {version}")
        after = self.rounds[version:]
        return tuple(after if holder is None else (each.without(holder) for each in after))

    def ensemble(self, start: Ensemble, n_rounds: int | None = None) -> Ensemble:
        """Return ``start`` with the trees of the first ``n_rounds`` rounds (default: all)."""
        for added in self.rounds[:n_rounds]:
            limits = stock_limits(start.header, added.steps)
            start = grown(start, unpacked(added, limits, SENDER, stats=True), added.steps)
        return start

    def encode(self, history: History) -> bytes:
        """Return a checkpoint; :meth:`decode` reads it."""
        heads = [[r.steps, r.silos, r.factors, r.sizes] for r in self.rounds]
        about = asdict(history) | {"leaf_sums": base64.b64encode(history.leaf_sums).decode()}
        head = json.dumps({"about": about, "rounds": heads})
        return b"".join([head.encode(), b"\n", *(each.data for each in self.rounds)])

    @classmethod
    def decode(cls, checkpoint: bytes) -> tuple[TreeLog, History]:
        """Return the log and history of :meth:`encode`; raises DataError for anything else."""
        with readable("a checkpoint of trees"):
            head, _, data = checkpoint.partition(b"\n")
            kept = json.loads(head)
            rounds, at = [], 0
            for steps, silos, factors, sizes in kept["rounds"]:
                end = at + sum(whole(size, len(data)) for size in sizes)
                columns = tuple(map(Silo, silos)), tuple(map(float, factors)), tuple(sizes)
                if len({len(column) for column in columns}) != 1:
                    raise DataError("expected columns of one length, found others")
                rounds.append(TreeRound(whole(steps), *columns, data[at:end]))
                at = end
            about = kept["about"]
            history = History(
                score_of(map(float, np.atleast_1d(about["base_score"]))),
                base64.b64decode(about.get("leaf_sums", ""), validate=True),
                best_round=int(about["best_round"]),
                best_score=float(about["best_score"]),
            )
            if at != len(data):
                raise DataError(f"expected {at} bytes of packed trees, found {len(data)}")
            return cls(rounds), history


def grown(start: Ensemble, trees: Sequence[list[Tree]], steps: int) -> Ensemble:
    """Return an ensemble with each silo's trees of one more round."""
    return start.extend(list(chain.from_iterable(trees)), n_steps=steps * len(trees))


def unpacked(
    added: TreeRound, limits: TreeLimits, sender: str, *, stats: bool = False
) -> list[list[Tree]]:
    """Return each silo's trees of a round.

    Parameters
    ----------
    sender : str
        Whom an error names, ``{}`` for the silo.
    stats : bool
        Whether with gains, covers and weights.

    Raises
    ------
    ModelRejected
        Trees that exceed the limits.
    """
    return [
        read_upload(data, limits, stats=stats, factor=factor, sender=sender.format(silo))
        for silo, factor, data in added.packs()
    ]
