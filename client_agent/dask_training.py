"""Grows a silo's trees on the Dask cluster of its own organisation, through ``xgboost.dask``.

The rows are sent to the workers once a job and stay there until the job ends; each round sends only
the margins. Scheduler and workers see the silo's data, so they belong to the same organisation.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset
from hedgerow.boosting.errors import DataError, FederationError
from hedgerow.boosting.trees.ensemble import Tree, first_line
from hedgerow.boosting.trees.loading import trees_of

if TYPE_CHECKING:
    import dask.array
    import distributed

CONNECT_SECONDS = 20.0


class DaskTrainer:
    """A :class:`~hedgerow.boosting.ports.LocalTrainer` on a Dask cluster.

    Cuts and sums are merged over the workers, so trees equal those of one machine where the
    features have no more values than bins, and are close elsewhere; bits may differ between runs.

    Parameters
    ----------
    scheduler : str
        ``tcp://HOST:PORT`` or ``tls://HOST:PORT``; Dask's own settings name the files for TLS.

    Raises
    ------
    FederationError
        The package ``dask`` is not installed.
    """

    def __init__(self, scheduler: str) -> None:
        try:
            import distributed  # noqa: F401
            import xgboost.dask  # noqa: F401
        except ImportError as error:
            raise FederationError(
                f"dask = {scheduler!r} needs the extra hedgerow[dask]: {error}"
            ) from error
        self._scheduler = scheduler
        self._client: distributed.Client | None = None
        self._lock = threading.Lock()
        self._sent: tuple[Dataset, dict[str, dask.array.Array]] | None = None

    def __call__(
        self,
        dataset: Dataset,
        margins: NDArray[np.float32],
        parameters: Mapping[str, Any],
        n_steps: int,
    ) -> list[Tree]:
        """Return the trees of ``n_steps`` boosting steps; see ``LocalTrainer``."""
        import distributed
        import xgboost
        import xgboost.dask

        # Jobs of one agent share the cluster, one training at a time.
        with self._lock:
            client = self._connected()
            try:
                with client.as_current():
                    rows = xgboost.dask.DaskDMatrix(
                        client,
                        **self._rows(client, dataset),
                        base_margin=_spread(client, margins),
                        feature_types=dataset.schema.feature_types,
                        enable_categorical=True,
                    )
                    # Each worker has as many threads as Dask gave it.
                    given = {key: value for key, value in parameters.items() if key != "nthread"}
                    made = xgboost.dask.train(
                        client, {"base_score": 0.5, **given}, rows, num_boost_round=n_steps
                    )
            except xgboost.core.XGBoostError as error:
                raise DataError(
                    f"XGBoost cannot train on these rows: {first_line(error)}"
                ) from error
            except (OSError, distributed.scheduler.KilledWorker) as error:
                raise FederationError("the connection to the Dask cluster was lost") from error
        return trees_of(made["booster"])

    def close(self) -> None:
        """Release the rows on the cluster and disconnect."""
        self._sent = None
        if self._client is not None:
            self._client.close()

    def _connected(self) -> distributed.Client:
        import distributed

        if self._client is None or self._client.status != "running":
            self._sent = None
            try:
                self._client = distributed.Client(
                    self._scheduler, timeout=CONNECT_SECONDS, set_as_default=False
                )
            except OSError as error:
                raise FederationError(f"no Dask scheduler responds at {self._scheduler}") from error
        return self._client

    def _rows(self, client: distributed.Client, dataset: Dataset) -> dict[str, dask.array.Array]:
        """Return the rows on the cluster; those of the previous job are released."""
        if self._sent is None or self._sent[0] is not dataset:
            self._sent = None
            given = {"data": dataset.X, "label": dataset.y, "weight": dataset.weight}
            arrays = {k: _spread(client, part) for k, part in given.items() if part is not None}
            self._sent = (dataset, arrays)
        return self._sent[1]


def _spread(client: distributed.Client, values: NDArray[Any]) -> dask.array.Array:
    """Return an array whose blocks are on the workers, one on each."""
    import dask.array

    workers = sorted(client.scheduler_info(n_workers=-1)["workers"])
    if not workers:
        raise FederationError("the Dask cluster has no workers")
    blocks = []
    for worker, part in zip(workers, np.array_split(values, len(workers)), strict=True):
        if len(part) == 0:
            continue
        (future,) = client.scatter([part], workers=[worker], hash=False)
        block = dask.delayed(future)
        blocks.append(dask.array.from_delayed(block, shape=part.shape, dtype=part.dtype))
    return dask.array.concatenate(blocks)
