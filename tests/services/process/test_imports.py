"""Packages that a process does without, though they are installed."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from hedgerow.services.process import imports

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


@pytest.mark.process
def test_libraries_go_on_without_a_package_until_it_is_there_again() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("pandas", "")


@pytest.mark.parametrize("collects", [False, True])
@pytest.mark.parametrize("ours", [False, True])
def test_imports_leave_the_collector_as_it_was_and_freeze_in_processes_of_ours(
    monkeypatch: pytest.MonkeyPatch, ours: bool, collects: bool
) -> None:
    monkeypatch.setattr(imports, "_of_ours", [True] if ours else [])
    frozen: list[bool] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(gc.isenabled()))
    was = gc.isenabled()
    try:
        (gc.enable if collects else gc.disable)()
        with imports.staying():
            assert not gc.isenabled()
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()
    assert frozen == [False] * ours


RUN = """
import gc, sys
from hedgerow.coordinator import cli
sys.argv = ["hedgerow", "use", "--help"]
if {ours}:
    try:
        cli.run()
    except SystemExit:
        pass
else:
    cli.main.get_command(None, "use")
print(gc.get_freeze_count() > 0, gc.isenabled())
"""


@pytest.mark.process
@pytest.mark.parametrize("ours", [False, True])
def test_a_command_freezes_its_imports_where_the_process_is_ours(ours: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(ours=ours)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == f"{ours} True"
