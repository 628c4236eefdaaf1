"""Run fuzzers: ``python -m tests.fuzz --seconds 60 [NAME ...]``, by default all.

A name is a fuzzer's, or ``FUZZER/TARGET`` for one of its targets alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hedgerow.crypto.threads import usable_cores

ALONE = {**os.environ, "OMP_NUM_THREADS": "1"}
"""XGBoost's threads would only wait for each other: models of a few trees load in half the time."""


def main() -> int:
    """Run the fuzzers, as many at a time as there are cores; return how many found something."""
    known = sorted(path.stem[5:] for path in Path(__file__).parent.glob("fuzz_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", default=known, metavar="NAME")
    parser.add_argument("--seconds", type=int, default=60, help="time of each")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    given = parser.parse_args()

    def run(name: str) -> bool:
        fuzzer, _, target = name.partition("/")
        only = [f"--target={target}"] if target else []
        command = [sys.executable, "-m", f"tests.fuzz.fuzz_{fuzzer}", *only]
        limits = [f"-max_total_time={given.seconds}", f"-seed={given.seed}"]
        done = subprocess.run(
            [*command, *limits], check=False, capture_output=True, text=True, env=ALONE
        )
        print(f"{done.stdout}{done.stderr}{name}: ended with {done.returncode}", flush=True)
        return done.returncode != 0

    with ThreadPoolExecutor(usable_cores()) as pool:
        return sum(pool.map(run, given.names))


if __name__ == "__main__":
    sys.exit(main())
