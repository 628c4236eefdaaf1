"""Run fuzzers: ``python -m tests.fuzz --seconds 60 [NAME ...]``, by default all.

A name is a fuzzer's, or ``FUZZER/TARGET`` for one of its targets alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path


def main() -> int:
    """Run the fuzzers one after another; return how many found something."""
    known = sorted(path.stem[5:] for path in Path(__file__).parent.glob("fuzz_*.py"))
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", default=known, metavar="NAME")
    parser.add_argument("--seconds", type=int, default=60, help="time of each")
    parser.add_argument("--seed", type=int, default=0, help="0 draws one")
    given = parser.parse_args()
    found = 0
    for name in given.names:
        fuzzer, _, target = name.partition("/")
        only = [f"--target={target}"] if target else []
        command = [sys.executable, "-m", f"tests.fuzz.fuzz_{fuzzer}", *only]
        limits = [f"-max_total_time={given.seconds}", f"-seed={given.seed}"]
        done = subprocess.run([*command, *limits], check=False)
        found += done.returncode != 0
    return found


if __name__ == "__main__":
    sys.exit(main())
