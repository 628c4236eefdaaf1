"""The mean label of all silos, where a regression starts; for strategies without other sums."""

from __future__ import annotations

from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, SiloChannel
from hedgerow.boosting.ports import CoordinatorStart, SiloStart
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.exact import N_LABEL_VALUES, label_parts, mean_label
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.vault import Vault

_AT = ExchangeKey(0)


async def label_mean(hub: CoordinatorEndpoint, start: CoordinatorStart, *, secure: bool) -> float:
    """Return the weighted mean label; the coordinator half."""
    sums = CoordinatorSums.of(hub, start, mean_parameters(start.job.min_silos, secure))
    await sums.setup(_AT)
    outcome = await sums.total(_AT, N_LABEL_VALUES)
    assert outcome.total is not None
    return mean_label(outcome.total)


def offered_mean(
    link: SiloChannel, vault: Vault | None, start: SiloStart, *, secure: bool
) -> float:
    """Return the weighted mean label; the silo half."""
    sums = SiloSums.of(link, vault, start, mean_parameters(start.job.min_silos, secure))
    sums.setup(_AT)
    data = start.dataset
    state = state_digest(start.schema)
    return mean_label(sums.total(_AT, label_parts(data.labels, data.weight), state=state).values)


def mean_parameters(min_silos: int, secure: bool) -> SumParameters:
    """Return how the sums of labels are made."""
    return SumParameters(secure=secure, batch=1, least_silos=max(min_silos, 3 if secure else 1))
