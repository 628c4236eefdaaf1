"""The silo half of SimFL; the package's docstring has the protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.engine.objective import objective_of
from hedgerow.boosting.errors import FederationError, OfferRejected, PlacePassed
from hedgerow.boosting.exchange import ExchangeKey, Silo, SiloChannel
from hedgerow.boosting.payloads import checked
from hedgerow.boosting.rounds.silo import SiloModel
from hedgerow.boosting.rounds.steps import TREES, TreeOffer, TreeStanding
from hedgerow.boosting.strategies.simfl.similarity import (
    Similar,
    check_hashes,
    decode_maps,
    encode_maps,
    hashes_of,
    most_similar,
    ranges_of,
)
from hedgerow.boosting.strategies.simfl.steps import (
    GRADIENTS,
    HASHES,
    RANGES,
    GradientSums,
    OtherHashes,
    RowHashes,
)
from hedgerow.boosting.streams import Purpose, generator, round_drawn, xgboost_seed
from hedgerow.boosting.trees.local import booster_parameters, constrained, roster_index
from hedgerow.boosting.trees.packing import Shrinkage, pack

if TYPE_CHECKING:
    from hedgerow.boosting.ports import ModelCheck, SiloStart
    from hedgerow.boosting.strategies.simfl.parameters import SimFL
    from hedgerow.crypto.vault.interface import Vault

_KEPT = "simfl-similar-rows"
_BEGUN = b""
NO_SUMS = GradientSums(np.zeros(0, np.float32), np.zeros(0, np.float32))


def participate(
    parameters: SimFL, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck | None:
    """Run the silo half; returns how this silo knows the model."""
    half = _SimFLSilo(parameters, link, vault, start)
    standing = half.model.catch_up(first_round=-1)
    half.find_similar(standing)
    while standing.round < parameters.rounds:
        at = ExchangeKey(standing.round)
        try:
            offer = half.grow(at, half.weighted(at))
            standing = half.model.receive(link.exchange(TREES, at, offer))
        except PlacePassed:
            standing = half.model.catch_up(first_round=at.round + 1)
    return half.model.check()


class _SimFLSilo:
    """The half's state within an attempt."""

    def __init__(
        self, parameters: SimFL, link: SiloChannel, vault: Vault | None, start: SiloStart
    ) -> None:
        self.parameters, self.link, self.start = parameters, link, start
        self.job, self.schema = start.job, start.schema
        self.roster = sorted(start.silos)
        self.index = roster_index(start.silo, start.silos)
        self.objective = objective_of(self.job.objective, self.job.task, self.job.booster)
        self.native = booster_parameters(
            constrained(self.job.booster, self.schema),
            self.job.objective,
            self.schema.n_outputs,
            start.n_threads,
        )
        limits = parameters.limits(self.job, self.schema)
        secure = len(start.silos) >= 3
        self.model = SiloModel(link, vault, start, limits, 1, secure=secure, tables=[start.dataset])
        self.maps: dict[Silo, Similar] | None = None  # None: nobody has this silo's hashes

    def find_similar(self, standing: TreeStanding) -> None:
        """Exchange hashes and find similar rows, or take up those found before a restart."""
        data = self.start.dataset
        try:
            if standing.round > 0:
                raise PlacePassed("rows are hashed before round 0")
            ranges = self.link.exchange(RANGES, ExchangeKey(0), ranges_of(data))
            for name, values in (("low", ranges.low), ("high", ranges.high)):
                checked(name, values, (self.schema.n_features,))
            if self.link.recall(_KEPT) is None:
                self.link.remember(_KEPT, _BEGUN)
            n_hashes = self.parameters.n_hashes(self.schema)
            width, seed = self.parameters.width, self.job.seed
            own = hashes_of(data, ranges, n_hashes, width, seed)
            others = self.link.exchange(HASHES, ExchangeKey(0), RowHashes(self.start.silo, own))
        except PlacePassed:
            kept = self.link.recall(_KEPT)
            if kept == _BEGUN:  # the others count on its turns; another attempt can hash again
                raise FederationError(
                    f"{self.start.silo} was restarted while it looked for similar rows"
                ) from None
            self.maps = None if kept is None else decode_maps(kept, data.n_samples)
            return
        self.maps = self._similar(own, others)
        self.link.remember(_KEPT, encode_maps(self.maps, data.n_samples))

    def _similar(self, own: NDArray[np.int64], others: OtherHashes) -> dict[Silo, Similar]:
        names = [each.silo for each in others.silos]
        if names != sorted(set(names) & (set(self.roster) - {self.start.silo})):
            raise OfferRejected("expected hashes of the roster's other silos, once each, sorted")
        maps = {}
        for each in others.silos:
            values = check_hashes(each.values, None, own.shape[1], f"hashes of {each.silo}")
            other = self.roster.index(each.silo)
            rng = generator(self.start.draws, self.index, other, Purpose.SIMILAR_ROWS)
            found = most_similar(own, values, rng, self.link.check)
            if len(found):
                maps[each.silo] = Similar(found, len(values))
        return maps

    def weighted(self, at: ExchangeKey) -> GradientSums | None:
        """Add this silo's part; return what the others add to its rows if it is to grow a tree."""
        turn = self.roster[round_drawn(self.job, at.round) % len(self.roster)]
        ready = self.maps is not None and self.model.version == at.round
        sums = self._sums(turn) if ready else NO_SUMS
        try:
            total = self.link.exchange(GRADIENTS, at, sums)
        except PlacePassed:
            return None
        if turn != self.start.silo or not ready or not self.start.dataset.n_samples:
            return None
        length = self.start.dataset.n_samples * self.schema.n_outputs
        for name, values in (("gradients", total.gradients), ("hessians", total.hessians)):
            checked(name, values, (length,))
        return total

    def _sums(self, turn: Silo) -> GradientSums:
        """Return the gradients of this silo's rows, added up by similar row of another silo."""
        similar = (self.maps or {}).get(turn)
        if similar is None:
            return NO_SUMS
        outputs = range(self.schema.n_outputs)
        g, h = (
            np.column_stack(
                [np.bincount(similar.rows, each[:, c], similar.n_rows) for c in outputs]
            )
            .astype(np.float32)
            .reshape(-1)
            for each in self._gradients()
        )
        return GradientSums(g, h)

    def _gradients(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        data, (rows,) = self.start.dataset, self.model.scored
        margins = rows.margins.reshape(data.n_samples, -1)
        return self.objective.gradients(margins, data.labels, data.weight)

    def grow(self, at: ExchangeKey, total: GradientSums | None) -> TreeOffer:
        """Return this silo's tree where it is its turn and the others' sums are here."""
        self.link.check()
        model = self.model
        model.offered = TreeOffer(model.version, 0, 0.0, b"")
        if total is None:
            return model.offered
        g, h = self._gradients()
        drawn = round_drawn(self.job, at.round)
        seed = xgboost_seed(self.start.draws, self.index, drawn, Purpose.XGBOOST)
        booster = self.job.booster
        native = self.native | {"eta": booster.eta, "seed": seed}
        (rows,) = model.scored
        trees = rows.boost(
            native, g + total.gradients.reshape(g.shape), h + total.hessians.reshape(h.shape)
        )
        eta = booster.eta / booster.num_parallel_tree
        data = pack(
            [tree.scrubbed() for tree in trees], Shrinkage(eta, booster.lambda_, booster.alpha)
        )
        model.offered = TreeOffer(model.version, 1, 0.0, data)
        return model.offered
