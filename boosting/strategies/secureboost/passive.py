"""A passive party: it holds features only, and keeps its divisions."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np

from hedgerow.boosting.engine.cuts import local_cuts
from hedgerow.boosting.engine.splitting import TreeParameters
from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.ports import Artefact
from hedgerow.boosting.strategies.secureboost.category_sets import CategoryOrder
from hedgerow.boosting.strategies.secureboost.eini import serve
from hedgerow.boosting.strategies.secureboost.gradient_layout import check_layout
from hedgerow.boosting.strategies.secureboost.meeting import LEAVES, meet
from hedgerow.boosting.strategies.secureboost.model import PassivePart
from hedgerow.boosting.strategies.secureboost.parameters import Turn
from hedgerow.boosting.strategies.secureboost.party import PART, AlignedRows, Party, held_back
from hedgerow.boosting.strategies.secureboost.passive_tree import PassiveFeatures, PassiveTree
from hedgerow.boosting.strategies.secureboost.routing import Router, hop, router_of_passive
from hedgerow.boosting.strategies.secureboost.steps import SCORES, STEPS, ModelState, StepName
from hedgerow.crypto.ciphers.packing import PairLayout
from hedgerow.crypto.ciphers.schemes import check_kind
from hedgerow.crypto.errors import KeyRejected

COLUMNS = "columns.json"
"""Which column each number of the active party's table of information stands for."""
_OF_TREES = (StepName.GRADIENTS, StepName.HISTOGRAMS, StepName.SPLITS, StepName.BITMAPS)
"""Steps in which only the parties of the tree have something to send."""


