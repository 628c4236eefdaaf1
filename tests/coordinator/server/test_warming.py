"""The first job of a coordinator finds all that it needs imported and compiled."""

from __future__ import annotations

import subprocess
import sys


def test_a_first_job_imports_and_compiles_nothing_more() -> None:
    script = """
import sys
import hedgerow.coordinator.__main__
from hedgerow.coordinator.server.warming import warm_up
warm_up()
from hedgerow.boosting.engine import kernels
def compiled():
    return [len(k.signatures) for k in (kernels.find_scalar, kernels.weigh)]
before, modules = compiled(), set(sys.modules)
import numpy as np
from hedgerow.boosting.dataset import Dataset, Feature, Schema, Task
from hedgerow.services.wire import job as job_wire, job_file
from tests.federation.memory import run_in_memory
tests = set(sys.modules)
text = 'strategy = "histogram"\\nmin_silos = 2\\n[histogram]\\nrounds = 2\\nsecure = false\\n'
schema = Schema((Feature("x"),), "y", Task.BINARY, 2)
X = np.arange(40, dtype=np.float32)[:, None]
table = Dataset(schema, X, (X[:, 0] > 20).astype(np.float64))
outcome = run_in_memory(job_wire.decode(job_file.parse(text)), {"a": table, "b": table})
assert outcome.error is None, outcome.error
assert min(before) == 1, before
assert compiled() == before, compiled()
heavy = {m for m in set(sys.modules) - tests if m.split(".")[0] in ("numba", "xgboost", "scipy")}
assert not {m for m in set(sys.modules) - tests if m.startswith("hedgerow.boosting")}, "imports"
assert not heavy - {m for m in heavy if m.startswith("numba.")}, heavy
"""
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
