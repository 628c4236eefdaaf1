"""A few seconds of fuzzing in every test run; longer by hand (see ``fuzz_wire``)."""

from __future__ import annotations

import re
import subprocess
import sys


def test_decoders_of_every_exchange_survive_fuzzing():
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.fuzz_wire", "-max_total_time=4", "-seed=1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (runs,) = re.findall(r"Done (\d+) runs", done.stderr)
    assert int(runs) > 1000
