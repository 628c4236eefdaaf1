"""Grows a silo's trees on the Dask cluster of its own organisation, through ``xgboost.dask``.

The rows are sent to the workers once a job and stay there until the job ends; each round sends only
the margins. Scheduler and workers see the silo's data, so they belong to the same organisation.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hedgerow.boosting.dataset import Dataset, Task
from hedgerow.boosting.errors import DataError
from hedgerow.boosting.trees.ensemble import Tree, first_line
from hedgerow.boosting.trees.loading import trees_of
from hedgerow.boosting.trees.local import label_arguments
from hedgerow.client_agent.dask_cluster import DaskCluster, lost

if TYPE_CHECKING:
    import dask.array
    import distributed


class DaskTrainer:
    """A :class:`~hedgerow.boosting.ports.LocalTrainer` on a Dask cluster.

    Cuts and sums are merged over the workers, so trees equal those of one machine where the
    features have no more values than bins, and are close elsewhere; bits may differ between runs.
    """

    def __init__(self, cluster: DaskCluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._client: distributed.Client | None = None
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

        if dataset.schema.task is Task.RANKING:
            raise DataError(
                "rankings are not grown on a Dask cluster, whose workers would divide queries: "
                "take dask out of the agent's settings for this job"
            )
        # Jobs of one agent share the cluster, one training at a time.
        with self._lock:
            client, workers = self._cluster.client(), [*self._cluster.workers()]
            try:
                with client.as_current():
                    rows = xgboost.dask.DaskDMatrix(
                        client,
                        **self._rows(client, workers, dataset),
                        base_margin=_spread(client, workers, margins),
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
                raise lost() from error
        return trees_of(made["booster"])

    def _rows(
        self, client: distributed.Client, workers: Sequence[str], dataset: Dataset
    ) -> dict[str, dask.array.Array]:
        """Return the rows on the cluster; those of the previous job are released."""
        if self._sent is None or self._sent[0] is not dataset or self._client is not client:
            self._client, self._sent = client, None
            given = {
                "data": dataset.X,
                "weight": dataset.weight,
                **label_arguments(dataset.y, dataset.schema.task),
            }
            found = {k: part for k, part in given.items() if part is not None}
            arrays = {k: _spread(client, workers, part) for k, part in found.items()}
            self._sent = (dataset, arrays)
        return self._sent[1]


def _spread(
    client: distributed.Client, workers: Sequence[str], values: NDArray[Any]
) -> dask.array.Array:
    """Return an array whose blocks are on the workers, one on each."""
    import dask.array

    blocks = []
    for worker, part in zip(workers, np.array_split(values, len(workers)), strict=True):
        if len(part) == 0:
            continue
        (future,) = client.scatter([part], workers=[worker], hash=False)
        block = dask.delayed(future)
        blocks.append(dask.array.from_delayed(block, shape=part.shape, dtype=part.dtype))
    return dask.array.concatenate(blocks)
