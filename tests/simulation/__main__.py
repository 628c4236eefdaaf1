"""``python -m tests.simulation``: seeds of the simulated federation."""

from __future__ import annotations

import argparse
import ctypes
import os
import sys

ADDR_NO_RANDOMIZE = 0x0040000
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HEDGEROW_SIMULATION": "1",
}


def begin_again() -> None:
    """Replace this process by one in which the same happens every time."""
    if os.environ.get("HEDGEROW_SIMULATION"):
        return
    own = dict(ENVIRONMENT)
    persona = ctypes.CDLL(None).personality
    if persona(ADDR_NO_RANDOMIZE) == -1:
        # Maps in messages are in the order of addresses then, but for those in Python.
        own["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    arguments = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
    os.execve(sys.executable, arguments, {**os.environ, **own})


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, or the first of many")
    parser.add_argument("--seconds", type=float, default=0.0, help="run fresh seeds for so long")
    parser.add_argument("--number", type=int, default=1, help="run so many seeds")
    parser.add_argument("--only", default="", help="numbers of the operations to do, of the seed's")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--log", action="store_true", help="print all that happens")
    parser.add_argument(
        "--faults", metavar="WORDS", help="put faults with these words, or | those, back"
    )
    parser.add_argument("--recorded", action="store_true", help="run what is recorded, first")
    parser.add_argument(
        "--record", action="store_true", help="keep the runs that find faults, and searches in vain"
    )
    parser.add_argument("--no-shrink", action="store_true")
    given = parser.parse_args()
    begin_again()
    from tests.simulation import scheduler

    scheduler.install()
    from tests.simulation import running, seeds

    running.install()

    failed = seeds.main(given)
    sys.stdout.flush()
    os._exit(failed)  # threads of the first run, which all others begin after, still wait


if __name__ == "__main__":
    main()
