"""What holds for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A loaded machine is no defect: time is measured by the benchmarks, not by tests.
# The same examples in every run: a change that breaks none of them breaks none on the next day.
settings.register_profile("hedgerow", deadline=None, derandomize=True)
settings.load_profile("hedgerow")

# Hundreds of agents start: only those whose rates are tested measure them.
os.environ["HEDGEROW_AGENT_CALIBRATE"] = "false"


def _starts_processes(item: pytest.Item) -> bool:
    module = getattr(item, "module", None)
    return any(
        getattr(value, "__module__", None) == "tests.federation.processes"
        for value in vars(module).values()
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put files with federations of processes first: they wait, and would end a run alone."""
    items.sort(key=lambda item: not _starts_processes(item))
