"""The simulation itself: it repeats, it finds what is put back, and nothing of it is real."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.faults import FAULTS
from tests.simulation.recorded import load, table

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]


def _run(*words: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *words],
        cwd=ROOT, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_seed_gives_the_same_bytes_twice() -> None:
    # All messages, log lines and times; ledgers, records, accounts and artefacts.
    first, second = _run("--seed", "3", "--log"), _run("--seed", "3", "--log")
    assert first[0] == second[0] == 0, first[1]
    assert "SUCCEEDED" in first[1]
    assert " up Exchange " in first[1]
    lines = [
        [line for line in text.splitlines() if not line.startswith("simulation: ")]  # has its time
        for _, text in (first, second)
    ]
    assert lines[0] == lines[1]
    assert any(line.startswith("digest ") for line in lines[0])


def test_what_is_recorded_is_found_again() -> None:
    code, text = _run("--recorded")
    assert code == 0, text


def test_runs_are_kept_that_find_faults() -> None:
    found = {one.fault for one in load()} - {""}
    assert found <= set(FAULTS)
    assert len(found) >= 19
    assert table() in (ROOT / "docs/how-it-is-tested.md").read_text()


def test_a_run_that_fails_says_how_to_repeat_it() -> None:
    found = next(one for one in load() if "synced" in one.fault)
    code, text = _run("--faults", found.fault, "--seed", str(found.plan.seed), "--seconds", "120")
    assert code == 0, text
    assert f"python -m tests.simulation --seed {found.plan.seed}" in text, text
