"""The silo half: sums over public trees, with its part of the noise, within its table's budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hedgerow.boosting.errors import OfferRejected
from hedgerow.boosting.exchange import ExchangeKey, Receipt, SiloChannel
from hedgerow.boosting.payloads import UInt16s
from hedgerow.boosting.ports import ModelCheck, SiloStart
from hedgerow.boosting.strategies.private_boost.artefact import blank_of, trees_of
from hedgerow.boosting.strategies.private_boost.mechanism import Mechanism
from hedgerow.boosting.strategies.private_boost.parameters import PrivateBoost
from hedgerow.boosting.strategies.private_boost.steps import STANDING, BoostedTrees, leaf_sums
from hedgerow.boosting.sums.answers import NoisyRelease
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.view import state_digest
from hedgerow.boosting.trees.agreed import check_trees, fingerprints

if TYPE_CHECKING:
    from hedgerow.crypto.vault.interface import Vault


def participate(
    parameters: PrivateBoost, link: SiloChannel, vault: Vault | None, start: SiloStart
) -> ModelCheck:
    """Run the silo half; returns how this silo knows the model: all of its trees."""
    n_silos = len(start.silos)
    plan = Mechanism(parameters, start.job, start.schema, n_silos)
    release = NoisyRelease.of(vault, start) if plan.noisy else None
    told = link.exchange(STANDING, ExchangeKey(start.first_round), Receipt())
    values = checked_state(plan, told)
    codes = plan.domain.codes(start.dataset.X)
    margins = plan.start_margins(start.dataset.n_samples)
    for batch, own in enumerate(values):
        plan.add(batch, plan.leaves(batch, codes), margins, own)
    if len(values) < plan.n_batches:
        sums = SiloSums.of(link, vault, start, parameters.sum_parameters(start.job, n_silos))
        sums.setup(ExchangeKey(len(values)))
    steps, ring = leaf_sums(noisy=plan.noisy), plan.ring_bits(told.row_bits)
    labels = start.dataset.labels
    keys = plan.keys(codes, labels)
    for batch in range(len(values), plan.n_batches):
        leaves = plan.leaves(batch, codes)
        exact = plan.sums(batch, leaves, margins, labels, keys)
        # All that the sums are computed from, and the sums alone: noise is of this question.
        # Units, too: the same noise on sums of another scale would open both.
        query = state_digest(
            start.schema, batch, told.row_bits, plan.honest, tuple(values), plan.units
        )
        answer = exact
        if release is not None:
            [answer] = release.answer(
                query,
                [(plan.cost(batch), exact)],
                silos=sums.participants,
                honest=plan.honest,
            )
        residues = answer.view(np.uint64)
        if ring == 32:
            residues = residues.astype(np.uint32)
        reply = sums.sum(steps, ExchangeKey(batch), residues, state=query, ring=ring)
        own = _checked(plan, batch, reply.values)
        plan.add(batch, leaves, margins, own)
        values.append(own)
    trees = trees_of(plan, values, None)
    known, start_model = fingerprints(trees), blank_of(plan)

    def check(files: Mapping[str, bytes]) -> None:
        check_trees(files, "model.ubj", start_model, known, (len(known),))

    return check


def checked_state(plan: Mechanism, told: BoostedTrees) -> list[UInt16s]:
    """Return the leaf values of the batches so far; refuse what is no state of the job."""
    if not 0 <= told.row_bits <= 53:
        raise OfferRejected("from the coordinator: expected 0 to 53 row bits")
    if not 0 <= told.batch <= plan.n_batches:
        raise OfferRejected(f"from the coordinator: expected a batch up to {plan.n_batches}")
    lengths = [plan.n_values(batch) // 2 for batch in range(told.batch)]
    if told.values.shape != (sum(lengths),):
        raise OfferRejected("from the coordinator: other trees than those before the batch")
    parts = np.split(told.values, np.cumsum(lengths)[:-1]) if lengths else []
    return [_checked(plan, batch, part) for batch, part in enumerate(parts)]


def _checked(plan: Mechanism, batch: int, values: UInt16s) -> UInt16s:
    if values.shape != (plan.n_values(batch) // 2,):
        raise OfferRejected("from the coordinator: other leaves than those of the batch")
    if not (np.abs(values.view(np.float16)) <= plan.most_value).all():
        raise OfferRejected("from the coordinator: leaf values beyond their bound")
    return values
