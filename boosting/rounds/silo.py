"""A silo's copy of a model that grows by rounds, and its rows' margins under it."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hedgerow.boosting.engine.start import Score
from hedgerow.boosting.errors import FederationError, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, SiloChannel
from hedgerow.boosting.rounds import base_score
from hedgerow.boosting.rounds.log import TreeLog, grown, unpacked
from hedgerow.boosting.rounds.steps import (
    GENESIS,
    SYNC,
    TreeCatchUp,
    TreeOffer,
    TreeRound,
    TreeStanding,
    extend_digest,
)
from hedgerow.boosting.sums.label_mean import offered_means
from hedgerow.boosting.trees.agreed import check_trees, fingerprints
from hedgerow.boosting.trees.ensemble import Ensemble, Forest, blank
from hedgerow.boosting.trees.limits import TreeLimits
from hedgerow.boosting.trees.local import MarginRows

if TYPE_CHECKING:
    from hedgerow.boosting.dataset import Dataset
    from hedgerow.boosting.ports import ModelCheck, SiloStart
    from hedgerow.boosting.trees.ensemble import Tree
    from hedgerow.crypto.vault.interface import Vault

SENDER = "the coordinator, as trees of {}"
"""Whom errors of received trees name."""


@dataclass(frozen=True)
class _Known:
    """A round's trees, known by the digest of the ensemble that ends with them."""

    digest: bytes
    header: bytes
    limits: TreeLimits
    n_threads: int
    added: TreeRound = field(compare=False)


class _RoundForest(NamedTuple):
    forest: Forest
    added: TreeRound


# Silos of one process receive the same rounds at once: the others wait for the first to load one.
_LOADING = threading.Lock()


@lru_cache(maxsize=2)
def _forest_of(known: _Known) -> _RoundForest:
    trees = unpacked(known.added, known.limits, SENDER)
    whole = grown(Ensemble(known.header), trees, known.added.steps)
    return _RoundForest(Forest(whole, known.n_threads), known.added)


class SiloModel:
    """The model within an attempt: all trees as packed, and rows with their margins.

    Parameters
    ----------
    limits : TreeLimits
        Of one silo's trees of a round; they have no bound on leaves.
    steps : int
        Boosting steps of a silo in a round.
    secure : bool
        Whether the mean label of a regression is summed securely.
    tables : sequence of Dataset
        Rows whose margins are kept.
    """

    def __init__(
        self,
        link: SiloChannel,
        vault: Vault | None,
        start: SiloStart,
        limits: TreeLimits,
        steps: int,
        *,
        secure: bool,
        tables: Sequence[Dataset],
    ) -> None:
        self.link, self.vault, self.start = link, vault, start
        self.limits = replace(limits, leaf_bound=math.inf)
        self.steps, self.secure, self.tables = steps, secure, tables
        self.version = 0
        self.digest = GENESIS
        self.offered = TreeOffer(0, 0, 0.0, b"")
        self.rounds: list[TreeRound] = []
        self.base_score: Score | None = None
        self.blank: Ensemble | None = None
        self.scored: list[MarginRows] = []

    @property
    def state(self) -> tuple[object, ...]:
        """What a sum over margins is computed from beside rows: its view has all of it."""
        return self.start.schema, self.base_score, self.digest

    def catch_up(self, first_round: int) -> TreeStanding:
        """Synchronise; agree on the base score first where there is none yet.

        Parameters
        ----------
        first_round : int
            Earliest round that this silo can still offer in; -1 at its start.
        """
        at = ExchangeKey(max(first_round, 0))
        request = TreeCatchUp(self.version, first_round, self.start.dataset.n_samples)
        standing = self.receive(self.link.exchange(SYNC, at, request))
        if first_round >= 0 or standing.base_score is not None:
            return standing
        if base_score.fixed(self.start.job) is not None:
            raise OfferRejected("expected the base score that the job fixes, received none")
        try:
            means = offered_means(self.link, self.vault, self.start, secure=self.secure)
        except PlacePassed:
            return self.catch_up(first_round=0)
        self._load(base_score.of_means(self.start.job, means))
        return standing

    def receive(self, standing: TreeStanding) -> TreeStanding:
        """Add what the others added; the silo's own trees are not sent back to it."""
        if standing.base_score is not None:
            self._load(base_score.checked(standing.base_score, self.start.schema))
        if self.version + len(standing.rounds) != standing.version:
            raise OfferRejected(
                f"expected the rounds from {self.version} to {standing.version}, received "
                f"{len(standing.rounds)} rounds"
            )
        forests, digest = [], self.digest
        for received in standing.rounds:
            added = received.whole(self.start.silo, self.offered.data)
            digest = extend_digest(digest, added)
            forests.append(self._forest(digest, added))
        if digest != standing.digest:
            raise FederationError(
                f"the model of {self.start.silo} after {standing.version} rounds differs from "
                "the coordinator's"
            )
        self.rounds += [each.added for each in forests]
        for rows in self.scored:
            for each in forests:
                rows.add(each.forest)
        self.version, self.digest = standing.version, digest
        return standing

    def trees(self) -> list[list[tuple[int, list[Tree]]]]:
        """Return of each round its blocks: boosting steps, and their trees."""
        return [
            [(added.steps, trees) for trees in unpacked(added, self.limits, SENDER)]
            for added in self.rounds
        ]

    def check(self, *, any_round: bool = False) -> ModelCheck | None:
        """Return how this silo knows the model; None where it never learnt a base score.

        Parameters
        ----------
        any_round : bool
            Whether the result may be the model of an earlier round.
        """
        if self.blank is None:
            return None
        start, log = self.blank, TreeLog(self.rounds)

        def check(files: Mapping[str, bytes]) -> None:
            whole = log.ensemble(start)
            ends = [0, *(whole.steps[n - 1] if n else 0 for n in whole.round_ends)]
            allowed = ends[1:] if any_round else ends[-1:]
            check_trees(files, "model.ubj", start, fingerprints(whole.trees), allowed)

        return check

    def _forest(self, digest: bytes, added: TreeRound) -> _RoundForest:
        """Return a round's trees; the coordinator is not trusted with XGBoost's memory."""
        if self.blank is None:
            raise OfferRejected("expected a base score before the first trees, received none")
        if added.steps != self.steps:
            raise OfferRejected(f"expected rounds of {self.steps} steps, received {added.steps}")
        threads = self.start.n_threads
        with _LOADING:
            return _forest_of(_Known(digest, self.blank.header, self.limits, threads, added))

    def _load(self, score: Score) -> None:
        """Load the rows, once the base score is known."""
        if self.blank is not None:
            return
        job, schema = self.start.job, self.start.schema
        self.base_score = score
        self.blank = blank(schema, job.objective, job.booster, score)
        begin = self.start.starting or self.blank
        self.scored = [MarginRows(t, begin, self.start.n_threads) for t in self.tables]