class PassiveParty(Party):
    """Follows the steps that the active party names, as far as it takes part in the tree."""

    def run(self) -> Artefact | None:
        """Take part until the job ends."""
        parameters, start = self.parameters, self.start
        record = self.recalled()
        if record.get("final"):
            return Artefact({PART: record["part"].encode()}, PART)
        if parameters.predict_from:
            self._serve()
            return None
        earlier = None if record or not parameters.warm_start else self._earlier()
        known = PassivePart.load(record["part"].encode()) if record else None
        if known is not None:
            self.use_columns(known.features, known.categories)
        digest = bytes.fromhex(earlier.digest) if earlier else b""
        met = meet(self.courier, start, parameters.active, model=digest)
        self.public_key = self._checked(met.public_key)
        if parameters.leaves_only:
            met.need(LEAVES)
        rows = self.align(met.with_test, None)
        self._prepare(rows)
        if known is not None:
            self.part = known
            self.part.alignment = rows.report
        elif earlier is not None:
            self.check_categories(earlier)
            router = router_of_passive(earlier, parameters.active, earlier.n_trees, rows.raw)
            rows = replace(rows, then=self._route(router, rows.then))
            earlier.model, earlier.alignment = start.job_id, rows.report
            self.part = earlier
        self.features = PassiveFeatures(
            has_missing=self.setup.binned.missing_in(rows.train.n_samples),
            names=np.array(self.part.anonymous, np.int32),
            fit=self.fit,
            min_leaf=parameters.min_leaf,
            parameters=self.tree_parameters,
            check=self._check_layout,
            fewest=parameters.sampler(self.job.booster).fewest(len(self.fit)),
            least_rows=max(start.limits.least_bin_rows, parameters.least_rows),
            groups=self.groups,
            orders=self.orders,
            whole=parameters.information,
        )
        self.number = self.part.n_trees
        self.begun = 0
        self.round = start.first_round
        self.tree: PassiveTree | None = None
        then = rows.then
        if parameters.information:
            return self._inform(then)
        while then is not StepName.END:
            then = self._follow(then)
        return Artefact({PART: self.part.dump()}, PART)

    def _inform(self, then: StepName) -> Artefact:
        """Give the sums of the columns; keep, for this party alone, which column is which."""
        self.start.telling()
        for step in (StepName.GRADIENTS, StepName.HISTOGRAMS, StepName.SCORES):
            if then is not step:
                raise OfferRejected(f"{self.parameters.active} named step {then.value} out of turn")
            then = self.courier.send(SCORES).then if step is StepName.SCORES else self._follow(step)
        assert self.tree is not None
        names = self.part.features
        told = {str(k + 1): names[j] for k, j in enumerate(self.tree.chained_features)}
        return Artefact({COLUMNS: json.dumps(told, indent=1).encode()}, COLUMNS)

    def _checked(self, public_key: bytes) -> bytes:
        """Return the active party's key; refuse another kind or size than the job's.

        Its modulus is proven to the vault, before anything is summed under it.
        """
        parameters = self.parameters
        if parameters.encryption != "plain":
            try:
                check_kind(public_key, parameters.encryption, parameters.key_bits)
            except KeyRejected as error:
                raise OfferRejected(f"{parameters.active}: {error}") from error
        return public_key

    def _check_layout(self, stated: PairLayout) -> None:
        active, most = self.parameters.active, self.start.limits.most_gradient_bits
        check_layout(stated, self.parameters, self.job, len(self.fit), active)
        if most and stated.value_bits > most:
            raise OfferRejected(
                f"{active}: gradients of {stated.value_bits} bits, "
                f"policy rule max_gradient_bits of {self.courier.party} allows {most}"
            )

    def _earlier(self) -> PassivePart:
        """Return the part that this job starts from, with the table's columns in its order."""
        part = PassivePart.load(self.earlier_part())
        self.use_columns(part.features, part.categories)
        return part

    def _route(self, router: Router, then: StepName) -> StepName:
        """Move rows through own nodes as long as the active party says; return the next step."""
        waiting = router.roots()
        while then is StepName.MARGINS:
            waiting, then = hop(self.courier, router, waiting)
        return then

    def _serve(self) -> None:
        """Help to score the parties' tables with an earlier model."""
        part, active = self._earlier(), self.parameters.active
        met = meet(self.courier, self.start, active, model=bytes.fromhex(part.digest))
        rows = self.align(False, None)
        router = router_of_passive(part, active, part.n_used, rows.raw)
        if rows.then is StepName.LEAVES:
            key = self._checked(met.public_key)
            then = serve(self.courier, self.cipher, key, router, self.parties[1:])
        else:
            then = self._route(router, rows.then)
        if then is not StepName.SCORES:
            raise OfferRejected(f"{active} named step {then.value} out of turn")
        self.courier.send(SCORES)

    def _follow(self, step: StepName) -> StepName:
        """Take part in a step; return the next one."""
        turn = self.parameters.turn(self.round, self.parties)
        if step is StepName.SCORES:
            return self._close()
        if step is StepName.GRADIENTS:
            self.begun += 1
            most = self.parameters.trees_per_round(self.job)
            if self.begun > most:
                raise OfferRejected(
                    f"{self.parameters.active} grows more than {most} trees in round {self.round}"
                )
        if self.courier.party not in turn.passive and step in _OF_TREES:
            # Another party's tree: nothing to send, nothing to learn.
            if step is StepName.GRADIENTS:
                self.number += 1
            return self.courier.send(STEPS[step]).then
        if step is StepName.GRADIENTS:
            return self._begin(turn)
        if self.tree is not None and step is StepName.HISTOGRAMS:
            return self.tree.answer()
        if self.tree is not None and step is StepName.SPLITS:
            return self.tree.divide()
        raise OfferRejected(f"{self.parameters.active} named step {step.value} out of turn")

    def _prepare(self, rows: AlignedRows) -> None:
        train = rows.train
        # Bins, and the rows that count for the guard, are those of training alone.
        held = held_back(self.parameters.validation, self.job.seed, train.n_samples)
        self.fit = np.setdiff1d(np.arange(train.n_samples), held)
        max_bin, error = self.job.booster.max_bin, self.parameters.binning_error
        cuts = local_cuts(train.take(self.fit), max_bin, error)
        self.setup = self.tree_setup(rows, cuts)
        self.tree_parameters = replace(
            TreeParameters.of(self.job.booster, train.schema.n_features),
            monotone=self.monotone(train.schema),
        )
        self.groups = self.groups_of(train.schema)
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
        rng = np.random.default_rng(np.random.SeedSequence(self._secret))
        self.part.anonymous = rng.permutation(train.schema.n_features).tolist()
        # One order for the whole job: two would put a category of few rows into two groups, whose
        # common rows are that category's.
        self.orders = CategoryOrder.draw(
            np.flatnonzero(cuts.categorical).tolist(), self.setup.binned, self.fit,
            max(
                self.start.limits.least_bin_rows, self.parameters.min_leaf,
                self.parameters.least_rows,
            ), rng,
        )  # fmt: skip
        self.setup = replace(self.setup, binned=self.orders.recoded(self.setup.binned))

    def _number_leaves(self) -> None:
        """Give the leaves of the finished tree numbers, where it is this party's alone."""
        if self.tree is not None and self.parameters.leaves_only:
            number = self.number - 1
            self.part.whole[str(number)] = self.tree.leaf_order()
            self.tree = None

    def _begin(self, turn: Turn) -> StepName:
        self._number_leaves()
        # The order of the candidates is drawn for every tree (of columns, where categories
        # are divided into sets), the same after a restart.
        rng = np.random.default_rng(np.random.SeedSequence([*self._secret, self.number]))
        self.tree = PassiveTree(self.setup, self.features, turn, self.part, self.number, rng)
        self.number += 1
        return self.tree.begin(self.public_key)

    def _close(self) -> StepName:
        """Make the round durable before it counts, then note which trees it made."""
        # The active party's own trees have numbers too.
        r = self.round
        self._number_leaves()
        self.part.n_trees = self.number
        self.remember(r, {"part": self.part.dump().decode(), "final": False})
        received = self.courier.send(SCORES)
        final = received.then is StepName.END
        self.round += 1
        self.begun = 0
        if not final:
            self.courier.begin_round(self.round)
        state = received.read(self.parameters.active, ModelState)
        self.part.digest = state.digest.hex()
        self.part.n_trees = self.number = state.n_trees
        self.part.n_used = state.n_used
        self.remember(r, {"part": self.part.dump().decode(), "final": final})
        return received.then
