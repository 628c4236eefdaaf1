"""Kernels are compiled at their first call, and numba is imported no sooner."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from hedgerow.crypto.compiled import compiled, compiled_with_infinities


@compiled
def _half_of(n: int) -> float:
    return _halved(n) + 0.0


@compiled
def _halved(n: int) -> float:
    return n / 2


@compiled_with_infinities
def _ratio(a: float, b: float) -> float:
    return a / b


@compiled
def _checked_ratio(a: float, b: float) -> float:
    return a / b


def test_a_kernel_calls_others_that_nobody_has_called_from_many_threads() -> None:
    first = _half_of
    with ThreadPoolExecutor(8) as pool:  # by its name, which is another object meanwhile
        found = list(pool.map(lambda n: _half_of(n), range(16)))
    assert found == [n / 2 for n in range(16)]
    assert len(first.signatures) == 1
    assert _half_of is not first
    assert first.__name__ == "_half_of"


def test_division_by_zero_is_what_the_kernel_says() -> None:
    assert _ratio(1.0, 0.0) == float("inf")
    with pytest.raises(ZeroDivisionError):
        _checked_ratio(1.0, 0.0)


@pytest.mark.parametrize(
    "process", ["client_agent.__main__", "coordinator.__main__", "crypto.__main__"]
)
def test_a_process_that_waits_has_not_imported_numba(process: str) -> None:
    script = f"import sys, hedgerow.{process}; print('numba' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert ran.stdout == "False\n", ran.stderr
