"""A passive party's half: features only; it keeps its divisions."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hedgerow.boosting.engine.binning import bin_features
from hedgerow.boosting.engine.cuts import Cuts, local_cuts
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.secureboost.active_tree import PassiveTree
from hedgerow.boosting.strategies.secureboost.eini import serve
from hedgerow.boosting.strategies.secureboost.model import PassivePart
from hedgerow.boosting.strategies.secureboost.party import PART, Half, Rows, held_back
from hedgerow.boosting.strategies.secureboost.routing import Router, hop, router_of_passive
from hedgerow.boosting.strategies.secureboost.steps import (
    BITMAPS,
    END,
    GRADIENTS,
    HISTOGRAMS,
    LEAVES,
    MARGINS,
    SCORES,
    SPLITS,
    STEPS,
    meet,
)


class PassiveHalf(Half):
    """Does what the active party names, as far as that is its turn."""

    def run(self) -> Artefact | None:
        """Take part until the job ends."""
        strategy, start = self.strategy, self.start
        record = self.recalled()
        if record.get("final"):
            return Artefact({PART: record["part"].encode()}, PART)
        if strategy.predict_from:
            self._serve()
            return None
        earlier = None if record or not strategy.warm_start else self._earlier()
        digest = bytes.fromhex(earlier.digest) if earlier else b""
        met = meet(self.courier, start, strategy.active, b"", "", digest)
        self.public_key = met.public_key
        rows = self.align(met.with_test, "")
        self._prepare(rows)
        if record:
            self.part = PassivePart.load(record["part"].encode())
            self.part.alignment = rows.report
        elif earlier is not None:
            router = router_of_passive(earlier, strategy.active, earlier.n_trees, rows.raw)
            rows = replace(rows, then=self._route(router, rows.then))
            earlier.model, earlier.alignment = start.job_id, rows.report
            self.part = earlier
        self.names = np.array(self.part.anonymous, np.int32)
        self.number = self.part.n_trees
        self.round = start.first_round
        self.tree: PassiveTree | None = None
        then = rows.then
        while then != END:
            then = self._follow(then)
        return Artefact({PART: self.part.dump()}, PART)

    def _earlier(self) -> PassivePart:
        """Return the part that this job starts from, with the table's columns in its order."""
        part = PassivePart.load(self.earlier_part())
        self.use_columns(part.features, part.categories)
        return part

    def _route(self, router: Router, then: str) -> str:
        """Move rows through own nodes as long as the active party says; return the next step."""
        waiting = router.roots()
        while then == MARGINS.name:
            waiting, then = hop(self.courier, router, waiting)
        return then

    def _serve(self) -> None:
        """Help to score the parties' tables with an earlier model."""
        part, active = self._earlier(), self.strategy.active
        met = meet(self.courier, self.start, active, b"", "", bytes.fromhex(part.digest))
        rows = self.align(False, "")
        router = router_of_passive(part, active, part.n_used, rows.train.X)
        if rows.then == LEAVES.name:
            then = serve(self.courier, self.cipher, met.public_key, router, self.parties[1:])
        else:
            then = self._route(router, rows.then)
        if then != SCORES.name:
            raise OfferRejected(f"{active} named step {then!r} out of turn")
        self.courier.send(SCORES)

    def _follow(self, step: str) -> str:
        """Take part in a step; return the next one."""
        strategy = self.strategy
        turn = strategy.turn(self.round, self.parties)
        if step == SCORES.name:
            return self._close()
        if self.courier.party not in turn.passive and step in _OF_TREES:
            # Another party's tree: nothing to give, nothing to learn.
            if step == GRADIENTS.name:
                self.number += 1
            return self.courier.send(STEPS[step]).then
        if step == GRADIENTS.name:
            return self._begin()
        moves: dict[str, Callable[[PassiveTree], str]] = {
            HISTOGRAMS.name: PassiveTree.answer,
            SPLITS.name: PassiveTree.divide,
        }
        if step not in moves or self.tree is None:
            raise OfferRejected(f"{strategy.active} named step {step!r} out of turn")
        return moves[step](self.tree)

    def _prepare(self, rows: Rows) -> None:
        train = rows.train
        # Bins, and the rows that count for the guard, are those of training alone.
        held = held_back(self.strategy.validation, self.job.seed, train.n_samples)
        self.fit = np.setdiff1d(np.arange(train.n_samples), held)
        self.cuts: Cuts = local_cuts(train.take(self.fit), self.job.booster.max_bin)
        self.binned = bin_features(rows.values(self.cuts), self.cuts, self.start.n_threads)
        self.has_missing = np.asarray(np.isnan(train.X).any(axis=0))
        booster = replace(self.job.booster, monotone_constraints=())
        self.parameters = TreeParameters.of(booster, train.schema.n_features)
        self.part = PassivePart(
            party=self.courier.party,
            model=self.start.job_id,
            features=list(train.schema.names),
            categories=rows.categories,
            alignment=rows.report,
        )
        secret = self.courier.link.recall("secureboost/secret")
        if secret is None:
            secret = os.urandom(32)
            self.courier.link.remember("secureboost/secret", secret)
        self._secret = np.frombuffer(secret, np.uint32).tolist()
        names = np.random.default_rng(np.random.SeedSequence(self._secret))
        self.part.anonymous = names.permutation(train.schema.n_features).tolist()

    def _begin(self) -> str:
        strategy = self.strategy
        turn = strategy.turn(self.round, self.parties)
        # The order of the candidates is drawn anew for every tree, the same after a restart.
        rng = np.random.default_rng(np.random.SeedSequence([*self._secret, self.number]))
        self.tree = PassiveTree(
            self.courier, self.parties, self.binned, self.cuts, self.has_missing, self.parameters,
            turn.passive_depth, strategy.min_leaf, self.fit, turn.passive, self.part,
            self.number, rng, self.names, strategy.max_split_nodes,
        )  # fmt: skip
        self.number += 1
        return self.tree.begin(self.cipher, self.session, self.public_key)

    def _close(self) -> str:
        """Make the round durable before it counts, then note which trees it made."""
        # The active party's own trees have numbers too.
        r = self.round
        self.part.n_trees = self.number
        self.remember(r, {"part": self.part.dump().decode(), "final": False})
        received = self.courier.send(SCORES)
        self.round += 1
        if received.then != END:
            self.courier.begin_round(self.round)
        box = received.boxes.get(self.strategy.active, {})
        try:
            self.part.digest = box["digest"].tobytes().hex()
            self.part.n_trees = self.number = int(box["trees"][0])
            self.part.n_used = int(box["trees"][1])
        except (KeyError, IndexError) as error:
            raise OfferRejected(f"{self.strategy.active} sent no digest of its trees") from error
        self.remember(r, {"part": self.part.dump().decode(), "final": received.then == END})
        return received.then


_OF_TREES = (GRADIENTS.name, HISTOGRAMS.name, SPLITS.name, BITMAPS.name)
"""Steps in which only the parties of the tree have something to say."""
