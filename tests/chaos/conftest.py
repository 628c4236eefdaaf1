"""Prints how soon jobs went on after each kind of fault."""

from __future__ import annotations

from statistics import median
from typing import Any

import pytest

RECOVERIES = pytest.StashKey[dict[str, list[tuple[float, float]]]]()
"""By kind of fault: seconds that ending it took, as until a killed process serves again, and
seconds from then to the next finished round, or to the job's end."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[RECOVERIES] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand what a worker process has seen to the one that prints."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["recoveries"] = session.config.stash[RECOVERIES]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take it from the worker."""
    for kind, both in getattr(node, "workeroutput", {}).get("recoveries", {}).items():
        node.config.stash[RECOVERIES].setdefault(kind, []).extend(both)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    found = config.stash[RECOVERIES]
    if not found:
        return
    terminalreporter.section("seconds from the end of a fault to the next finished round")
    terminalreporter.line(f"{'fault':36}{'jobs':>6}{'start-up':>10}{'median':>9}{'most':>9}")
    for kind, both in sorted(found.items()):
        starts, seconds = zip(*both, strict=True)
        figures = f"{len(both):6}{median(starts):10.1f}{median(seconds):9.1f}{max(seconds):9.1f}"
        terminalreporter.line(f"{kind:36}{figures}")
