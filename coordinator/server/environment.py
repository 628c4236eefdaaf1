"""What the runs of a coordinator's jobs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hedgerow.boosting.dataset import Dataset, Schema
from hedgerow.boosting.exchange import Silo
from hedgerow.boosting.ports import JobParameters
from hedgerow.coordinator.server.artefacts import Artefacts
from hedgerow.coordinator.server.store import Store
from hedgerow.services.rpc.federation import Registration
from hedgerow.services.rpc.metering import Metrics
from hedgerow.services.wire.signed_job import OpenedJob, SignedJob


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """What every job run uses.

    Parameters
    ----------
    registered : callable
        Silos that hold a lease, as their agents describe them.
    allowed : callable
        Silos that may register; empty where every silo of the federation may.
    evaluation : callable
        Loads a table of the coordinator, by (job, schema, name of the table); None for no name.
    now : callable
        Seconds since 1970.
    verify : callable
        (silo, certificate, message, signature); raises SignatureInvalid.
    without_crypto : callable
        Silos that hold a lease and whose crypto process does not answer, as they say.
    open_job : callable
        Checks a job that an operator has signed, by what the signature is for.
    """

    store: Store
    artefacts: Artefacts
    metrics: Metrics
    registered: Callable[[], dict[Silo, Registration]]
    allowed: Callable[[], frozenset[Silo]]
    evaluation: Callable[[JobParameters, Schema, str], Dataset | None]
    now: Callable[[], float]
    verify: Callable[[Silo, bytes, bytes, bytes], None]
    open_job: Callable[[SignedJob, bytes], OpenedJob]
    without_crypto: Callable[[], frozenset[Silo]] = frozenset
