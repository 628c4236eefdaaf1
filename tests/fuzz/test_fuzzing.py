"""Some inputs for every fuzzer in every test run; ``make fuzz`` tries more, by time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RUNS = {
    "crypto_service": 500,
    "curve": 500,
    "models": 500,
    "paillier": 1_000,
    "records": 500,
    "wire": 500,
}


def test_every_fuzzer_is_run() -> None:
    fuzzers = Path(__file__).parent.glob("fuzz_*.py")
    assert {path.stem.removeprefix("fuzz_") for path in fuzzers} == RUNS.keys()


@pytest.mark.parametrize("fuzzer", RUNS)
def test_decoders_survive_fuzzing(fuzzer: str) -> None:
    n = RUNS[fuzzer]
    done = subprocess.run(
        [sys.executable, "-m", f"tests.fuzz.fuzz_{fuzzer}", f"-runs={n}", "-seed=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"Done {n} runs" in done.stderr
