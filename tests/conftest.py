"""What holds for all tests."""

from __future__ import annotations

import functools
import gc
import os
import signal
import threading
from collections.abc import Generator
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from hedgerow.services.process.imports import with_again, without

# A loaded machine is no defect: time is measured by the benchmarks, not by tests.
# The same examples in every run: a change that breaks none of them breaks none on the next day.
settings.register_profile(
    "hedgerow", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("hedgerow")

# Hundreds of agents start: only those whose rates are tested measure them.
os.environ["HEDGEROW_AGENT_CALIBRATE"] = "false"

# Files run side by side: threads that share small work out wait for one another at full speed.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

# A shell that starts the tests in the background has them ignore Ctrl-C, and all that they start.
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every worker imports XGBoost, which imports both for estimators that no test uses; few tests do.
without("sklearn", "pandas")
import xgboost  # noqa: E402, F401

from tests import alone  # noqa: E402
from tests.federation import forked  # noqa: E402

for name in ("sklearn", "pandas"):
    with_again(name)
forked.spare_interpreters()

# What is imported and collected stays: the garbage collector need not look through it.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Let all workers have one fork server, which starts while they collect."""
    alone.watch()
    if config.getoption("numprocesses", None) and config.getoption("markexpr") != alone.SELECTED:
        forked.share()


LONG = (
    "test_compatibility", "test_console", "test_dask_training", "test_fuzzing", "test_mutations",
    "test_no_silent_options", "test_notebooks", "test_report", "test_site",
)  # fmt: skip
"""Files that take longest, which would end a run alone."""


@functools.cache
def _turn(module: ModuleType | None) -> int:
    """Return when a file's turn is: those with processes wait much of their time."""
    if module is None:
        return 2
    if module.__name__.rpartition(".")[2] in LONG:
        return 0
    starting = ("tests.federation.processes", "tests.federation.forked")
    names = (getattr(v, "__module__", getattr(v, "__name__", "")) for v in vars(module).values())
    return 1 if any(name in starting for name in names) else 2


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long files first, then those with processes."""
    items.sort(key=lambda item: _turn(getattr(item, "module", None)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let a test of ``make unit`` start nothing, its fixtures neither.

    A command that a test ran in this process goes without packages that the next test may need.
    """
    try:
        with alone.alone(alone.is_unit(item)):
            return (yield)
    finally:
        for name in ("sklearn", "pandas"):
            with_again(name)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Collect garbage from here on, of what tests leave."""
    gc.collect()
    gc.freeze()
    gc.enable()
