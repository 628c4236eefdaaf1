"""What the fork server of :mod:`tests.federation.forked` has imported; import it nowhere else."""

from __future__ import annotations

import os
from importlib import import_module

from hedgerow.services.process.imports import without

# Libraries start their threads when they are imported, and threads do not outlive a fork.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
without("sklearn", "pandas")
for name in (
    "hedgerow.client_agent.__main__",
    "hedgerow.coordinator.__main__",
    "hedgerow.crypto.__main__",
    "hedgerow.coordinator.cli",
    "hedgerow.coordinator.operator.commands.local",
    "hedgerow.coordinator.operator.commands.operate",
    "hedgerow.coordinator.operator.commands.predict",
    "hedgerow.coordinator.operator.library.evaluation",
    "numba",
    "xgboost",
):
    import_module(name)
assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
