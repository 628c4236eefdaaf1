"""What the fork server of :mod:`tests.federation.forked` has imported; import it nowhere else."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from hedgerow.services.process.imports import without

# Libraries start their threads when they are imported, and threads do not outlive a fork.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
without("sklearn", "pandas")
import_module("tests.federation.forked").spare_interpreters()
for name in (
    "hedgerow.client_agent.__main__",
    "hedgerow.coordinator.__main__",
    "hedgerow.crypto.__main__",
    "hedgerow.coordinator.cli",
    "hedgerow.coordinator.operator.commands.compare",
    "hedgerow.coordinator.operator.commands.local",
    "hedgerow.coordinator.operator.commands.operate",
    "hedgerow.coordinator.operator.commands.predict",
    "hedgerow.coordinator.operator.commands.simulate",
    "hedgerow.coordinator.operator.library.evaluation",
    "hedgerow.coordinator.operator.report.page",
    "hedgerow.boosting.strategies.secureboost.coordinator",
    "hedgerow.boosting.strategies.secureboost.silo",
    "hedgerow.crypto.arithmetic.curve_native",
    "hedgerow.crypto.arithmetic.modular_native",
    "hedgerow.services.wire.vertical",
    "encodings.idna",
    "grpc._channel",
    "pyarrow.parquet",
    "xgboost",
):
    import_module(name)


def _run_jobs() -> None:
    """Import what jobs import, and load kernels: seconds of CPU less for each federation."""
    import numpy as np

    import hedgerow

    X = np.random.default_rng(0).normal(size=(90, 2))
    rows = {"a": X[:, 0], "b": X[:, 1], "label": (X[:, 0] * X[:, 1] > 0).astype(int)}
    for strategy in ("histogram", "bagging"):
        job = hedgerow.Job(strategy, rounds=2, max_depth=2, seed=1, min_silos=3)
        hedgerow.simulate(job, rows, 3, test=0.0)


_run_jobs()
import_module("hedgerow.coordinator.operator.report.page").vega()
# Another thread is of Arrow's allocator, which starts its own anew in a forked process.
names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
assert len([name for name in names if name != "jemalloc_bg_thd"]) == 1, "threads must not fork"
