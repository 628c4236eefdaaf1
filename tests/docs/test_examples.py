"""The vertical example: the commands of its page, run as they are, with real processes."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import hedgerow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_bank_and_the_registry_train_as_their_page_says(tmp_path: Path) -> None:
    page = (EXAMPLES / "README.md").read_text()
    # Every fourth person: what is seen is the same, in a quarter of the time.
    people = pq.read_table(EXAMPLES / "data/adult.parquet")
    (tmp_path / "data").mkdir()
    pq.write_table(people.take(np.arange(0, people.num_rows, 4)), tmp_path / "data/adult.parquet")
    shutil.copy(EXAMPLES / "adult-vertical.toml", tmp_path)
    lines = re.findall(r"^\$ (hedgerow .*)$", page, re.MULTILINE)
    assert [shlex.split(line)[1] for line in lines] == ["split", "compare", "part"]
    said = []
    for line in lines:
        done = subprocess.run(
            [sys.executable, "-m", *shlex.split(line)],
            cwd=tmp_path, text=True, capture_output=True, timeout=800,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        said.append(done.stdout)
    columns = {p.name: pq.read_schema(p).names for p in (tmp_path / "parts").glob("*.parquet")}
    assert len(columns) == 4
    assert {name for name, own in columns.items() if "label" in own} == {
        "bank.parquet", "test-bank.parquet",
    }  # fmt: skip
    run = tmp_path / "compared/adult-vertical"
    report = json.loads((run / "report.json").read_text())
    auc = report["rounds"][-1]["metrics"]["test"]["auc"]
    alone = re.search(r"bank alone +0\.\d+ +(0\.\d+)", said[1])
    assert alone is not None, said[1]
    assert auc > 0.88 > 0.84 > float(alone[1])
    registry = (run / "silos/registry/part.json").read_text()
    assert not {"value", "gain", "cover", "label"} & set(json.loads(registry))
    assert "passive party registry" in said[2]


def test_the_profile_of_fates_examples_trains_on_parties_of_one_table() -> None:
    people = pq.read_table(EXAMPLES / "data/adult.parquet").slice(0, 1500)
    run = hedgerow.simulate(
        EXAMPLES / "fate-vertical.toml",
        people,
        parties="bank:label,age,capital-gain,capital-loss,hours-per-week;registry:*",
        crypto=False,
    )
    assert run.metrics["test.auc"][-1] > 0.8
    assert len(run.metrics["test.auc"]) == 5
