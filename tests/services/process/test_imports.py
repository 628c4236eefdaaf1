"""Packages that a process does without, though they are installed."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import sys
from hedgerow.services.process.imports import with_again, without
without("pandas", "sklearn")
import pyarrow
assert pyarrow.array(["a", None]).to_pylist() == ["a", None]
import xgboost
assert not {"pandas", "sklearn"} & set(sys.modules)
with_again("sklearn")
import sklearn.metrics
try:
    import pandas
except ModuleNotFoundError as error:
    print(error.name)
"""


def test_libraries_go_on_without_a_package_until_it_is_there_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("pandas", "")
