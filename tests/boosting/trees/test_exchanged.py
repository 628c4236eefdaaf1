"""A model file of one XGBoost scores the same in the other versions: docs/xgboost-versions.md."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.boosting.trees import exchanged

ROOT = Path(__file__).resolve().parents[3]
OTHERS = sorted(ROOT.glob("build/matrix/*/bin/python"))
"""Of the environments that ``make matrix`` has built here."""


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_score_the_same_where_they_were_written(tmp_path: Path) -> None:
    exchanged.write(tmp_path)
    exchanged.read(tmp_path)


@pytest.mark.process
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.skipif(not OTHERS, reason="no other version's environment: make matrix")
@pytest.mark.parametrize("other", OTHERS, ids=lambda path: path.parents[1].name)
def test_files_score_the_same_in_another_version(tmp_path: Path, other: Path) -> None:
    def run(what: str, folder: Path) -> None:
        command = [other, "-m", "tests.boosting.trees.exchanged", what, folder]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr

    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    exchanged.write(ours)
    run("read", ours)
    run("write", theirs)
    exchanged.read(theirs)
