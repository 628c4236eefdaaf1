"""Kernels are compiled ahead of time or at their first call, and numba is imported no sooner."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from deploy.images import kernels
from hedgerow.crypto.compiled import compiled, compiled_with_infinities
from hedgerow.crypto.compiled import fits as fits_types

ROOT = Path(__file__).resolve().parents[2]
CALLS = """
import logging, sys
if {hidden}:
    sys.modules["numba"] = None
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import numpy as np
from hedgerow.boosting.engine import binning, histogram
from hedgerow.crypto import fields
rng = np.random.default_rng(0)
def words(n=3, kind=np.uint64):
    return rng.integers(0, 1 << 63, n).astype(kind)
{calls}
print("numba" in sys.modules and sys.modules["numba"] is not None)
"""
ADD = "a = words(); print(fields._add(a, words(), words(), np.uint64(1)), a)"
ACCUMULATE = """
rows = histogram._Rows(
    rng.integers(0, 9, 400).astype({bins}), np.uint64(2), np.arange(200, dtype=np.int32),
    rng.normal(size=400).astype(np.float32), np.arange(2, dtype=np.uint64),
    np.array([0, 9, 18], np.uint64), np.uint64(2), np.uint64(0), (1e6, 1e6),
)
out = np.empty((1, 36), np.int64)
histogram._accumulate(rows, np.array([0]), np.array([200]), out)
print(out)
"""
NARROW = ADD + ACCUMULATE.format(bins="np.uint8")
TURNED = "a = words(); print(fields._add(a, words(6)[::2], words(), np.uint64(1)), a)"
SIGNED = "a = words(3, np.int64); print(binning._transpose(a[:, None], a[None]), a)"


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
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda n: _half_of(n), range(16)))
    assert found == [n / 2 for n in range(16)]


def test_division_by_zero_is_what_the_kernel_says() -> None:
    assert _ratio(1.0, 0.0) == float("inf")
    with pytest.raises(ZeroDivisionError):
        _checked_ratio(1.0, 0.0)


@pytest.mark.process
@pytest.mark.parametrize(
    "process", ["client_agent.__main__", "coordinator.__main__", "crypto.__main__"]
)
def test_a_process_that_waits_has_not_imported_numba(process: str) -> None:
    script = f"import sys, hedgerow.{process}; print('numba' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300
    )
    assert ran.stdout == "False\n", ran.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Machine code of three kernels, made as images have it."""
    pytest.importorskip("setuptools")
    if shutil.which("g++") is None:
        pytest.skip("there is no C++ compiler")
    made = tmp_path_factory.mktemp("kernels")
    few = [
        line
        for line in kernels.LIST.read_text().splitlines()
        if "fields._add " in line or "binning._transpose uint8" in line or "_accumulate" in line
    ]
    (made / "list.txt").write_text("\n".join(few) + "\n")
    program = [sys.executable, "deploy/images/kernels.py", str(made), "--list", f"{made}/list.txt"]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    return made


def _said(calls: str, folder: Path | None, *, hidden: bool) -> str:
    environment = {**os.environ, "HEDGEROW_KERNELS": str(folder or "")}
    script = CALLS.format(hidden=hidden, calls=calls)
    ran = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.process
def test_code_made_ahead_gives_what_numba_gives_without_it(folder: Path) -> None:
    ahead = _said(NARROW, folder, hidden=True)
    at_the_call = _said(NARROW, None, hidden=False)
    assert ahead.endswith("False\n")
    assert at_the_call.endswith("True\n")
    assert ahead.removesuffix("False\n") == at_the_call.removesuffix("True\n")
    plain = _said(NARROW, None, hidden=True)
    assert plain.count("runs as Python") == 2
    kept = [line for line in plain.splitlines() if "runs as Python" not in line]
    assert kept == ahead.splitlines()


@pytest.mark.process
@pytest.mark.parametrize("calls", [TURNED, SIGNED])
def test_arguments_of_other_types_do_not_reach_the_code(folder: Path, calls: str) -> None:
    plain = _said(calls, folder, hidden=True)
    assert "runs as Python: no code for" in plain
    by_numba = _said(calls, folder, hidden=False)
    assert "runs as Python" not in by_numba
    assert plain.splitlines()[1:-1] == by_numba.splitlines()[:-1]


@pytest.mark.process
def test_code_of_other_sources_is_not_used(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    table = json.loads((tmp_path / "kernels.json").read_text())
    (tmp_path / "kernels.json").write_text(json.dumps({**table, "digest": "0" * 64}))
    said = _said(ADD, tmp_path, hidden=False)
    assert "are not used: made from other sources" in said
    assert said.endswith("True\n")
    for library in tmp_path.glob("*.so"):
        library.write_bytes(b"no library")
    (tmp_path / "kernels.json").write_text(json.dumps(table))
    assert "is not the library that its table is of" in _said(ADD, tmp_path, hidden=True)
    (tmp_path / "kernels.json").write_text("[]")
    assert "are not used: " in _said(ADD, tmp_path, hidden=True)


@pytest.mark.process
def test_a_child_finds_kernels_that_its_parent_was_finding_when_it_forked(folder: Path) -> None:
    forked = """
import os, threading
from hedgerow.crypto import compiled
held, leave = threading.Event(), threading.Event()
def hold():
    with compiled._lock:
        held.set()
        leave.wait(0.5)
thread = threading.Thread(target=hold)
thread.start()
held.wait()
child = os.fork()
fields._add(words(), words(), words(), np.uint64(1))
if child == 0:
    os._exit(0)
thread.join()
print("ended", os.waitpid(child, 0)[1])
"""
    assert _said(forked, folder, hidden=True) == "ended 0\nFalse\n"


@pytest.mark.parametrize(
    ("given", "wanted", "taken"),
    [
        ("uint8[2C]", "uint8[2C]", True),
        ("uint8[2C]", "const:uint8[2A]", True),
        ("uint8[2F]", "uint8[2A]", True),
        ("const:uint8[2F]", "const:uint8[2A]", True),
        ("const:uint8[2C]", "uint8[2C]", False),
        ("uint8[2A]", "uint8[2C]", False),
        ("uint8[2F]", "uint8[2C]", False),
        ("uint8[2C]", "uint8[1A]", False),
        ("int8[2C]", "uint8[2A]", False),
        ("int64", "uint64", False),
    ],
)
def test_code_takes_arrays_in_the_order_that_it_reads(given: str, wanted: str, taken: bool) -> None:
    assert fits_types((given,), (wanted,)) == taken


@pytest.mark.slow
def test_images_have_code_of_every_kernel_that_python_calls() -> None:
    listed = {line.split()[0] for line in kernels.LIST.read_text().splitlines()}
    assert listed == set(kernels.of_python())
