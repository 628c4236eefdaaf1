"""What holds for all tests."""

from __future__ import annotations

import functools
import gc
import os
from types import ModuleType

import pytest
from hypothesis import settings

# A loaded machine is no defect: time is measured by the benchmarks, not by tests.
# The same examples in every run: a change that breaks none of them breaks none on the next day.
settings.register_profile("hedgerow", deadline=None, derandomize=True)
settings.load_profile("hedgerow")

# Hundreds of agents start: only those whose rates are tested measure them.
os.environ["HEDGEROW_AGENT_CALIBRATE"] = "false"

# Files run side by side: threads that share small work out wait for one another at full speed.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# What is imported and collected stays: the garbage collector need not look through it.
gc.disable()


@functools.cache
def _starts_processes(module: ModuleType | None) -> bool:
    return module is not None and any(
        getattr(value, "__module__", None) == "tests.federation.processes"
        for value in vars(module).values()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with federations of processes first: they wait, and would end a run alone."""
    items.sort(key=lambda item: not _starts_processes(getattr(item, "module", None)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from here on, of what tests leave."""
    gc.collect()
    gc.freeze()
    gc.enable()
