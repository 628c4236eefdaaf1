"""The mean of each label over all silos, where a regression starts, without any other sums."""

from __future__ import annotations

from hedgerow.boosting.exchange import CoordinatorEndpoint, ExchangeKey, SiloChannel
from hedgerow.boosting.ports import CoordinatorStart, SiloStart
from hedgerow.boosting.sums.coordinator import CoordinatorSums
from hedgerow.boosting.sums.exact import label_parts, mean_labels, n_label_values
from hedgerow.boosting.sums.silo import SiloSums
from hedgerow.boosting.sums.steps import SumParameters
from hedgerow.boosting.sums.view import state_digest
from hedgerow.crypto.vault.interface import Vault

_AT = ExchangeKey(0)


async def label_means(
    hub: CoordinatorEndpoint, start: CoordinatorStart, *, secure: bool
) -> tuple[float, ...]:
    """Return the weighted mean of each label; the coordinator half."""
    sums = CoordinatorSums.of(hub, start, mean_parameters(start.job.min_silos, secure))
    await sums.setup(_AT)
    outcome = await sums.total(_AT, n_label_values(len(start.schema.labels)))
    assert outcome.total is not None
    return mean_labels(outcome.total)


def offered_means(
    link: SiloChannel, vault: Vault | None, start: SiloStart, *, secure: bool
) -> tuple[float, ...]:
    """Return the weighted mean of each label; the silo half."""
    sums = SiloSums.of(link, vault, start, mean_parameters(start.job.min_silos, secure))
    sums.setup(_AT)
    data = start.dataset
    state = state_digest(start.schema)
    return mean_labels(sums.total(_AT, label_parts(data.labels, data.weight), state=state).values)


def mean_parameters(min_silos: int, secure: bool) -> SumParameters:
    """Return how the sums of labels are made."""
    return SumParameters(secure=secure, batch=1, least_silos=max(min_silos, 3 if secure else 1))
